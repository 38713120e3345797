//! [`Engine`]: `schedule -> batch -> forward -> sample -> commit -> draft`.

use crate::block_pool::{BlockPool, Evicted};
use crate::draft::Speculate;
use crate::event::{Event, FinishReason, RequestId};
use crate::pace::{Load, Pace};
use crate::request::{Limits, Request};
use crate::sample::{Place, Sampler};
use crate::scheduler::{AGING, Cause, Scheduler, Step};
use crate::sequence::Sequence;
use crate::stats::Stats;
use crate::store::BlockStore;
use crate::text::Vocab;
use paceline_model::{Batch, KvMemoryError, Mat, Model};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// The most logits in memory at once, in bytes. Each range of rows is a pass over the output weights, so a
/// range should be long; all rows of a step could be gigabytes.
const MAX_LOGIT_BYTES: usize = 16 << 20;

/// How an engine works. Nothing here changes what is generated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// The most sequences in a step; no more than `max_num_batched_tokens` run in any case.
    pub max_num_seqs: usize,
    /// The most tokens in a step. More means fewer passes over the weights in prefill, less means
    /// shorter pauses between a neighbour's tokens. 512 rows are far past the point where a step is
    /// bound by arithmetic and no longer by reading weights, and leave half of the step for prompts
    /// when `max_num_seqs` sequences decode.
    pub max_num_batched_tokens: usize,
    /// Blocks of the KV cache.
    pub n_blocks: usize,
    /// The longest sequence, prompt and output together; at most the model's context.
    pub max_model_len: usize,
    /// Shares the blocks of equal prefixes.
    pub prefix_cache: bool,
    /// Off: computes all tokens of a sequence again for each new one, to show what the cache saves.
    pub kv_cache: bool,
    /// Where drafts come from.
    pub speculate: Speculate,
}

impl Default for EngineConfig {
    fn default() -> EngineConfig {
        EngineConfig {
            max_num_seqs: 256,
            max_num_batched_tokens: 512,
            n_blocks: 0,
            max_model_len: usize::MAX,
            prefix_cache: true,
            kv_cache: true,
            speculate: Speculate::Off,
        }
    }
}

impl EngineConfig {
    /// Checks what does not depend on the model.
    ///
    /// # Errors
    /// If a setting is 0; `n_blocks`, which may follow from the model, is left out.
    pub fn check(&self) -> Result<(), EngineError> {
        at_least_1("max_num_seqs", self.max_num_seqs)?;
        at_least_1("max_num_batched_tokens", self.max_num_batched_tokens)?;
        at_least_1("max_model_len", self.max_model_len)
    }
}

fn at_least_1(field: &'static str, value: usize) -> Result<(), EngineError> {
    match value {
        0 => Err(EngineError::Config { field, value, limit: "at least 1" }),
        _ => Ok(()),
    }
}

/// An engine cannot be built like this.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A setting is out of range.
    #[error("{field} is {value}: it must be {limit}")]
    Config {
        /// The setting's name.
        field: &'static str,
        /// What it is.
        value: usize,
        /// What it must be.
        limit: &'static str,
    },
    /// The KV cache does not fit the memory.
    #[error(transparent)]
    KvMemory(#[from] KvMemoryError),
}

/// Runs many requests on one model: a state machine that moves only in [`Engine::step`].
pub struct Engine {
    model: Box<dyn Model>,
    vocab: Arc<dyn Vocab>,
    config: EngineConfig,
    limits: Limits,
    scheduler: Scheduler,
    sampler: Sampler,
    stats: Stats,
    next_id: u64,
    /// Since the origin of the caller's clock.
    now: Duration,
    /// Of the last step.
    load: Load,
    /// What the last step spent with the store.
    store_time: Duration,
    /// Events that happened between the steps.
    events: Vec<Event>,
    batch: Batch,
    /// A range of the step's logits, `[<= n_logit_rows, V]`.
    logits: Mat,
    n_logit_rows: usize,
}

