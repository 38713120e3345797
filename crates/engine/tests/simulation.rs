//! Random arrivals, aborts and steps, with every invariant checked after each of them.

use paceline_engine::testing::{FakeModel, FakeVocab, Lcg, StepLog};
use paceline_engine::{
    Engine, EngineConfig, Event, FinishReason, Request, RequestId, SamplingParams, Speculate,
};
use paceline_model::TokenId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const V: usize = 300;

/// Uniform in (0, 1).
fn unit(random: &mut Lcg) -> f64 {
    (random.below(1 << 30) as f64 + 0.5) / (1u64 << 30) as f64
}

/// exp of a normal variable, with the given mean; `sigma` is the normal's.
fn log_normal(random: &mut Lcg, mean: f64, sigma: f64) -> f64 {
    let normal = (-2.0 * unit(random).ln()).sqrt() * (std::f64::consts::TAU * unit(random)).cos();
    (mean.ln() - sigma * sigma / 2.0 + sigma * normal).exp()
}

fn engine(block_len: usize, config: EngineConfig) -> (Engine, Arc<Mutex<StepLog>>) {
    let model = FakeModel::new(V, block_len, 2048).periodic(7);
    let log = model.log();
    let engine = Engine::new(Box::new(model), Arc::new(FakeVocab::new(V)), config).unwrap();
    (engine, log)
}

/// What is known of a choice that has not ended.
#[derive(Default)]
struct Live {
    n_tokens: usize,
    prompt_len: usize,
    /// Steps without a token since it became the oldest.
    silent: usize,
}

/// Runs a random workload, with aborts, and checks everything that must hold after each step.
fn simulate(seed: u64, block_len: usize, config: EngineConfig) -> Engine {
    let mut random = Lcg(seed);
    let (mut engine, log) = engine(block_len, config.clone());
    let kv_len = engine.limits().kv_len;
    let shared: Vec<TokenId> = (0..kv_len / 3).map(|_| random.below(256) as TokenId).collect();
    let mut live: BTreeMap<(RequestId, usize), Live> = BTreeMap::new();
    let mut left = 60;
    let mut n_steps = 0;
    while left > 0 || engine.has_work() {
        if left > 0 && random.below(3) == 0 {
            left -= 1;
            let longest = kv_len - 1;
            let prompt_len = 1 + random.below(longest);
            let mut prompt = shared[..shared.len().min(random.below(prompt_len + 1))].to_vec();
            prompt.resize_with(prompt_len, || random.below(256) as TokenId);
            let params = SamplingParams {
                temperature: random.below(2) as f32 * 0.8,
                max_tokens: Some(1 + random.below((kv_len - prompt_len).min(60))),
                n: 1 + random.below(2) * random.below(3).min(config.max_num_seqs - 1),
                prompt_logprobs: (random.below(4) == 0).then_some(1),
                ..SamplingParams::default()
            };
            let n = params.n;
            let request = Request::new(prompt, params, seed, engine.limits()).unwrap();
            let id = engine.add(request);
            live.extend((0..n).map(|i| ((id, i), Live { prompt_len, ..Live::default() })));
        }
        if !live.is_empty() && random.below(40) == 0 {
            let &(id, _) = live.keys().nth(random.below(live.len())).unwrap();
            engine.abort(id);
            engine.check();
        }
        log.lock().unwrap().clear();
        let events = engine.step();
        engine.check();
        n_steps += 1;
        assert!(n_steps < 100_000, "no end");

        let spans = log.lock().unwrap().concat();
        let n_rows: usize = spans.iter().map(|&(_, rows)| rows).sum();
        assert!(n_rows <= config.max_num_batched_tokens && spans.len() <= config.max_num_seqs);
        if let Some(mut oldest) = live.first_entry() {
            oldest.get_mut().silent += 1;
        }
        for event in events {
            match event {
                Event::Started { .. } | Event::PromptLogprobs { .. } => {}
                Event::Token { id, choice, .. } => {
                    let choice = live.get_mut(&(id, choice)).expect("a token after the end");
                    choice.silent = 0;
                    choice.n_tokens += 1;
                }
                Event::Finished { id, choice, usage, .. } => {
                    let choice = live.remove(&(id, choice)).expect("an end after the end");
                    assert_eq!(usage.completion_tokens, choice.n_tokens);
                    assert_eq!(usage.prompt_tokens, choice.prompt_len);
                }
            }
        }
        // The oldest gets at least one token computed in every step, and all others are younger.
        if let Some(oldest) = live.values().next() {
            assert!(
                oldest.silent <= oldest.prompt_len + oldest.n_tokens,
                "the oldest stands still"
            );
        }
        // Who runs gets something: rows in every step with anybody there.
        assert!(live.is_empty() || n_rows > 0, "a step without rows");
    }
    assert!(live.is_empty());
    let stats = engine.stats();
    assert_eq!((stats.kv_blocks_used, stats.n_running, stats.n_waiting), (0, 0, 0));
    engine
}

