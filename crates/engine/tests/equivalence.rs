//! The promises, as equalities on tokens, text and log-probabilities: whatever the batch, the chunks,
//! the cache, the preemptions and the drafts, a request gets the same answer.
//!
//! The fake model's logits are a hash of the tokens that a row reads from the KV cache. Each test
//! also asserts that its case occurred.

use paceline_engine::testing::{FakeModel, FakeVocab, Lcg, StepLog};
use paceline_engine::{
    Engine, EngineConfig, Event, FinishReason, Logprobs, Request, SamplingParams, Speculate, Stats,
    Stop, Usage,
};
use paceline_model::TokenId;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const V: usize = 300;
const B: usize = 4;
const CONTEXT: usize = 512;

/// All that a request was told about one choice.
#[derive(Clone, Debug, Default, PartialEq)]
struct Answer {
    tokens: Vec<TokenId>,
    text: String,
    logprobs: Vec<Logprobs>,
    prompt_logprobs: Vec<Logprobs>,
    finish: Option<(FinishReason, Option<Stop>)>,
}

/// What a run gave: answers by (request, choice), what each cost, and the engine's counters.
struct Run {
    answers: BTreeMap<(usize, usize), Answer>,
    /// What the prefix cache had for each when it began.
    started: BTreeMap<(usize, usize), usize>,
    usage: BTreeMap<(usize, usize), Usage>,
    stats: Stats,
    log: StepLog,
}

impl Run {
    /// Spans that continue a prompt in the middle.
    fn n_later_chunks(&self) -> usize {
        self.log.iter().flatten().filter(|&&(position, rows)| position > 0 && rows > 8).count()
    }
}

struct Case {
    config: EngineConfig,
    period: Option<usize>,
    /// Steps between the arrivals of two requests.
    gap: usize,
    /// Requests of three tenants, of several priorities, on a machine whose speed is told.
    crowd: bool,
}

impl Case {
    fn new(n_blocks: usize) -> Case {
        let config = EngineConfig { n_blocks, ..EngineConfig::default() };
        Case { config, period: None, gap: 0, crowd: false }
    }

    fn run(&self, requests: &[(Vec<TokenId>, SamplingParams)]) -> Run {
        let mut model = FakeModel::new(V, B, CONTEXT);
        if let Some(period) = self.period {
            model = model.periodic(period);
        }
        let log = model.log();
        let vocab = Arc::new(FakeVocab::new(V));
        let mut engine = Engine::new(Box::new(model), vocab, self.config.clone()).unwrap();
        let mut run = Run {
            answers: BTreeMap::new(),
            started: BTreeMap::new(),
            usage: BTreeMap::new(),
            stats: Stats::default(),
            log: Vec::new(),
        };
        let mut ids = Vec::new();
        let mut left = requests.iter();
        let mut n_steps = 0;
        loop {
            if n_steps % (self.gap + 1) == 0 || self.gap == 0 {
                let n = if self.gap == 0 { requests.len() } else { 1 };
                for (prompt, params) in left.by_ref().take(n) {
                    let mut request =
                        Request::new(prompt.clone(), params.clone(), 7, engine.limits()).unwrap();
                    if self.crowd {
                        let i = ids.len();
                        request = request
                            .with_tenant(["a", "a", "b", "c"][i % 4].into())
                            .with_priority(i as i32 % 3);
                    }
                    ids.push(engine.add(request));
                }
            }
            if !engine.has_work() && left.len() == 0 {
                break;
            }
            let events = engine.step();
            if self.crowd {
                let n_rows = log
                    .lock()
                    .unwrap()
                    .last()
                    .map_or(0, |spans| spans.iter().map(|span: &(usize, usize)| span.1).sum());
                engine.took(Duration::from_micros(1000 + 300 * n_rows as u64));
            }
            for event in events {
                let index = |id| ids.iter().position(|&i| i == id).unwrap();
                match event {
                    Event::Started { id, choice, cached_tokens } => {
                        let key = (index(id), choice);
                        assert!(!run.answers.contains_key(&key), "it has begun already");
                        assert_eq!(run.started.insert(key, cached_tokens), None);
                    }
                    Event::PromptLogprobs { id, start, logprobs } => {
                        let answer = run.answers.entry((index(id), 0)).or_default();
                        assert_eq!(answer.prompt_logprobs.len() + 1, start);
                        assert!(answer.tokens.is_empty());
                        answer.prompt_logprobs.extend(logprobs);
                    }
                    Event::Token { id, choice, token, text, logprobs } => {
                        let answer = run.answers.entry((index(id), choice)).or_default();
                        answer.tokens.push(token);
                        answer.text += &text;
                        answer.logprobs.extend(logprobs);
                    }
                    Event::Finished { id, choice, reason, stop, usage } => {
                        let key = (index(id), choice);
                        let answer = run.answers.entry(key).or_default();
                        assert_eq!(answer.finish, None);
                        answer.finish = Some((reason, stop));
                        assert_eq!(run.started.get(&key), Some(&usage.cached_tokens));
                        run.usage.insert(key, usage);
                    }
                }
            }
            n_steps += 1;
            assert!(n_steps < 100_000, "the engine does not come to an end");
        }
        let n_choices: usize = requests.iter().map(|(_, params)| params.n).sum();
        assert_eq!(run.answers.len(), n_choices);
        assert!(run.answers.values().all(|answer| answer.finish.is_some()));
        run.stats = *engine.stats();
        assert_eq!(run.stats.kv_blocks_used, 0);
        run.log = std::mem::take(&mut log.lock().unwrap());
        run
    }

