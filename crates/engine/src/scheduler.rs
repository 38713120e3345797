//! [`Scheduler`]: which sequences run how many tokens in the next step.
//!
//! There is no prefill and no decode: a sequence has `tokens + drafts - computed` pending tokens and
//! runs as many of them as it is given. There is one order, and each step takes from its front what
//! fits into the step: into its rows, its sequences, its time and the blocks.
//!
//! **The order.** A tenant's sequences take turns: first come first served, but a level of priority
//! counts like so many seconds of arriving sooner or later ([`AGING`]). Between tenants, the first
//! of each goes before the second of any, and so on; among the firsts, who became it first, so that
//! a tenant's next one lets those of the others go before; among the others, who arrived first.
//!
//! **Blocks.** A sequence is admitted when all of its tokens find room beside those admitted before
//! it, and nobody is admitted past one that waits for room. From then on it takes the blocks that it
//! needs, if none is free from the last in the order, the tail of the table first. Who loses a
//! block is preempted: it keeps its place, and is admitted anew when there is room, but each time
//! with twice the room to grow.
//!
//! **Time.** How long a step takes is known from those before ([`Pace`]). Rows of prompts may make a
//! step [`STRETCH`] times as long as it were without them (or take [`LEAST_ROWS`], so that a prompt does
//! not crawl), so that running texts keep their pace;
//! and a step lasts at most as many times as long as the lightest tenant's would alone as there are
//! tenants, so that each gets its share of the time. Who finds no time in a step keeps its blocks
//! and runs in a later one. The first of each tenant always runs.
//!
//! **The store.** Blocks that the cache has given up may be in a [`BlockStore`]. What a newly admitted
//! sequence finds there after the blocks of the cache, it reads instead of computing it, if that is
//! faster, into blocks of its own that it would need in any case. The time for it comes out of that
//! for prompts.
//!
//! Why everything ends: blocks only ever pass to who comes before, and every request fits the cache
//! alone, so the first in the order always gets what it needs and runs. It stays the first until it
//! ends, but for who arrives in the same tenant with a better priority, soon enough to be finitely
//! many. So the firsts of all tenants end one after the other, a tenant's next is its first then,
//! and all become first or end before.
//!
//! Why little is computed twice: with `k` preemptions behind it, a sequence is admitted only if
//! everybody up to itself can grow by `2^k` blocks, or to its full length. After `log2` of the
//! blocks of the longest sequence, none of them can take a block from it; only who arrives later
//! and comes before it can.

use crate::block_pool::BlockPool;
use crate::event::{Event, FinishReason, RequestId};
use crate::pace::{Load, Pace};
use crate::sequence::Sequence;
use crate::store::BlockStore;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// What one level of priority is worth: a request is overtaken by those of the next better level
/// that arrive within this time.
pub const AGING: Duration = Duration::from_secs(60);

/// How many times as long rows of prompts may make a step. Prompts then have `1 - 1 / 2.7` = 63 % of
/// the time, and take 1.6 times as long as alone.
const STRETCH: f64 = 2.7;

/// Rows of prompts that a step takes even if that makes it longer: what a prompt reads of its own
/// beginning is read once for all of its rows in a step, so few rows cost hardly less than these.
const LEAST_ROWS: usize = 8;

/// Why a sequence was preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// It gave blocks to a sequence before it.
    Yielded,
    /// It found no block, and sequences before it hold the rest.
    Stalled,
}

/// What the next step computes.
#[derive(Debug, Default)]
pub(crate) struct Step {
    /// In the order of the queue.
    pub spans: Vec<Span>,
    /// Who reads tokens, in whole blocks, from the store instead. They are in no span.
    pub reads: Vec<Span>,
    /// Who had to make room.
    pub preempted: Vec<(RequestId, usize, Cause)>,
    /// Who runs for the first time, with the tokens that the prefix cache had.
    pub started: Vec<(RequestId, usize, usize)>,
    /// Tokens that the prefix cache had for sequences that were admitted.
    pub n_cached: usize,
}

/// The next pending tokens of a sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// Its place in the queue.
    pub sequence: usize,
    /// How many.
    pub n_tokens: usize,
}

/// Rows of a step and the seconds for them.
#[derive(Clone, Copy)]
struct Room {
    rows: usize,
    seconds: f64,
}

