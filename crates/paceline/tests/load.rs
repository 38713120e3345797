//! What a server keeps under load, measured with a real model, a release build and a machine that does
//! nothing else: `cargo test --release -p paceline --test load -- --ignored --nocapture --test-threads 1`
#![cfg(all(feature = "load", feature = "server"))]

#[path = "support/cached.rs"]
mod cached;
#[path = "support/server.rs"]
mod server;

use paceline::Llm;
use paceline::bench::dataset;
use paceline::bench::load::{Arrivals, Load, LoadClient, LoadConfig};
use paceline::server::{Keys, ServerConfig};
use serde_json::{Value, json};
use server::{COMPLETIONS, Server};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const MODEL: &str = "smollm2-135m";

/// Sequences at once.
const SLOTS: usize = 64;

fn start(config: ServerConfig) -> Option<Server> {
    let model = cached::cached(MODEL)?;
    let llm = Llm::builder(model).kv_memory(1 << 30).max_num_seqs(SLOTS).build();
    Some(Server::start(llm.expect("the model loads"), config))
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// How long it takes until a request is answered, with `key`.
fn ask(server: &Server, key: &str, i: usize) -> Duration {
    let begin = Instant::now();
    let body = json!({
        "prompt": format!("Chapter {i}. In which a river, a stone and a lamp are told of at length"),
        "max_tokens": 64, "ignore_eos": true, "temperature": 0,
    });
    let post = ureq::post(format!("{}{COMPLETIONS}", server.url));
    let answer = post.header("authorization", format!("Bearer {key}")).send(body.to_string());
    assert_eq!(answer.expect("an answer").status(), 200);
    begin.elapsed()
}

#[test]
#[ignore = "a measurement of a minute"]
fn a_key_with_one_request_at_a_time_hardly_notices_one_with_fifty() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "sk-heavy heavy\nsk-light light\n").expect("it is written");
    let keys = Keys::read(file.path()).expect("two keys");
    let Some(server) = start(ServerConfig { keys, ..ServerConfig::new(MODEL) }) else { return };
    let light = || median((0..21).map(|i| ask(&server, "sk-light", i)).collect());
    light();
    let idle = light();
    let (over, n_heavy) = (AtomicBool::new(false), AtomicUsize::new(0));
    let busy = std::thread::scope(|scope| {
        let heavy = |client: usize| {
            while !over.load(Ordering::Relaxed) {
                let i = n_heavy.fetch_add(1, Ordering::Relaxed);
                ask(&server, "sk-heavy", 1000 * client + i);
            }
        };
        (0..50).for_each(|client| drop(scope.spawn(move || heavy(client))));
        while server.running() < 40 {
            std::thread::sleep(Duration::from_millis(50));
        }
        let busy = light();
        over.store(true, Ordering::Relaxed);
        busy
    });
    let (times, n_heavy) = (busy.as_secs_f64() / idle.as_secs_f64(), n_heavy.into_inner());
    eprintln!("median: {idle:.2?} idle, {busy:.2?} beside {n_heavy} others, {times:.2} times");
    assert!(times <= 2.2);
}

#[test]
#[ignore = "a measurement of a minute"]
fn a_prefix_that_is_known_is_no_wait() {
    let Some(server) = start(ServerConfig::new(MODEL)) else { return };
    // A prefix of 2,000 tokens of its own, and a question that is new each time.
    let first_token = |prefix: u32, question: u32| {
        let tokens = (0..2_000).map(|i| 1_000 + (i * 7_919 + prefix * 104_729) % 40_000);
        let question = (0..16).map(|i| 1_000 + i + 16 * question);
        let prompt: Vec<u32> = tokens.chain(question).collect();
        let body = json!({"prompt": prompt, "max_tokens": 4, "temperature": 0, "stream": true});
        let begin = Instant::now();
        let mut events = server.stream(COMPLETIONS, &body);
        events.next().expect("a token");
        let time = begin.elapsed();
        events.for_each(drop);
        time
    };
    let misses: Vec<Duration> = (0..7).map(|prefix| first_token(prefix, 0)).collect();
    let hits: Vec<Duration> = (0..7).map(|prefix| first_token(prefix, 1)).collect();
    let (miss, hit) = (median(misses), median(hits));
    let share = hit.as_secs_f64() / miss.as_secs_f64();
    eprintln!("first token: {miss:.1?} for a miss, {hit:.1?} for a hit, {:.1} %", share * 100.0);
    assert!(share <= 0.05);
}

