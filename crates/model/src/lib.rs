//! A model on disk becomes [`Model::forward`].
//!
//! This crate is the only reader of model files: weights, tokenizer and chat template. It never
//! sees a request or a sequence; a step reaches it as a [`Batch`] of rows.

pub mod batch;
pub mod chat;
pub mod cost;
mod decoder;
pub mod file;
mod load;
pub mod meta;
pub mod tokenizer;
mod weights;

pub use batch::{Batch, Span};
pub use chat::{ChatError, ChatOptions, ChatTemplate, Rendered};
pub use cost::{Cost, Rows, Work};
pub use decoder::Decoder;
pub use load::{LoadError, LoadOptions, Loaded, load, load_text};
pub use paceline_kernels::Mat;
pub use tokenizer::{Special, Tokenizer, TokenizerError};
pub use weights::{Precision, WeightsError};

/// A token's number in the vocabulary.
pub type TokenId = u32;

/// What the engine must know of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSpec {
    /// V: number of tokens, so the width of a row of logits.
    pub vocab_len: usize,
    /// The longest sequence that the model was made for, in tokens.
    pub context_len: usize,
    /// Bytes of K and V of one block, all layers together.
    pub kv_block_bytes: usize,
    /// B: tokens in one block of the KV cache.
    pub block_len: usize,
    /// What a step costs at least.
    pub cost: Cost,
}

/// The memory for a KV cache could not be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot reserve {bytes} bytes for the KV cache: lower --kv-memory")]
pub struct KvMemoryError {
    /// What was asked for.
    pub bytes: usize,
}

/// A model that computes: the boundary that a back end implements.
///
/// A model owns the storage of its KV cache, since that is memory of its device; the caller owns
/// its *use*, naming blocks by number.
pub trait Model: Send {
    /// The model's fixed numbers.
    fn spec(&self) -> &ModelSpec;

    /// Reserves the KV cache, blocks `0..n_blocks`. Called once, before the first step.
    ///
    /// # Errors
    /// If the memory cannot be had.
    fn reserve_kv(&mut self, n_blocks: usize) -> Result<(), KvMemoryError>;

    /// Computes one step: writes the K and V of every row to its slot and keeps the final hidden
    /// state of the rows in [`Batch::outputs`] for [`Model::logits`].
    ///
    /// A row's result depends only on the weights and on the tokens before it.
    ///
    /// # Panics
    /// If the batch is malformed (see [`Batch`]) or names a block outside the cache.
    fn forward(&mut self, batch: &Batch);

    /// Logits `[range.len(), V]` of a range of the last step's outputs, where output `i` is row
    /// `batch.outputs[i]`. Ranges are projected apart so that V-wide rows need never all be in
    /// memory at once.
    ///
    /// # Panics
    /// If the range exceeds the last step's outputs.
    fn logits(&mut self, outputs: std::ops::Range<usize>, logits: &mut Mat);

    /// Appends K and V of a full block, [`ModelSpec::kv_block_bytes`] of them, for
    /// [`Model::write_block`] to put into any block later.
    ///
    /// # Panics
    /// If the block is outside the cache.
    fn read_block(&self, block: u32, bytes: &mut Vec<u8>);

    /// Makes a block hold what [`Model::read_block`] read: later steps see the same bits as if it had
    /// been computed.
    ///
    /// # Panics
    /// If the block is outside the cache, or these are not the bytes of a block.
    fn write_block(&mut self, block: u32, bytes: &[u8]);
}
