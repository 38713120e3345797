//! [`Scheduler`]: which sequences run how many tokens in the next step.
//!
//! There is no prefill and no decode: a sequence has `tokens + drafts - computed` pending tokens and
//! runs as many of them as it is given.
//!
//! - Every running sequence gets one token, so none ever stands still; what is left of the step's
//!   budget goes to the running ones in order of arrival, then to waiting ones in order of arrival,
//!   then to drafts.
//! - When the blocks run out, the sequence that arrived last gives up the tail of its table, as far
//!   as needed, and waits. Who runs arrived before all who wait, blocks only ever pass to older
//!   sequences, and every request fits the cache alone: so the oldest sequence always runs, and
//!   everything ends.
//! - The first waiting sequence is let in when all of its tokens find room beside what the running
//!   ones still need, so that it is not thrown out at once. Nobody overtakes it.

use crate::block_pool::BlockPool;
use crate::event::{Event, FinishReason, RequestId};
use crate::sequence::Sequence;
use std::collections::VecDeque;

/// Why a sequence was preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// It gave blocks to an older sequence.
    Yielded,
    /// It found no block, and older sequences hold the rest.
    Stalled,
}

/// What the next step computes.
#[derive(Debug, Default)]
pub(crate) struct Step {
    /// For each running sequence, in order, how many of its pending tokens.
    pub n_tokens: Vec<usize>,
    /// Who had to make room.
    pub preempted: Vec<(RequestId, usize, Cause)>,
    /// Who was let in for the first time, with the tokens that the prefix cache had.
    pub started: Vec<(RequestId, usize, usize)>,
    /// Tokens that the prefix cache had for sequences that were let in.
    pub n_cached: usize,
}

pub(crate) struct Scheduler {
    pub pool: BlockPool,
    /// In order of arrival.
    pub running: Vec<Sequence>,
    /// In order of arrival, all after the running ones. Preempted ones may still hold blocks.
    pub waiting: VecDeque<Sequence>,
    pub max_num_seqs: usize,
    pub max_num_batched_tokens: usize,
}

impl Scheduler {
    pub fn schedule(&mut self) -> Step {
        let mut step = Step::default();
        let mut budget = self.max_num_batched_tokens - self.running.len();
        for sequence in &self.running {
            let more = (sequence.pending() - 1).min(budget);
            budget -= more;
            step.n_tokens.push(1 + more);
        }
        self.allocate(&mut step, &mut budget);
        while budget > 0 && self.running.len() < self.max_num_seqs {
            let Some(n) = self.admit(budget, &mut step) else { break };
            budget -= n;
        }
        self.add_drafts(&mut step, budget);
        debug_assert!(self.running.iter().zip(&step.n_tokens).all(|(s, &n)| {
            (n <= s.pending() && s.drafts.is_empty()) || n == s.pending() + s.drafts.len()
        }));
        step
    }

    /// Finds blocks for the running sequences, the oldest first.
    fn allocate(&mut self, step: &mut Step, budget: &mut usize) {
        let mut i = 0;
        while i < self.running.len() {
            let sequence = &self.running[i];
            let len = self.n_blocks(sequence.computed + step.n_tokens[i]);
            let need = len.saturating_sub(sequence.block_table.len());
            let found = self.make_room(need, sequence.key(), step);
            // The victims are the last of the running sequences; what they were given is free again.
            *budget += step.n_tokens.drain(self.running.len()..).sum::<usize>();
            if found {
                let found = self.pool.alloc(need, &mut self.running[i].block_table);
                assert!(found, "room was made");
                i += 1;
            } else {
                // All that came later have given up their blocks, so this is the last one.
                *budget += step.n_tokens.pop().unwrap_or(0);
                self.preempt_last(Cause::Stalled, step);
            }
        }
    }

    /// Frees blocks until `n` are free, taking them from sequences that arrived after `key`, the
    /// last one first. Returns whether it could.
    fn make_room(&mut self, n: usize, key: (RequestId, usize), step: &mut Step) -> bool {
        while self.pool.n_free() < n {
            let holder = self.waiting.iter().rposition(|s| !s.block_table.is_empty());
            let w = match holder {
                Some(w) if self.waiting[w].key() > key => w,
                _ if self.running.last().is_some_and(|s| s.key() > key) => {
                    self.preempt_last(Cause::Yielded, step);
                    0
                }
                _ => return false,
            };
            let victim = &mut self.waiting[w];
            // One by one: a block that others share does not get free.
            while self.pool.n_free() < n && !victim.block_table.is_empty() {
                let len = victim.block_table.len() - 1;
                self.pool.truncate(&mut victim.block_table, len);
            }
            let kept = victim.block_table.len();
            victim.computed = victim.computed.min(kept * self.pool.block_len());
            victim.n_published = victim.n_published.min(kept);
        }
        true
    }

