//! [`Batching`]: one workload on one engine, served one by one, in static batches, and continuously.
//!
//! Only when requests are handed to the engine differs, and with padding what is asked: the engine's
//! own scheduler does the rest, as for any user.

use super::percentiles::Percentiles;
use super::prompt;
use super::steps::{Decode, Point, StepCosts};
use crate::Error;
use crate::text::ModelText;
use paceline_engine::{
    Engine, EngineConfig, Event, InvalidRequest, Limits, Request, RequestId, SamplingParams,
};
use paceline_model::{LoadOptions, Loaded, Model};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Steps of each number of rows whose median is its cost.
const STEPS: usize = 7;

/// Rows of a prompt whose steps are measured, as far as they fit a step.
const PREFILLS: [usize; 5] = [16, 64, 128, 256, 512];

/// Tokens of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Of its prompt.
    pub prompt: usize,
    /// Of its answer.
    pub output: usize,
}

/// How requests are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// One by one.
    Sequential,
    /// In batches that end with their slowest, all padded to the longest prompt and computed to the
    /// longest answer; who is done waits for the others.
    StaticPadded,
    /// In batches that end with their slowest; who is done leaves, nobody enters.
    StaticRagged,
    /// As the engine does it.
    Continuous,
}

impl Way {
    /// All of them.
    pub const ALL: [Way; 4] =
        [Way::Sequential, Way::StaticPadded, Way::StaticRagged, Way::Continuous];

    /// In a table.
    pub fn name(self) -> &'static str {
        match self {
            Way::Sequential => "one by one",
            Way::StaticPadded => "static, padded",
            Way::StaticRagged => "static, ragged",
            Way::Continuous => "continuous",
        }
    }

    /// In JSON.
    pub fn key(self) -> &'static str {
        match self {
            Way::Sequential => "sequential",
            Way::StaticPadded => "static_padded",
            Way::StaticRagged => "static_ragged",
            Way::Continuous => "continuous",
        }
    }
}

/// What became of a request. Times count from the start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Turn {
    /// Its tokens.
    pub lengths: Lengths,
    /// When it came.
    pub arrival: Duration,
    /// When its first row was computed, or the step with it began.
    pub start: Duration,
    /// When its first token was there.
    pub first: Duration,
    /// When its last token was there.
    pub done: Duration,
    /// When it left its slot, and its user had the answer.
    pub end: Duration,
    /// Which of the slots it had.
    pub slot: usize,
}

/// A workload that was served.
#[derive(Clone, Debug)]
pub struct Served {
    /// How.
    pub way: Way,
    /// The requests, in the order of their arrival.
    pub turns: Vec<Turn>,
    /// From the start to the end of the last.
    pub time: Duration,
    /// Rows that were computed.
    pub n_rows: u64,
}

impl Served {
    /// Tokens of the answers, those that were asked for, a second.
    pub fn output_tokens_per_second(&self) -> f64 {
        let tokens: usize = self.turns.iter().map(|turn| turn.lengths.output).sum();
        tokens as f64 / self.time.as_secs_f64()
    }

    /// The share of the computed rows that somebody needed.
    pub fn useful_rows(&self) -> f64 {
        // The last token of an answer is sampled, not computed.
        let useful = |turn: &Turn| (turn.lengths.prompt + turn.lengths.output - 1) as f64;
        self.turns.iter().map(useful).sum::<f64>() / self.n_rows.max(1) as f64
    }

    /// How many of `slots` were at work for an answer that was not complete, on average over time,
    /// as a share.
    pub fn slots_at_work(&self, slots: usize) -> f64 {
        let work = |turn: &Turn| (turn.done - turn.start).as_secs_f64();
        self.turns.iter().map(work).sum::<f64>() / self.time.as_secs_f64() / slots as f64
    }

    /// Milliseconds from arrival to the first token.
    pub fn ttft(&self) -> Option<Percentiles> {
        Percentiles::of_times(self.turns.iter().map(|turn| turn.first - turn.arrival))
    }