    /// Each request in an engine of its own.
    fn run_alone(
        &self,
        requests: &[(Vec<TokenId>, SamplingParams)],
    ) -> BTreeMap<(usize, usize), Answer> {
        let alone = |(i, request)| {
            let run = self.run(std::slice::from_ref(request));
            run.answers.into_iter().map(move |((_, choice), answer)| ((i, choice), answer))
        };
        requests.iter().enumerate().flat_map(alone).collect()
    }
}

/// Requests of every kind, half of them at temperature 0 and half at 0.8; some share a prefix.
fn workload(n: usize, seed: u64) -> Vec<(Vec<TokenId>, SamplingParams)> {
    let mut random = Lcg(seed);
    let shared: Vec<TokenId> = (0..40).map(|_| random.below(256) as TokenId).collect();
    let request = |i: usize| {
        let mut prompt = shared[..if i.is_multiple_of(3) { 33 } else { 0 }].to_vec();
        prompt.extend((0..1 + random.below(60)).map(|_| random.below(256) as TokenId));
        let params = SamplingParams {
            temperature: if i.is_multiple_of(2) { 0.0 } else { 0.8 },
            top_p: if i % 4 == 1 { 0.9 } else { 1.0 },
            top_k: if i % 5 == 1 { 50 } else { 0 },
            min_p: if i % 7 == 1 { 0.01 } else { 0.0 },
            repetition_penalty: if i % 6 == 5 { 1.3 } else { 1.0 },
            frequency_penalty: if i % 6 == 4 { 0.5 } else { 0.0 },
            seed: Some(random.below(1000) as u64),
            min_tokens: random.below(10),
            max_tokens: Some(10 + random.below(50)),
            logprobs: if i % 3 == 1 { Some(3) } else { None },
            prompt_logprobs: if i % 8 == 3 { Some(2) } else { None },
            stop: if i % 4 == 2 { vec!["e".into(), "ab".into()] } else { Vec::new() },
            n: if i % 9 == 4 { 3 } else { 1 },
            ..SamplingParams::default()
        };
        (prompt, params)
    };
    (0..n).map(request).collect()
}

fn assert_same(a: &BTreeMap<(usize, usize), Answer>, b: &BTreeMap<(usize, usize), Answer>) {
    for (key, answer) in a {
        assert_eq!(answer, &b[key], "request and choice {key:?}");
    }
    assert_eq!(a.len(), b.len());
}

#[test]
fn batched_equals_alone() {
    let requests = workload(30, 1);
    let case = Case { gap: 2, ..Case::new(1000) };
    let run = case.run(&requests);
    assert!(run.stats.steps_mixed > 0);
    assert!(run.log.iter().any(|spans| spans.len() > 10));
    assert_same(&run.answers, &case.run_alone(&requests));
}

#[test]
fn chunked_equals_whole() {
    let requests = workload(30, 2);
    let whole = Case::new(1000);
    let mut chunked = Case::new(1000);
    (chunked.config.max_num_batched_tokens, chunked.config.max_num_seqs) = (16, 6);
    let run = chunked.run(&requests);
    assert!(run.n_later_chunks() > 5);
    assert!(run.stats.steps_mixed > 0);
    assert_same(&run.answers, &whole.run(&requests).answers);
}

