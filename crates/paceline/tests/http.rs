//! The HTTP server, on a port of its own, with an engine whose model is a hash.
#![cfg(feature = "server")]

#[path = "support/fake.rs"]
mod fake;
#[path = "support/server.rs"]
mod server;

use fake::{CONTEXT_LEN, llm};
use paceline::server::ServerConfig;
use serde_json::{Value, json};
use server::{CHAT, COMPLETIONS, Server, text};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A fast server with the usual settings.
fn start() -> Server {
    Server::start(llm(Duration::ZERO, true), ServerConfig::new("fake"))
}

fn say(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

#[test]
fn a_completion_is_the_same_whole_and_streamed() {
    let server = start();
    let mut body = json!({
        "model": "fake", "prompt": "Hello", "max_tokens": 40, "temperature": 0.9, "seed": 5,
    });
    let whole = server.ok(COMPLETIONS, &body);
    assert_eq!(whole["object"], "text_completion");
    assert_eq!(whole["model"], "fake");
    assert_eq!(whole["seed"], 5);
    assert!(whole["id"].as_str().unwrap().starts_with("cmpl-"));
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    let usage = json!({
        "prompt_tokens": 5, "completion_tokens": 40, "total_tokens": 45,
        "prompt_tokens_details": {"cached_tokens": 0},
    });
    assert_eq!(whole["usage"], usage);

    body["stream"] = true.into();
    let chunks = server.stream(COMPLETIONS, &body).all();
    assert_eq!(text(&chunks, 0), choice["text"].as_str().unwrap());
    let (last, others) = chunks.split_last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    assert!(others.iter().all(|chunk| chunk["choices"][0]["finish_reason"].is_null()));
    assert!(
        chunks.iter().all(|chunk| chunk["id"] == chunks[0]["id"] && chunk.get("usage").is_none())
    );

    body["stream_options"] = json!({"include_usage": true});
    let chunks = server.stream(COMPLETIONS, &body).all();
    let (last, others) = chunks.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["total_tokens"], 45);
    assert!(others.iter().all(|chunk| chunk["usage"] == Value::Null));
}

#[test]
fn a_chat_is_the_same_whole_and_streamed() {
    let server = start();
    let mut body = json!({"messages": say("Hi"), "max_tokens": 30, "temperature": 0});
    let whole = server.ok(CHAT, &body);
    assert_eq!(whole["object"], "chat.completion");
    assert_eq!(whole["choices"][0]["message"]["role"], "assistant");
    assert_eq!(whole["usage"]["prompt_tokens"], "user: Hi\nassistant: ".len());
    assert!(whole["choices"][0]["logprobs"].is_null());

    body["stream"] = true.into();
    let chunks = server.stream(CHAT, &body).all();
    assert_eq!(chunks[0]["object"], "chat.completion.chunk");
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert_eq!(text(&chunks, 0), whole["choices"][0]["message"]["content"].as_str().unwrap());
    let last = &chunks.last().unwrap()["choices"][0];
    assert_eq!((&last["delta"], &last["finish_reason"]), (&json!({}), &json!("length")));

    // With fields that change nothing, and the newer name of a limit.
    let body = json!({
        "messages": say("Hi"),
        "max_completion_tokens": 30, "temperature": 0,
        "user": "somebody", "metadata": {"any": "thing"}, "store": false, "tools": [],
        "response_format": {"type": "text"}, "logit_bias": null,
    });
    assert_eq!(server.ok(CHAT, &body)["choices"], whole["choices"]);
    let mut body = body;
    body["messages"][0]["refusal"] = Value::Null;
    assert_eq!(server.ok(CHAT, &body)["choices"], whole["choices"]);
    body["chat_template_kwargs"] = json!({"language": "Latin"});
    let usage = &server.ok(CHAT, &body)["usage"];
    assert_eq!(usage["prompt_tokens"], "user: Hi\nin \"Latin\"\nassistant: ".len());
}