/// What is left of a step.
struct Budget {
    sequences: usize,
    all: Room,
    /// For rows of prompts.
    prompts: Room,
}

pub(crate) struct Scheduler {
    pub pool: BlockPool,
    /// All that have not ended. Those that are not admitted may still hold blocks.
    pub queue: Vec<Sequence>,
    /// Whether the queue may be out of order.
    pub unordered: bool,
    /// How often some sequence became the first of its tenant.
    pub n_firsts: u64,
    pub pace: Pace,
    pub store: Option<Box<dyn BlockStore>>,
    pub max_num_seqs: usize,
    pub max_num_batched_tokens: usize,
}

impl Scheduler {
    pub fn schedule(&mut self) -> Step {
        if std::mem::take(&mut self.unordered) {
            self.order();
        }
        let mut step = Step::default();
        let mut budget = self.budget();
        let mut blocked = false;
        for i in 0..self.queue.len() {
            if budget.sequences == 0 || budget.all.rows == 0 {
                break;
            }
            let sequence = &self.queue[i];
            if !sequence.admitted {
                if !sequence.ready {
                    continue;
                }
                let waits = blocked || self.n_rows(sequence, &budget) == 0;
                blocked = waits || !self.admit(i, &mut step);
                if blocked {
                    continue;
                }
            }
            let sequence = &self.queue[i];
            let n_tokens = self.n_rows(sequence, &budget);
            if n_tokens == 0 {
                continue;
            }
            let len = self.n_blocks(sequence.computed + n_tokens);
            let need = len.saturating_sub(sequence.block_table.len());
            if self.make_room(need, i, &mut step) {
                let found = self.pool.alloc(need, &mut self.queue[i].block_table);
                assert!(found, "room was made");
                self.spend(&mut budget, &self.queue[i], n_tokens);
                let (sequence, span) = (&mut self.queue[i], Span { sequence: i, n_tokens });
                if sequence.n_unread() > 0 {
                    step.reads.push(span);
                    continue;
                }
                step.spans.push(span);
                if !std::mem::replace(&mut sequence.started, true) {
                    step.started.push((sequence.id, sequence.choice, sequence.cached));
                }
            } else {
                self.preempt(i, Cause::Stalled, &mut step);
                blocked = true;
            }
        }
        self.add_drafts(&mut step, budget.all.rows);
        step
    }

    /// Puts the queue in order.
    fn order(&mut self) {
        self.queue.sort_by_key(|s| (s.turn, s.key()));
        let mut n_before: HashMap<Arc<str>, usize> = HashMap::new();
        for sequence in &mut self.queue {
            let n = n_before.entry(sequence.request.tenant().clone()).or_default();
            if *n > 0 {
                sequence.first_since = 0;
            } else if sequence.rank > 0 {
                self.n_firsts += 1;
                sequence.first_since = self.n_firsts;
            }
            sequence.rank = *n;
            *n += 1;
        }
        self.queue.sort_by_key(Sequence::place);
    }

    /// What a step may take.
    fn budget(&self) -> Budget {
        // The next tokens of all texts, and of each tenant's, if it has no prompts.
        let mut next = Load::default();
        let mut tenants: HashMap<&str, Option<Load>> = HashMap::new();
        for sequence in self.queue.iter().filter(|s| s.admitted).take(self.max_num_seqs) {
            let tenant = sequence.request.tenant().as_ref();
            let own = tenants.entry(tenant).or_insert(Some(Load::default()));
            if sequence.pending() == 1 {
                let load = Load::of_next(sequence.tokens.len());
                next += load;
                own.iter_mut().for_each(|own| *own += load);
            } else {
                *own = None;
            }
        }
        let mut longest = f64::INFINITY;
        if tenants.len() > 1 {
            let alone = tenants.values().flatten().map(|&load| self.pace.seconds(load));
            longest = alone.fold(longest, f64::min) * tenants.len() as f64;
        }
        if next.rows > 0.0 {
            let mut least = Load::default();
            if let Some(prompt) = self.queue.iter().find(|s| s.ready && s.pending() > 1) {
                least.add_rows(prompt.computed, LEAST_ROWS);
            }
            let least = self.pace.seconds(next) + self.pace.more_seconds(least);
            longest = longest.min(least.max(STRETCH * self.pace.seconds(next)));
        }
        let all = Room {
            rows: self.max_num_batched_tokens,
            seconds: longest - self.pace.seconds(Load::default()),
        };
        let prompts = Room {
            rows: all.rows.saturating_sub(next.rows as usize),
            seconds: all.seconds - self.pace.more_seconds(next),
        };
        Budget { sequences: self.max_num_seqs, all, prompts }
    }

