//! What one request does to the others: panics, a full queue, timeouts.
#![cfg(feature = "server")]

#[path = "support/fake.rs"]
mod fake;
#[path = "support/server.rs"]
mod server;

use fake::{BOMB, MINE, fragile};
use paceline::server::ServerConfig;
use paceline::{EngineConfig, LlmConfig};
use serde_json::{Value, json};
use server::{CHAT, COMPLETIONS, Server, text};
use std::time::Duration;

fn start(step_ms: u64, max_num_seqs: usize, max_queue: usize) -> Server {
    let engine = EngineConfig { max_num_seqs, ..EngineConfig::default() };
    let config = LlmConfig { engine, ..LlmConfig::default() };
    let llm = fragile(Duration::from_millis(step_ms), config);
    Server::start(llm, ServerConfig { max_queue, ..ServerConfig::new("fake") })
}

/// The bias of a request that draws nothing which panics.
fn safe() -> Value {
    json!({MINE.to_string(): -100, BOMB.to_string(): -100})
}

/// A request that leads to a token after some others.
fn only(token: u32) -> Value {
    json!({
        "prompt": [1, 2, 3], "max_tokens": 20, "temperature": 0, "min_tokens": 2,
        "logit_bias": {token.to_string(): 100}, "n": 2,
    })
}

#[test]
fn a_panic_ends_its_request_and_nothing_else() {
    let server = start(2, 64, 100);
    let neighbour = json!({
        "prompt": "Hello", "max_tokens": 100, "temperature": 0.9, "seed": 5, "stream": true,
    });
    let alone = text(&server.stream(COMPLETIONS, &neighbour).all(), 0);
    std::thread::scope(|scope| {
        let neighbour = scope.spawn(|| text(&server.stream(COMPLETIONS, &neighbour).all(), 0));
        for _ in 0..3 {
            let (status, answer) = server.post(COMPLETIONS, &only(BOMB));
            assert_eq!(status, 500, "{answer}");
            assert_eq!(answer["error"]["type"], "server_error");
            let mut body = only(BOMB);
            body["stream"] = true.into();
            let last = server.stream(COMPLETIONS, &body).last().unwrap();
            assert_eq!(last["error"]["type"], "server_error");
        }
        assert_eq!(neighbour.join().unwrap(), alone);
    });
    server.wait_for_running(0);
}

#[test]
fn a_panic_of_the_model_ends_who_is_under_way_and_the_next_is_served() {
    let server = start(2, 64, 100);
    let say = json!([{"role": "user", "content": "Hi"}]);
    let body = json!({"messages": say, "max_tokens": 40, "seed": 1, "logit_bias": safe()});
    let before = server.ok(CHAT, &body);
    let long = json!({
        "prompt": "Hello", "max_tokens": 2000, "ignore_eos": true, "logit_bias": safe(),
    });
    std::thread::scope(|scope| {
        let other = scope.spawn(|| server.post(COMPLETIONS, &long));
        server.wait_for_running(1);
        let (status, _) = server.post(COMPLETIONS, &json!({"prompt": [1, MINE]}));
        assert_eq!(status, 500);
        assert_eq!(other.join().unwrap().0, 500);
    });
    assert_eq!(server.running(), 0);
    assert_eq!(server.get("/health").0, 200);
    assert_eq!(server.ok(CHAT, &body)["choices"], before["choices"]);
}

#[test]
fn who_finds_the_queue_full_is_told_when_to_come_again() {
    let server = start(5, 1, 3);
    let long = json!({
        "prompt": "Hello", "max_tokens": 3000, "ignore_eos": true, "stream": true,
        "logit_bias": safe(),
    });
    let mut running = server.stream(COMPLETIONS, &long);
    running.next().unwrap();
    let waiting: Vec<_> = (0..2).map(|_| server.stream(COMPLETIONS, &long)).collect();
    server.wait_for_running(3);

    // There is one place: two prompts find none, and leave it to the next one.
    let two = json!({"prompt": ["a", "b"], "max_tokens": 1, "logit_bias": safe()});
    let (status, answer) = server.post(COMPLETIONS, &two);
    assert_eq!((status, &answer["error"]["code"]), (429, &json!("queue_full")), "{answer}");
    let third = server.stream(COMPLETIONS, &long);
    server.wait_for_running(4);
    let one = json!({"prompt": "a", "max_tokens": 1});
    let url = format!("{}{COMPLETIONS}", server.url);
    let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
    let response = agent.post(url).send(one.to_string()).unwrap();
    assert_eq!(response.status(), 429);
    let seconds: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds));

    // Nothing is read of what is refused.
    assert_eq!(server.post_bytes(COMPLETIONS, b"{").0, 429);

    drop((running, waiting, third));
    server.wait_for_running(0);
    server.ok(COMPLETIONS, &two);

    // More than can ever wait is an error of the request.
    let five = json!({"prompt": ["a", "b", "c", "d", "e"], "max_tokens": 1});
    let (status, answer) = server.post(COMPLETIONS, &five);
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("prompt")), "{answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    for part in ["5 prompts", "1 can run (--max-num-seqs)", "3 more wait (--max-queue)"] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn who_can_start_at_once_needs_no_queue() {
    let server = start(2, 2, 0);
    let two = json!({"prompt": ["a", "b"], "max_tokens": 3, "logit_bias": safe()});
    // Each comes when the one before has just ended.
    for _ in 0..20 {
        server.ok(COMPLETIONS, &two);
    }
    let long = json!({
        "prompt": "Hello", "max_tokens": 3000, "ignore_eos": true, "stream": true,
        "logit_bias": safe(),
    });
    let mut one = server.stream(COMPLETIONS, &long);
    one.next().unwrap();
    assert_eq!(server.post(COMPLETIONS, &two).0, 429);
    let mut other = server.stream(COMPLETIONS, &long);
    other.next().unwrap();
    assert_eq!(server.post(COMPLETIONS, &json!({"prompt": "a", "max_tokens": 1})).0, 429);
    drop((one, other));
    server.wait_for_running(0);
    server.ok(COMPLETIONS, &two);
}

#[test]
fn a_timeout_ends_an_answer_with_what_is_there() {
    let server = start(5, 1, 100);
    let mut body = json!({
        "prompt": "Hello", "max_tokens": 3000, "ignore_eos": true, "timeout": 0.3, "priority": -2,
        "logit_bias": safe(),
    });
    let answer = server.ok(COMPLETIONS, &body);
    assert_eq!(answer["choices"][0]["finish_reason"], "timeout");
    let n = answer["usage"]["completion_tokens"].as_u64().unwrap();
    assert!((1..3000).contains(&n), "{n}");
    for (field, value) in [
        ("timeout", json!(0)),
        ("timeout", json!(-1)),
        ("timeout", json!("1")),
        ("timeout", json!(1e30)),
        ("priority", json!(1.5)),
        ("priority", json!(3_000_000_000_u64)),
    ] {
        let mut body = body.clone();
        body[field] = value;
        let (status, answer) = server.post(COMPLETIONS, &body);
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(field)), "{answer}");
    }
    // Who waits is under the clock as well.
    body["timeout"] = json!(30);
    body["stream"] = true.into();
    let running = server.stream(COMPLETIONS, &body);
    server.wait_for_running(1);
    let brief = json!({"prompt": "Hello", "timeout": 0.1});
    let answer = server.ok(COMPLETIONS, &brief);
    assert_eq!(answer["choices"][0]["finish_reason"], "timeout");
    assert_eq!(answer["usage"]["completion_tokens"], 0);
    drop(running);
    server.wait_for_running(0);
}