    /// Milliseconds from arrival to the answer.
    pub fn e2e(&self) -> Option<Percentiles> {
        Percentiles::of_times(self.turns.iter().map(|turn| turn.end - turn.arrival))
    }

    /// The same for the half of the requests with the shortest answers.
    pub fn shortest_half_e2e(&self) -> Option<Percentiles> {
        let mut turns: Vec<&Turn> = self.turns.iter().collect();
        turns.sort_by_key(|turn| turn.lengths.output);
        let half = turns[..turns.len().div_ceil(2)].iter();
        Percentiles::of_times(half.map(|turn| turn.end - turn.arrival))
    }
}

/// A model in an engine of its own, and a workload for it.
pub struct Batching {
    engine: Engine,
    limits: Limits,
    workload: Vec<Lengths>,
    slots: usize,
    budget: usize,
}

impl Batching {
    /// Loads a model and reserves the memory that the worst batch takes.
    ///
    /// # Errors
    /// If the model cannot be loaded, there is no memory, or the workload does not fit its context.
    pub fn new(
        path: &Path,
        options: &LoadOptions,
        config: EngineConfig,
        workload: Vec<Lengths>,
    ) -> Result<Batching, Error> {
        let Loaded { model, tokenizer, chat_template: template, .. } =
            paceline_model::load(path, options)?;
        let text = Arc::new(ModelText { tokenizer, template });
        Batching::from_parts(Box::new(model), text, config, workload)
    }

    fn from_parts(
        model: Box<dyn Model>,
        text: Arc<dyn paceline_engine::Vocab>,
        config: EngineConfig,
        workload: Vec<Lengths>,
    ) -> Result<Batching, Error> {
        config.check()?;
        let slots = config.max_num_seqs.min(config.max_num_batched_tokens);
        let budget = config.max_num_batched_tokens;
        let longest = padded(&workload);
        let [_, context] = contexts(&workload);
        let len =
            (longest.prompt + longest.output).max(context + n_measured(context, slots, budget));
        let (prompt_len, max_tokens) = (longest.prompt, longest.output);
        let limit = config.max_model_len.min(model.spec().context_len);
        if prompt_len + max_tokens > limit {
            return Err(InvalidRequest::ContextLen { prompt_len, max_tokens, limit }.into());
        }
        // One block more for each: a running sequence is owed its next one.
        let blocks = |len: usize| len.div_ceil(model.spec().block_len) + 1;
        let n_blocks = (slots * blocks(len)).max(blocks(PREFILLS[PREFILLS.len() - 1]));
        let config = EngineConfig { n_blocks, prefix_cache: false, ..config };
        let engine = Engine::new(model, text, config)?;
        let limits = engine.limits().clone();
        Ok(Batching { engine, limits, workload, slots, budget })
    }

    /// The requests.
    pub fn workload(&self) -> &[Lengths] {
        &self.workload
    }

    /// The most rows in a step.
    pub fn budget(&self) -> usize {
        self.budget
    }