#[test]
fn random_workloads_end_and_leave_nothing() {
    let (mut preemptions, mut cached, mut accepted, mut rejected, mut mixed) = (0, 0, 0, 0, 0);
    for seed in 0..24 {
        let config = EngineConfig {
            max_num_seqs: [3, 8, 64][seed as usize % 3],
            max_num_batched_tokens: [64, 16, 100][seed as usize / 3 % 3],
            n_blocks: [12, 40, 20, 90][seed as usize % 4],
            prefix_cache: seed % 5 != 4,
            kv_cache: seed % 11 != 10,
            speculate: match seed % 2 {
                0 => Speculate::Off,
                _ => Speculate::Lookup { max_drafts: 5 },
            },
            ..EngineConfig::default()
        };
        let stats = *simulate(seed, [4, 8, 16][seed as usize % 3], config).stats();
        preemptions += stats.preemptions();
        cached += stats.tokens_cached;
        accepted += stats.drafts_accepted;
        rejected += stats.drafts_proposed - stats.drafts_accepted;
        mixed += stats.steps_mixed;
    }
    assert!(preemptions > 50 && cached > 100, "{preemptions} {cached}");
    assert!(accepted > 100 && rejected > 100, "{accepted} {rejected}");
    assert!(mixed > 50, "{mixed}");
}

/// Who is under way in the great simulation.
struct Guest {
    kind: usize,
    arrival: usize,
    deadline: Option<Duration>,
    /// Of each choice, the tokens; none if it has ended.
    choices: Vec<Option<Vec<TokenId>>>,
}

