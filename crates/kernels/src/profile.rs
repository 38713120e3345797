//! [`Profile`]: where the time of a step goes, op by op.

use crate::dtype::DType;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// An op as a profile tells it apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Op {
    /// Rows of the embedding table.
    Embed,
    /// The norms.
    Norm,
    /// A product of several weights of one input.
    Linear {
        /// Outputs of all of them.
        n_out: usize,
        /// Inputs.
        n_in: usize,
        /// Format of the first.
        dtype: DType,
    },
    /// Rotary embedding and its angles.
    Rope,
    /// K and V to their slots.
    StoreKv,
    /// Attention.
    Attention,
    /// Two products and the gate between them.
    LinearGated {
        /// Outputs of each.
        n_out: usize,
        /// Inputs.
        n_in: usize,
        /// Format of the gate.
        dtype: DType,
    },
    /// The cap of the logits.
    Softcap,
}

impl std::fmt::Display for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self {
            Op::Linear { n_out, n_in, dtype } => {
                return f.pad(&format!("linear {n_in} to {n_out} {dtype}"));
            }
            Op::LinearGated { n_out, n_in, dtype } => {
                return f.pad(&format!("gate, up {n_in} to 2 x {n_out} {dtype}"));
            }
            Op::Embed => "embed",
            Op::Norm => "norm",
            Op::Rope => "rope",
            Op::StoreKv => "store k, v",
            Op::Attention => "attention",
            Op::Softcap => "softcap",
        };
        f.pad(name)
    }
}

/// What an op has cost so far.
#[derive(Clone, Copy, Default, Debug)]
pub struct OpCost {
    /// Calls.
    pub n_calls: usize,
    /// Wall time, all threads working.
    pub time: Duration,
    /// Bytes of weights, or of K and V, that had to be read.
    pub bytes: u64,
    /// Multiply-adds.
    pub macs: u64,
}

/// A stopwatch for every op of a [`Cpu`](crate::Cpu), off until it is asked for.
#[derive(Debug, Default)]
pub struct Profile {
    on: AtomicBool,
    ops: Mutex<BTreeMap<Op, OpCost>>,
}

impl Profile {
    /// Starts anew, or stops.
    pub fn set(&self, on: bool) {
        self.ops().clear();
        self.on.store(on, Ordering::Relaxed);
    }

    /// What the ops have cost since the start.
    pub fn costs(&self) -> BTreeMap<Op, OpCost> {
        self.ops().clone()
    }

    fn ops(&self) -> std::sync::MutexGuard<'_, BTreeMap<Op, OpCost>> {
        self.ops.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the watch until the result is dropped; `work` tells the op, its bytes and multiply-adds.
    #[inline]
    pub(crate) fn time(&self, work: impl FnOnce() -> (Op, usize, usize)) -> Option<Timer<'_>> {
        let on = self.on.load(Ordering::Relaxed);
        on.then(|| Timer { profile: self, work: work(), start: Instant::now() })
    }
}

/// An op that runs.
pub(crate) struct Timer<'a> {
    profile: &'a Profile,
    work: (Op, usize, usize),
    start: Instant,
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        let time = self.start.elapsed();
        let (op, bytes, macs) = self.work;
        let mut ops = self.profile.ops();
        let cost = ops.entry(op).or_default();
        cost.n_calls += 1;
        cost.time += time;
        cost.bytes += bytes as u64;
        cost.macs += macs as u64;
    }
}