/// A row whose logits are wanted.
struct Output {
    /// Number of its span.
    span: usize,
    position: usize,
}

/// How far the verification of a sequence's span has come.
#[derive(Clone, Default)]
struct Verified {
    sampled: bool,
    accepted: usize,
    /// A sample differed from its draft, or ended the sequence: the rows after it are void.
    over: bool,
}

impl Engine {
    /// An engine of its own for a model, whose KV cache it reserves.
    ///
    /// # Errors
    /// If a setting is 0 or the memory cannot be had.
    pub fn new(
        mut model: Box<dyn Model>,
        vocab: Arc<dyn Vocab>,
        config: EngineConfig,
    ) -> Result<Engine, EngineError> {
        let spec = model.spec().clone();
        let max_num_seqs = config.max_num_seqs.min(config.max_num_batched_tokens);
        let max_model_len = config.max_model_len.min(spec.context_len);
        config.check()?;
        for (field, value) in [("n_blocks", config.n_blocks), ("max_model_len", max_model_len)] {
            at_least_1(field, value)?;
        }
        if config.n_blocks >= u32::MAX as usize {
            let (field, value, limit) = ("n_blocks", config.n_blocks, "below 2^32 - 1");
            return Err(EngineError::Config { field, value, limit });
        }
        model.reserve_kv(config.n_blocks)?;
        let pool = BlockPool::new(config.n_blocks, spec.block_len);
        Ok(Engine {
            limits: Limits {
                vocab_len: spec.vocab_len,
                max_model_len,
                kv_len: config.n_blocks.saturating_mul(spec.block_len),
                max_num_seqs,
            },
            scheduler: Scheduler {
                pool,
                queue: Vec::new(),
                unordered: false,
                n_firsts: 0,
                pace: Pace::default(),
                store: None,
                max_num_seqs,
                max_num_batched_tokens: config.max_num_batched_tokens,
            },
            stats: Stats { kv_blocks: config.n_blocks, ..Stats::default() },
            logits: Mat::zeros(0, spec.vocab_len),
            n_logit_rows: (MAX_LOGIT_BYTES / size_of::<f32>() / spec.vocab_len.max(1))
                .clamp(16, 64),
            model,
            vocab,
            config,
            sampler: Sampler::default(),
            next_id: 0,
            now: Duration::ZERO,
            load: Load::default(),
            store_time: Duration::ZERO,
            events: Vec::new(),
            batch: Batch::default(),
        })
    }

    /// Gives blocks that the KV cache has to give up to a store, and takes them back from it instead of
    /// computing them again, where that is faster. Changes nothing without a prefix cache.
    pub fn with_store(mut self, store: Box<dyn BlockStore>) -> Engine {
        if self.publishes() {
            self.scheduler.pool.watch_evictions();
            self.scheduler.store = Some(store);
        }
        self
    }

    /// Ends all requests and gives the store what it can hold of the KV cache.
    pub fn close(mut self) {
        self.end(FinishReason::Abort, |_| true);
        let Scheduler { pool, store: Some(store), .. } = &self.scheduler else { return };
        let n_left_out = pool.n_blocks().saturating_sub(store.capacity());
        let mut table = Vec::new();
        // As if all were needed: in this order the most useful ones come last.
        for i in 0..self.scheduler.pool.n_blocks() {
            self.scheduler.pool.alloc(1, &mut table);
            if i < n_left_out {
                self.scheduler.pool.take_evicted();
            }
            self.store_evicted(true);
        }
    }

    /// What a request may ask of this engine.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The counters.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Tells the time, since any fixed moment. Before the first call it is 0, and it never goes back.
    pub fn at(&mut self, now: Duration) {
        self.now = self.now.max(now);
    }

