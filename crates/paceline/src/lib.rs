//! paceline runs and serves large language models on the machine at hand.

pub mod cache;
pub mod catalogue;
mod completion;
pub mod fetch;
mod llm;
mod memory;
#[cfg(feature = "server")]
pub mod server;
mod text;
pub mod units;
mod worker;

pub use completion::{Choice, Completion, Timings};
pub use llm::{Chunk, Error, Llm, LlmConfig, Prompt, Stream, draw_seed};
pub use memory::{KvMemory, MemoryError};
pub use paceline_engine::{
    EngineConfig, FinishReason, InvalidRequest, Limits, Logprobs, SamplingParams, Speculate, Stats,
    Stop, Usage, Vocab,
};
pub use paceline_model::TokenId;
pub use text::{ChatError, Message, Text};
