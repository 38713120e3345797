//! Many requests share one model: sequences, block pool, scheduler, sampler, drafters, text.
//!
//! An [`Engine`] is a deterministic state machine: no IO, no threads, no clock, no randomness of its
//! own. What it generates for a request does not depend on the other requests, nor on any setting
//! of [`EngineConfig`], nor on the time, which its caller tells it.
//!
//! ```text
//! Request -> add -> step: schedule -> batch -> forward -> sample -> commit -> draft -> events
//! ```
#![forbid(unsafe_code)]

pub mod block_pool;
pub mod draft;
mod engine;
mod event;
mod pace;
pub mod request;
pub mod sample;
mod scheduler;
mod sequence;
mod stats;
mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod text;

pub use draft::Speculate;
pub use engine::{Engine, EngineConfig, EngineError};
pub use event::{Event, FinishReason, RequestId, Stop, Usage};
pub use request::{InvalidRequest, Limits, Request, SamplingParams};
pub use sample::Logprobs;
pub use stats::Stats;
pub use store::BlockStore;
pub use text::Vocab;