    /// Tells how long the last step took. From this the engine learns how many rows of prompts a
    /// step can take while texts are running; without it, as many as fit.
    pub fn took(&mut self, time: Duration) {
        let time = time.saturating_sub(self.store_time);
        if self.load.rows > 0.0 {
            self.scheduler.pace.learn(self.load, time.as_secs_f64());
        }
    }

    /// Puts a request in the queue. It must have been made with this engine's limits.
    pub fn add(&mut self, request: Request) -> RequestId {
        debug_assert!(request.max_len() <= self.limits.max_model_len.min(self.limits.kv_len));
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let turn = i64::try_from(self.now.as_millis()).unwrap_or(i64::MAX);
        let turn = turn.saturating_add(i64::from(request.priority()) * AGING.as_millis() as i64);
        let deadline = request.timeout().map(|timeout| self.now.saturating_add(timeout));
        let request = Arc::new(request);
        for choice in 0..request.params().n {
            let speculate = self.config.speculate;
            let mut sequence = Sequence::new(id, choice, request.clone(), speculate);
            sequence.ready = choice == 0 || !self.publishes();
            (sequence.turn, sequence.deadline) = (turn, deadline);
            self.scheduler.queue.push(sequence);
        }
        self.scheduler.unordered = true;
        self.measure();
        id
    }

    /// Ends all choices of a request that have not ended and frees their blocks at once; the next
    /// step reports it. Text held back for a stop string is dropped. An unknown id, or one that has
    /// ended, is ignored.
    pub fn abort(&mut self, id: RequestId) {
        self.end(FinishReason::Abort, |sequence| sequence.id == id);
        self.measure();
    }

    /// Ends sequences before their time.
    fn end(&mut self, reason: FinishReason, which: impl Fn(&Sequence) -> bool) {
        for sequence in self.scheduler.queue.iter_mut().filter(|sequence| which(sequence)) {
            sequence.finished = Some((reason, None));
        }
        self.scheduler.remove_finished(&mut self.events);
    }

    /// Whether there is anything to do for [`Engine::step`].
    pub fn has_work(&self) -> bool {
        !self.scheduler.queue.is_empty() || !self.events.is_empty()
    }

    /// Runs one step of the model, if any sequence is there, and returns what happened. Sequences
    /// whose time is over end before it.
    pub fn step(&mut self) -> Vec<Event> {
        let now = self.now;
        self.end(FinishReason::Timeout, |s| s.deadline.is_some_and(|deadline| deadline <= now));
        let before = self.store_spent();
        let step = self.scheduler.schedule();
        self.store_evicted(false);
        self.read_stored(&step);
        self.store_time = self.store_spent() - before;
        let started = step.started.iter();
        self.events.extend(started.map(|&(id, choice, cached_tokens)| Event::Started {
            id,
            choice,
            cached_tokens,
        }));
        self.count(&step);
        let outputs = self.batch(&step);
        if self.batch.n_rows() > 0 {
            self.model.forward(&self.batch);
            let verified = self.sample(&step, &outputs);
            self.commit(&step, &verified);
            self.draft(&step);
            self.scheduler.remove_finished(&mut self.events);
        }
        self.measure();
        self.stats.kv_slot_steps += self.stats.kv_slots_used as u64;
        self.stats.kv_unused_slot_steps += self.stats.kv_slots_unused as u64;
        if cfg!(debug_assertions) {
            self.check();
        }
        std::mem::take(&mut self.events)
    }

    /// Forgets all requests, without an event, and all that the KV cache holds: for use after a panic
    /// in [`Engine::step`], which leaves both in doubt.
    pub fn reset(&mut self) {
        let pool = &mut self.scheduler.pool;
        *pool = BlockPool::new(pool.n_blocks(), pool.block_len());
        if self.scheduler.store.is_some() {
            pool.watch_evictions();
        }
        self.scheduler.queue.clear();
        self.events.clear();
        self.load = Load::default();
        self.sampler = Sampler::default();
        self.measure();
    }

