//! Blocks that leave the KV cache for a store and come back: the same texts, less to compute.

use paceline_engine::testing::{FakeModel, FakeVocab, Lcg, StepLog};
use paceline_engine::{
    BlockStore, Engine, EngineConfig, Event, Request, RequestId, SamplingParams, Speculate,
};
use paceline_model::TokenId;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const V: usize = 300;
const B: usize = 4;

type Blocks = Arc<Mutex<HashMap<(String, Vec<TokenId>), Vec<u8>>>>;

/// A store in memory, which many engines may share.
struct Map {
    blocks: Blocks,
    /// Of how many blocks one is lost, when put and when got, if any.
    loses: Option<(Lcg, usize)>,
    /// Of one block.
    read_time: Duration,
    spent: Duration,
    n_reads: Arc<Mutex<usize>>,
    capacity: usize,
    buffer: Vec<u8>,
}

impl Map {
    fn new(blocks: &Blocks) -> Map {
        Map {
            blocks: blocks.clone(),
            loses: None,
            read_time: Duration::ZERO,
            spent: Duration::ZERO,
            n_reads: Arc::default(),
            capacity: usize::MAX,
            buffer: Vec::new(),
        }
    }

    fn loses(&mut self) -> bool {
        self.loses.as_mut().is_some_and(|(random, n)| random.below(*n) == 0)
    }
}

impl BlockStore for Map {
    fn find(&mut self, salt: &str, tokens: &[TokenId], n: usize) -> usize {
        let blocks = self.blocks.lock().unwrap();
        let has =
            |i: &usize| blocks.contains_key(&(salt.to_owned(), tokens[..(i + 1) * B].to_vec()));
        (n..tokens.len() / B).take_while(has).count()
    }

    fn get(&mut self, salt: &str, tokens: &[TokenId]) -> Option<&[u8]> {
        self.spent += self.read_time;
        *self.n_reads.lock().unwrap() += 1;
        let lost = self.loses();
        let name = (salt.to_owned(), tokens.to_vec());
        self.buffer = self.blocks.lock().unwrap().get(&name)?.clone();
        match lost {
            // A block of another size is none either.
            true if tokens.len().is_multiple_of(2 * B) => self.buffer.truncate(3),
            true => return None,
            false => {}
        }
        Some(&self.buffer)
    }

    fn wants(&mut self, salt: &str, tokens: &[TokenId]) -> bool {
        !self.blocks.lock().unwrap().contains_key(&(salt.to_owned(), tokens.to_vec()))
    }

