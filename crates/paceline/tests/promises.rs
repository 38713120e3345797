//! The promises on real models: what is generated for a request, to the last bit of every
//! log-probability, does not depend on batch, chunks, prefix cache, preemption, speculation, KV
//! cache or threads; on every instruction set, with every type of KV cache.
//!
//! The log-probability of a token sums over all logits of its row, so equal bits of it and of the
//! most likely five stand for equal logits. Each test asserts as well that its case occurred.

#[path = "support/cached.rs"]
mod cached;

use cached::cached;
use paceline_engine::{
    Engine, EngineConfig, Event, Logprobs, Request, RequestId, SamplingParams, Speculate, Stats,
    Vocab,
};
use paceline_kernels::{Isa, KvType};
use paceline_model::{LoadOptions, Model, Precision, TokenId, Tokenizer};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

struct Words(Tokenizer);

impl Vocab for Words {
    fn token_bytes(&self, id: TokenId) -> &[u8] {
        self.0.token_bytes(id)
    }

    fn is_control(&self, id: TokenId) -> bool {
        self.0.is_control(id)
    }

    fn eos_ids(&self) -> &[TokenId] {
        self.0.eos_ids()
    }
}

/// A model as one test loads it again and again.
#[derive(Clone)]
struct Setup {
    path: PathBuf,
    options: LoadOptions,
}

impl Setup {
    fn engine(&self, n_threads: usize, config: EngineConfig) -> Engine {
        let options = LoadOptions { n_threads, ..self.options.clone() };
        let loaded = paceline_model::load(&self.path, &options).expect("the model loads");
        let n_blocks = if config.n_blocks > 0 { config.n_blocks } else { 256 };
        let config = EngineConfig { n_blocks, ..config };
        Engine::new(Box::new(loaded.model), Arc::new(Words(loaded.tokenizer)), config)
            .expect("a valid configuration")
    }
}

/// Tokens of one choice, each with the bits of its log-probabilities.
type Transcript = Vec<(TokenId, Vec<(TokenId, u32)>)>;

/// Runs requests together and returns what each got.
fn run(engine: &mut Engine, requests: &[Request]) -> (Vec<Transcript>, Stats) {
    run_late(engine, requests, 0)
}

/// The last request comes when the others have run for some steps.
fn run_late(engine: &mut Engine, requests: &[Request], n_steps: usize) -> (Vec<Transcript>, Stats) {
    let (last, others) = requests.split_last().expect("some requests");
    let mut ids: Vec<RequestId> = others.iter().map(|r| engine.add(r.clone())).collect();
    let mut transcripts: BTreeMap<RequestId, Transcript> = BTreeMap::new();
    let mut n = 0;
    while engine.has_work() || ids.len() < requests.len() {
        if n == n_steps {
            ids.push(engine.add(last.clone()));
        }
        n += 1;
        for event in engine.step() {
            let Event::Token { id, token, logprobs, .. } = event else { continue };
            let bits = bits(&logprobs.expect("they were asked for"));
            transcripts.entry(id).or_default().push((token, bits));
        }
    }
    let transcripts = ids.iter().map(|id| transcripts.remove(id).unwrap_or_default()).collect();
    (transcripts, *engine.stats())
}

fn bits(logprobs: &Logprobs) -> Vec<(TokenId, u32)> {
    let own = [(TokenId::MAX, logprobs.logprob)];
    own.iter().chain(&logprobs.top).map(|&(id, logprob)| (id, logprob.to_bits())).collect()
}