    /// Serves the workload, each request from its time of `arrival` on; `ended` is told of each that
    /// has its answer.
    ///
    /// # Errors
    /// If the engine refuses a request.
    pub fn serve(
        &mut self,
        way: Way,
        arrivals: &[Duration],
        mut ended: impl FnMut(),
    ) -> Result<Served, Error> {
        let n = self.workload.len();
        let turn = |(&lengths, &arrival): (&Lengths, &Duration)| Turn {
            lengths,
            arrival,
            start: arrival,
            first: arrival,
            done: arrival,
            end: arrival,
            slot: 0,
        };
        let mut turns: Vec<Turn> = self.workload.iter().zip(arrivals).map(turn).collect();
        let mut numbers: HashMap<RequestId, usize> = HashMap::new();
        let mut n_tokens = vec![0; n];
        let mut taken = vec![false; self.slots];
        let (mut n_entered, mut n_ended) = (0, 0);
        let mut batch = 0..0;
        let rows_before = self.engine.stats().rows;
        let begin = Instant::now();
        while n_ended < n {
            let now = begin.elapsed();
            let n_entering = self.n_entering(way, arrivals[n_entered..].iter(), now);
            if n_entering > 0 {
                batch = n_entered..n_entered + n_entering;
                n_entered = batch.end;
                let longest = padded(&self.workload[batch.clone()]);
                for i in batch.clone() {
                    let asked = if way == Way::StaticPadded { longest } else { self.workload[i] };
                    let request = self.request(i, asked)?;
                    numbers.insert(self.engine.add(request), i);
                }
            }
            if !self.engine.has_work() {
                std::thread::sleep(arrivals[n_entered].saturating_sub(begin.elapsed()));
                continue;
            }
            let start = begin.elapsed();
            let events = self.engine.step();
            let now = begin.elapsed();
            self.engine.took(now - start);
            for event in events {
                match event {
                    Event::Started { id, .. } => {
                        let turn = &mut turns[numbers[&id]];
                        turn.slot = taken.iter().position(|taken| !taken).unwrap_or(0);
                        turn.start = start;
                        taken[turn.slot] = true;
                    }
                    Event::Token { id, .. } => {
                        let i = numbers[&id];
                        n_tokens[i] += 1;
                        if n_tokens[i] == 1 {
                            turns[i].first = now;
                        }
                        if n_tokens[i] == turns[i].lengths.output {
                            turns[i].done = now;
                        }
                    }
                    Event::Finished { id, .. } => {
                        let turn = &mut turns[numbers[&id]];
                        turn.end = now;
                        taken[turn.slot] = false;
                        n_ended += 1;
                        ended();
                    }
                    Event::PromptLogprobs { .. } => {}
                }
            }
            if way == Way::StaticPadded {
                // A batch comes back as a whole, with its last step.
                turns[batch.clone()].iter_mut().for_each(|turn| turn.end = now);
            }
        }
        let time = begin.elapsed();
        Ok(Served { way, turns, time, n_rows: self.engine.stats().rows - rows_before })
    }

    /// How many of the requests that wait outside are handed to the engine now.
    fn n_entering<'a>(
        &self,
        way: Way,
        arrivals: impl Iterator<Item = &'a Duration>,
        now: Duration,
    ) -> usize {
        let most = match way {
            Way::Continuous => usize::MAX,
            _ if self.engine.has_work() => 0,
            Way::Sequential => 1,
            Way::StaticPadded | Way::StaticRagged => self.slots,
        };
        arrivals.take_while(|&&arrival| arrival <= now).take(most).count()
    }

    /// Measures what steps cost that this workload may consist of.
    ///
    /// # Errors
    /// If the engine refuses its requests.
    pub fn measure_steps(&mut self) -> Result<StepCosts, Error> {
        let [short, long] = contexts(&self.workload);
        let (short, long) = (self.decode_steps(short)?, self.decode_steps(long)?);
        let decode = short.into_iter().zip(long);
        let decode = decode.map(|((n_rows, a), (_, b))| Decode { n_rows, at: [a, b] });
        let most = self.budget.min(self.limits.max_model_len - 1);
        let mut prefill = Vec::new();
        for n in PREFILLS.into_iter().filter(|&n| n <= most) {
            prefill.push((n, self.prefill_step(n)?));
        }
        Ok(StepCosts { decode: decode.rev().collect(), prefill })
    }

    /// The tokens of a sequence and the seconds of a step, for as many sequences as there are slots,
    /// half of them, and so on to one.
    fn decode_steps(&mut self, context: usize) -> Result<Vec<(usize, Point)>, Error> {
        let output = n_measured(context, self.slots, self.budget);
        let mut lens: HashMap<RequestId, usize> = HashMap::new();
        for i in 0..self.slots {
            let request = self.request(i, Lengths { prompt: context, output })?;
            lens.insert(self.engine.add(request), context);
        }
        while lens.values().any(|&len| len == context) {
            self.step(&mut lens);
        }
        let mut costs = Vec::new();
        while !lens.is_empty() {
            let n = lens.len();
            let len = lens.values().sum::<usize>() as f64 / n as f64 + STEPS as f64 / 2.0;
            let mut times: Vec<Duration> = (0..STEPS).map(|_| self.step(&mut lens)).collect();
            times.sort_unstable();
            costs.push((n, (len, times[STEPS / 2].as_secs_f64())));
            let left: Vec<RequestId> = lens.keys().skip(n / 2).copied().collect();
            for id in left {
                self.engine.abort(id);
                lens.remove(&id);
            }
        }
        self.drain();
        Ok(costs)
    }

    /// Seconds of a step that computes a prompt of `n` tokens, the median of three.
    fn prefill_step(&mut self, n: usize) -> Result<f64, Error> {
        let mut times = Vec::new();
        for i in 0..3 {
            let request = self.request(i, Lengths { prompt: n, output: 1 })?;
            self.engine.add(request);
            times.push(self.step(&mut HashMap::new()));
            self.drain();
        }
        times.sort_unstable();
        Ok(times[1].as_secs_f64())
    }

    /// Runs a step, counts its tokens to the sequences', and returns its time.
    fn step(&mut self, lens: &mut HashMap<RequestId, usize>) -> Duration {
        let start = Instant::now();
        let events = self.engine.step();
        let time = start.elapsed();
        for event in events {
            if let Event::Token { id, .. } = event
                && let Some(len) = lens.get_mut(&id)
            {
                *len += 1;
            }
        }
        time
    }

    fn drain(&mut self) {
        while self.engine.has_work() {
            self.engine.step();
        }
    }

    /// Request number `i`, of these lengths.
    fn request(&self, i: usize, lengths: Lengths) -> Result<Request, Error> {
        let params = SamplingParams {
            temperature: 0.0,
            max_tokens: Some(lengths.output),
            ignore_eos: true,
            ..SamplingParams::default()
        };
        let prompt = prompt(i, lengths.prompt, self.limits.vocab_len);
        Ok(Request::new(prompt, params, 0, &self.limits)?)
    }
}

