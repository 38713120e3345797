//! paceline runs and serves large language models on the machine at hand.
//!
//! ```no_run
//! use paceline::{Llm, Message, SamplingParams};
//!
//! # fn main() -> Result<(), paceline::Error> {
//! // A name of the catalogue, a .gguf file, or a folder as Hugging Face ships them.
//! let llm = Llm::load("smollm2-135m")?;
//! let params = SamplingParams { temperature: 0.8, max_tokens: Some(64), ..Default::default() };
//!
//! // Any number of prompts, computed together.
//! for completion in llm.generate(&["Once upon a time", "The sea is"], &params)? {
//!     println!("{}", completion.choices[0].text);
//! }
//!
//! // A conversation.
//! let answer = llm.chat(&[Message::user("Why is the sky blue?")], &params)?;
//! println!("{}", answer.choices[0].text);
//!
//! // Piece by piece; dropping the stream aborts the request.
//! for chunk in llm.stream("One, two, three,", &params)? {
//!     print!("{}", chunk.text);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The engine runs in a thread of its own and serves any number of callers at once: an [`Llm`] can
//! be shared between threads.

pub mod bench;
mod builder;
pub mod cache;
pub mod catalogue;
mod completion;
mod disk;
pub mod fetch;
mod llm;
mod memory;
#[cfg(feature = "server")]
pub mod server;
mod text;
pub mod units;
mod worker;

pub use builder::{Builder, find_model};
pub use completion::{Choice, Completion, Timings, reason_name};
pub use disk::{DiskError, KvDisk};
pub use llm::{Chunk, Error, Llm, LlmConfig, Prompt, Stream, draw_seed};
pub use memory::{KvMemory, MemoryError};
pub use paceline_engine::{
    EngineConfig, EngineError, FinishReason, InvalidRequest, Limits, Logprobs, SamplingParams,
    Speculate, Stats, Stop, Usage, Vocab,
};
pub use paceline_kernels::team::available_cores;
pub use paceline_kernels::{Isa, KvType};
pub use paceline_model::{ChatOptions, LoadOptions, TokenId};
pub use text::{ChatError, Message, Text};
