//! `/metrics`, against requests whose figures are known, with an engine whose model is a hash.
#![cfg(feature = "server")]

#[path = "support/fake.rs"]
mod fake;
#[path = "support/server.rs"]
mod server;

use fake::llm;
use paceline::server::ServerConfig;
use serde_json::{Value, json};
use server::{CHAT, COMPLETIONS, Server};
use std::collections::BTreeMap;
use std::time::Duration;

/// The samples of a text in Prometheus' format, by name and labels as written, `le` included.
struct Samples {
    text: String,
    values: BTreeMap<String, f64>,
    kinds: BTreeMap<String, String>,
}

impl Samples {
    /// Reads a text and sees to it that it is one: each sample belongs to a family with a type and a
    /// help, and a histogram's buckets grow up to its count.
    fn read(text: String) -> Samples {
        let (mut values, mut kinds) = (BTreeMap::new(), BTreeMap::new());
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(text.contains(&format!("# HELP {name} ")), "{name} has no help");
                assert_eq!(kinds.insert(name.to_owned(), kind.to_owned()), None, "{name} twice");
            } else if !line.starts_with('#') {
                let (series, value) = line.rsplit_once(' ').unwrap();
                let name = series.split('{').next().unwrap();
                let family = ["_bucket", "_sum", "_count"]
                    .iter()
                    .find_map(|end| name.strip_suffix(end))
                    .filter(|family| kinds.get(*family).is_some_and(|kind| kind == "histogram"))
                    .unwrap_or(name);
                assert!(kinds.contains_key(family), "{line} belongs to nothing");
                let labels = &series[name.len()..];
                assert!(
                    labels.contains("model_name=\"fa\\\"ke\""),
                    "{line} lacks the model's name"
                );
                assert!(labels.contains("engine=\"0\""), "{line} lacks the engine");
                let value = if value == "+Inf" { f64::INFINITY } else { value.parse().unwrap() };
                assert_eq!(values.insert(series.to_owned(), value), None, "{series} twice");
            }
        }
        let samples = Samples { text, values, kinds };
        for (name, _) in samples.kinds.iter().filter(|(_, kind)| *kind == "histogram") {
            let buckets = samples.buckets(name);
            assert!(buckets.iter().is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{name}");
            assert_eq!(
                buckets.last(),
                Some(&(f64::INFINITY, samples.get(&format!("{name}_count"))))
            );
        }
        samples
    }

    fn of(server: &Server) -> Samples {
        Samples::read(server.text("/metrics", &[]).1)
    }

    /// The one sample of that name whose labels hold `part`.
    fn with(&self, name: &str, part: &str) -> f64 {
        let prefix = format!("{name}{{");
        let found = self.values.iter().filter(|(series, _)| {
            series.starts_with(&prefix) && series.contains(part) && !series.contains("le=")
        });
        let found: Vec<f64> = found.map(|(_, value)| *value).collect();
        assert_eq!(found.len(), 1, "{name} {part} in {}", self.text);
        found[0]
    }

    fn get(&self, name: &str) -> f64 {
        self.with(name, "")
    }

    fn buckets(&self, name: &str) -> Vec<(f64, f64)> {
        let prefix = format!("{name}_bucket{{");
        let series = self.values.iter().filter(|(series, _)| series.starts_with(&prefix));
        let bound =
            |series: &str| match series.split_once("le=\"").unwrap().1.split_once('"').unwrap().0 {
                "+Inf" => f64::INFINITY,
                bound => bound.parse().unwrap(),
            };
        let mut buckets: Vec<(f64, f64)> =
            series.map(|(series, value)| (bound(series), *value)).collect();
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        buckets
    }
}

fn start(step: Duration) -> Server {
    // A name that has to be escaped.
    Server::start(llm(step, true), ServerConfig::new("fa\"ke"))
}

fn ask(server: &Server, prompt: &str, n: u32, max_tokens: u32) -> Value {
    let body = json!({
        "prompt": prompt, "n": n, "max_tokens": max_tokens, "ignore_eos": true, "temperature": 1,
    });
    server.ok(COMPLETIONS, &body)
}