    /// Verifies every invariant of the block pool against the sequences.
    ///
    /// # Panics
    /// If one is broken.
    pub fn check(&self) {
        self.scheduler.check();
    }

    fn publishes(&self) -> bool {
        self.config.prefix_cache && self.config.kv_cache
    }

    fn store_spent(&self) -> Duration {
        self.scheduler.store.as_ref().map_or(Duration::ZERO, |store| store.spent())
    }

    /// Gives the store the blocks that were handed out again, before anything is written to them.
    fn store_evicted(&mut self, wait: bool) {
        let Some(store) = &mut self.scheduler.store else { return };
        for Evicted { id, salt, tokens } in self.scheduler.pool.take_evicted() {
            if store.wants(&salt, &tokens) {
                let mut bytes = Vec::with_capacity(self.model.spec().kv_block_bytes);
                self.model.read_block(id, &mut bytes);
                store.put(&salt, &tokens, bytes, wait);
                self.stats.blocks_stored += 1;
            }
        }
    }

    /// Reads the blocks of the step from the store. Where one cannot be had, the sequence computes from
    /// there on.
    fn read_stored(&mut self, step: &Step) {
        let Scheduler { pool, queue, pace, store: Some(store), .. } = &mut self.scheduler else {
            return;
        };
        let (block_len, block_bytes) = (pool.block_len(), self.model.spec().kv_block_bytes);
        for span in &step.reads {
            let sequence = &mut queue[span.sequence];
            let request = sequence.request.clone();
            let (salt, first) = (request.salt(), sequence.n_published);
            let (before, mut n_read) = (store.spent(), 0);
            for i in first..first + span.n_tokens / block_len {
                let known = &sequence.tokens[..(i + 1) * block_len];
                // Another sequence may have read or computed the same meanwhile.
                if pool.longest_prefix(salt, &sequence.block_table[..i], known).is_empty() {
                    let bytes = store.get(salt, known).filter(|bytes| bytes.len() == block_bytes);
                    let Some(bytes) = bytes else { break };
                    self.model.write_block(sequence.block_table[i], bytes);
                    n_read += 1;
                }
                let tokens = &known[i * block_len..];
                if !pool.publish(salt, &mut sequence.block_table, i, tokens) {
                    break;
                }
                sequence.n_published += 1;
                sequence.hit(block_len);
                self.stats.tokens_cached += block_len as u64;
            }
            if sequence.n_published < first + span.n_tokens / block_len {
                sequence.n_stored = 0;
            }
            self.stats.tokens_restored += (n_read * block_len) as u64;
            pace.learn_reads(n_read, (store.spent() - before).as_secs_f64());
        }
    }

    /// Lays out the rows of the step.
    fn batch(&mut self, step: &Step) -> Vec<Output> {
        let block_len = self.scheduler.pool.block_len();
        self.batch.clear();
        self.load = Load::default();
        let mut outputs = Vec::new();
        let mut tokens = Vec::new();
        for (i, span) in step.spans.iter().enumerate() {
            let (sequence, n) = (&self.scheduler.queue[span.sequence], span.n_tokens);
            let start = sequence.computed;
            let all = sequence.tokens.iter().chain(&sequence.drafts);
            tokens.clear();
            tokens.extend(all.skip(start).take(n));
            let n_blocks = (start + n).div_ceil(block_len);
            let rows = self.batch.push(&tokens, start, &sequence.block_table[..n_blocks]);
            self.load.add_rows(start, n);
            let (prompt_rows, last) = (sequence.n_prompt_rows(), sequence.tokens.len() - 1);
            for (row, position) in rows.zip(start..) {
                let of_prompt = (sequence.prompt_rows..prompt_rows).contains(&position);
                if of_prompt || position >= last {
                    self.batch.outputs.push(row);
                    outputs.push(Output { span: i, position });
                }
            }
        }
        self.load.outputs = outputs.len() as f64;
        outputs
    }