    /// How many of its pending tokens a sequence may run, or read if it has to.
    fn n_rows(&self, sequence: &Sequence, budget: &Budget) -> usize {
        let Budget { all, prompts, .. } = budget;
        if sequence.n_unread() > 0 {
            return self.n_reads(sequence, budget) * self.pool.block_len();
        }
        let n = match sequence.pending() {
            1 => {
                let seconds = self.pace.more_seconds(Load::of_next(sequence.tokens.len()));
                usize::from(seconds <= all.seconds)
            }
            pending => {
                let seconds = prompts.seconds.min(all.seconds);
                let n = self.pace.rows_in(seconds, sequence.computed);
                n.min(pending).min(prompts.rows).min(all.rows)
            }
        };
        if sequence.rank == 0 { n.max(1) } else { n }
    }

    /// How many blocks a sequence may read. A token that is read counts as a row: while nothing is
    /// known of the time that it takes, that is what bounds it.
    fn n_reads(&self, sequence: &Sequence, budget: &Budget) -> usize {
        let Budget { all, prompts, .. } = budget;
        let (seconds, rows) = (prompts.seconds.min(all.seconds), prompts.rows.min(all.rows));
        let n = self.pace.reads_in(seconds);
        // Less than a block is no progress.
        let n = if seconds > 0.0 || sequence.rank == 0 { n.max(1) } else { n };
        let n = n.min(rows.div_ceil(self.pool.block_len())).min(sequence.n_unread());
        if sequence.rank == 0 { n.max(1) } else { n }
    }

    /// Takes rows of a sequence out of the budget.
    fn spend(&self, budget: &mut Budget, sequence: &Sequence, n_tokens: usize) {
        let is_prompt = sequence.pending() > 1;
        let seconds = if sequence.n_unread() > 0 {
            self.pace.read_seconds(n_tokens / self.pool.block_len())
        } else {
            let mut load = Load { outputs: f64::from(!is_prompt), ..Load::default() };
            load.add_rows(sequence.computed, n_tokens);
            self.pace.more_seconds(load)
        };
        budget.sequences -= 1;
        budget.all.rows = budget.all.rows.saturating_sub(n_tokens);
        budget.all.seconds -= seconds;
        if is_prompt {
            budget.prompts.rows = budget.prompts.rows.saturating_sub(n_tokens);
            budget.prompts.seconds -= seconds;
        }
    }

    /// Admits a sequence if there is room for it.
    fn admit(&mut self, i: usize, step: &mut Step) -> bool {
        let sequence = &self.queue[i];
        let table = &sequence.block_table;
        let mut found = Vec::new();
        if sequence.n_published == table.len() {
            let readable = &sequence.tokens[..sequence.readable_len()];
            found = self.pool.longest_prefix(sequence.request.salt(), table, readable);
        }
        let growth = 1_usize << sequence.n_preempted.min(30);
        let claim = |s: &Sequence| {
            let (now, full) = (self.n_blocks(s.tokens.len()), self.n_blocks(s.request.max_len()));
            (now + growth).min(full).saturating_sub(s.block_table.len())
        };
        let before = self.queue[..i].iter().filter(|s| s.admitted);
        let claims = before.map(claim).sum::<usize>() + claim(sequence);
        let claims = claims - found.len() + self.pool.count_free(&found);
        if claims > self.pool.n_free() {
            let after = self.queue[i + 1..].iter().map(|s| s.block_table.as_slice());
            if claims > self.pool.n_free() + self.pool.count_freed(after, &found) {
                return false;
            }
        }
        let n_cached = found.len() * self.pool.block_len();
        let sequence = &mut self.queue[i];
        self.pool.share(&found, &mut sequence.block_table);
        sequence.n_published += found.len();
        sequence.hit(n_cached);
        sequence.admitted = true;
        step.n_cached += n_cached;
        self.look_into_store(i);
        true
    }