#[test]
fn known_requests_are_counted() {
    let server = start(Duration::ZERO);
    let before = Samples::of(&server);
    for reason in ["stop", "length", "abort"] {
        let reason = format!("finished_reason=\"{reason}\"");
        assert_eq!(before.with("vllm:request_success_total", &reason), 0.0);
    }
    assert_eq!(before.with("vllm:cache_config_info", "block_size=\"16\""), 1.0);

    ask(&server, &"x".repeat(100), 1, 10);
    ask(&server, &"x".repeat(100), 1, 20);
    ask(&server, &"y".repeat(40), 3, 5);
    let chat = json!({
        "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 7, "stop_token_ids": [65],
        "logit_bias": {"65": 100}, "temperature": 0, "stream": true,
    });
    server.stream(CHAT, &chat).all();
    // What is refused is no request of the engine.
    assert_eq!(server.post(COMPLETIONS, &json!({"prompt": ""})).0, 400);

    let after = Samples::of(&server);
    let chat_len = "user: Hi\nassistant: ".len() as f64;
    let n_sequences = 1.0 + 1.0 + 3.0 + 1.0;
    for (name, expected) in [
        ("vllm:num_requests_running", 0.0),
        ("vllm:num_requests_waiting", 0.0),
        ("vllm:kv_cache_usage_perc", 0.0),
        ("vllm:num_preemptions_total", 0.0),
        ("vllm:prompt_tokens_total", 200.0 + 3.0 * 40.0 + chat_len),
        ("vllm:generation_tokens_total", 10.0 + 20.0 + 15.0 + 1.0),
        ("vllm:prefix_cache_queries_total", 200.0 + 3.0 * 40.0 + chat_len),
        // The second request hits all full blocks but the one with the last token, and so do the
        // further choices of the third one.
        ("vllm:prefix_cache_hits_total", 96.0 + 2.0 * 32.0),
        ("vllm:time_to_first_token_seconds_count", n_sequences),
        ("vllm:inter_token_latency_seconds_count", 9.0 + 19.0 + 3.0 * 4.0),
        ("vllm:e2e_request_latency_seconds_count", n_sequences),
        ("vllm:request_queue_time_seconds_count", n_sequences),
        ("vllm:request_prefill_time_seconds_count", n_sequences),
        ("vllm:request_decode_time_seconds_count", n_sequences),
        ("vllm:request_inference_time_seconds_count", n_sequences),
        ("vllm:request_time_per_output_token_seconds_count", n_sequences - 1.0),
        ("vllm:request_prompt_tokens_count", n_sequences),
        ("vllm:request_prompt_tokens_sum", 200.0 + 3.0 * 40.0 + chat_len),
        ("vllm:request_generation_tokens_sum", 10.0 + 20.0 + 15.0 + 1.0),
        ("vllm:request_max_num_generation_tokens_sum", 10.0 + 20.0 + 5.0 + 1.0),
        ("vllm:request_params_n_sum", 1.0 + 1.0 + 3.0 + 1.0),
        ("vllm:request_params_n_count", 4.0),
        ("vllm:request_params_max_tokens_sum", 10.0 + 20.0 + 5.0 + 7.0),
    ] {
        assert_eq!(after.get(name), expected, "{name}");
    }
    let ended = |reason: &str| {
        after.with("vllm:request_success_total", &format!("finished_reason=\"{reason}\""))
    };
    assert_eq!((ended("length"), ended("stop"), ended("abort")), (5.0, 1.0, 0.0));
    for cause in ["yielded", "stalled"] {
        assert_eq!(after.with("paceline:preemptions_total", cause), 0.0);
    }
    let answers = |path: &str, status: u16| {
        let labels = format!("path=\"{path}\",status=\"{status}\"");
        after.with("paceline:http_responses_total", &labels)
    };
    assert_eq!((answers(COMPLETIONS, 200), answers(COMPLETIONS, 400)), (3.0, 1.0));
    assert_eq!(answers(CHAT, 200), 1.0);
    // A token is in the bucket of each length from 1 on.
    let lengths = after.buckets("vllm:request_generation_tokens");
    let up_to = |bound: f64| lengths.iter().find(|(le, _)| *le == bound).unwrap().1;
    assert_eq!((up_to(1.0), up_to(5.0), up_to(10.0), up_to(20.0)), (1.0, 4.0, 5.0, 6.0));

    let time = |name: &str| after.get(&format!("vllm:{name}_seconds_sum"));
    let parts = time("request_queue_time") + time("request_inference_time");
    assert!(parts <= time("e2e_request_latency") + 1e-6);
    let inference = time("request_prefill_time") + time("request_decode_time");
    assert!((inference - time("request_inference_time")).abs() < 1e-6);
    assert!((time("inter_token_latency") - time("request_decode_time")).abs() < 1e-6);
}