/// Ten thousand requests of every sort in a pool that holds two or three of the longest: all end,
/// with the text that they have alone, and none has to begin anew too often.
#[test]
fn ten_thousand_requests_in_a_pool_far_too_small() {
    let mut random = Lcg(2026);
    let config = EngineConfig {
        n_blocks: 40,
        max_num_seqs: 12,
        max_num_batched_tokens: 64,
        speculate: Speculate::Lookup { max_drafts: 4 },
        ..EngineConfig::default()
    };
    let roomy = EngineConfig { n_blocks: 1000, ..config.clone() };
    let (mut engine, log) = engine(8, config);
    let kinds: Vec<Request> = (0..80)
        .map(|i| {
            let prompt_len = 1 + random.below([10, 40, 120][i % 3]);
            let prompt = (0..prompt_len).map(|p| (p * (i % 5 + 1) % 256) as TokenId).collect();
            let params = SamplingParams {
                temperature: (i % 2) as f32,
                max_tokens: Some(1 + random.below([8, 60][i % 2])),
                n: if i % 7 == 6 { 3 } else { 1 },
                ..SamplingParams::default()
            };
            Request::new(prompt, params, i as u64, engine.limits()).unwrap()
        })
        .collect();
    let alone: Vec<Vec<Vec<TokenId>>> = kinds
        .iter()
        .map(|request| {
            let (mut engine, _) = self::engine(8, roomy.clone());
            engine.add(request.clone());
            let mut choices = vec![Vec::new(); request.params().n];
            while engine.has_work() {
                for event in engine.step() {
                    if let Event::Token { choice, token, .. } = event {
                        choices[choice].push(token);
                    }
                }
            }
            choices
        })
        .collect();

    let (mut guests, mut now) = (BTreeMap::<RequestId, Guest>::new(), Duration::ZERO);
    let (mut n_added, mut n_whole, mut n_cut, mut n_steps, mut longest) = (0, 0, 0, 0, 0);
    while n_added < 10_000 || engine.has_work() {
        while n_added < 10_000 && guests.len() < 40 && random.below(4) > 0 {
            let kind = random.below(kinds.len());
            let mut request = kinds[kind]
                .clone()
                .with_tenant(["a", "a", "a", "b", "c"][random.below(5)].into())
                .with_priority(random.below(3) as i32 - 1);
            let mut deadline = None;
            if random.below(8) == 0 {
                let timeout = Duration::from_millis(random.below(3000) as u64);
                request = request.with_timeout(timeout);
                deadline = Some(now + timeout);
            }
            let choices = vec![Some(Vec::new()); request.params().n];
            engine.at(now);
            guests.insert(engine.add(request), Guest { kind, arrival: n_steps, deadline, choices });
            n_added += 1;
        }
        if !guests.is_empty() && random.below(30) == 0 {
            let id = *guests.keys().nth(random.below(guests.len())).unwrap();
            engine.abort(id);
        }
        log.lock().unwrap().clear();
        engine.at(now);
        let events = engine.step();
        engine.check();
        n_steps += 1;
        let rows: usize = log.lock().unwrap().concat().iter().map(|&(_, rows)| rows).sum();
        let time = Duration::from_micros(1500 + 400 * rows as u64);
        engine.took(time);
        now += time;
        for event in events {
            match event {
                Event::Started { .. } | Event::PromptLogprobs { .. } => {}
                Event::Token { id, choice, token, .. } => {
                    let tokens = guests.get_mut(&id).unwrap().choices[choice].as_mut();
                    tokens.expect("a token after the end").push(token);
                }
                Event::Finished { id, choice, reason, .. } => {
                    let guest = guests.get_mut(&id).unwrap();
                    let tokens = guest.choices[choice].take().expect("an end after the end");
                    let whole = &alone[guest.kind][choice];
                    if matches!(reason, FinishReason::Stop | FinishReason::Length) {
                        assert_eq!(&tokens, whole);
                        n_whole += 1;
                    } else {
                        assert_eq!(tokens, whole[..tokens.len()]);
                        n_cut += 1;
                    }
                    longest = longest.max(n_steps - guest.arrival);
                    let in_time =
                        guest.deadline.is_none_or(|deadline| now - time <= deadline + time);
                    assert!(in_time || reason == FinishReason::Timeout);
                    if guest.choices.iter().all(Option::is_none) {
                        guests.remove(&id);
                    }
                }
            }
        }
    }
    assert!(guests.is_empty());
    let stats = engine.stats();
    assert_eq!((stats.kv_blocks_used, stats.n_running, stats.n_waiting), (0, 0, 0));
    eprintln!(
        "{n_whole} whole, {n_cut} cut off, {n_steps} steps, the longest stay {longest}; {} + {} \
         preemptions, at most {} of one",
        stats.preemptions_yielded, stats.preemptions_stalled, stats.preemptions_most
    );
    assert!(n_whole > 9_000 && n_cut > 500);
    assert!(stats.preemptions_yielded > 100);
    // A sequence has at most 23 blocks: by itself it is preempted at most 1 + log2 times, and once
    // for each that arrives later and goes before.
    assert!(stats.preemptions_most <= 8, "{}", stats.preemptions_most);
    assert!(longest < 3000, "{longest} steps");
}

