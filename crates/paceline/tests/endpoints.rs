//! What the endpoints answer, with an engine whose model is a hash. A byte is a token.
#![cfg(feature = "server")]

#[path = "support/fake.rs"]
mod fake;
#[path = "support/server.rs"]
mod server;

use fake::{CONTEXT_LEN, FakeText, build, llm};
use paceline::server::ServerConfig;
use paceline::{EngineConfig, LlmConfig};
use serde_json::{Value, json};
use server::{CHAT, COMPLETIONS, Server, text};
use std::time::Duration;

/// A fast server with the usual settings.
fn start() -> Server {
    Server::start(llm(Duration::ZERO, true), ServerConfig::new("fake"))
}

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

/// The lists of a stream's `logprobs`, joined.
fn streamed_lists(chunks: &[Value], index: u64) -> Value {
    let choices = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap());
    let lists = choices.filter(|choice| choice["index"] == index).map(|choice| &choice["logprobs"]);
    let lists: Vec<&Value> = lists.filter(|lists| !lists.is_null()).collect();
    let join = |name: &str| -> Value {
        lists.iter().flat_map(|lists| lists[name].as_array().unwrap()).cloned().collect()
    };
    json!({
        "tokens": join("tokens"), "token_logprobs": join("token_logprobs"),
        "top_logprobs": join("top_logprobs"), "text_offset": join("text_offset"),
    })
}

#[test]
fn an_echo_is_the_prompt_before_the_answer() {
    let server = start();
    let plain = json!({
        "prompt": ["Hello", "Goodbye"], "n": 2, "max_tokens": 6, "temperature": 0.9, "seed": 1,
        "logprobs": 2,
    });
    let mut body = plain.clone();
    body["echo"] = true.into();
    let (plain, echo) = (server.ok(COMPLETIONS, &plain), server.ok(COMPLETIONS, &body));
    let n = 4;
    for i in 0..n {
        let prompt = ["Hello", "Goodbye"][i / 2];
        let (plain, echo) = (&plain["choices"][i], &echo["choices"][i]);
        let text = plain["text"].as_str().unwrap();
        assert_eq!(echo["text"], format!("{prompt}{text}"));
        let list =
            |choice: &Value, name: &str| choice["logprobs"][name].as_array().unwrap().clone();
        for name in ["tokens", "token_logprobs", "top_logprobs"] {
            assert_eq!(list(echo, name)[prompt.len()..], list(plain, name)[..], "{name}");
        }
        let tokens: Vec<String> = prompt.chars().map(String::from).collect();
        assert_eq!(json!(list(echo, "tokens")[..prompt.len()]), json!(tokens));
        let offsets: Vec<usize> = (0..prompt.len()).collect();
        assert_eq!(json!(list(echo, "text_offset")[..prompt.len()]), json!(offsets));
        assert_eq!(list(echo, "text_offset")[prompt.len()], prompt.len());
        assert!(
            list(echo, "token_logprobs")[0].is_null() && list(echo, "top_logprobs")[0].is_null()
        );
        assert!(list(echo, "token_logprobs")[1..].iter().all(Value::is_number));
    }
    assert_eq!(plain["usage"]["completion_tokens"], echo["usage"]["completion_tokens"]);

    body["stream"] = true.into();
    let chunks = server.stream(COMPLETIONS, &body).all();
    for i in 0..n {
        assert_eq!(text(&chunks, i as u64), echo["choices"][i]["text"].as_str().unwrap());
        assert_eq!(streamed_lists(&chunks, i as u64), echo["choices"][i]["logprobs"]);
    }
    // Tokens are echoed as their text; without logprobs there are none.
    let body = json!({"prompt": [72, 105], "echo": true, "max_tokens": 3, "temperature": 0});
    let choice = server.ok(COMPLETIONS, &body)["choices"][0].clone();
    assert!(choice["text"].as_str().unwrap().starts_with("Hi") && choice["logprobs"].is_null());
}

