//! `paceline bench serve` against our own server, and against one that misbehaves.
#![cfg(all(feature = "load", feature = "server"))]

#[path = "support/fake.rs"]
mod fake;
#[path = "support/server.rs"]
mod server;
mod support;

use paceline::server::ServerConfig;
use serde_json::{Value, json};
use server::Server;
use std::io::{Read, Write};
use std::time::Duration;
use support::{Answer, Home, Ran, Web};

fn fast_server() -> Server {
    Server::start(fake::llm(Duration::ZERO, true), ServerConfig::new("fake"))
}

fn bench(home: &Home, url: &str, args: &[&str]) -> Ran {
    home.run(["bench", "serve", "--url", url].iter().chain(args))
}

fn json(ran: &Ran) -> Value {
    serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("no JSON: {ran:?}"))
}

#[track_caller]
fn check_percentiles(report: &Value, name: &str) {
    let of = |key: &str| report[name][key].as_f64().unwrap_or_else(|| panic!("{report}"));
    let (p50, p90, p99) = (of("p50"), of("p90"), of("p99"));
    assert!(0.0 <= p50 && p50 <= p90 && p90 <= p99, "{name}: {report}");
}

#[test]
fn our_server_is_measured_by_concurrency_and_by_rate() {
    let home = Home::new();
    let server = Server::start(fake::llm(Duration::from_millis(2), true), ServerConfig::new("it"));
    for how in [["--concurrency", "4"], ["--rate", "200"]] {
        let usual = ["--dataset", "random", "--input-len", "10..30", "--num-prompts", "12"];
        let usual = [&usual[..], &["--max-tokens", "9", "--ignore-eos", "--json"], &how].concat();
        let html = home.path("report.html");
        let args =
            [&usual[..], &["--html", html.to_str().unwrap(), "--slo-ttft", "60000"]].concat();
        let ran = bench(&home, &server.url, &args).succeeds();
        assert_eq!(ran.err, "");
        let report = json(&ran);
        assert_eq!((&report["completed"], &report["failed"]), (&json!(12), &json!(0)), "{report}");
        assert_eq!(
            (&report["model"], &report["tokens_counted_by"]),
            (&json!("it"), &json!("server"))
        );
        // Every token counts, also those that show no text.
        assert_eq!(report["output_tokens"], 12 * 9);
        let seconds = report["seconds"].as_f64().unwrap();
        let output = report["output_tokens_per_second"].as_f64().unwrap();
        assert!((output * seconds / 108.0 - 1.0).abs() < 1e-9, "{report}");
        let prompts = report["prompt_tokens"].as_f64().unwrap();
        let total = report["total_tokens_per_second"].as_f64().unwrap();
        assert!((total * seconds / (108.0 + prompts) - 1.0).abs() < 1e-9, "{report}");
        let good = report["goodput_requests_per_second"].as_f64().unwrap();
        assert!((good * seconds / 12.0 - 1.0).abs() < 1e-9, "{report}");
        ["ttft_ms", "itl_ms", "e2e_ms"].iter().for_each(|name| check_percentiles(&report, name));
        // Nine steps of at least 2 ms.
        assert!(report["e2e_ms"]["p50"].as_f64().unwrap() >= 18.0, "{report}");
        let page = std::fs::read_to_string(html).unwrap();
        assert!(page.matches("<svg").count() == 4 && !page.contains("<script"), "{page}");
        assert_eq!(page.matches("class=\"write\"").count(), 12 + 1, "a bar each, and the legend");
    }
    let args = ["--dataset", "random", "--concurrency", "2", "--num-prompts", "3"];
    let out = bench(&home, &format!("{}/v1/", server.url), &args).succeeds().out;
    for part in ["it at http", "3 requests of random, 2 at a time", "first token", "as the server"]
    {
        assert!(out.contains(part), "{part}: {out}");
    }
}