    /// Moves the last running sequence to the front of the waiting ones.
    fn preempt_last(&mut self, cause: Cause, step: &mut Step) {
        let Some(sequence) = self.running.pop() else { return };
        step.preempted.push((sequence.id, sequence.choice, cause));
        self.waiting.push_front(sequence);
    }

    /// Lets the first waiting sequence run if there is room for it, with at most `budget` tokens;
    /// returns with how many.
    fn admit(&mut self, budget: usize, step: &mut Step) -> Option<usize> {
        let sequence = self.waiting.front().filter(|s| s.ready)?;
        let (key, n_held) = (sequence.key(), sequence.block_table.len());
        let mut found = Vec::new();
        if sequence.n_published == n_held {
            let readable = &sequence.tokens[..sequence.readable_len()];
            let salt = sequence.request.salt();
            found = self.pool.longest_prefix(salt, &sequence.block_table, readable);
        }
        let need = self.n_blocks(sequence.tokens.len()).saturating_sub(n_held + found.len());
        if !self.running.is_empty() {
            // Each running sequence may soon want a block beyond those that its tokens need.
            let owed = |s: &Sequence| {
                self.n_blocks(s.tokens.len()).saturating_sub(s.block_table.len()) + 1
            };
            let owed = self.running.iter().map(owed).sum::<usize>();
            if self.pool.n_free() < need + self.pool.count_free(&found) + owed {
                return None;
            }
        }
        let sequence = self.waiting.front_mut()?;
        self.pool.share(&found, &mut sequence.block_table);
        let n_cached = found.len() * self.pool.block_len();
        sequence.computed += n_cached;
        sequence.n_published += found.len();
        if sequence.cached.is_none() {
            sequence.cached = Some(n_cached);
            step.started.push((sequence.id, sequence.choice, n_cached));
        }
        step.n_cached += n_cached;
        if self.running.is_empty() {
            // Only waiting sequences hold blocks now, and they all came later.
            self.make_room(need, key, step);
        }
        let mut sequence = self.waiting.pop_front()?;
        let n = sequence.pending().min(budget);
        let need = self.n_blocks(sequence.computed + n).saturating_sub(sequence.block_table.len());
        let found = self.pool.alloc(need, &mut sequence.block_table);
        assert!(found, "there was room for the sequence");
        self.running.push(sequence);
        step.n_tokens.push(n);
        Some(n)
    }

    /// Adds drafts within the budget and the blocks that are free.
    fn add_drafts(&mut self, step: &mut Step, mut budget: usize) {
        for (sequence, n_tokens) in self.running.iter_mut().zip(&mut step.n_tokens) {
            let mut n = 0;
            if *n_tokens == sequence.pending() {
                n = sequence.drafts.len().min(budget);
                let table = &mut sequence.block_table;
                let len = (sequence.tokens.len() + n).div_ceil(self.pool.block_len());
                if !self.pool.alloc(len.saturating_sub(table.len()), table) {
                    n = n.min(table.len() * self.pool.block_len() - sequence.tokens.len());
                }
            }
            sequence.drafts.truncate(n);
            *n_tokens += n;
            budget -= n;
        }
    }

    /// Frees the blocks of a sequence that has ended.
    pub fn finish(&mut self, mut sequence: Sequence) -> Event {
        self.pool.truncate(&mut sequence.block_table, 0);
        let ((id, choice), usage) = (sequence.key(), sequence.usage());
        let (reason, stop) = sequence.finished.unwrap_or((FinishReason::Abort, None));
        Event::Finished { id, choice, reason, stop, usage }
    }

    /// Blocks that hold `len` tokens.
    fn n_blocks(&self, len: usize) -> usize {
        len.div_ceil(self.pool.block_len())
    }

    /// Verifies the pool against all sequences.
    pub fn check(&self) {
        let all = || self.running.iter().chain(&self.waiting);
        self.pool.check(all().map(|s| s.block_table.as_slice()));
        for s in all() {
            let n_blocks = s.block_table.len();
            assert!(s.computed <= n_blocks * self.pool.block_len(), "computed without a slot");
            assert!(n_blocks <= self.n_blocks(s.tokens.len()), "blocks without tokens");
            let n_published = self.pool.count_published(&s.block_table);
            assert_eq!(s.n_published, n_published, "a block is published out of turn");
            assert!(s.n_published * self.pool.block_len() <= s.computed, "published too early");
        }
        assert!(all().is_sorted_by_key(|s| s.key()), "out of the order of arrival");
    }
}