/// How likelihoods of texts are asked for.
#[test]
fn an_echo_alone_scores_the_prompt() {
    let server = start();
    let mut body = json!({"prompt": "Hello", "echo": true, "max_tokens": 0, "logprobs": 1});
    let answer = server.ok(COMPLETIONS, &body);
    let choice = &answer["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("Hello"), &json!("length")));
    assert_eq!(choice["logprobs"]["tokens"].as_array().unwrap().len(), 5);
    assert_eq!(answer["usage"]["completion_tokens"], 0);
    assert_eq!(answer["usage"]["total_tokens"], 5);
    body["stream"] = true.into();
    let chunks = server.stream(COMPLETIONS, &body).all();
    assert_eq!(text(&chunks, 0), "Hello");
    assert_eq!(streamed_lists(&chunks, 0), choice["logprobs"]);
    body["echo"] = false.into();
    assert_eq!(server.post(COMPLETIONS, &body).1["error"]["param"], "max_tokens");

    // A sum of the same numbers as prompt_logprobs, with counts of their own.
    let body = json!({
        "prompt": "Hello", "echo": true, "max_tokens": 1, "logprobs": 1, "prompt_logprobs": 3,
    });
    let choice = server.ok(COMPLETIONS, &body)["choices"][0].clone();
    for (i, c) in "Hello".bytes().enumerate().skip(1) {
        let position = &choice["prompt_logprobs"][i];
        assert_eq!(position[c.to_string()]["logprob"], choice["logprobs"]["token_logprobs"][i]);
        assert!((3..=4).contains(&position.as_object().unwrap().len()));
        assert!(choice["logprobs"]["top_logprobs"][i].as_object().unwrap().len() <= 2);
    }
}

#[test]
fn an_offset_is_where_a_token_begins_in_the_text() {
    const CONTROL: u32 = 257;
    let server = start();
    let ids: Vec<u32> = "é🙂".bytes().map(u32::from).chain([CONTROL, 0xe2, 0x82, 97]).collect();
    // In a prompt a control token is text.
    let body = json!({"prompt": ids, "echo": true, "max_tokens": 0, "logprobs": 0});
    let choice = server.ok(COMPLETIONS, &body)["choices"][0].clone();
    assert_eq!(choice["text"], "é🙂<control>\u{fffd}a");
    assert_eq!(choice["logprobs"]["text_offset"], json!([0, 0, 1, 1, 1, 1, 2, 11, 11, 12]));

    // In an answer it is not; the two bytes of é meet by chance.
    let bias: Value =
        [0xc3, 0xa9, CONTROL, 97, 300].map(|id| (id.to_string(), json!(100))).into_iter().collect();
    let body = json!({
        "prompt": ids, "echo": true, "max_tokens": 300, "logprobs": 0, "temperature": 1, "seed": 1,
        "logit_bias": bias,
    });
    let choice = server.ok(COMPLETIONS, &body)["choices"][0].clone();
    let text: Vec<char> = choice["text"].as_str().unwrap().chars().collect();
    assert!(text[13..].contains(&'é') && text[13..].contains(&'\u{fffd}'), "{choice}");
    let list = |name: &str| choice["logprobs"][name].as_array().unwrap()[ids.len()..].to_vec();
    for (token, offset) in list("tokens").iter().zip(list("text_offset")) {
        let token = token.as_str().unwrap();
        let here = text[offset.as_u64().unwrap() as usize..].iter().collect::<String>();
        let known = ["\u{fffd}", "<control>"].contains(&token) || here.starts_with(token);
        assert!(known, "{token} is not at {offset} of {choice}");
    }
    let mut stream = body.clone();
    stream["stream"] = true.into();
    let chunks = server.stream(COMPLETIONS, &stream).all();
    assert_eq!(streamed_lists(&chunks, 0), choice["logprobs"]);
}

#[test]
fn a_choice_that_ends_before_its_first_token_still_shows_its_prompt() {
    let config = LlmConfig {
        engine: EngineConfig { max_num_seqs: 1, ..EngineConfig::default() },
        ..LlmConfig::default()
    };
    let llm = build(Duration::from_millis(5), FakeText::new(true), config);
    let server = Server::start(llm, ServerConfig::new("fake"));
    let mut body = json!({"prompt": "Hi", "max_tokens": 3000, "ignore_eos": true, "stream": true});
    let running = server.stream(COMPLETIONS, &body);
    server.wait_for_running(1);
    body["echo"] = true.into();
    body["logprobs"] = 0.into();
    body["timeout"] = 0.1.into();
    let chunks = server.stream(COMPLETIONS, &body).all();
    assert_eq!(text(&chunks, 0), "Hi");
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "timeout");
    body["stream"] = false.into();
    let choice = server.ok(COMPLETIONS, &body)["choices"][0].clone();
    assert_eq!(choice["text"], "Hi");
    assert_eq!(choice["logprobs"], streamed_lists(&chunks, 0));
    assert_eq!(choice["logprobs"]["tokens"], json!(["H", "i"]));
    drop(running);
}