    fn put(&mut self, salt: &str, tokens: &[TokenId], bytes: Vec<u8>, wait: bool) {
        assert!(tokens.len().is_multiple_of(B) && !tokens.is_empty());
        if wait || !self.loses() {
            self.blocks.lock().unwrap().insert((salt.to_owned(), tokens.to_vec()), bytes);
        }
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn spent(&self) -> Duration {
        self.spent
    }
}

fn engine(config: EngineConfig, store: Option<Map>) -> (Engine, Arc<Mutex<StepLog>>) {
    let model = FakeModel::new(V, B, 2048).periodic(7);
    let log = model.log();
    let engine = Engine::new(Box::new(model), Arc::new(FakeVocab::new(V)), config).unwrap();
    let engine = match store {
        Some(store) => engine.with_store(Box::new(store)),
        None => engine,
    };
    (engine, log)
}

fn config(n_blocks: usize) -> EngineConfig {
    EngineConfig { n_blocks, max_num_batched_tokens: 64, ..EngineConfig::default() }
}

fn prompt(seed: usize, len: usize) -> Vec<TokenId> {
    (0..len).map(|i| ((i * i + seed * 31) % 251) as TokenId).collect()
}

fn request(engine: &Engine, prompt: Vec<TokenId>, max_tokens: usize) -> Request {
    let params = SamplingParams {
        max_tokens: Some(max_tokens),
        ignore_eos: true,
        ..SamplingParams::default()
    };
    Request::new(prompt, params, 1, engine.limits()).unwrap()
}

/// Runs a request to its end; its tokens, and how many the prefix cache had.
fn ask(engine: &mut Engine, prompt: Vec<TokenId>) -> (Vec<TokenId>, usize) {
    let own = engine.add(request(engine, prompt, 6));
    let (mut tokens, mut cached) = (Vec::new(), 0);
    while engine.has_work() {
        for event in engine.step() {
            match event {
                Event::Token { id, token, .. } if id == own => tokens.push(token),
                Event::Started { id, cached_tokens, .. } if id == own => cached = cached_tokens,
                Event::Finished { id, usage, .. } if id == own => {
                    assert_eq!(usage.cached_tokens, cached);
                }
                _ => {}
            }
        }
        engine.check();
    }
    (tokens, cached)
}

/// What a first engine left of one request.
fn kept() -> Blocks {
    let blocks = Blocks::default();
    let (mut first, _) = engine(config(64), Some(Map::new(&blocks)));
    ask(&mut first, prompt(0, 100));
    first.close();
    blocks
}

#[test]
fn what_the_cache_gave_up_comes_back() {
    let blocks = Blocks::default();
    let (mut engine, log) = engine(config(32), Some(Map::new(&blocks)));
    let first = ask(&mut engine, prompt(0, 100));
    assert_eq!((first.1, blocks.lock().unwrap().len()), (0, 0));
    ask(&mut engine, prompt(1, 100));
    // 100 tokens and 5 of the output are 26 full blocks; of 32, others needed all but 5.
    assert_eq!(blocks.lock().unwrap().len(), 21);
    log.lock().unwrap().clear();
    assert_eq!(ask(&mut engine, prompt(0, 100)), (first.0, 96));
    assert_eq!(log.lock().unwrap()[0], [(96, 4)]);
    let stats = engine.stats();
    assert!(stats.tokens_restored > 60 && stats.tokens_cached == 96, "{stats:?}");
    // What is in the store already is not put again.
    let n_stored = stats.blocks_stored as usize;
    assert_eq!(n_stored, blocks.lock().unwrap().len());
}

#[test]
fn a_new_engine_finds_what_the_last_one_left() {
    let blocks = Blocks::default();
    let (mut first, _) = engine(config(64), Some(Map::new(&blocks)));
    let answer = ask(&mut first, prompt(0, 100));
    // Also of a request that is still under way.
    first.add(request(&first, prompt(1, 50), 9));
    first.step();
    first.close();
    assert_eq!(blocks.lock().unwrap().len(), 26 + 12);
    let (mut second, _) = engine(config(64), Some(Map::new(&blocks)));
    assert_eq!(ask(&mut second, prompt(0, 100)), (answer.0, 96));
    assert_eq!(second.stats().tokens_restored, 96);
}

#[test]
fn at_the_end_a_small_store_gets_what_was_used_last() {
    let blocks = Blocks::default();
    let (mut first, _) = engine(config(64), Some(Map { capacity: 30, ..Map::new(&blocks) }));
    ask(&mut first, prompt(0, 100));
    ask(&mut first, prompt(1, 100));
    first.close();
    let blocks = blocks.lock().unwrap();
    let n_of =
        |seed| blocks.keys().filter(|(_, tokens)| tokens.starts_with(&prompt(seed, 4))).count();
    assert_eq!((n_of(0), n_of(1)), (4, 26));
    assert!(blocks.contains_key(&(String::new(), prompt(0, 16))), "the beginning is what counts");
}

#[test]
fn a_salt_keeps_blocks_apart() {
    let blocks = kept();
    let (mut second, _) = engine(config(64), Some(Map::new(&blocks)));
    let salted = request(&second, prompt(0, 100), 6).with_salt("other");
    second.add(salted);
    while second.has_work() {
        second.step();
    }
    assert_eq!((second.stats().tokens_restored, second.stats().tokens_cached), (0, 0));
}

#[test]
fn equal_prompts_at_once_read_a_block_once() {
    let blocks = kept();
    let map = Map::new(&blocks);
    let n_reads = map.n_reads.clone();
    let (mut second, _) = engine(config(200), Some(map));
    for _ in 0..5 {
        second.add(request(&second, prompt(0, 100), 6));
    }
    while second.has_work() {
        second.step();
        second.check();
    }
    assert_eq!(*n_reads.lock().unwrap(), 24);
    assert_eq!((second.stats().tokens_restored, second.stats().tokens_cached), (96, 5 * 96));
}

/// The time of a step with so many rows.
fn step_time(rows: usize) -> Duration {
    Duration::from_micros(1000 + 100 * rows as u64)
}

#[test]
fn blocks_are_read_only_if_that_is_faster_than_computing_them() {
    // Four rows take 400 us.
    for (read_time, pays) in [(100, true), (300, true), (500, false), (5000, false)] {
        let blocks = Blocks::default();
        let read_time = Duration::from_micros(read_time);
        let map = Map { read_time, ..Map::new(&blocks) };
        let n_reads = map.n_reads.clone();
        let (mut engine, log) = engine(config(64), Some(map));
        for i in 0..40 {
            engine.add(request(&engine, prompt(i % 4, 100), 6));
            while engine.has_work() {
                let before = *n_reads.lock().unwrap();
                engine.step();
                let rows = std::mem::take(&mut *log.lock().unwrap()).concat();
                let rows = rows.iter().map(|&(_, rows)| rows).sum();
                let n_read = *n_reads.lock().unwrap() - before;
                engine.took(step_time(rows) + read_time * n_read as u32);
            }
        }
        // The first time nobody knew; later it is tried again now and then.
        let n_reads = *n_reads.lock().unwrap();
        assert_eq!(n_reads > 300, pays, "{n_reads} reads at {read_time:?}");
    }
}

#[test]
fn a_long_prompt_that_is_read_does_not_stop_the_neighbours() {
    let blocks = Blocks::default();
    let (mut first, _) = engine(config(600), Some(Map::new(&blocks)));
    ask(&mut first, prompt(0, 1800));
    first.close();
    let map = Map { read_time: Duration::from_micros(200), ..Map::new(&blocks) };
    let n_reads = map.n_reads.clone();
    let (mut engine, log) = engine(config(600), Some(map));
    for i in 1..4 {
        engine.add(request(&engine, prompt(i, 20), 300));
    }
    let step = |engine: &mut Engine| {
        let before = *n_reads.lock().unwrap();
        let events = engine.step();
        let rows = std::mem::take(&mut *log.lock().unwrap()).concat();
        let rows = rows.iter().map(|&(_, rows)| rows).sum();
        let n_read = *n_reads.lock().unwrap() - before;
        engine.took(step_time(rows) + Duration::from_micros(200) * n_read as u32);
        let tokens = |event: &&Event| matches!(event, Event::Token { id, .. } if id.0 < 3);
        (events.iter().filter(tokens).count(), n_read)
    };
    for _ in 0..20 {
        step(&mut engine);
    }
    engine.add(request(&engine, prompt(0, 1800), 6));
    let mut reads = Vec::new();
    while reads.iter().sum::<usize>() < 449 {
        let (n_tokens, n_read) = step(&mut engine);
        assert_eq!(n_tokens, 3, "a text waits for the reading of another prompt");
        reads.push(n_read);
        engine.check();
    }
    // Unknown at first: as many as rows may be. Then 1.7 times the 1.3 ms of three tokens, 2.2 ms.
    let (first, later) = reads.split_first().unwrap();
    assert_eq!(*first, 61 / B + 1);
    assert!(later.iter().all(|n| (1..=12).contains(n)), "{later:?}");
    assert!(later.iter().filter(|&&n| n >= 9).count() > later.len() / 2, "{later:?}");
}

/// Random requests in pools that are too small, with a store that keeps all or loses much: everybody gets
/// the text that it has alone.
#[test]
fn a_store_changes_no_text() {
    let (mut restored, mut preempted, mut lost) = (0, 0, 0);
    for seed in 0..16 {
        let mut random = Lcg(seed);
        let config = EngineConfig {
            max_num_seqs: [3, 8, 64][seed as usize % 3],
            max_num_batched_tokens: [64, 16, 100][seed as usize / 3 % 3],
            n_blocks: [24, 40, 90][seed as usize % 3],
            speculate: match seed % 2 {
                0 => Speculate::Off,
                _ => Speculate::Lookup { max_drafts: 5 },
            },
            ..EngineConfig::default()
        };
        let roomy = EngineConfig { n_blocks: 1000, prefix_cache: false, ..config.clone() };
        let kv_len = config.n_blocks * B;
        let mut requests = Vec::new();
        for i in 0..60 {
            let prompt_len = 1 + random.below(kv_len - 1);
            let mut tokens = prompt(random.below(3), random.below(prompt_len + 1));
            tokens.resize_with(prompt_len, || random.below(256) as TokenId);
            let params = SamplingParams {
                temperature: random.below(2) as f32 * 0.8,
                max_tokens: Some(1 + random.below((kv_len - prompt_len).min(40))),
                n: 1 + random.below(2) * random.below(3).min(config.max_num_seqs - 1),
                prompt_logprobs: (random.below(4) == 0).then_some(1),
                ..SamplingParams::default()
            };
            let (engine, _) = engine(config.clone(), None);
            let request = Request::new(tokens, params, i, engine.limits()).unwrap();
            requests.push(request.with_salt(["", "a"][random.below(2)]));
        }
        let alone: Vec<Vec<Vec<TokenId>>> = requests
            .iter()
            .map(|request| run(&roomy, None, std::slice::from_ref(request), seed).0.remove(0))
            .collect();
        let blocks = Blocks::default();
        for loses in [0, 3] {
            let store =
                || Map { loses: (loses > 0).then_some((Lcg(seed), loses)), ..Map::new(&blocks) };
            // Twice: the second engine begins with what the first one left.
            for _ in 0..2 {
                let (answers, engine) = run(&config, Some(store()), &requests, seed);
                assert_eq!(answers, alone, "seed {seed}, loses {loses}");
                restored += engine.stats().tokens_restored;
                preempted += engine.stats().preemptions();
                lost += loses;
                engine.close();
            }
        }
    }
    assert!(restored > 10_000 && preempted > 100 && lost > 0, "{restored} {preempted}");
}

/// Runs requests that come one after the other, some of them aborted, or ended, and asked again; the
/// tokens of the choices of each.
fn run(
    config: &EngineConfig,
    store: Option<Map>,
    requests: &[Request],
    seed: u64,
) -> (Vec<Vec<Vec<TokenId>>>, Engine) {
    let mut random = Lcg(seed + 100);
    let (mut engine, _) = engine(config.clone(), store);
    let mut answers: Vec<Vec<Vec<TokenId>>> =
        requests.iter().map(|request| vec![Vec::new(); request.params().n]).collect();
    let mut asked: BTreeMap<RequestId, usize> = BTreeMap::new();
    let mut left: Vec<usize> = (0..requests.len()).rev().collect();
    while !left.is_empty() || engine.has_work() {
        if !left.is_empty() && random.below(3) == 0 {
            let i = left.pop().unwrap();
            asked.insert(engine.add(requests[i].clone()), i);
        }
        if !asked.is_empty() && random.below(40) == 0 {
            let (&id, &i) = asked.iter().nth(random.below(asked.len())).unwrap();
            engine.abort(id);
            asked.remove(&id);
            answers[i].iter_mut().for_each(Vec::clear);
            left.push(i);
        }
        for event in engine.step() {
            let Event::Token { id, choice, token, .. } = event else { continue };
            if let Some(&i) = asked.get(&id) {
                answers[i][choice].push(token);
            }
        }
        engine.check();
    }
    (answers, engine)
}