    /// Lets a sequence read what the store has of it, if that is faster than computing it.
    fn look_into_store(&mut self, i: usize) {
        let (sequence, block_len) = (&mut self.queue[i], self.pool.block_len());
        sequence.n_stored = 0;
        let Some(store) = &mut self.store else { return };
        if sequence.n_published < sequence.block_table.len() {
            return;
        }
        let readable = &sequence.tokens[..sequence.readable_len()];
        let n = store.find(sequence.request.salt(), readable, sequence.n_published);
        let mut load = Load::default();
        load.add_rows(sequence.computed, n * block_len);
        if n > 0 && self.pace.reading_pays(n, load) {
            sequence.n_stored = sequence.n_published + n;
        }
    }

    /// Frees blocks until `n` are free, taking them from the sequences after the one at `i`, the last
    /// one first. Returns whether it could.
    fn make_room(&mut self, n: usize, i: usize, step: &mut Step) -> bool {
        let mut v = self.queue.len();
        while self.pool.n_free() < n {
            v -= 1;
            if v == i {
                return false;
            }
            let victim = &mut self.queue[v];
            if victim.block_table.is_empty() {
                continue;
            }
            // One by one: a block that others share does not get free.
            while self.pool.n_free() < n && !victim.block_table.is_empty() {
                let len = victim.block_table.len() - 1;
                self.pool.truncate(&mut victim.block_table, len);
            }
            let kept = victim.block_table.len();
            victim.computed = victim.computed.min(kept * self.pool.block_len());
            victim.n_published = victim.n_published.min(kept);
            if victim.admitted {
                self.preempt(v, Cause::Yielded, step);
            }
        }
        true
    }

    /// Lets a sequence wait for room.
    fn preempt(&mut self, i: usize, cause: Cause, step: &mut Step) {
        let sequence = &mut self.queue[i];
        sequence.admitted = false;
        sequence.n_stored = 0;
        sequence.n_preempted += 1;
        step.preempted.push((sequence.id, sequence.choice, cause));
    }

    /// Adds drafts within the rows that are left and the blocks that are free.
    fn add_drafts(&mut self, step: &mut Step, mut n_rows: usize) {
        for span in &mut step.spans {
            let sequence = &mut self.queue[span.sequence];
            let mut n = 0;
            if span.n_tokens == sequence.pending() {
                n = sequence.drafts.len().min(n_rows);
                let table = &mut sequence.block_table;
                let len = (sequence.tokens.len() + n).div_ceil(self.pool.block_len());
                if !self.pool.alloc(len.saturating_sub(table.len()), table) {
                    n = n.min(table.len() * self.pool.block_len() - sequence.tokens.len());
                }
            }
            sequence.drafts.truncate(n);
            span.n_tokens += n;
            n_rows -= n;
        }
    }

    /// Takes out the sequences that have ended and frees their blocks; what they have to say is
    /// appended to `events`.
    pub fn remove_finished(&mut self, events: &mut Vec<Event>) {
        for mut sequence in self.queue.extract_if(.., |s| s.finished.is_some()) {
            self.pool.truncate(&mut sequence.block_table, 0);
            let ((id, choice), usage) = (sequence.key(), sequence.usage());
            let (reason, stop) = sequence.finished.unwrap_or((FinishReason::Abort, None));
            events.push(Event::Finished { id, choice, reason, stop, usage });
            self.unordered = true;
        }
    }

    /// Blocks that hold `len` tokens.
    fn n_blocks(&self, len: usize) -> usize {
        len.div_ceil(self.pool.block_len())
    }

    /// Verifies the pool against all sequences.
    pub fn check(&self) {
        self.pool.check(self.queue.iter().map(|s| s.block_table.as_slice()));
        for s in &self.queue {
            let n_blocks = s.block_table.len();
            assert!(s.computed <= n_blocks * self.pool.block_len(), "computed without a slot");
            assert!(n_blocks <= self.n_blocks(s.tokens.len()), "blocks without tokens");
            let n_published = self.pool.count_published(&s.block_table);
            assert_eq!(s.n_published, n_published, "a block is published out of turn");
            assert!(s.n_published * self.pool.block_len() <= s.computed, "published too early");
        }
        assert!(self.unordered || self.queue.is_sorted_by_key(Sequence::place), "out of order");
    }
}