#[test]
fn a_file_says_what_is_asked() {
    let home = Home::new();
    let server = fast_server();
    home.file(
        "asks.jsonl",
        "{\"prompt\": \"Once\", \"max_tokens\": 3}\n\
         {\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"max_tokens\": 5}\n",
    );
    let args = ["--dataset", "asks.jsonl", "--concurrency", "1", "--ignore-eos", "--json"];
    let ran = bench(&home, &server.url, &[&args[..], &["--num-prompts", "2"]].concat()).succeeds();
    assert_eq!((ran.err.as_str(), &json(&ran)["output_tokens"]), ("", &json!(8)));
    let prompts = "Once".len() + "user: Hi\nassistant: ".len();
    assert_eq!(json(&ran)["prompt_tokens"], prompts);
    let ran = bench(&home, &server.url, &[&args[..], &["--num-prompts", "4"]].concat()).succeeds();
    assert_eq!(json(&ran)["output_tokens"], 16);
    assert!(ran.err.contains("asks.jsonl has 2 requests: they are repeated"), "{}", ran.err);

    home.file("talk.json", r#"[{"conversations": [{"from": "human", "value": "Hi"}]}, {"conv"#);
    let args = ["--dataset", "sharegpt", "--dataset-path", "talk.json", "--num-prompts", "1"];
    let args = [&args[..], &["--concurrency", "1", "--max-tokens", "2", "--json"]].concat();
    let ask = |more: &[&str]| bench(&home, &server.url, &[&args[..], more].concat());
    ask(&[]).fails_with(&["talk.json", "none of 1 conversations", "20 to 1500"]);
    let chat = json(&ask(&["--prompt-chars", "1..9"]).succeeds());
    assert_eq!(chat["prompt_tokens"], "user: Hi\nassistant: ".len());
    assert_eq!(json(&ask(&["--prompt-chars", "2", "--raw"]).succeeds())["prompt_tokens"], 2);
}

#[test]
fn what_a_server_refuses_is_counted_and_shown() {
    let home = Home::new();
    let server = fast_server();
    home.file("asks.jsonl", "{\"prompt\": \"ab\"}\n{\"prompt\": \"\"}\n{\"prompt\": \"cd\"}\n");
    let args = ["--dataset", "asks.jsonl", "--num-prompts", "3", "--concurrency", "3"];
    let args = [&args[..], &["--max-tokens", "2", "--json"]].concat();
    let ran = bench(&home, &server.url, &args).succeeds();
    let report = json(&ran);
    assert_eq!((&report["completed"], &report["failed"]), (&json!(2), &json!(1)));
    assert_eq!(report["errors"][0]["requests"], 1);
    assert!(ran.err.contains("1 request failed: 400 Bad Request: prompt"), "{}", ran.err);

    let ran = bench(&home, &server.url, &[&args[..], &["--model", "other"]].concat());
    assert_eq!(ran.code, Some(1));
    assert_eq!(
        (&json(&ran)["completed"], &json(&ran)["ttft_ms"]["p50"]),
        (&json!(0), &Value::Null)
    );
    assert!(ran.err.contains("3 requests failed: 404 Not Found: there is no model"), "{}", ran.err);
    assert!(ran.err.ends_with("no request was answered in full\n"), "{}", ran.err);
}

/// A stream of `n` pieces, with what comes after them.
fn stream(n: usize, end: &str) -> Vec<u8> {
    let piece = "data: {\"choices\": [{\"text\": \"a\"}]}\n\n";
    format!(": stay\n\n{}{end}", piece.repeat(n)).into_bytes()
}

#[test]
fn a_server_that_misbehaves_harms_nobody() {
    let home = Home::new();
    let web = Web::new(Answer::Status("500 Internal Server Error"));
    let args = ["--dataset", "random", "--num-prompts", "4", "--concurrency", "2", "--model", "m"];
    let ask = |answer: Answer, more: &[&str]| {
        web.set(answer);
        bench(&home, &web.url, &[&args[..], &["--json"], more].concat())
    };
    for (answer, part) in [
        (
            Answer::Status("500 Internal Server Error"),
            "4 requests failed: 500 Internal Server Error",
        ),
        (Answer::Whole(stream(2, "")), "the stream ended before the answer"),
        (Answer::Whole(stream(2, "data: {\"choices\": [")), "the stream ended before the answer"),
        (Answer::Whole(stream(2, "data: oops\n\ndata: [DONE]\n\n")), "no JSON: oops"),
        (Answer::Whole(b"{\"choices\": []}".to_vec()), "no stream of events"),
        (
            Answer::Whole(stream(1, "data: {\"error\": {\"message\": \"full\"}}\n\n")),
            "failed: full",
        ),
        (Answer::Cut(stream(2, ""), 9999), "the stream broke off"),
        (Answer::Stall(stream(2, ""), 9999), "no end within 0.3 s"),
    ] {
        let ran = ask(answer, &["--timeout", "0.3"]);
        assert_eq!((ran.code, &json(&ran)["failed"]), (Some(1), &json!(4)), "{part}: {ran:?}");
        assert!(ran.err.contains(part), "{part}: {}", ran.err);
    }
    // Without usage the pieces count, and it is said.
    let whole = stream(5, "data: [DONE]\n\n");
    let report = json(&ask(Answer::Whole(whole.clone()), &[]).succeeds());
    assert_eq!(report["tokens_counted_by"], "chunks");
    assert_eq!((&report["output_tokens"], &report["completed"]), (&json!(20), &json!(4)));
    assert_eq!(report["total_tokens_per_second"], Value::Null);
    let out = bench(&home, &web.url, &args).succeeds().out;
    assert!(out.contains("20 pieces: the server does not count the tokens of 4"), "{out}");
}

/// Idle connections are the server's to close, at any moment.
#[test]
fn a_server_may_answer_once_a_connection() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let body = stream(1, "data: [DONE]\n\n");
    let kind = "content-type: text/event-stream\r\ncontent-length";
    let head = format!("HTTP/1.1 200 OK\r\n{kind}: {}\r\n\r\n", body.len());
    let answer = [head.as_bytes(), &body].concat();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let answer = answer.clone();
            std::thread::spawn(move || {
                let mut connection = connection.unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"}") {
                    let mut bytes = [0; 4096];
                    let n = connection.read(&mut bytes).unwrap();
                    request.extend_from_slice(&bytes[..n]);
                }
                connection.write_all(&answer).unwrap();
                // Another request gets no answer.
                let _ = connection.read(&mut [0]);
            });
        }
    });
    let home = Home::new();
    let args = ["--dataset", "random", "--num-prompts", "4", "--concurrency", "1"];
    let ran = bench(&home, &url, &[&args[..], &["--model", "m", "--json"]].concat()).succeeds();
    assert_eq!((&json(&ran)["completed"], ran.err.lines().count()), (&json!(4), 0), "{}", ran.err);
}