#[test]
fn the_first_of_n_choices_is_the_only_one_of_one() {
    let server = start();
    let body = |n: u32| json!({"messages": say("Hi"), "n": n, "max_tokens": 20, "seed": 3, "temperature": 1.0});
    let one = server.ok(CHAT, &body(1));
    let three = server.ok(CHAT, &body(3));
    let choices = three["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    assert_eq!(choices[0], one["choices"][0]);
    assert_ne!(choices[1]["message"], choices[0]["message"]);
    assert_ne!(choices[1]["message"], choices[2]["message"]);
    let generated = |answer: &Value| answer["usage"]["completion_tokens"].as_u64().unwrap();
    assert!(generated(&three) > 2 * generated(&one));

    let mut body = body(3);
    body["stream"] = true.into();
    let chunks = server.stream(CHAT, &body).all();
    for (i, choice) in (0..).zip(choices) {
        assert_eq!(text(&chunks, i), choice["message"]["content"].as_str().unwrap());
    }
}

#[test]
fn a_request_without_a_seed_reports_the_one_it_got() {
    let server = start();
    let mut body = json!({"prompt": "a", "max_tokens": 20, "temperature": 1});
    let (first, second) = (server.ok(COMPLETIONS, &body), server.ok(COMPLETIONS, &body));
    assert_ne!(first["seed"], second["seed"]);
    assert_ne!(first["choices"], second["choices"]);
    body["stream"] = true.into();
    let chunks = server.stream(COMPLETIONS, &body).all();
    let seed = chunks[0]["seed"].clone();
    assert!(seed.is_u64() && chunks.iter().all(|chunk| chunk["seed"] == seed), "{chunks:?}");
    body["stream"] = false.into();
    body["seed"] = first["seed"].clone();
    assert_eq!(server.ok(COMPLETIONS, &body)["choices"], first["choices"]);
    body["seed"] = json!(-7);
    assert_eq!(server.ok(COMPLETIONS, &body)["seed"], json!(u64::MAX - 6));
}

#[test]
fn equal_prompts_of_a_batch_draw_seeds_of_their_own() {
    let server = start();
    let prompts = ["Hi"; 4];
    let mut body = json!({"prompt": prompts, "n": 2, "max_tokens": 20, "temperature": 1});
    let alone = |seed: &Value| {
        let body =
            json!({"prompt": "Hi", "n": 2, "max_tokens": 20, "temperature": 1, "seed": seed});
        server.ok(COMPLETIONS, &body)["choices"].as_array().unwrap().clone()
    };
    let answer = server.ok(COMPLETIONS, &body);
    let choices = answer["choices"].as_array().unwrap();
    for (i, choice) in choices.iter().enumerate() {
        let others = choices.iter().skip(i + 1);
        assert!(others.clone().all(|other| other["text"] != choice["text"]), "{answer}");
        // With the seed that it names, the prompt alone is answered like that.
        assert_eq!(alone(&choice["seed"])[i % 2]["text"], choice["text"]);
    }
    assert_eq!(answer["seed"], choices[0]["seed"]);

    body["stream"] = true.into();
    let chunks = server.stream(COMPLETIONS, &body).all();
    for i in 0..8 {
        let mut of = chunks.iter().map(|chunk| &chunk["choices"][0]);
        let seed = &of.find(|choice| choice["index"] == i).unwrap()["seed"];
        assert_eq!(alone(seed)[i as usize % 2]["text"], text(&chunks, i));
    }

    // A seed that is given is that of each prompt.
    (body["stream"], body["seed"]) = (false.into(), 5.into());
    let answer = server.ok(COMPLETIONS, &body);
    for (i, choice) in answer["choices"].as_array().unwrap().iter().enumerate() {
        assert_eq!(choice["text"], alone(&json!(5))[i % 2]["text"]);
    }
}

#[test]
fn a_prompt_has_four_forms() {
    let server = start();
    let ask = |prompt: Value| {
        let body = json!({"prompt": prompt, "max_tokens": 12, "temperature": 0, "seed": 1});
        server.ok(COMPLETIONS, &body)["choices"].as_array().unwrap().clone()
    };
    let (hi, yo) = (ask(json!("Hi")), ask(json!("Yo")));
    assert_eq!(ask(json!([72, 105])), hi);
    let both = ask(json!(["Hi", "Yo"]));
    assert_eq!(ask(json!([[72, 105], [89, 111]])), both);
    assert_eq!((both[0]["index"].as_u64(), both[1]["index"].as_u64()), (Some(0), Some(1)));
    assert_eq!((&both[0]["text"], &both[1]["text"]), (&hi[0]["text"], &yo[0]["text"]));
    assert_eq!(ask(json!("Hi")).len(), 1);

    let body = json!({
        "prompt": ["Hi", "Yo"], "n": 2, "max_tokens": 12, "temperature": 0, "stream": true,
    });
    let chunks = server.stream(COMPLETIONS, &body).all();
    for (index, of) in [(0, &hi), (1, &hi), (2, &yo), (3, &yo)] {
        assert_eq!(text(&chunks, index), of[0]["text"].as_str().unwrap());
    }
}

#[test]
fn log_probabilities_come_in_the_forms_of_both_endpoints() {
    let server = start();
    let body = json!({
        "messages": say("Hi"), "max_tokens": 8, "temperature": 0, "logprobs": true,
        "top_logprobs": 3, "prompt_logprobs": 2,
    });
    let answer = server.ok(CHAT, &body);
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 8);
    for entry in content {
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        // At temperature 0 the token is the most likely one.
        for field in ["token", "logprob", "bytes"] {
            assert_eq!(entry[field], top[0][field]);
        }
        let logprobs = top.iter().map(|entry| entry["logprob"].as_f64().unwrap());
        assert!(
            logprobs.clone().is_sorted_by(|a, b| a >= b)
                && logprobs.max_by(f64::total_cmp).unwrap() < 0.0
        );
    }
    let prompt = answer["prompt_logprobs"].as_array().unwrap();
    assert_eq!(prompt.len(), "user: Hi\nassistant: ".len());
    assert!(prompt[0].is_null());
    let s = &prompt[1]["115"];
    assert_eq!(s["decoded_token"], "s");
    assert!(s["logprob"].as_f64().unwrap() < 0.0);
    assert!((2..=3).contains(&prompt[1].as_object().unwrap().len()));

    let mut body = json!({"prompt": "Hi", "max_tokens": 8, "temperature": 0, "logprobs": 2});
    let whole = server.ok(COMPLETIONS, &body);
    let lists = &whole["choices"][0]["logprobs"];
    let list = |name: &str| lists[name].as_array().unwrap().clone();
    assert_eq!(list("tokens").len(), 8);
    assert_eq!(list("token_logprobs").len(), 8);
    assert!(list("top_logprobs").iter().all(|top| top.as_object().unwrap().len() == 2));
    assert_eq!(list("text_offset").len(), 8);

    body["stream"] = true.into();
    let chunks = server.stream(COMPLETIONS, &body).all();
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let streamed: Vec<Value> = chunks
            .iter()
            .filter_map(|chunk| chunk["choices"][0]["logprobs"][name].as_array())
            .flatten()
            .cloned()
            .collect();
        assert_eq!(streamed, list(name), "{name}");
    }
}

