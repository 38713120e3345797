//! Numbers. Block formats, packed weights, the ops of a transformer and the thread team.
//!
//! The rest of paceline reaches the processor only through [`Cpu`], whose methods are the ops.
//! This crate does no IO, knows no model and no request, and is the only one with SIMD.
//!
//! # Shape letters
//!
//! | letter | meaning | letter | meaning |
//! |---|---|---|---|
//! | T | rows (tokens) of the step | E | head size |
//! | S | sequences of the step | F | width of the feed-forward layer |
//! | D | hidden size | V | vocabulary |
//! | H | query heads | L | layers |
//! | K | key/value heads | B | block length in tokens |
//!
//! # The numerics contract
//!
//! Every output element is an exact sum of integers, or one serial chain of fused multiply-adds in its own
//! SIMD lane, in an order that depends only on the weights and on the position: never on the number of rows,
//! the tile height, the thread count or the neighbours. Every instruction set computes the same chain, so
//! they agree bit for bit. [`NUMERICS`] numbers the contract's versions.
#![allow(unsafe_code)] // The only crate with SIMD; each block carries a SAFETY comment.

pub mod arena;
pub mod attention;
mod cpu;
pub mod dtype;
pub mod gated;
pub mod isa;
pub mod kv;
pub mod limits;
pub mod linear;
pub mod mat;
mod math;
mod norm;
pub mod profile;
pub mod quant;
mod quantize;
pub mod rope;
mod simd;
mod softcap;
mod split;
pub mod team;
#[cfg(test)]
mod test_util;
pub mod weight;

/// The version of the numbers: raised with every change, here or in a model's forward pass, after which
/// the same weights and tokens may give another bit of K, V or logits. What was computed under another
/// version is not used.
pub const NUMERICS: u32 = 1;

pub use arena::{AllocError, Arena};
pub use attention::{AttentionParams, AttentionSpan};
pub use cpu::Cpu;
pub use dtype::DType;
pub use gated::Activation;
pub use isa::Isa;
pub use kv::{KvCache, KvError, KvLayout, KvType};
pub use limits::ReadTest;
pub use linear::Linear;
pub use mat::{Acts, Forms, Mat};
pub use profile::Profile;
pub use rope::{RopeAngles, RopeScaling, RopeStyle, RopeTable};
pub use weight::{PackError, Packer, QMat};
