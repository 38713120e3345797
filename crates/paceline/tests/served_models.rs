//! Real models behind the HTTP server, where they are in the cache.
#![cfg(feature = "server")]

#[path = "support/cached.rs"]
mod cached;
#[path = "support/server.rs"]
mod server;

use cached::cached;
use paceline::Llm;
use paceline::server::ServerConfig;
use serde_json::{Value, json};
use server::{CHAT, COMPLETIONS, Server};

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