/// Prompts of different lengths; some share a beginning, some repeat themselves so that looking up
/// what came before pays, one is longer than a segment of attention.
fn requests(setup: &Setup, n_long: usize, max_tokens: usize) -> Vec<Request> {
    let loaded = paceline_model::load(&setup.path, &setup.options).expect("the model loads");
    let limits = paceline_engine::Limits {
        vocab_len: loaded.model.spec().vocab_len,
        max_model_len: loaded.model.spec().context_len,
        kv_len: 4096,
        max_num_seqs: 256,
    };
    let list = "one two three four five one two three four five one two three four five ";
    let shared =
        "The quick brown fox jumps over the lazy dog. Every morning it runs along the river, ";
    let texts = [
        list.to_string(),
        format!("{shared}and then"),
        format!("{shared}but never"),
        "def fib(n):\n    if n < 2:\n        return n\n    return".to_string(),
        "Hi".to_string(),
        "la la la la la la la la la la la la la la la la la la ".repeat(n_long),
    ];
    let requests = texts.iter().enumerate().map(|(i, text)| {
        let prompt = loaded.tokenizer.encode(text, paceline_model::Special::Plain, true);
        let params = SamplingParams {
            temperature: if i % 2 == 0 { 0.0 } else { 0.8 },
            top_p: if i % 4 == 1 { 0.95 } else { 1.0 },
            repetition_penalty: if i == 3 { 1.1 } else { 1.0 },
            seed: Some(7 + i as u64),
            max_tokens: Some(max_tokens),
            ignore_eos: true,
            logprobs: Some(5),
            ..SamplingParams::default()
        };
        Request::new(prompt, params, 0, &limits).expect("a valid request")
    });
    requests.collect()
}

/// All promises for one way to load a model. `max_tokens` is more than a block, so that every
/// sequence needs another one for its output.
fn check(setup: &Setup, n_long: usize, max_tokens: usize) {
    let requests = requests(setup, n_long, max_tokens);
    let plain = EngineConfig { prefix_cache: false, ..EngineConfig::default() };
    let what = format!("{} {:?}", setup.path.display(), setup.options);

    let mut engine = setup.engine(1, plain.clone());
    let alone: Vec<Transcript> = requests
        .iter()
        .map(|request| run(&mut engine, std::slice::from_ref(request)).0.remove(0))
        .collect();
    assert!(alone.iter().all(|transcript| transcript.len() == max_tokens));
    drop(engine);

    // Batched, on two threads.
    let (together, stats) = run(&mut setup.engine(2, plain.clone()), &requests);
    assert!(stats.steps < (max_tokens * requests.len()) as u64, "{what}: nothing was batched");
    assert_eq!(alone, together, "{what}: alone and batched");

    // Prompts in chunks, beside the others' decodes.
    let budget = EngineConfig { max_num_batched_tokens: 13, ..plain.clone() };
    let (chunked, stats) = run(&mut setup.engine(2, budget), &requests);
    assert!(stats.steps_mixed > 0, "{what}: no step mixed prompts and outputs");
    assert_eq!(alone, chunked, "{what}: whole and chunked");

    // With a prefix cache, a second time, with drafts.
    let max_drafts = 6;
    let speculate = Speculate::Lookup { max_drafts };
    let cached = EngineConfig { prefix_cache: true, speculate, ..EngineConfig::default() };
    let mut engine = setup.engine(2, cached);
    let (first, _) = run(&mut engine, &requests);
    let (second, stats) = run(&mut engine, &requests);
    assert!(stats.tokens_cached > 0, "{what}: no prefix was found");
    assert!(stats.drafts_accepted > 0, "{what}: no draft was accepted");
    assert!(stats.drafts_accepted < stats.drafts_proposed, "{what}: no draft was rejected");
    assert_eq!(alone, first, "{what}: speculated");
    assert_eq!(alone, second, "{what}: from cached prefixes");
    drop(engine);

    // Memory for all but one, each with a block for its output; and that one comes late and is urgent.
    let short = &requests[..requests.len() - 1];
    let (urgent, others) = short.split_last().expect("some requests");
    let n_blocks = others.iter().map(|r| r.prompt().len().div_ceil(setup.options.block_len) + 1);
    let n_blocks = n_blocks.sum();
    let mut late = others.to_vec();
    late.push(urgent.clone().with_priority(-1));
    let little = EngineConfig { n_blocks, ..plain };
    let (preempted, stats) = run_late(&mut setup.engine(2, little), &late, 4);
    assert!(stats.preemptions() > 0, "{what}: nobody was preempted");
    assert_eq!(alone[..short.len()], preempted, "{what}: preempted");
}

