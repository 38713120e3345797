//! Finding tokens that are not made by merges: control tokens and those that a user added.

use super::{Kind, Special};
use crate::TokenId;
use aho_corasick::Anchored;
use aho_corasick::automaton::Automaton;
use aho_corasick::nfa::contiguous::NFA;
use memchr::memmem;
use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

/// A stretch of text: one special token, or text between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// A special token.
    Token(TokenId),
    /// Bytes of the text that hold no special token.
    Text(Range<usize>),
}

/// The special tokens of a vocabulary.
#[derive(Debug, Default)]
pub(super) struct Specials {
    /// The longest first, then by number: the order in which they are looked for.
    tokens: Vec<SpecialToken>,
    /// Finds which of them a text holds at all.
    finder: Option<NFA>,
}

#[derive(Debug)]
struct SpecialToken {
    id: TokenId,
    text: String,
    kind: Kind,
}

impl Specials {
    /// Takes the tokens of a kind other than normal. Left out are those with an empty text, and those
    /// with broken UTF-8: they would be found in the middle of a character.
    pub fn new(tokens: Vec<(TokenId, &[u8], Kind)>) -> Specials {
        let special = |(id, text, kind)| {
            let text = std::str::from_utf8(text).ok().filter(|text| !text.is_empty())?.to_owned();
            Some(SpecialToken { id, text, kind })
        };
        let mut tokens: Vec<_> = tokens.into_iter().filter_map(special).collect();
        tokens.sort_by_key(|token| (std::cmp::Reverse(token.text.len()), token.id));
        // Only a vocabulary beyond the automaton's 2^31 states fails; its special tokens are text.
        let finder = NFA::new(tokens.iter().map(|token| &token.text)).ok();
        Specials { tokens, finder }
    }

    /// The texts of the control tokens.
    pub fn control_texts(&self) -> impl Iterator<Item = &str> {
        let control = self.tokens.iter().filter(|token| token.kind == Kind::Control);
        control.map(|token| token.text.as_str())
    }

    /// Cuts `text` at its special tokens, as llama.cpp does: every occurrence of the longest token,
    /// then in what is left every one of the next, and so on. [`Special::Plain`] sees only the
    /// tokens that a user added.
    pub fn split(&self, text: &str, special: Special) -> Vec<Part> {
        let mut parts = Vec::new();
        if !text.is_empty() {
            parts.push(Part::Text(0..text.len()));
        }
        for token in self.held_by(text, special) {
            let finder = memmem::Finder::new(&token.text);
            let mut cut = Vec::with_capacity(parts.len() + 2);
            for part in parts {
                let Part::Text(range) = part else {
                    cut.push(part);
                    continue;
                };
                let mut start = range.start;
                for found in finder.find_iter(&text.as_bytes()[range.clone()]) {
                    let found = range.start + found;
                    if found > start {
                        cut.push(Part::Text(start..found));
                    }
                    cut.push(Part::Token(token.id));
                    start = found + token.text.len();
                }
                if start < range.end {
                    cut.push(Part::Text(start..range.end));
                }
            }
            parts = cut;
        }
        parts
    }

    /// The tokens that occur somewhere in `text`, in the order in which they are looked for.
    fn held_by(&self, text: &str, special: Special) -> impl Iterator<Item = &SpecialToken> {
        let mut found = BTreeSet::new();
        if let Some(finder) = &self.finder
            && let Ok(start) = finder.start_state(Anchored::No)
        {
            let mut state = start;
            let mut seen = HashSet::new();
            for &byte in text.as_bytes() {
                state = finder.next_state(Anchored::No, state, byte);
                // A state stands for the tokens that end here: each state has to be asked once.
                if finder.is_special(state) && finder.is_match(state) && seen.insert(state) {
                    let n = finder.match_len(state);
                    found.extend((0..n).map(|i| finder.match_pattern(state, i).as_usize()));
                }
            }
        }
        found
            .into_iter()
            .map(|i| &self.tokens[i])
            .filter(move |token| special == Special::Parse || token.kind == Kind::Added)
    }
}
