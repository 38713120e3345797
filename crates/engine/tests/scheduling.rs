//! Who runs when: the pace of running texts, the shares of tenants, priorities, timeouts. Time is
//! made up from the rows of each step, so every figure here is exact.

use paceline_engine::testing::{FakeModel, FakeVocab, StepLog};
use paceline_engine::{
    Engine, EngineConfig, Event, FinishReason, Request, RequestId, SamplingParams, Speculate,
};
use paceline_model::TokenId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const V: usize = 300;
const B: usize = 16;

/// An engine on a machine whose speed is known.
struct Clocked {
    engine: Engine,
    log: Arc<Mutex<StepLog>>,
    now: Duration,
}

impl Clocked {
    fn new(config: EngineConfig) -> Clocked {
        let model = FakeModel::new(V, B, 8192).periodic(7);
        let log = model.log();
        let engine = Engine::new(Box::new(model), Arc::new(FakeVocab::new(V)), config).unwrap();
        Clocked { engine, log, now: Duration::ZERO }
    }

    /// A step and what it takes: as a small model does on two cores.
    fn step(&mut self) -> Vec<Event> {
        self.log.lock().unwrap().clear();
        self.engine.at(self.now);
        let events = self.engine.step();
        let mut ms = 1.7;
        for &(position, rows) in self.log.lock().unwrap().iter().flatten() {
            let (position, rows) = (position as f64, rows as f64);
            ms += 0.2 + 0.4 * rows + 0.0001 * rows * (position + rows / 2.0);
        }
        let time = Duration::from_secs_f64(ms * 1e-3);
        if !self.log.lock().unwrap().is_empty() {
            self.engine.took(time);
            self.now += time;
        }
        events
    }

    fn request(&self, prompt_len: usize, max_tokens: usize, seed: u64) -> Request {
        let token = |i: usize| ((i as u64 * 31 + seed * 17) % 251) as TokenId;
        let params = SamplingParams {
            max_tokens: Some(max_tokens),
            ignore_eos: true,
            ..SamplingParams::default()
        };
        let prompt = (0..prompt_len).map(token).collect();
        Request::new(prompt, params, seed, self.engine.limits()).unwrap()
    }

    fn add(&mut self, prompt_len: usize, max_tokens: usize) -> RequestId {
        let request = self.request(prompt_len, max_tokens, self.now.as_nanos() as u64);
        self.engine.add(request)
    }

    /// Milliseconds until a request has its first token, and the gaps between the tokens of all
    /// others meanwhile, in ascending order.
    fn until_first_token(&mut self, of: RequestId) -> (f64, Vec<f64>) {
        let (start, mut last, mut gaps) = (self.now, HashMap::new(), Vec::new());
        loop {
            let events = self.step();
            for event in events {
                let Event::Token { id, .. } = event else { continue };
                if let Some(before) = last.insert(id, self.now) {
                    gaps.push(ms(self.now - before));
                }
            }
            if last.contains_key(&of) {
                gaps.sort_by(f64::total_cmp);
                return (ms(self.now - start), gaps);
            }
        }
    }

    /// Runs until all of these have ended, and says when each did.
    fn ends(&mut self) -> HashMap<RequestId, (Duration, FinishReason)> {
        let mut ends = HashMap::new();
        while self.engine.has_work() {
            for event in self.step() {
                if let Event::Finished { id, reason, .. } = event {
                    ends.insert(id, (self.now, reason));
                }
            }
        }
        ends
    }
}