#[test]
fn a_stop_string_ends_the_text_and_is_named() {
    let server = start();
    let body = json!({"prompt": "Hi", "max_tokens": 30, "temperature": 0});
    let free = server.ok(COMPLETIONS, &body)["choices"][0]["text"].as_str().unwrap().to_owned();
    let stop: String = free.chars().skip(9).take(2).collect();
    let (before, _) = free.split_once(&stop).unwrap();
    for stops in [json!(stop), json!(["never", stop])] {
        let mut body = body.clone();
        body["stop"] = stops;
        let choice = server.ok(COMPLETIONS, &body)["choices"][0].clone();
        assert_eq!(choice["text"], before);
        assert_eq!(choice["finish_reason"], "stop");
        assert_eq!(choice["stop_reason"], json!(stop));
        body["stream"] = true.into();
        assert_eq!(text(&server.stream(COMPLETIONS, &body).all(), 0), before);
    }
}

#[test]
fn what_cannot_be_answered_names_its_field() {
    let server = start();
    let long = "x".repeat(CONTEXT_LEN);
    for (field, value) in [
        ("temperature", json!(-1)),
        ("temperature", json!("hot")),
        ("top_p", json!(0)),
        ("top_k", json!(-2)),
        ("min_p", json!(2)),
        ("seed", json!(1.5)),
        ("n", json!(0)),
        ("n", json!(100_000)),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(-4)),
        ("min_tokens", json!(100)),
        ("stop", json!([""])),
        ("stop", json!(3)),
        ("stop_token_ids", json!([600])),
        ("logit_bias", json!({"x": 1})),
        ("logit_bias", json!({"5": 1000})),
        ("logprobs", json!(1000)),
        ("presence_penalty", json!(3)),
        ("prompt", json!([])),
        ("prompt", json!("")),
        ("prompt", json!([600])),
        ("prompt", json!(5)),
        ("prompt", json!(null)),
        ("prompt", json!(long)),
        ("best_of", json!(4)),
        ("echo", json!("yes")),
        ("suffix", json!("end")),
        ("use_beam_search", json!(true)),
        ("guided_json", json!({})),
        ("stream_options", json!({"include_usage": true})),
        ("tempreature", json!(0)),
    ] {
        let mut body = json!({"prompt": "Hi", "max_tokens": 8});
        body[field] = value;
        let (status, answer) = server.post(COMPLETIONS, &body);
        let error = &answer["error"];
        assert_eq!(status, 400, "{body} -> {answer}");
        assert_eq!(error["param"], field, "{body} -> {answer}");
        assert_eq!(error["type"], "invalid_request_error");
        assert!(error["message"].as_str().unwrap().contains(field), "{body} -> {answer}");
    }
    for (param, field, value) in [
        ("messages", "messages", json!("Hi")),
        ("messages", "messages", json!(null)),
        ("messages[0].role", "messages", json!([{"content": "Hi"}])),
        ("messages[0]", "messages", json!(["Hi"])),
        ("messages[1].content", "messages", json!([say("Hi")[0], {"role": "user"}])),
        ("messages[0].role", "messages", json!([{"role": "narrator", "content": "Once"}])),
        ("messages[0].mood", "messages", json!([{"role": "user", "content": "Hi", "mood": 1}])),
        ("messages[0].content", "messages", json!([{"role": "user", "content": 7}])),
        ("chat_template_kwargs", "chat_template_kwargs", json!([])),
        ("top_logprobs", "top_logprobs", json!(3)),
        ("tools", "tools", json!([{"type": "function"}])),
        ("response_format", "response_format", json!({"type": "json_object"})),
    ] {
        let mut body = json!({"messages": say("Hi"), "max_tokens": 8});
        body[field] = value;
        let (status, answer) = server.post(CHAT, &body);
        assert_eq!(status, 400, "{body} -> {answer}");
        assert_eq!(answer["error"]["param"], param, "{body} -> {answer}");
    }
    let (_, answer) = server.post(COMPLETIONS, &json!({"prompt": long}));
    assert_eq!(answer["error"]["code"], "context_length_exceeded");
    // None of this has harmed anything.
    server.ok(COMPLETIONS, &json!({"prompt": "Hi"}));
}