#[test]
fn log_probabilities_of_a_prompt_are_computed_though_it_is_cached() {
    let server = start();
    let prompt = "x".repeat(100);
    let plain = json!({"prompt": prompt, "max_tokens": 4, "temperature": 0});
    let mut scored = plain.clone();
    scored["prompt_logprobs"] = 1.into();
    let cold = server.ok(COMPLETIONS, &scored);
    assert_eq!(cached(&server.ok(COMPLETIONS, &plain)), 96);
    let warm = server.ok(COMPLETIONS, &scored);
    assert_eq!(cached(&warm), 0);
    assert_eq!(warm["choices"], cold["choices"]);
    assert_eq!(warm["choices"][0]["prompt_logprobs"].as_array().unwrap().len(), 100);
}

#[test]
fn cached_tokens_are_those_that_the_cache_had() {
    let server = start();
    let (a, b) = ("a".repeat(100), "b".repeat(50));
    let body = json!({"prompt": [a, b], "n": 3, "max_tokens": 4, "temperature": 1});
    assert_eq!(cached(&server.ok(COMPLETIONS, &body)), 0, "choices that share are no hits");
    assert_eq!(cached(&server.ok(COMPLETIONS, &body)), 96 + 48);
    let mut stream = body.clone();
    stream["stream"] = true.into();
    stream["stream_options"] = json!({"include_usage": true});
    assert_eq!(cached(server.stream(COMPLETIONS, &stream).all().last().unwrap()), 96 + 48);
    for (salt, expected) in [("one", 0), ("two", 0), ("one", 144)] {
        let mut salted = body.clone();
        salted["cache_salt"] = salt.into();
        assert_eq!(cached(&server.ok(COMPLETIONS, &salted)), expected, "{salt}");
    }
    let say =
        |text: &str| json!({"messages": [{"role": "user", "content": text}], "max_tokens": 2});
    let long = "tell me more ".repeat(10);
    assert_eq!(cached(&server.ok(CHAT, &say(&long))), 0);
    assert!(cached(&server.ok(CHAT, &say(&format!("{long} and more")))) >= 112);
}

#[test]
fn the_prompt_that_is_wrong_is_named() {
    let server = start();
    let long = "x".repeat(CONTEXT_LEN);
    for (prompt, param, says) in [
        (json!(["fine", long]), "prompt[1]", "prompt[1] of 4096 tokens"),
        (json!([[1], [], [2]]), "prompt[1]", "prompt[1] is empty"),
        (json!([[1], [2], [3, 9999]]), "prompt[2]", "prompt[2] token 1 is 9999"),
        (json!([long]), "prompt", "prompt of 4096 tokens"),
        (json!([3, 9999]), "prompt", "prompt token 1 is 9999"),
    ] {
        let (status, answer) = server.post(COMPLETIONS, &json!({"prompt": prompt}));
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(param)), "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().starts_with(says), "{answer}");
    }
    let (_, answer) = server.post(COMPLETIONS, &json!({"prompt": ["fine"], "n": 9999}));
    assert_eq!(answer["error"]["param"], "n");
}

