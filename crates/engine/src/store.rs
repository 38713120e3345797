//! [`BlockStore`]: where the blocks go that the KV cache gives up, and come back from.

use paceline_model::TokenId;
use std::time::Duration;

/// Keeps blocks of the KV cache outside of it, say on a disk. A block is named by the `salt` and by all
/// tokens from the start of a text to the block's end, `tokens`, so `tokens.len()` is a multiple of B.
///
/// The store must give back the very bytes that it was given under that name by the same model, or
/// nothing. It may lose blocks at any time.
pub trait BlockStore: Send {
    /// Of the blocks of a text after the first `n`, how many in a row are there; they count as used.
    /// A rest of `tokens` shorter than a block is none.
    fn find(&mut self, salt: &str, tokens: &[TokenId], n: usize) -> usize;

    /// K and V of the last block of `tokens`; `None` if they cannot be had.
    fn get(&mut self, salt: &str, tokens: &[TokenId]) -> Option<&[u8]>;

    /// Whether the last block of `tokens` should be put: it is not there, and it could be. If it is
    /// there, it counts as used.
    fn wants(&mut self, salt: &str, tokens: &[TokenId]) -> bool;

    /// Keeps the last block of `tokens`, as far as it can. With `wait` it may take its time, without it
    /// must not.
    fn put(&mut self, salt: &str, tokens: &[TokenId], bytes: Vec<u8>, wait: bool);

    /// The most blocks that it can hold.
    fn capacity(&self) -> usize;

    /// How long its caller has waited for it so far, in all. The engine has no clock of its own.
    fn spent(&self) -> Duration;
}