#[test]
fn what_is_wrong_is_said_in_the_terms_of_json() {
    let server = start();
    let whole = "must be a whole number of at least 0";
    for (path, field, value, expected) in [
        (COMPLETIONS, "max_tokens", json!(-4), format!("max_tokens {whole}")),
        (COMPLETIONS, "max_tokens", json!(1.5), format!("max_tokens {whole}")),
        (COMPLETIONS, "max_tokens", json!("8"), format!("max_tokens {whole}")),
        (COMPLETIONS, "n", json!(1e308), format!("n is out of range: it {whole}")),
        (COMPLETIONS, "temperature", json!("hot"), "temperature must be a number".to_owned()),
        (
            COMPLETIONS,
            "temperature",
            json!(1e308),
            "temperature is out of range: it must be from 0 to 100".to_owned(),
        ),
        (
            COMPLETIONS,
            "temperature",
            json!(1e30),
            "temperature is 1e30: it must be from 0 to 100".to_owned(),
        ),
        (COMPLETIONS, "stream", json!(1), "stream must be true or false".to_owned()),
        (COMPLETIONS, "seed", json!(1.5), "seed must be a whole number of 64 bits".to_owned()),
        (COMPLETIONS, "stop", json!({}), "stop must be a string or a list of strings".to_owned()),
        (
            COMPLETIONS,
            "stop_token_ids",
            json!([-1]),
            "stop_token_ids must be a list of token ids, which are whole numbers of at least 0"
                .to_owned(),
        ),
        (
            COMPLETIONS,
            "logit_bias",
            json!([5]),
            "logit_bias must be an object with a number for each token id".to_owned(),
        ),
        (COMPLETIONS, "cache_salt", json!(1), "cache_salt must be a string".to_owned()),
        (
            COMPLETIONS,
            "best_of",
            json!(4),
            "best_of is not supported here: it must be 1, which is n, or left out".to_owned(),
        ),
        (
            CHAT,
            "tools",
            json!([{"type": "function"}]),
            "tools is not supported here: it must be [], or left out".to_owned(),
        ),
        (CHAT, "audio", json!({}), "audio is not supported here: leave it out".to_owned()),
        (CHAT, "messages", json!("Hi"), "messages must be a list".to_owned()),
        (CHAT, "documents", json!({}), "documents must be a list".to_owned()),
        (
            CHAT,
            "chat_template_kwargs",
            json!(1),
            "chat_template_kwargs must be an object".to_owned(),
        ),
    ] {
        let mut body = json!({"max_tokens": 8});
        match path {
            CHAT => body["messages"] = say("Hi"),
            _ => body["prompt"] = "Hi".into(),
        }
        body[field] = value;
        let (status, answer) = server.post(path, &body);
        assert_eq!(status, 400, "{body} -> {answer}");
        assert_eq!(answer["error"]["message"], expected);
        assert_eq!(answer["error"]["param"], field);
    }
    for (field, value) in [("top_logprobs", 101), ("max_completion_tokens", 0)] {
        let mut body = json!({"messages": say("Hi"), "logprobs": true});
        body[field] = value.into();
        let (_, answer) = server.post(CHAT, &body);
        assert_eq!(answer["error"]["param"], field);
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("{field} is {value}")), "{message}");
    }
    let body = json!({"prompt": "Hi", "stream": true, "stream_options": {"include": true}});
    let (_, answer) = server.post(COMPLETIONS, &body);
    let expected = "stream_options must be an object with include_usage, which is true or false";
    assert_eq!(answer["error"]["message"], expected);
}

