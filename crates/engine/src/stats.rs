//! [`Stats`]: what an engine has done so far, in counters.

/// Counters since the engine's start, and the KV cache's state after the last step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Steps that ran the model.
    pub steps: u64,
    /// Rows computed, drafts and recomputation included.
    pub rows: u64,
    /// Rows of prompts computed, recomputation included.
    pub tokens_prefilled: u64,
    /// Tokens sampled and kept.
    pub tokens_decoded: u64,
    /// Tokens that did not have to be computed since the prefix cache had them.
    pub tokens_cached: u64,
    /// Of those, tokens whose blocks were read from the store.
    pub tokens_restored: u64,
    /// Blocks that were given to the store.
    pub blocks_stored: u64,
    /// Steps with rows of a prompt and with sampled rows of another sequence.
    pub steps_mixed: u64,
    /// Sequences that gave blocks to one before them.
    pub preemptions_yielded: u64,
    /// Sequences that found no block for themselves, with those before them holding the rest.
    pub preemptions_stalled: u64,
    /// The most preemptions of one sequence.
    pub preemptions_most: u32,
    /// Drafts verified.
    pub drafts_proposed: u64,
    /// Drafts that equalled the sample.
    pub drafts_accepted: u64,
    /// Sequences that have room for all of their tokens, those that wait for their turn included.
    pub n_running: usize,
    /// Sequences that wait for room.
    pub n_waiting: usize,
    /// Blocks of the KV cache.
    pub kv_blocks: usize,
    /// Blocks that some sequence uses.
    pub kv_blocks_used: usize,
    /// Slots of those blocks.
    pub kv_slots_used: usize,
    /// Slots of those blocks that hold no token yet.
    pub kv_slots_unused: usize,
    /// Sum over steps of `kv_slots_used`.
    pub kv_slot_steps: u64,
    /// Sum over steps of `kv_slots_unused`.
    pub kv_unused_slot_steps: u64,
}

impl Stats {
    /// Preemptions of every cause.
    pub fn preemptions(&self) -> u64 {
        self.preemptions_yielded + self.preemptions_stalled
    }

    /// Unused over allocated slots of the KV cache, averaged over the steps so far; 0 before.
    pub fn kv_waste(&self) -> f64 {
        match self.kv_slot_steps {
            0 => 0.0,
            allocated => self.kv_unused_slot_steps as f64 / allocated as f64,
        }
    }
}
