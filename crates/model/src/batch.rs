//! [`Batch`]: the rows of one step, as plain data.

use crate::TokenId;
use std::ops::Range;

/// Consecutive rows of one sequence.
pub use paceline_kernels::AttentionSpan as Span;

/// The rows of one step: prefill chunks, decodes and drafts alike.
///
/// ```text
/// tokens   | prompt chunk of a . . . . | b | c d d d |      T rows
/// spans      0..5 at position 16         5..6  6..10        S spans, in row order, no gaps
/// outputs                                5     6 7 8 9      rows whose logits are wanted
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The token of each row, `[T]`.
    pub tokens: Vec<TokenId>,
    /// The sequences, `[S]`.
    pub spans: Vec<Span>,
    /// The block tables of all spans, one after the other.
    pub blocks: Vec<u32>,
    /// The rows whose hidden state is kept for `Model::logits`, ascending.
    pub outputs: Vec<usize>,
}

impl Batch {
    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.spans.clear();
        self.blocks.clear();
        self.outputs.clear();
    }

    /// Number of rows.
    pub fn n_rows(&self) -> usize {
        self.tokens.len()
    }

    /// Adds the rows of one sequence: `tokens` at `position` and after, with its block table.
    /// Returns their row numbers.
    pub fn push(&mut self, tokens: &[TokenId], position: usize, blocks: &[u32]) -> Range<usize> {
        let rows = self.tokens.len()..self.tokens.len() + tokens.len();
        let table = self.blocks.len()..self.blocks.len() + blocks.len();
        self.tokens.extend_from_slice(tokens);
        self.blocks.extend_from_slice(blocks);
        self.spans.push(Span { rows: rows.clone(), position, blocks: table });
        rows
    }
}
