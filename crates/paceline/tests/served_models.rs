//! Real models behind the HTTP server, where they are in the cache.
#![cfg(feature = "server")]

#[path = "support/cached.rs"]
mod cached;
#[path = "support/server.rs"]
mod server;

use cached::cached;
use paceline::server::ServerConfig;
use paceline::{Builder, Llm};
use serde_json::{Value, json};
use server::{CHAT, COMPLETIONS, Server, text};

fn serve(name: &str) -> Option<Server> {
    let llm = Llm::builder(cached(name)?).kv_memory(1 << 30).build().expect("the model loads");
    Some(Server::start(llm, ServerConfig::new(name)))
}

/// Questions of one length and another, greedy and not.
fn questions(n: usize, max_tokens: usize, fields: impl Fn(String) -> Value) -> Vec<Value> {
    let subjects = ["rivers", "the number seven", "quick sorting", "tea", "a lighthouse keeper"];
    let question = |i: usize| {
        let subject = subjects[i % subjects.len()];
        let mut body = fields(format!("In a sentence or {i}, tell me about {subject}."));
        body["max_tokens"] = (max_tokens + i % 5).into();
        body["temperature"] = [0.0, 0.8][i % 2].into();
        body["seed"] = i.into();
        body["stream"] = true.into();
        body
    };
    (0..n).map(question).collect()
}

fn chat(text: String) -> Value {
    json!({"messages": [{"role": "user", "content": text}]})
}

/// Streams that all run at once; each says what it says alone, and more than one thing is said.
fn check(name: &str, path: &str, bodies: &[Value]) {
    let Some(server) = serve(name) else { return };
    let mut texts = server.check_streams(path, bodies);
    assert!(texts.iter().all(|text| !text.is_empty()));
    texts.sort();
    texts.dedup();
    assert!(texts.len() > bodies.len() / 2, "{texts:?}");
}

#[test]
fn forty_streams_of_smollm2() {
    check("smollm2-135m", CHAT, &questions(40, 12, chat));
}

/// The same prompts alone, in a crowd, in small chunks and large ones, with the prefix cache cold,
/// warm and off, and with too little memory for all: the same texts, greedy and sampled.
#[test]
fn what_is_going_on_changes_no_text() {
    let name = "smollm2-135m";
    let Some(path) = cached(name) else { return };
    let start = |builder: Builder| {
        Server::start(builder.build().expect("the model loads"), ServerConfig::new(name))
    };
    let usual = || Llm::builder(&path).kv_memory(256 << 20);
    let bodies = questions(40, 36, chat);
    let ask = |server: &Server, body: &Value| text(&server.stream(CHAT, body).all(), 0);
    let server = start(usual());
    let alone: Vec<String> = bodies.iter().map(|body| ask(&server, body)).collect();
    assert!(alone.iter().any(|text| text.len() > 60), "{alone:?}");
    drop(server);
    for (what, builder, n_rounds) in [
        ("large chunks", usual().max_num_batched_tokens(512), 2),
        ("small chunks", usual().max_num_batched_tokens(16), 1),
        ("no prefix cache", usual().prefix_cache(false), 1),
        ("little memory", usual().kv_memory(9 << 20), 1),
    ] {
        let server = start(builder);
        for round in 0..n_rounds {
            let together: Vec<String> = std::thread::scope(|scope| {
                let ask = |(i, body): (usize, &Value)| {
                    let mut body = body.clone();
                    // Who comes later tends to be more urgent: those before have to give way.
                    body["priority"] = json!(-(i as i32));
                    ask(&server, &body)
                };
                let bodies = bodies.iter().enumerate();
                let threads: Vec<_> = bodies.map(|body| scope.spawn(move || ask(body))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(together, alone, "{what}, round {round}");
        }
        if what == "little memory" {
            let metrics = server.text("/metrics", &[]).1;
            let line = metrics.lines().find(|line| line.starts_with("vllm:num_preemptions_total"));
            assert!(!line.unwrap().ends_with(" 0"), "nobody was preempted");
        }
    }
}

#[test]
fn streams_of_qwen() {
    check("qwen2.5-coder-0.5b", CHAT, &questions(6, 6, chat));
}

/// A base model: it completes, and says that it does not chat.
#[test]
fn streams_of_gemma() {
    let name = "gemma3-270m";
    check(name, COMPLETIONS, &questions(6, 6, |text| json!({"prompt": text})));
    let Some(server) = serve(name) else { return };
    let (status, answer) = server.post(CHAT, &chat("Hi".to_owned()));
    assert_eq!(status, 400, "{answer}");
}