fn roomy() -> EngineConfig {
    EngineConfig { n_blocks: 2000, ..EngineConfig::default() }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
fn running_texts_keep_their_pace_beside_a_long_prompt() {
    let mut alone = Clocked::new(roomy());
    let id = alone.add(4000, 1);
    let (prefill_alone, _) = alone.until_first_token(id);

    let mut machine = Clocked::new(roomy());
    for i in 0..8 {
        machine.add(40 + 20 * i, 2000);
    }
    for _ in 0..20 {
        machine.step();
    }
    let start = machine.now;
    for _ in 0..100 {
        machine.step();
    }
    let gap = ms(machine.now - start) / 100.0;
    let id = machine.add(4000, 1);
    let (prefill, gaps) = machine.until_first_token(id);
    let p99 = gaps[gaps.len() * 99 / 100];
    eprintln!(
        "gap {gap:.1} ms, beside the prompt p99 {p99:.1}, at most {:.1}",
        gaps[gaps.len() - 1]
    );
    eprintln!("prefill {prefill:.0} ms, alone {prefill_alone:.0}");
    assert!(p99 < 3.0 * gap && prefill < 2.0 * prefill_alone);
    // The step is used, too.
    assert!(p99 > 1.5 * gap);
}

#[test]
fn without_running_texts_a_prompt_gets_the_whole_step() {
    let mut machine = Clocked::new(roomy());
    for _ in 0..3 {
        machine.add(100, 20);
    }
    machine.ends();
    machine.add(1500, 1);
    for rows in [512, 512, 476] {
        machine.step();
        assert_eq!(
            machine.log.lock().unwrap().concat().iter().map(|span| span.1).sum::<usize>(),
            rows
        );
    }
}

/// Of a tenant that has one request at a time, the median latency when another one keeps 50 in the
/// queue, over that without the other.
fn slowdown(config: EngineConfig) -> f64 {
    let latency = |n_heavy: usize| {
        let mut machine = Clocked::new(config.clone());
        let (mut heavy, mut n_heavy_ends, mut latencies) = (0, 0, Vec::new());
        let mut light: Option<(RequestId, Duration)> = None;
        while latencies.len() < 40 {
            while heavy < n_heavy {
                let seed = 1000 + n_heavy_ends + heavy as u64;
                let (prompt_len, max_tokens) =
                    (20 + seed as usize * 37 % 400, 20 + seed as usize * 53 % 200);
                let request = machine.request(prompt_len, max_tokens, seed);
                machine.engine.add(request.with_tenant("heavy".into()));
                heavy += 1;
            }
            // The first one comes when the others are under way.
            if light.is_none() && (n_heavy == 0 || machine.now > Duration::from_secs(2)) {
                let seed = latencies.len() as u64;
                let (prompt_len, max_tokens) =
                    (50 + seed as usize * 41 % 300, 30 + seed as usize * 29 % 150);
                let request = machine.request(prompt_len, max_tokens, seed);
                light =
                    Some((machine.engine.add(request.with_tenant("light".into())), machine.now));
            }
            for event in machine.step() {
                let Event::Finished { id, .. } = event else { continue };
                match light {
                    Some((own, start)) if own == id => {
                        latencies.push(ms(machine.now - start));
                        light = None;
                    }
                    _ => (heavy, n_heavy_ends) = (heavy - 1, n_heavy_ends + 1),
                }
            }
        }
        assert!(n_heavy == 0 || n_heavy_ends > 20, "the heavy tenant gets its share as well");
        median(latencies)
    };
    latency(50) / latency(0)
}

#[test]
fn a_tenant_with_one_request_hardly_notices_one_with_fifty() {
    for config in [
        roomy(),
        EngineConfig { max_num_seqs: 8, ..roomy() },
        EngineConfig { max_num_seqs: 1, ..roomy() },
        // Some five of the heavy tenant's fit.
        EngineConfig { n_blocks: 100, ..roomy() },
    ] {
        let slowdown = slowdown(config.clone());
        eprintln!("{} sequences, {} blocks: {slowdown:.2}", config.max_num_seqs, config.n_blocks);
        assert!(slowdown < 2.2, "{slowdown}");
    }
}

#[test]
fn two_busy_tenants_share_evenly() {
    let mut machine = Clocked::new(EngineConfig { max_num_seqs: 6, ..roomy() });
    let mut tenant_of = HashMap::new();
    for (tenant, n) in [("a", 60), ("b", 30)] {
        for _ in 0..n {
            let request = machine.request(100, 50, 1).with_tenant(tenant.into());
            tenant_of.insert(machine.engine.add(request), tenant);
        }
    }
    let mut ends = Vec::new();
    while machine.engine.has_work() {
        let events = machine.step();
        let end = |event: Event| match event {
            Event::Finished { id, .. } => Some(tenant_of[&id]),
            _ => None,
        };
        ends.extend(events.into_iter().filter_map(end));
    }
    // As long as both are there.
    let n = ends[..50].iter().filter(|&&tenant| tenant == "a").count();
    assert!((22..=28).contains(&n), "{n} of 50");
}

#[test]
fn priority_is_a_head_start_of_a_minute_a_level() {
    let mut machine = Clocked::new(EngineConfig { max_num_seqs: 1, ..roomy() });
    // Arrival in seconds, and priority.
    let requests = [(0, 0), (0, 3), (1, 1), (1, 0), (2, -1), (62, 0), (130, 1), (130, 2)];
    let mut waiting = Vec::new();
    for (second, priority) in requests {
        machine.engine.at(Duration::from_secs(second));
        let request = machine.request(10, 2, 1).with_priority(priority);
        waiting.push((machine.engine.add(request), priority));
    }
    machine.now = Duration::from_secs(130);
    let mut order = Vec::new();
    while machine.engine.has_work() {
        for event in machine.step() {
            if let Event::Finished { id, .. } = event {
                order.push(waiting.iter().position(|(i, _)| *i == id).unwrap());
            }
        }
    }
    assert_eq!(order, [4, 0, 3, 2, 5, 1, 6, 7]);
}

#[test]
fn who_comes_before_takes_the_place_of_the_last_without_its_blocks() {
    let mut machine = Clocked::new(EngineConfig { max_num_seqs: 2, ..roomy() });
    let (first, last) = (machine.add(100, 50), machine.add(90, 50));
    for _ in 0..10 {
        machine.step();
    }
    let urgent = machine.request(200, 3, 7).with_priority(-1);
    let urgent = machine.engine.add(urgent);
    let ends = machine.ends();
    assert!(ends[&urgent].0 < ends[&first].0 && ends[&first].0 < ends[&last].0);
    let stats = machine.engine.stats();
    // Nothing was computed twice.
    assert_eq!((stats.preemptions(), stats.tokens_prefilled), (0, 100 + 90 + 200));
    assert_eq!(stats.rows, 390 + 49 + 49 + 2);
}

#[test]
fn drafts_take_only_what_nobody_needs() {
    // The first needs its fourth block when the second, with three, has ended; its drafts would need
    // it earlier.
    for (max_drafts, seed) in (0..40).map(|i| (i % 2 * 8, i as u64 / 2)) {
        let config = EngineConfig {
            n_blocks: 6,
            speculate: Speculate::Lookup { max_drafts },
            ..EngineConfig::default()
        };
        let mut machine = Clocked::new(config);
        let first = machine.request(33, 31, seed);
        machine.engine.add(first);
        let second = machine.request(34, 7, seed);
        machine.engine.add(second);
        let ends = machine.ends();
        assert!(ends.values().all(|(_, reason)| *reason == FinishReason::Length));
        assert_eq!(machine.engine.stats().preemptions(), 0);
        assert_eq!(machine.engine.stats().drafts_proposed > 5, max_drafts > 0);
    }
}

#[test]
fn a_timeout_ends_a_request_within_a_step_wherever_it_is() {
    let mut machine = Clocked::new(EngineConfig { max_num_seqs: 2, ..roomy() });
    let timeout = |machine: &Clocked, prompt_len: usize, ms: u64| {
        let request = machine.request(prompt_len, 500, ms);
        request.with_timeout(Duration::from_millis(ms))
    };
    let ids = [
        // Generating, in its prompt, waiting, too late for any.
        timeout(&machine, 50, 400),
        timeout(&machine, 4000, 700),
        timeout(&machine, 50, 300),
        timeout(&machine, 50, 0),
    ]
    .map(|request| machine.engine.add(request));
    let neighbour = machine.add(20, 30);
    let ends = machine.ends();
    for (id, ms) in ids.iter().zip([400, 700, 300, 0]) {
        let (end, reason) = ends[id];
        assert_eq!(reason, FinishReason::Timeout);
        let late = end.checked_sub(Duration::from_millis(ms)).expect("not before its time");
        // Two steps at most: the one under way, and the one that reports it.
        assert!(late < Duration::from_millis(2 * 250), "{late:?} after {ms} ms");
    }
    assert_eq!(ends[&neighbour].1, FinishReason::Length);
    assert_eq!(machine.engine.stats().kv_blocks_used, 0);
}