fn setup(name: &str, isa: Isa, k_type: KvType, v_type: KvType) -> Option<Setup> {
    let path = cached(name)?;
    let options = LoadOptions { isa, k_type, v_type, ..LoadOptions::default() };
    Some(Setup { path, options })
}

/// The default, what is recommended where memory is short, and the smallest.
const EVERY_KV: [(KvType, KvType); 3] =
    [(KvType::I16, KvType::I16), (KvType::I16, KvType::Q8_0), (KvType::Q8_0, KvType::Q8_0)];
const MIXED_KV: [(KvType, KvType); 1] = [(KvType::I16, KvType::Q8_0)];

fn check_on(isa: Isa, name: &str, kv: &[(KvType, KvType)], n_long: usize, max_tokens: usize) {
    if !isa.is_available() {
        return eprintln!("skipped: this machine has no {isa}");
    }
    for &(k_type, v_type) in kv {
        let Some(setup) = setup(name, isa, k_type, v_type) else { return };
        check(&setup, n_long, max_tokens);
    }
}

#[test]
fn smollm2_on_avx512() {
    check_on(Isa::Avx512, "smollm2-135m", &EVERY_KV, 12, 24);
}

#[test]
fn smollm2_on_avx2() {
    check_on(Isa::Avx2, "smollm2-135m", &EVERY_KV, 12, 24);
}

#[test]
fn smollm2_in_scalar() {
    check_on(Isa::Scalar, "smollm2-135m", &EVERY_KV, 1, 17);
}

#[test]
fn gemma3_on_the_best() {
    check_on(Isa::best(), "gemma3-270m", &EVERY_KV, 32, 17);
}

#[test]
fn gemma3_on_avx2() {
    check_on(Isa::Avx2, "gemma3-270m", &MIXED_KV, 1, 17);
}

#[test]
fn qwen_on_the_best() {
    check_on(Isa::best(), "qwen2.5-coder-0.5b", &EVERY_KV, 12, 17);
}

#[test]
fn qwen_on_avx2() {
    check_on(Isa::Avx2, "qwen2.5-coder-0.5b", &MIXED_KV, 1, 17);
}

/// One instruction set's bits are another's.
#[test]
fn instruction_sets_agree() {
    for (name, max_tokens) in [("smollm2-135m", 6), ("gemma3-270m", 2), ("qwen2.5-coder-0.5b", 2)] {
        let transcripts = Isa::available().filter_map(|isa| {
            let setup = setup(name, isa, KvType::I16, KvType::Q8_0)?;
            let requests = requests(&setup, 1, max_tokens);
            let config = EngineConfig::default();
            Some((isa, run(&mut setup.engine(2, config), &requests).0))
        });
        let transcripts: Vec<_> = transcripts.collect();
        for pair in transcripts.windows(2) {
            assert_eq!(pair[0].1, pair[1].1, "{name}: {} and {}", pair[0].0, pair[1].0);
        }
    }
}

/// The slow way, for teaching: every token computed anew for each next one.
#[test]
fn without_kv_cache_the_text_is_the_same() {
    let Some(setup) = setup("smollm2-135m", Isa::best(), KvType::I16, KvType::I16) else { return };
    let requests = requests(&setup, 1, 12);
    let (with, _) = run(&mut setup.engine(2, EngineConfig::default()), &requests);
    let config = EngineConfig { kv_cache: false, ..EngineConfig::default() };
    let (without, stats) = run(&mut setup.engine(2, config), &requests);
    assert!(stats.rows > 500, "the cache was used");
    assert_eq!(with, without);
}

/// The yardstick of the goldens computes in f32: it too keeps the promises.
#[test]
fn smollm2_in_float() {
    let kv_type = KvType::I16;
    let Some(mut setup) = setup("smollm2-135m", Isa::best(), kv_type, kv_type) else { return };
    setup.options.precision = Precision::Float;
    check(&setup, 1, 17);
}
