//! SentencePiece's BPE as llama.cpp runs it: any two neighbours that together are a token may join,
//! the best score first; what is left and no token is written as bytes.

use super::index::Index;
use super::merge::{Merger, Merges, NO_SYMBOL, Symbol, parts_of};
use crate::TokenId;
use crate::file::Strings;
use std::collections::HashSet;

/// How SentencePiece writes a space.
pub(super) const SPACE: char = '\u{2581}';

/// A `llama` vocabulary. Its scores are merge ranks, not log-probabilities.
#[derive(Debug)]
pub(super) struct Spm {
    tokens: Index,
    /// Rank of each token: the order of falling scores.
    ranks: Vec<u32>,
    longest: usize,
    byte_tokens: [Option<TokenId>; 256],
    /// Characters before which-a-space some token goes on: words may not be cut there.
    bridges: HashSet<char>,
}

impl Spm {
    /// A model of `tokens` as written in the file, and their scores.
    pub fn new(tokens: &Strings, scores: &[f32], unknown: Option<TokenId>) -> Spm {
        let mut longest = 0;
        let mut bridges = HashSet::new();
        for token in tokens.iter() {
            longest = longest.max(token.len());
            push_bridges(token, &mut bridges);
        }
        let ranks = scores.iter().copied().map(rank).collect();
        let tokens = Index::new(tokens.clone());
        let byte_tokens = std::array::from_fn(|b| {
            let token = tokens.find(format!("<0x{b:02X}>").as_bytes());
            token.or_else(|| tokens.find(&[b as u8])).or(unknown)
        });
        Spm { tokens, ranks, longest, byte_tokens, bridges }
    }

    /// Appends the tokens of `text`, which holds no special tokens; `space_before` puts a space in front.
    pub fn encode(&self, text: &str, space_before: bool, out: &mut Vec<TokenId>) {
        let mut spaced = String::with_capacity(text.len() * 3 / 2 + SPACE.len_utf8());
        if space_before {
            spaced.push(SPACE);
        }
        spaced.extend(text.chars().map(|c| if c == ' ' { SPACE } else { c }));
        let mut merger = Merger::default();
        for run in parts_of(&spaced) {
            let mut start = 0;
            let mut previous = None;
            for (i, c) in run.char_indices() {
                // No token holds a space after another character, save after a bridge: so no merge
                // crosses this place, and each word can be merged for itself.
                if let Some(before) = previous
                    && c == SPACE
                    && before != SPACE
                    && !self.bridges.contains(&before)
                {
                    self.encode_word(&run[start..i], &mut merger, out);
                    start = i;
                }
                previous = Some(c);
            }
            self.encode_word(&run[start..], &mut merger, out);
        }
    }

    fn encode_word(&self, word: &str, merger: &mut Merger, out: &mut Vec<TokenId>) {
        merger.clear();
        word.chars().for_each(|c| merger.push(NO_SYMBOL, c.len_utf8()));
        let word = word.as_bytes();
        merger.run(word, self);
        for symbol in merger.symbols() {
            let bytes = &word[symbol.bytes()];
            let joined = Some(symbol.id).filter(|&id| id != NO_SYMBOL);
            match joined.or_else(|| self.tokens.find(bytes)) {
                Some(id) => out.push(id),
                None => out.extend(bytes.iter().filter_map(|&b| self.byte_tokens[b as usize])),
            }
        }
    }
}

impl Merges for Spm {
    fn merge(&self, word: &[u8], left: &Symbol, right: &Symbol) -> Option<(u32, u32)> {
        let bytes = left.start as usize..right.end as usize;
        if bytes.len() > self.longest {
            return None;
        }
        let id = self.tokens.find(&word[bytes])?;
        Some((self.ranks.get(id as usize).copied().unwrap_or(0), id))
    }
}

/// Maps scores to ranks: a higher score is a lower rank, equal scores have equal ranks.
fn rank(score: f32) -> u32 {
    // Adding 0 makes -0 equal 0. A float's bits as an integer order like the float once the sign
    // is folded away.
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !ascending
}

/// Notes the characters of `token` that a space follows.
fn push_bridges(token: &[u8], bridges: &mut HashSet<char>) {
    // Almost no token has a space after its first byte: look for that first.
    let mark = SPACE.to_string();
    if !token.get(1..).is_some_and(|rest| rest.windows(3).any(|w| w == mark.as_bytes())) {
        return;
    }
    let text = String::from_utf8_lossy(token);
    for (before, c) in text.chars().zip(text.chars().skip(1)) {
        if c == SPACE && before != SPACE {
            bridges.insert(before);
        }
    }
}