#[test]
fn other_paths_methods_models_and_bodies_are_refused() {
    let mut config = ServerConfig::new("fake");
    config.body_limit = 10_000;
    let server = Server::start(llm(Duration::ZERO, false), config);
    let refused = |(status, answer): (u16, Value), expected: u16| {
        assert_eq!(status, expected, "{answer}");
        assert!(answer["error"]["message"].is_string(), "{answer}");
        answer["error"].clone()
    };
    refused(server.get("/v1/nothing"), 404);
    refused(server.get(CHAT), 405);
    refused(server.get("/v1/models/other"), 404);
    let error = refused(server.post(CHAT, &json!({"model": "other", "messages": say("")})), 404);
    assert_eq!(error["code"], "model_not_found");
    refused(server.post_bytes(CHAT, b"{\"messages\": ["), 400);
    refused(server.post_bytes(CHAT, b"[]"), 400);
    refused(server.post_bytes(CHAT, b"\xff"), 400);
    refused(server.post_bytes(CHAT, "[".repeat(9_000).as_bytes()), 400);
    refused(server.post_bytes(CHAT, &vec![b' '; 20_000]), 413);
    let error = refused(server.post(CHAT, &json!({"messages": say("Hi")})), 400);
    assert!(error["message"].as_str().unwrap().contains("no chat template"), "{error}");

    assert_eq!(server.get("/v1/models").1["data"][0]["id"], "fake");
    assert_eq!(server.get("/v1/models/fake").1["max_model_len"], CONTEXT_LEN);
    assert_eq!(server.get("/health").1["status"], "ok");
}