#[test]
fn a_prompt_that_is_only_scored_generates_nothing() {
    let server = start(Duration::ZERO);
    server
        .ok(COMPLETIONS, &json!({"prompt": "Hello", "max_tokens": 0, "echo": true, "logprobs": 1}));
    let after = Samples::of(&server);
    for (name, expected) in [
        ("vllm:prompt_tokens_total", 5.0),
        ("vllm:generation_tokens_total", 0.0),
        ("vllm:request_prompt_tokens_sum", 5.0),
        ("vllm:request_generation_tokens_sum", 0.0),
        ("vllm:request_generation_tokens_count", 1.0),
        ("vllm:e2e_request_latency_seconds_count", 1.0),
    ] {
        assert_eq!(after.get(name), expected, "{name}");
    }
}

#[test]
fn an_answer_to_head_has_its_own_status() {
    let server = start(Duration::ZERO);
    for path in ["/health", "/v1/models", "/nowhere", COMPLETIONS] {
        server.head(path);
    }
    let after = Samples::of(&server);
    let answers = |path: &str, status: u16| {
        let labels = format!("path=\"{path}\",status=\"{status}\"");
        after.with("paceline:http_responses_total", &labels)
    };
    assert_eq!((answers("/health", 200), answers("/v1/models", 200)), (1.0, 1.0));
    assert_eq!((answers("other", 404), answers(COMPLETIONS, 405)), (1.0, 1.0));
}

#[test]
fn times_are_those_of_the_steps() {
    let server = start(Duration::from_millis(60));
    ask(&server, "Hi", 1, 3);
    let after = Samples::of(&server);
    let sum = |name: &str| after.get(&format!("vllm:{name}_seconds_sum"));
    assert!(sum("request_prefill_time") >= 0.06);
    assert!(sum("request_decode_time") >= 0.12);
    assert!(sum("e2e_request_latency") >= 0.18);
    assert!(sum("time_to_first_token") >= 0.06);
    let first = after.buckets("vllm:inter_token_latency_seconds");
    assert!(first.iter().all(|&(le, n)| n == 0.0 || le > 0.06), "{first:?}");
}

#[test]
fn what_runs_and_who_left_is_shown() {
    let server = start(Duration::from_millis(5));
    let body = json!({
        "prompt": "x".repeat(100), "n": 2, "max_tokens": 3000, "ignore_eos": true, "stream": true,
    });
    let mut events = server.stream(COMPLETIONS, &body);
    // The second choice runs once the first has computed the prompt.
    events.nth(5).unwrap();
    let during = Samples::of(&server);
    assert_eq!(during.get("vllm:num_requests_running"), 2.0);
    let usage = during.get("vllm:kv_cache_usage_perc");
    assert!(usage > 0.0 && usage < 1.0, "{usage}");
    let waste = during.get("paceline:kv_cache_waste_perc");
    assert!((0.0..0.5).contains(&waste), "{waste}");
    drop(events);
    server.wait_for_running(0);
    let abort = "finished_reason=\"abort\"";
    for _ in 0..200 {
        if Samples::of(&server).with("vllm:request_success_total", abort) == 2.0 {
            let answers = Samples::of(&server);
            assert_eq!(answers.with("paceline:http_responses_total", "status=\"499\""), 1.0);
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("nobody is counted as aborted");
}

#[test]
fn both_text_formats_are_spoken() {
    let server = start(Duration::ZERO);
    ask(&server, "Hi", 1, 3);
    let (kind, classic) = server.text("/metrics", &[]);
    assert!(kind.starts_with("text/plain; version=0.0.4"), "{kind}");
    assert!(classic.contains("\n# TYPE vllm:prompt_tokens_total counter\n"));
    assert!(!classic.contains("# EOF"));
    let (kind, open) =
        server.text("/metrics", &[("accept", "application/openmetrics-text;version=1.0.0")]);
    assert!(kind.starts_with("application/openmetrics-text"), "{kind}");
    assert!(open.contains("\n# TYPE vllm:prompt_tokens counter\n") && open.ends_with("# EOF\n"));
}
