//! Prompt lookup: what followed the last time.

use super::Drafter;
use paceline_model::TokenId;
use std::collections::HashMap;

/// The longest run of tokens that is looked up.
const MAX_NGRAM: usize = 3;

/// Fills the places of an n-gram shorter than [`MAX_NGRAM`]; no token has this id.
const NO_TOKEN: TokenId = TokenId::MAX;

/// Finds the most recent earlier occurrence of the last 3 (else 2, else 1) tokens in prompt and
/// output and guesses that the same follows.
///
/// Every n-gram is entered in a table once, when the token after it is known: O(1) a token.
#[derive(Debug, Default)]
pub struct Lookup {
    /// Where the latest occurrence of an n-gram ends, that is the index of the token after it.
    ends: HashMap<[TokenId; MAX_NGRAM], usize>,
    /// N-grams that end at or before here are entered.
    entered: usize,
}

impl Lookup {
    /// A lookup that has seen nothing.
    pub fn new() -> Lookup {
        Lookup::default()
    }
}

/// The `n` tokens before `end`.
fn ngram(tokens: &[TokenId], end: usize, n: usize) -> [TokenId; MAX_NGRAM] {
    let mut key = [NO_TOKEN; MAX_NGRAM];
    key[..n].copy_from_slice(&tokens[end - n..end]);
    key
}

impl Drafter for Lookup {
    fn draft(&mut self, tokens: &[TokenId], max: usize, out: &mut Vec<TokenId>) {
        while self.entered + 1 < tokens.len() {
            self.entered += 1;
            for n in 1..=MAX_NGRAM.min(self.entered) {
                self.ends.insert(ngram(tokens, self.entered, n), self.entered);
            }
        }
        let longest = MAX_NGRAM.min(tokens.len());
        let found =
            (1..=longest).rev().find_map(|n| self.ends.get(&ngram(tokens, tokens.len(), n)));
        let Some(&end) = found else { return };
        // A match that reaches into the last tokens repeats with their period: go on in the guesses.
        let start = out.len();
        for i in end..end + max {
            let guess = match tokens.get(i) {
                Some(&token) => token,
                None => out[start + i - tokens.len()],
            };
            out.push(guess);
        }
    }
}
