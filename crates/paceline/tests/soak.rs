//! Many clients, many requests, and many who leave: every text that comes to its end is the one that
//! the request gets alone, and nothing is left behind.
#![cfg(feature = "server")]

#[path = "support/cached.rs"]
mod cached;
#[path = "support/fake.rs"]
mod fake;
#[path = "support/server.rs"]
mod server;

use paceline::server::ServerConfig;
use paceline::{Llm, LlmConfig};
use serde_json::{Value, json};
use server::{CHAT, Server, text};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Random numbers that are the same each time.
struct Random(u64);

impl Random {
    /// One of `0..n`.
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % n
    }
}

/// Different requests of random shapes, each the same each time.
fn requests(n: usize, max_tokens: usize) -> Vec<Value> {
    let mut random = Random(7);
    let request = |i: usize| {
        let words = ["river ", "seven ", "stone ", "a ", "the ", "lamp "];
        let n_words = 1 + random.below(60);
        // Some begin alike, so that they share blocks.
        let start = "Tell me, in a few words and no more, what you know about this: ".repeat(i % 3);
        let content: String = (0..n_words).map(|_| words[random.below(words.len())]).collect();
        let temperature = [0.0, 0.8, 1.0][i % 3];
        json!({
            "messages": [{"role": "user", "content": format!("{start}{content}")}],
            "max_tokens": 1 + random.below(max_tokens), "seed": i,
            "temperature": temperature, "stream": true,
        })
    };
    (0..n).map(request).collect()
}

fn ask(server: &Server, request: &Value) -> String {
    text(&server.stream(CHAT, request).all(), 0)
}

/// `n` requests, drawn from these, by `n_clients` at once; one in five is left at a random point.
fn draw(server: &Server, requests: &[Value], alone: &[String], n: usize, n_clients: usize) {
    let next = AtomicUsize::new(0);
    let client = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= n {
                return;
            }
            let mut random = Random(number as u64 + 1);
            random.below(2);
            let i = random.below(requests.len());
            if random.below(5) == 0 {
                let after = random.below(12);
                server.stream(CHAT, &requests[i]).take(after).for_each(drop);
            } else {
                assert_eq!(ask(server, &requests[i]), alone[i], "{}", requests[i]);
            }
        }
    };
    std::thread::scope(|scope| (0..n_clients).for_each(|_| drop(scope.spawn(client))));
    server.wait_for_running(0);
    let health = server.get("/health").1;
    assert_eq!(health["kv_blocks_used"], 0, "blocks are leaked");
}

/// What each request says alone; 500 streams at once say the same.
fn alone_and_in_a_crowd(server: &Server, requests: &[Value]) -> Vec<String> {
    let alone: Vec<String> = requests.iter().map(|request| ask(server, request)).collect();
    std::thread::scope(|scope| {
        for i in 0..500 {
            let i = i % requests.len();
            let (request, expected) = (&requests[i], &alone[i]);
            scope.spawn(move || assert_eq!(ask(server, request), *expected));
        }
    });
    alone
}

/// This process's memory, in KiB.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[test]
fn crowds_come_and_go() {
    // Few enough blocks that sequences are preempted.
    let kv_memory = Some((16 * 16 * 400).into());
    let config = LlmConfig { kv_memory, ..LlmConfig::default() };
    let llm = fake::build(Duration::ZERO, fake::FakeText::new(true), config);
    let server = Server::start(llm, ServerConfig::new("fake"));
    let requests = requests(100, 60);
    let alone = alone_and_in_a_crowd(&server, &requests);
    draw(&server, &requests, &alone, 1_000, 32);
}

/// The long one, with a real model: `cargo test --release --test soak -- --ignored --nocapture`.
#[test]
#[ignore = "takes half an hour"]
fn twenty_thousand_requests_of_a_real_model() {
    let Some(model) = cached::cached("smollm2-135m") else { return };
    let llm = Llm::builder(model).kv_memory(256 << 20).build().expect("the model loads");
    let server = Server::start(llm, ServerConfig::new("smollm2-135m"));
    let requests = requests(400, 24);
    let alone = alone_and_in_a_crowd(&server, &requests);
    // What is allocated once is there now.
    draw(&server, &requests, &alone, 1_000, 64);
    let before = resident();
    draw(&server, &requests, &alone, 20_000, 64);
    let after = resident();
    eprintln!("resident memory: {before:?} KiB before, {after:?} KiB after");
    if let (Some(before), Some(after)) = (before, after) {
        assert!(after as f64 <= before as f64 * 1.05, "{before} KiB became {after} KiB");
    }
}