/// Asks for short answers to random prompts.
fn load(server: &Server, arrivals: Arrivals, n: usize) -> Load {
    let client = LoadClient::new(LoadConfig {
        url: server.url.clone(),
        api_key: None,
        arrivals,
        max_tokens: 32,
        temperature: 0.0,
        ignore_eos: true,
        seed: 1,
        timeout: Duration::from_secs(120),
    });
    let client = client.expect("an address");
    let asks = dataset::random(n, 16..=64, 1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(client.run(MODEL, &asks, |_| ()))
}

fn tokens_per_second(load: &Load) -> f64 {
    load.output_tokens() as f64 / load.time.as_secs_f64()
}

/// Until `over`, how long `/health` takes, ten times a second; sees to it that every refusal says when
/// to come again.
fn watch(server: &Server, over: &AtomicBool) -> Vec<Duration> {
    let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
    let body = json!({"prompt": "Hi", "max_tokens": 1}).to_string();
    let mut times = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let begin = Instant::now();
        let health = agent.get(format!("{}/health", server.url)).call().expect("an answer");
        assert_eq!(health.status(), 200);
        times.push(begin.elapsed());
        if times.len() % 50 == 0 {
            let url = format!("{}{COMPLETIONS}", server.url);
            let answer = agent.post(url).send(&body).expect("an answer");
            let retry_after = answer.headers().get("retry-after");
            assert_eq!(answer.status() == 429, retry_after.is_some(), "{answer:?}");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    times.sort();
    times
}

#[test]
#[ignore = "a measurement of six minutes"]
fn ten_times_what_it_can_do_is_refused_and_harms_nothing() {
    let Some(server) = start(ServerConfig { max_queue: 64, ..ServerConfig::new(MODEL) }) else {
        return;
    };
    load(&server, Arrivals::Concurrency(SLOTS), 2 * SLOTS);
    let peak = load(&server, Arrivals::Concurrency(SLOTS), 10 * SLOTS);
    let rate = 10.0 * peak.answers().count() as f64 / peak.time.as_secs_f64();
    let n = (rate * 300.0) as usize;
    let over = AtomicBool::new(false);
    let (overload, health) = std::thread::scope(|scope| {
        let watch = scope.spawn(|| watch(&server, &over));
        let overload = load(&server, Arrivals::Rate(rate), n);
        over.store(true, Ordering::Relaxed);
        (overload, watch.join().expect("the server was well"))
    });
    let (most, usual) = (health[health.len() - 1], health[health.len() / 2]);
    let (peak, kept) = (tokens_per_second(&peak), tokens_per_second(&overload));
    eprintln!("{n} requests, {rate:.1} a second: {} answered", overload.answers().count());
    overload.errors().iter().for_each(|(error, n)| eprintln!("{n} times {error}"));
    eprintln!(
        "{kept:.1} tokens/s, at the peak {peak:.1}; /health: {usual:.1?}, at most {most:.1?}"
    );
    let all_full = |(error, _): &(&str, usize)| error.starts_with("429 ");
    assert!(overload.errors().iter().all(all_full));
    assert!(kept >= 0.9 * peak);
    assert!(most <= Duration::from_millis(100));
    let health: Value = server.get("/health").1;
    assert_eq!((server.running(), &health["kv_blocks_used"]), (0, &json!(0)));
}