    /// Samples every row that is asked for and appends the tokens; a sequence goes along its drafts
    /// while they equal the samples.
    fn sample(&mut self, step: &Step, outputs: &[Output]) -> Vec<Verified> {
        let mut verified = vec![Verified::default(); step.spans.len()];
        for start in (0..outputs.len()).step_by(self.n_logit_rows) {
            let range = start..(start + self.n_logit_rows).min(outputs.len());
            self.logits.set_rows(range.len());
            self.model.logits(range.clone(), &mut self.logits);
            for (row, output) in outputs[range].iter().enumerate() {
                let sequence = &mut self.scheduler.queue[step.spans[output.span].sequence];
                let verified = &mut verified[output.span];
                let logits = self.logits.row(row);
                if sequence.finished.is_some() || verified.over {
                    continue;
                }
                let is_prompt = output.position + 1 < sequence.prompt_len();
                let (sampler, events) = (&mut self.sampler, &mut self.events);
                // Whatever goes wrong here is this sequence's alone, which ends.
                let work = AssertUnwindSafe(|| match is_prompt {
                    true => report_prompt(sequence, sampler, logits, events),
                    false => events.push(sample(sequence, sampler, logits, self.vocab.as_ref())),
                });
                if catch_unwind(work).is_err() {
                    sequence.finished = Some((FinishReason::Error, None));
                    *sampler = Sampler::default();
                }
                if !is_prompt {
                    self.stats.tokens_decoded += 1;
                    verified.sampled = true;
                    let draft = sequence.drafts.get(verified.accepted);
                    let accepted = draft.is_some() && draft == sequence.tokens.last();
                    verified.accepted += usize::from(accepted);
                    verified.over = !accepted || sequence.finished.is_some();
                }
            }
        }
        verified
    }

    /// Moves `computed` and publishes full blocks.
    fn commit(&mut self, step: &Step, verified: &[Verified]) {
        let publishes = self.publishes();
        let Scheduler { pool, queue, .. } = &mut self.scheduler;
        let block_len = pool.block_len();
        for (span, verified) in step.spans.iter().zip(verified) {
            let sequence = &mut queue[span.sequence];
            sequence.computed += span.n_tokens;
            if !verified.sampled {
                continue;
            }
            // What was computed for rejected drafts is overwritten in place.
            sequence.computed = if self.config.kv_cache { sequence.tokens.len() - 1 } else { 0 };
            pool.truncate(&mut sequence.block_table, sequence.tokens.len().div_ceil(block_len));
            let proposed = sequence.drafts.len();
            sequence.drafts.clear();
            self.stats.drafts_proposed += proposed as u64;
            self.stats.drafts_accepted += verified.accepted as u64;
            if let Some(speculation) = &mut sequence.speculation {
                speculation.depth.learn(proposed, verified.accepted);
            }
        }
        for span in step.spans.iter().filter(|_| publishes) {
            let sequence = &mut queue[span.sequence];
            let request = sequence.request.clone();
            while sequence.n_published < sequence.computed / block_len {
                let i = sequence.n_published;
                let tokens = &sequence.tokens[i * block_len..][..block_len];
                if !pool.publish(request.salt(), &mut sequence.block_table, i, tokens) {
                    break;
                }
                sequence.n_published += 1;
            }
            let ((id, choice), n_output) = (sequence.key(), sequence.n_output());
            if choice == 0 && n_output > 0 && request.params().n > 1 {
                queue.iter_mut().filter(|s| s.id == id).for_each(|s| s.ready = true);
            }
        }
    }