/// Takes 20 s alone.
fn slow_request(stream: bool) -> Value {
    json!({
        "prompt": "Hi", "max_tokens": 4_000, "ignore_eos": true, "temperature": 0, "stream": stream,
    })
}

#[test]
fn a_client_that_goes_away_aborts_its_sequences() {
    let server = Server::start(llm(Duration::from_millis(5), true), ServerConfig::new("fake"));
    let mut events = server.stream(COMPLETIONS, &slow_request(true));
    events.next().unwrap();
    server.wait_for_running(1);
    drop(events);
    server.wait_for_running(0);

    let body = slow_request(false).to_string();
    let mut stream = TcpStream::connect(server.url.strip_prefix("http://").unwrap()).unwrap();
    let length = body.len();
    write!(
        stream,
        "POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    server.wait_for_running(1);
    drop(stream);
    server.wait_for_running(0);
}

#[test]
fn a_shutdown_lets_running_requests_end() {
    let mut server = Server::start(llm(Duration::from_millis(5), true), ServerConfig::new("fake"));
    let body = json!({
        "prompt": "Hi", "max_tokens": 60, "ignore_eos": true, "temperature": 0, "stream": true,
    });
    let mut events = server.stream(COMPLETIONS, &body);
    events.next().unwrap();
    server.stop();
    let chunks = events.all();
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
    let address = server.url.strip_prefix("http://").unwrap().to_owned();
    server.join();
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn after_the_time_of_grace_running_requests_are_aborted() {
    let mut config = ServerConfig::new("fake");
    config.grace = Duration::from_millis(100);
    let mut server = Server::start(llm(Duration::from_millis(5), true), config);
    let mut events = server.stream(COMPLETIONS, &slow_request(true));
    events.next().unwrap();
    let start = Instant::now();
    server.stop();
    let chunks = events.all();
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "abort");
    server.join();
    assert!(start.elapsed() < Duration::from_secs(15), "it would take 20 s to the end");
}

#[test]
fn a_shutdown_does_not_wait_for_idle_connections() {
    let mut server = start();
    let mut idle = TcpStream::connect(server.url.strip_prefix("http://").unwrap()).unwrap();
    write!(idle, "GET /health HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    idle.read_exact(&mut [0; 12]).unwrap();
    let start = Instant::now();
    server.stop();
    server.join();
    assert!(start.elapsed() < Duration::from_secs(20), "less than the time of grace");
}

#[test]
fn forty_streams_at_once_say_what_each_says_alone() {
    let bodies: Vec<Value> = (0..40)
        .map(|i| {
            json!({
                "messages": say(&"tell me more ".repeat(1 + i % 7)),
                "max_tokens": 20 + i, "temperature": if i % 2 == 0 { 0.0 } else { 0.8 },
                "seed": i, "stream": true,
            })
        })
        .collect();
    start().check_streams(CHAT, &bodies);
}

#[test]
fn a_second_request_is_served_from_the_prefix_cache() {
    let server = start();
    let body = json!({"prompt": "x".repeat(100), "max_tokens": 4, "temperature": 0});
    let first = server.ok(COMPLETIONS, &body);
    let second = server.ok(COMPLETIONS, &body);
    assert_eq!(first["choices"], second["choices"]);
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    assert_eq!((cached(&first), cached(&second)), (json!(0), json!(96)));
    let mut salted = body.clone();
    salted["cache_salt"] = "mine".into();
    assert_eq!(cached(&server.ok(COMPLETIONS, &salted)), 0);
}