#[test]
fn prefix_hit_equals_miss() {
    let requests = workload(30, 3);
    let cached = Case { gap: 3, ..Case::new(1000) };
    let mut uncached = Case { gap: 3, ..Case::new(1000) };
    uncached.config.prefix_cache = false;
    let (a, b) = (cached.run(&requests), uncached.run(&requests));
    assert!(a.stats.tokens_cached > 0 && a.usage.values().any(|usage| usage.cached_tokens > 0));
    assert_eq!(b.stats.tokens_cached, 0);
    assert_same(&a.answers, &b.answers);
}

#[test]
fn preempted_equals_not() {
    let requests = workload(30, 4);
    let (roomy, tight) = (Case::new(1000), Case::new(60));
    let (a, b) = (tight.run(&requests), roomy.run(&requests));
    assert!(a.stats.preemptions_yielded > 0);
    assert_eq!(b.stats.preemptions(), 0);
    assert_same(&a.answers, &b.answers);
}

#[test]
fn speculated_equals_not() {
    let requests = workload(30, 5);
    for n_blocks in [1000, 60] {
        let plain = Case { period: Some(5), gap: 1, ..Case::new(n_blocks) };
        let mut drafting = Case { period: Some(5), gap: 1, ..Case::new(n_blocks) };
        drafting.config.speculate = Speculate::Lookup { max_drafts: 6 };
        let (a, b) = (drafting.run(&requests), plain.run(&requests));
        assert!(a.stats.drafts_accepted > 100);
        assert!(a.stats.drafts_accepted < a.stats.drafts_proposed);
        assert_eq!(b.stats.drafts_proposed, 0);
        if n_blocks == 1000 {
            // After the prompt's last row, a step computes a row for the last token and one for
            // each draft, and keeps a token for each accepted draft and one more; the last step of
            // a sequence may end at a draft.
            let Stats { rows, tokens_prefilled, tokens_decoded, .. } = a.stats;
            let rejected = a.stats.drafts_proposed - a.stats.drafts_accepted;
            let n = a.answers.len() as u64;
            let least = tokens_prefilled + tokens_decoded - n + rejected;
            assert!((least..=least + n).contains(&rows));
        }
        assert_same(&a.answers, &b.answers);
    }
}

#[test]
fn without_kv_cache_is_the_same() {
    let requests = workload(12, 6);
    let cached = Case::new(1000);
    let mut recomputed = Case::new(1000);
    recomputed.config.kv_cache = false;
    let (a, b) = (recomputed.run(&requests), cached.run(&requests));
    assert!(a.stats.rows > 10 * b.stats.rows);
    assert_same(&a.answers, &b.answers);
}

#[test]
fn paced_equals_at_once() {
    let requests = workload(40, 13);
    let mut at_once = Case { gap: 2, ..Case::new(1000) };
    at_once.config.prefix_cache = false;
    let mut paced = Case { gap: 2, crowd: true, ..Case::new(1000) };
    paced.config.prefix_cache = false;
    let (a, b) = (paced.run(&requests), at_once.run(&requests));
    // Prompts come in chunks though the step has room for them.
    assert!(a.n_later_chunks() > 5 && b.n_later_chunks() == 0);
    assert_same(&a.answers, &b.answers);
}

/// Everything at once, in little room.
#[test]
fn all_together_equals_alone() {
    for seed in 7..13 {
        let requests = workload(30, seed);
        let mut crowded = Case { period: Some(6), gap: 1, crowd: true, ..Case::new(52) };
        crowded.config.speculate = Speculate::Lookup { max_drafts: 5 };
        (crowded.config.max_num_batched_tokens, crowded.config.max_num_seqs) = (24, 12);
        let mut plain = Case { period: Some(6), ..Case::new(1000) };
        plain.config.prefix_cache = false;
        let run = crowded.run(&requests);
        let stats = run.stats;
        assert!(stats.preemptions_yielded > 0 && stats.tokens_cached > 0 && stats.steps_mixed > 0);
        assert!(0 < stats.drafts_accepted && stats.drafts_accepted < stats.drafts_proposed);
        assert!(run.n_later_chunks() > 0);
        assert_same(&run.answers, &plain.run_alone(&requests));
    }
}