    /// Guesses what the sequences that have just got a token will get next.
    fn draft(&mut self, step: &Step) {
        for span in &step.spans {
            let sequence = &mut self.scheduler.queue[span.sequence];
            let Some(speculation) = &mut sequence.speculation else { continue };
            let n_output = sequence.tokens.len() - sequence.request.prompt().len();
            let recomputes = self.config.kv_cache && sequence.computed + 1 < sequence.tokens.len();
            let idle = n_output == 0 || recomputes || sequence.finished.is_some();
            if idle || !sequence.drafts.is_empty() {
                continue;
            }
            // The last token that can come needs no draft: it is sampled in any case.
            let room = sequence.request.max_len() - sequence.tokens.len() - 1;
            let max = speculation.depth.n_drafts().min(room);
            if max > 0 {
                speculation.drafter.draft(&sequence.tokens, max, &mut sequence.drafts);
            }
        }
    }

    fn count(&mut self, step: &Step) {
        let stats = &mut self.stats;
        for (_, _, cause) in &step.preempted {
            match cause {
                Cause::Yielded => stats.preemptions_yielded += 1,
                Cause::Stalled => stats.preemptions_stalled += 1,
            }
        }
        stats.tokens_cached += step.n_cached as u64;
        if step.spans.is_empty() {
            return;
        }
        stats.steps += 1;
        let (mut prompts, mut outputs) = (false, false);
        for span in &step.spans {
            let (sequence, n) = (&self.scheduler.queue[span.sequence], span.n_tokens);
            let of_prompt = sequence.prompt_len().saturating_sub(sequence.computed).min(n);
            stats.rows += n as u64;
            stats.tokens_prefilled += of_prompt as u64;
            prompts |= of_prompt > 0;
            outputs |= of_prompt == 0;
        }
        stats.steps_mixed += u64::from(prompts && outputs);
    }

    /// Reads the state of the queues and of the KV cache.
    fn measure(&mut self) {
        let Scheduler { pool, queue, .. } = &self.scheduler;
        let stats = &mut self.stats;
        let most = queue.iter().map(|s| s.n_preempted).max().unwrap_or(0);
        stats.preemptions_most = stats.preemptions_most.max(most);
        stats.n_running = queue.iter().filter(|s| s.admitted).count();
        stats.n_waiting = queue.len() - stats.n_running;
        stats.kv_blocks_used = pool.n_used();
        stats.kv_slots_used = pool.n_used() * pool.block_len();
        // Shared blocks are full, so no unused slot is counted twice.
        let unused = |s: &Sequence| s.block_table.len() * pool.block_len() - s.computed;
        stats.kv_slots_unused = queue.iter().map(unused).sum();
    }
}

/// Reports the log-probability of the next token of the prompt, whose row this is.
fn report_prompt(
    sequence: &mut Sequence,
    sampler: &mut Sampler,
    logits: &[f32],
    events: &mut Vec<Event>,
) {
    sequence.prompt_rows += 1;
    let number = sequence.prompt_rows;
    let n_top = sequence.request.params().prompt_logprobs.unwrap_or(0);
    let new = sampler.logprobs(logits, sequence.tokens[number], n_top);
    match events.last_mut() {
        Some(Event::PromptLogprobs { id, logprobs, .. }) if *id == sequence.id => {
            logprobs.push(new)
        }
        _ => {
            let id = sequence.id;
            events.push(Event::PromptLogprobs { id, start: number, logprobs: vec![new] });
        }
    }
}

/// Samples the next token of a sequence from its row and appends it.
fn sample(
    sequence: &mut Sequence,
    sampler: &mut Sampler,
    logits: &[f32],
    vocab: &dyn Vocab,
) -> Event {
    let (id, choice) = sequence.key();
    let request = sequence.request.clone();
    let params = request.params();
    let place = Place { seed: request.seed(), choice, position: sequence.tokens.len() };
    let too_early = sequence.n_output() < params.min_tokens;
    let banned = params.stop_ids(vocab).filter(|_| too_early);
    let token = sampler.sample(logits, params, &sequence.history, banned, place);
    let logprobs = params.logprobs.map(|n_top| sampler.logprobs(logits, token, n_top));
    let text = sequence.push(token, vocab);
    Event::Token { id, choice, token, text, logprobs }
}