#[test]
fn tokens_come_and_go() {
    let mut text = FakeText::new(true);
    text.bos = true;
    let server =
        Server::start(build(Duration::ZERO, text, LlmConfig::default()), ServerConfig::new("fake"));
    let answer = server.ok("/tokenize", &json!({"model": "fake", "prompt": "Hi"}));
    let expected = json!({
        "count": 3, "max_model_len": CONTEXT_LEN, "tokens": [257, 72, 105], "token_strs": null,
    });
    assert_eq!(answer, expected);
    let body = json!({"prompt": "Hi", "add_special_tokens": false, "return_token_strs": true});
    let answer = server.ok("/tokenize", &body);
    assert_eq!((&answer["tokens"], &answer["token_strs"]), (&json!([72, 105]), &json!(["H", "i"])));
    assert_eq!(server.ok("/tokenize", &json!({"prompt": ""}))["count"], 1);

    let chat = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let answer = server.ok("/tokenize", &chat);
    let mut generate = chat.clone();
    generate["max_tokens"] = 1.into();
    assert_eq!(answer["count"], server.ok(CHAT, &generate)["usage"]["prompt_tokens"]);
    let back = server.ok("/detokenize", &json!({"tokens": answer["tokens"]}));
    assert_eq!(back, json!({"prompt": "user: Hi\nassistant: "}));
    assert_eq!(server.ok("/detokenize", &json!({"tokens": []})), json!({"prompt": ""}));

    // As the endpoints that generate count.
    let count = |body: Value| server.ok(COMPLETIONS, &body)["usage"]["prompt_tokens"].clone();
    assert_eq!(count(json!({"prompt": "Hi", "max_tokens": 1})), 3);
    assert_eq!(count(json!({"prompt": "Hi", "max_tokens": 1, "add_special_tokens": false})), 2);
    let echo = json!({"prompt": "Hi", "max_tokens": 0, "echo": true, "logprobs": 0});
    let choice = server.ok(COMPLETIONS, &echo)["choices"][0].clone();
    assert_eq!(choice["text"], "Hi");
    assert_eq!(choice["logprobs"]["text_offset"], json!([0, 0, 1]));

    for (path, body, param) in [
        ("/tokenize", json!({}), "prompt"),
        ("/tokenize", json!({"prompt": 5}), "prompt"),
        ("/tokenize", json!({"prompt": "Hi", "temperature": 1}), "temperature"),
        ("/tokenize", json!({"prompt": "Hi", "model": "other"}), "model"),
        ("/tokenize", json!({"messages": [{"role": "user"}]}), "messages[0].content"),
        ("/detokenize", json!({}), "tokens"),
        ("/detokenize", json!({"tokens": [1, 600]}), "tokens[1]"),
        ("/detokenize", json!({"tokens": [1], "prompt": "Hi"}), "prompt"),
    ] {
        let (status, answer) = server.post(path, &body);
        assert!(status == 400 || param == "model" && status == 404, "{body} -> {answer}");
        assert_eq!(answer["error"]["param"], param, "{body} -> {answer}");
    }
    let mut chat = chat;
    chat["add_special_tokens"] = true.into();
    assert_eq!(server.post("/tokenize", &chat).1["error"]["param"], "add_special_tokens");
    assert_eq!(server.post(CHAT, &chat).1["error"]["param"], "add_special_tokens");
}

#[test]
fn the_load_is_told() {
    let server = Server::start(llm(Duration::from_millis(5), true), ServerConfig::new("fake"));
    assert_eq!(server.get("/version"), (200, json!({"version": env!("CARGO_PKG_VERSION")})));
    assert_eq!(server.get("/ready"), (200, json!({"status": "ready"})));
    let load = || server.get("/v1/loads").1["loads"][0].clone();
    let idle = load();
    assert_eq!((&idle["num_running_reqs"], &idle["token_usage"]), (&json!(0), &json!(0.0)));
    let body = json!({
        "prompt": "x".repeat(100), "max_tokens": 3000, "ignore_eos": true, "temperature": 0, "n": 2,
        "stream": true,
    });
    let mut events = server.stream(COMPLETIONS, &body);
    // The second choice runs once the first has computed the prompt.
    events.nth(5).unwrap();
    let busy = load();
    assert_eq!((&busy["num_running_reqs"], &busy["num_total_reqs"]), (&json!(2), &json!(2)));
    let (used, all) = (&busy["num_used_tokens"], &busy["max_total_num_tokens"]);
    let (used, all) = (used.as_f64().unwrap(), all.as_f64().unwrap());
    assert!(used >= 100.0 && (busy["token_usage"].as_f64().unwrap() - used / all).abs() < 1e-9);
}

#[test]
fn a_silent_stream_gets_comments() {
    let mut config = ServerConfig::new("fake");
    config.heartbeat = Duration::from_millis(50);
    let server = Server::start(llm(Duration::from_millis(400), true), config);
    let body = json!({"prompt": "Hi", "max_tokens": 2, "temperature": 0, "stream": true});
    let mut events = server.stream(COMPLETIONS, &body);
    let chunks = events.rest();
    assert!(events.n_comments >= 2, "{} comments", events.n_comments);
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
}