#[test]
fn what_cannot_be_measured_is_named_in_one_line() {
    let home = Home::new();
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let random = ["--dataset", "random", "--concurrency", "1"];
    bench(&home, &closed, &random).fails_with(&["/v1/models", "refused", "--model"]);
    let web = Web::new(Answer::Whole(b"hello".to_vec()));
    bench(&home, &web.url, &random).fails_with(&["/v1/models", "names no model", "--model"]);
    let refused = |url: &str, args: &[&str], parts: &[&str]| {
        bench(&home, url, args).refused_with(parts);
    };
    refused("localhost:8000", &random, &["--url localhost:8000", "http://"]);
    refused("ftp://host", &random, &["--url ftp://host", "http://"]);
    for url in ["http://host:65536", "http://host:", "http://host:99999/v1", "http://[::1]:99999"] {
        refused(url, &random, &["--url http://", "65535"]);
    }
    let one = "--concurrency=1";
    for (args, parts) in [
        (&["--dataset", "random"][..], &["--rate", "--concurrency"][..]),
        (&["--dataset", "random", one, "--rate", "1"], &["--rate", "--concurrency"]),
        (&["--dataset", "random", "--rate", "0"], &["--rate", "0.0001"]),
        (&["--dataset", "random", "--rate", "fast"], &["--rate", "a number"]),
        (&["--dataset", "random", "--concurrency", "0"], &["--concurrency", "at least 1"]),
        (&["--dataset", "random", one, "--num-prompts", "0"], &["--num-prompts", "at least 1"]),
        (
            &["--dataset", "random", one, "--input-len", "9..3"],
            &["--input-len", "9 is more than 3"],
        ),
        (&["--dataset", "sharegpt", one], &["--dataset-path", "tools/fetch_sharegpt.py"]),
        (&["--dataset", "alpaca", one], &["\"alpaca\"", "sharegpt, random"]),
        (&["--dataset", "random", one, "--dataset-path", "x"], &["--dataset-path", "sharegpt"]),
        (&["--dataset", "random", one, "--raw"], &["--raw", "sharegpt"]),
        (&["--dataset", "random", one, "--prompt-chars", "9"], &["--prompt-chars", "sharegpt"]),
        (&["--dataset", "sharegpt", one, "--input-len", "9"], &["--input-len", "random"]),
        (&["--dataset", "a.jsonl", one, "--raw"], &["--raw", "sharegpt"]),
        (
            &["--dataset", "random", one, "--temperature", "-1"],
            &["--temperature is -1", "0 to 100"],
        ),
        (&["--dataset", "random", one, "--temperature", "nan"], &["--temperature is NaN"]),
        (&[one], &["--dataset"]),
    ] {
        refused(&web.url, args, parts);
    }
    let failed = |args: &[&str], parts: &[&str]| {
        bench(&home, &web.url, &[args, &[one]].concat()).fails_with(parts);
    };
    // Before anybody is asked anything.
    let n_asked = web.requests();
    failed(&["--dataset", "random", "--html", "none/report.html"], &["--html none/report.html"]);
    failed(&["--dataset", "random", "--html", "."], &["--html ."]);
    assert_eq!(web.requests(), n_asked);
    // Nothing is left where a report was to be.
    let report = ["--dataset", "random", one, "--html", "new.html"];
    bench(&home, "http://127.0.0.1:9", &report).fails_with(&["127.0.0.1:9"]);
    assert!(!home.path("new.html").exists());
    failed(&["--dataset", "none.jsonl"], &["none.jsonl", "No such file"]);
    home.file("bad.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": 1}\n");
    failed(&["--dataset", "bad.jsonl"], &["bad.jsonl, line 2", "expected a string"]);
    home.file("talk.json", "{}");
    let sharegpt = ["--dataset", "sharegpt", "--dataset-path", "talk.json"];
    failed(&sharegpt, &["talk.json", "no list of conversations"]);
    let key = |file: &'static str| ["--dataset", "random", "--api-key-file", file];
    failed(&key("none"), &["--api-key-file none", "No such file"]);
    home.file("key", "# nothing\n\n");
    failed(&key("key"), &["--api-key-file key", "no key"]);
    home.file("odd", "a\u{1}b\n");
    failed(&key("odd"), &["API key", "header"]);
}