/// The lengths that all of these are padded to.
fn padded(workload: &[Lengths]) -> Lengths {
    let most = |length: fn(&Lengths) -> usize| workload.iter().map(length).max().unwrap_or(1);
    Lengths { prompt: most(|lengths| lengths.prompt), output: most(|lengths| lengths.output) }
}

/// A short and a long context of a sequence that decodes, as the workload has them.
fn contexts(workload: &[Lengths]) -> [usize; 2] {
    let n = workload.len().max(1);
    let prompt = workload.iter().map(|lengths| lengths.prompt).sum::<usize>() / n;
    let output = workload.iter().map(|lengths| lengths.output).sum::<usize>() / n;
    [prompt.max(8), (prompt + output).max(16)]
}

/// Tokens that a sequence generates at most while steps are measured: beside the prompts of the
/// others, then `STEPS` for each number of rows.
fn n_measured(context: usize, slots: usize, budget: usize) -> usize {
    let n_levels = slots.ilog2() as usize + 1;
    (slots * context).div_ceil(budget.saturating_sub(slots).max(1)) + n_levels * STEPS + 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_engine::testing::{FakeModel, FakeVocab};

    fn workload() -> Vec<Lengths> {
        (0..23).map(|i| Lengths { prompt: 3 + i * 7 % 31, output: 1 + i * 11 % 40 }).collect()
    }

    fn batching(slots: usize) -> Batching {
        let model = Box::new(FakeModel::new(600, 16, 512));
        let config = EngineConfig {
            max_num_seqs: slots,
            max_num_batched_tokens: 32,
            ..EngineConfig::default()
        };
        Batching::from_parts(model, Arc::new(FakeVocab::new(600)), config, workload()).unwrap()
    }

    /// At most `slots` in their slots at a time, and never two in one.
    fn check_slots(served: &Served, slots: usize) {
        for (i, a) in served.turns.iter().enumerate() {
            assert!(a.slot < slots && a.arrival <= a.start && a.start <= a.first, "{a:?}");
            assert!(a.first <= a.done && a.done <= a.end && a.end <= served.time, "{a:?}");
            let overlaps = |b: &&Turn| b.slot == a.slot && a.start < b.end && b.start < a.end;
            assert_eq!(served.turns[i + 1..].iter().filter(overlaps).count(), 0, "{a:?}");
        }
    }

    #[test]
    fn every_way_serves_everything() {
        let mut batching = batching(4);
        let at_once = vec![Duration::ZERO; 23];
        let useful: usize = workload().iter().map(|l| l.prompt + l.output - 1).sum();
        for way in Way::ALL {
            let mut n_ended = 0;
            let served = batching.serve(way, &at_once, || n_ended += 1).unwrap();
            assert_eq!((n_ended, served.turns.len()), (23, 23));
            check_slots(&served, if way == Way::Sequential { 1 } else { 4 });
            let rows = match way {
                // Batches of four, all as long as their longest prompt and answer.
                Way::StaticPadded => {
                    let batches = batching.workload().chunks(4).map(|batch| {
                        let longest = padded(batch);
                        batch.len() * (longest.prompt + longest.output - 1)
                    });
                    batches.sum()
                }
                _ => useful,
            };
            assert_eq!(served.n_rows, rows as u64, "{way:?}");
            assert!((served.useful_rows() - useful as f64 / rows as f64).abs() < 1e-9);
            let batches = served.turns.chunks(4).filter(|_| way == Way::StaticPadded);
            batches.for_each(|all| assert!(all.iter().all(|turn| turn.end == all[0].end)));
            let work = served.slots_at_work(4);
            assert!(0.0 < work && work <= 1.0 + 1e-9, "{way:?}: {work}");
        }
    }

    #[test]
    fn nobody_enters_a_static_batch() {
        let mut batching = batching(4);
        let at_once = vec![Duration::ZERO; 23];
        let served = batching.serve(Way::StaticRagged, &at_once, || ()).unwrap();
        let batches: Vec<&[Turn]> = served.turns.chunks(4).collect();
        for pair in batches.windows(2) {
            let end = pair[0].iter().map(|turn| turn.end).max().unwrap();
            assert!(pair[1].iter().all(|turn| turn.start >= end));
        }
        // Continuously, somebody does while others run.
        let served = batching.serve(Way::Continuous, &at_once, || ()).unwrap();
        assert!(
            served.turns[4].start < served.turns[..4].iter().map(|turn| turn.end).max().unwrap()
        );
    }

    #[test]
    fn nobody_is_served_before_arriving() {
        let mut batching = batching(4);
        let arrivals: Vec<Duration> = (0..23).map(|i| Duration::from_millis(i / 3 * 4)).collect();
        for way in [Way::StaticRagged, Way::Continuous] {
            let served = batching.serve(way, &arrivals, || ()).unwrap();
            check_slots(&served, 4);
            assert!(served.turns.iter().zip(&arrivals).all(|(turn, at)| turn.arrival == *at));
        }
    }

    #[test]
    fn steps_are_measured_for_all_numbers_of_rows() {
        let mut batching = batching(6);
        let costs = batching.measure_steps().unwrap();
        let rows: Vec<usize> = costs.decode.iter().map(|decode| decode.n_rows).collect();
        assert_eq!(rows, [1, 3, 6]);
        let [short, long] = contexts(&workload());
        for decode in &costs.decode {
            assert!(decode.at[0].0 > short as f64 && decode.at[1].0 > long as f64);
            assert!(decode.at.iter().all(|at| at.1 > 0.0));
        }
        assert!(costs.prefill.iter().map(|prefill| prefill.0).eq([16]));
        assert!(!batching.engine.has_work());
        assert!(costs.predict(&workload(), 6, 32) > 0.0);
    }

    #[test]
    fn a_workload_that_does_not_fit_is_refused() {
        let model = Box::new(FakeModel::new(600, 16, 64));
        let config = EngineConfig { max_num_seqs: 2, ..EngineConfig::default() };
        let workload = vec![Lengths { prompt: 40, output: 30 }];
        let vocab = Arc::new(FakeVocab::new(600));
        let error = Batching::from_parts(model, vocab, config, workload).err().unwrap();
        assert!(error.to_string().contains("64"), "{error}");
    }
}
