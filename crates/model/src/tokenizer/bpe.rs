//! Byte-pair encoding after Sennrich et al. 2016, on the bytes of words (GPT-2) or on characters.

use super::TokenizerError;
use super::index::Index;
use super::merge::{Merger, Merges, NO_SYMBOL, Symbol, parts_of};
use super::rows::Row;
use super::split::Splitter;
use crate::TokenId;
use crate::file::{Strings, shown};
use foldhash::fast::RandomState;
use std::collections::HashMap;

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
    let mut rest = text;
    loop {
        // The alphabet ends before U+0800: a character has one or two bytes.
        let (byte, n) = match *rest {
            [] => return true,
            [a @ 0x21..=0x7e, ..] => (Some(a), 1),
            [a @ 0xc2..=0xdf, b @ 0x80..=0xbf, ..] => {
                let c = char::from_u32(u32::from(a & 0x1f) << 6 | u32::from(b & 0x3f));
                (c.and_then(byte_of), 2)
            }
            _ => (None, 1),
        };
        let Some(byte) = byte else {
            out.truncate(start);
            return false;
        };
        out.push(byte);
        rest = &rest[n..];
    }
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
    ///
    /// # Errors
    /// If a merge is not of two symbols.
    pub fn new(
        row: &'static Row,
        tokens: &Strings,
        merges: &Strings,
    ) -> Result<Bpe, TokenizerError> {
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
        let (mut left, mut right, mut next) = (Vec::new(), Vec::new(), 0);
        for (rank, merge) in merges.iter().enumerate() {
            // A symbol may begin with a space.
            let space = merge.iter().skip(1).position(|&b| b == b' ').map(|i| i + 1);
            let Some(space) = space.filter(|space| space + 1 < merge.len()) else {
                let merge = shown(&String::from_utf8_lossy(merge));
                return Err(TokenizerError::Merge { i: rank, merge });
            };
            if !read(&merge[..space], &mut left) || !read(&merge[space + 1..], &mut right) {
                continue;
            }
            let mut number =
                |piece: &[u8]| symbols.find(piece).unwrap_or_else(|| symbols.push(piece));
            let pair = (number(&left), number(&right));
            left.extend_from_slice(&right);
            // Mostly tokens come in the order of their merges.
            let joined = match symbols.get(next) {
                Some(piece) if piece == left => next,
                _ => symbols.find(&left).unwrap_or_else(|| symbols.push(&left)),
            };
            next = joined.wrapping_add(1);
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
        Ok(Bpe {
            splitter: Splitter::new(row),
            row,
            symbols,
            n_tokens,
            pairs,
            byte_symbols,
            byte_tokens,
        })
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
        self.splitter.split(text, |word| {
            for part in parts_of(&text[word]) {
                self.encode_word(part, &mut merger, out);
            }
        });
    }

    fn encode_word(&self, word: &str, merger: &mut Merger, out: &mut Vec<TokenId>) {
        let bytes = word.as_bytes();
        let whole = self.row.whole_words || (self.row.raw && bytes.first() == Some(&b'\n'));
        if whole && let Some(id) = self.token(bytes) {
            out.push(id);
            return;
        }
        merger.clear();
        if self.row.raw {
            for c in word.split_inclusive(|_| true) {
                merger.push(self.symbols.find(c.as_bytes()).unwrap_or(NO_SYMBOL), c.len());
            }
        } else {
            bytes.iter().for_each(|&b| merger.push(self.byte_symbols[b as usize], 1));
        }
        merger.run(bytes, self);
        for symbol in merger.symbols() {
            if symbol.id < self.n_tokens {
                out.push(symbol.id);
            } else {
                // A vocabulary that lacks a byte loses it, as in llama.cpp.
                let tokens = bytes[symbol.bytes()].iter();
                out.extend(tokens.filter_map(|&b| self.byte_tokens[b as usize]));
            }
        }
    }

    /// What a token stands for in text, if it is written in the alphabet.
    pub fn content(&self, id: TokenId) -> &[u8] {
        self.symbols.get(id).unwrap_or_default()
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