/// The least room: everybody needs nearly the whole cache.
#[test]
fn requests_as_large_as_the_cache_do_not_block_one_another() {
    let config =
        EngineConfig { n_blocks: 8, max_num_batched_tokens: 32, ..EngineConfig::default() };
    let (mut engine, _) = engine(4, config);
    let mut random = Lcg(5);
    for prompt_len in [1, 31, 16, 1, 8, 30, 2, 31, 1, 20] {
        let prompt = (0..prompt_len).map(|_| random.below(256) as TokenId).collect();
        let params = SamplingParams { ignore_eos: true, ..SamplingParams::default() };
        engine.add(Request::new(prompt, params, 1, engine.limits()).unwrap());
    }
    let mut ends = Vec::new();
    for _ in 0..1000 {
        for event in engine.step() {
            if let Event::Finished { id, reason, usage, .. } = event {
                assert_eq!(reason, FinishReason::Length);
                assert_eq!(usage.prompt_tokens + usage.completion_tokens, 32);
                ends.push(id.0);
            }
        }
        engine.check();
    }
    assert!(engine.stats().preemptions_yielded > 0);
    ends.sort_unstable();
    assert_eq!(ends, (0..10).collect::<Vec<_>>());
}

#[test]
fn long_prompts_do_not_stop_the_neighbours() {
    let config =
        EngineConfig { n_blocks: 1000, max_num_batched_tokens: 64, ..EngineConfig::default() };
    let (mut engine, _) = engine(16, config);
    let mut add = |prompt_len: usize| {
        let prompt = (0..prompt_len).map(|i| (i * i % 251) as TokenId).collect();
        let params =
            SamplingParams { ignore_eos: true, max_tokens: Some(100), ..SamplingParams::default() };
        engine.add(Request::new(prompt, params, 1, engine.limits()).unwrap());
        engine.step()
    };
    add(5);
    add(7);
    add(1900);
    add(1800);
    for _ in 0..50 {
        let tokens = |event: &Event| matches!(event, Event::Token { id, .. } if id.0 < 2);
        assert_eq!(engine.step().iter().filter(|event| tokens(event)).count(), 2);
    }
}

/// Runs requests with ShareGPT-like lengths, log-normal with about 220 tokens in and 200 out on
/// average; returns the engine and the number of tokens, in and out.
fn serve(n_requests: usize, n_blocks: usize) -> (Engine, usize, usize) {
    let (mut engine, _) = engine(16, EngineConfig { n_blocks, ..EngineConfig::default() });
    let mut random = Lcg(11);
    let (mut n_prompt, mut n_output, mut n_ends) = (0, 0, 0);
    for _ in 0..n_requests {
        let prompt_len = (log_normal(&mut random, 250.0, 1.0) as usize).clamp(4, 1024);
        let output_len = (log_normal(&mut random, 206.0, 0.9) as usize).clamp(4, 1000);
        let prompt = (0..prompt_len).map(|_| random.below(256) as TokenId).collect();
        let params = SamplingParams {
            ignore_eos: true,
            max_tokens: Some(output_len),
            ..SamplingParams::default()
        };
        engine.add(Request::new(prompt, params, 1, engine.limits()).unwrap());
        (n_prompt, n_output) = (n_prompt + prompt_len, n_output + output_len);
    }
    while engine.has_work() {
        let ends = |event: &Event| matches!(event, Event::Finished { .. });
        n_ends += engine.step().iter().filter(|event| ends(event)).count();
    }
    assert_eq!(n_ends, n_requests);
    assert_eq!(engine.stats().kv_blocks_used, 0);
    assert_eq!(engine.stats().tokens_decoded, n_output as u64);
    (engine, n_prompt, n_output)
}

#[test]
fn little_of_the_kv_cache_is_wasted() {
    let (engine, n_prompt, n_output) = serve(500, 2000);
    assert!((200..240).contains(&(n_prompt / 500)) && (180..220).contains(&(n_output / 500)));
    let waste = engine.stats().kv_waste();
    eprintln!("KV waste {:.2} %", waste * 100.0);
    assert!(waste > 0.0 && waste < 0.04, "{waste}");
}

#[test]
fn little_is_computed_twice() {
    let (engine, n_prompt, n_output) = serve(150, 250);
    let stats = engine.stats();
    let rows = stats.rows as f64 / (n_prompt + n_output) as f64;
    eprintln!("{} preemptions, {rows:.3} rows a token", stats.preemptions());
    assert!(stats.preemptions() > 10 && rows < 1.1, "{rows}");
}
