//! Byte-pair encoding after Sennrich et al. 2016, on the bytes of words (GPT-2) or on characters.

use super::index::Index;
use super::merge::{Merger, Merges, NO_SYMBOL, Symbol};
use super::split::{Row, Splitter};
use crate::TokenId;
use crate::file::Strings;
use foldhash::fast::RandomState;
use std::collections::HashMap;
use std::ops::Range;

/// The byte that GPT-2's printable alphabet writes as `c`.
///
/// Printable Latin-1 stands for itself; the 68 other bytes are written, in order, as U+0100 and on.
pub(super) fn byte_of(c: char) -> Option<u8> {
    match c as u32 {
        c @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => Some(c as u8),
        c @ 0x100..=0x120 => Some((c - 0x100) as u8),
        c @ 0x121..=0x142 => Some((c - 0x121) as u8 + 0x7f),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// Appends the bytes that `text` stands for in GPT-2's alphabet; `false` (and nothing appended) if
/// it is not written in that alphabet.
pub(super) fn push_bytes_of(text: &[u8], out: &mut Vec<u8>) -> bool {
    let start = out.len();
    for chunk in text.utf8_chunks() {
        if !chunk.invalid().is_empty() || !chunk.valid().chars().all(|c| byte_of(c).is_some()) {
            out.truncate(start);
            return false;
        }
        out.extend(chunk.valid().chars().filter_map(byte_of));
    }
    true
}

/// A byte-pair model: what the words are, and which neighbours join in which order.
#[derive(Debug)]
pub(super) struct Bpe {
    splitter: Splitter,
    row: &'static Row,
    /// Tokens by content, then the symbols that only the merges know.
    symbols: Index,
    n_tokens: u32,
    /// (left, right) to (rank, joined).
    pairs: HashMap<(u32, u32), (u32, u32), RandomState>,
    byte_symbols: [u32; 256],
    /// The token of a byte that is part of no other token.
    byte_tokens: [Option<TokenId>; 256],
}

impl Bpe {
    /// A model of `tokens` and `merges` ("left right", best first), both as written in the file.
    pub fn new(row: &'static Row, tokens: &Strings, merges: &Strings) -> Bpe {
        let n_tokens = tokens.len() as u32;
        let mut content = Vec::new();
        let read = |text: &[u8], content: &mut Vec<u8>| {
            content.clear();
            if row.raw {
                content.extend_from_slice(text);
                true
            } else {
                push_bytes_of(text, content)
            }
        };
        let mut contents = Strings::default();
        for token in tokens.iter() {
            // A token outside the alphabet is a control token: text never reaches it by merges.
            read(token, &mut content);
            contents.push(&content);
        }
        let mut symbols = Index::new(contents);
        let mut pairs = HashMap::with_capacity_and_hasher(merges.len(), RandomState::default());
        let (mut left, mut right) = (Vec::new(), Vec::new());
        for (rank, merge) in merges.iter().enumerate() {
            let Some(space) = merge.iter().skip(1).position(|&b| b == b' ') else { continue };
            if !read(&merge[..space + 1], &mut left) || !read(&merge[space + 2..], &mut right) {
                continue;
            }
            let mut number =
                |piece: &[u8]| symbols.find(piece).unwrap_or_else(|| symbols.push(piece));
            let pair = (number(&left), number(&right));
            left.extend_from_slice(&right);
            let joined = number(&left);
            pairs.entry(pair).or_insert((rank as u32, joined));
        }
        let byte_symbols = std::array::from_fn(|b| symbols.find(&[b as u8]).unwrap_or(NO_SYMBOL));
        let byte_tokens = std::array::from_fn(|b| {
            let found = match row.raw {
                true => symbols.find(format!("<0x{b:02X}>").as_bytes()),
                false => symbols.find(&[b as u8]),
            };
            found.filter(|&id| id < n_tokens)
        });
        Bpe {
            splitter: Splitter::new(row),
            row,
            symbols,
            n_tokens,
            pairs,
            byte_symbols,
            byte_tokens,
        }
    }

    /// Appends the tokens of `text`, which holds no special tokens.
    pub fn encode(&self, text: &str, out: &mut Vec<TokenId>) {
        let spaced;
        let text = match self.row.raw {
            true => {
                spaced = text.replace(' ', "\u{2581}");
                &spaced
            }
            false => text,
        };
        let mut merger = Merger::default();
        self.splitter.split(text, |word| self.encode_word(text, word, &mut merger, out));
    }

    fn encode_word(
        &self,
        text: &str,
        word: Range<usize>,
        merger: &mut Merger,
        out: &mut Vec<TokenId>,
    ) {
        let bytes = text.as_bytes();
        let whole = self.row.whole_words || (self.row.raw && bytes[word.start] == b'\n');
        if whole && let Some(id) = self.token(&bytes[word.clone()]) {
            out.push(id);
            return;
        }
        merger.clear();
        if self.row.raw {
            for (i, c) in text[word.clone()].char_indices() {
                let at = word.start + i..word.start + i + c.len_utf8();
                merger.push(self.symbols.find(&bytes[at.clone()]).unwrap_or(NO_SYMBOL), at);
            }
        } else {
            for i in word {
                merger.push(self.byte_symbols[bytes[i] as usize], i..i + 1);
            }
        }
        merger.run(bytes, self);
        for symbol in merger.symbols() {
            if symbol.id < self.n_tokens {
                out.push(symbol.id);
            } else {
                // A vocabulary that lacks a byte loses it, as in llama.cpp.
                let tokens = bytes[symbol.bytes.clone()].iter();
                out.extend(tokens.filter_map(|&b| self.byte_tokens[b as usize]));
            }
        }
    }

    fn token(&self, content: &[u8]) -> Option<TokenId> {
        self.symbols.find(content).filter(|&id| id < self.n_tokens)
    }
}

impl Merges for Bpe {
    fn merge(&self, _: &[u8], left: &Symbol, right: &Symbol) -> Option<(u32, u32)> {
        self.pairs.get(&(left.id, right.id)).copied()
    }
}
