//! `GET /metrics`: under vLLM's names and in vLLM's buckets, so that boards and gateways made for it
//! work unchanged; what vLLM does not have is called `paceline:`.
//!
//! As there, a sequence is what counts: a request of three choices is three.

use super::Shared;
use super::record::Context;
use crate::completion::reason_name;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use paceline_engine::{FinishReason, Limits, Stats};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Seconds to the first token.
const FIRST_TOKEN: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];

/// Seconds from one token to the next.
const NEXT_TOKEN: [f64; 19] = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];

/// Seconds of a whole request, or of a part of it.
const REQUEST: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];

/// Choices of a request.
const CHOICES: [f64; 5] = [1.0, 2.0, 5.0, 10.0, 20.0];

type Share = Gauge<f64, AtomicU64>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    finished_reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Cause {
    cause: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answer {
    path: String,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CacheConfig {
    block_size: u64,
    num_gpu_blocks: u64,
}

/// All that is counted.
pub(super) struct Metrics {
    registry: Registry,
    running: Gauge,
    waiting: Gauge,
    kv_usage: Share,
    kv_waste: Share,
    prefix_queries: Counter,
    prefix_hits: Counter,
    disk_hits: Counter,
    disk_blocks: Counter,
    preemptions: Counter,
    preemptions_by_cause: Family<Cause, Counter>,
    draft_tokens: Counter,
    accepted_tokens: Counter,
    prompt_tokens: Counter,
    generation_tokens: Counter,
    finished: Family<Reason, Counter>,
    answers: Family<Answer, Counter>,
    first_token: Histogram,
    next_token: Histogram,
    time_per_token: Histogram,
    total: Histogram,
    queue: Histogram,
    inference: Histogram,
    prefill: Histogram,
    decode: Histogram,
    request_prompt_tokens: Histogram,
    request_generation_tokens: Histogram,
    max_generation_tokens: Histogram,
    params_n: Histogram,
    params_max_tokens: Histogram,
}

/// When things happened to a sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    arrived: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    n_tokens: usize,
}

impl Clock {
    pub fn new(context: &Context) -> Clock {
        Clock {
            arrived: context.arrived,
            started: None,
            first_token: None,
            last_token: None,
            n_tokens: 0,
        }
    }

    /// Until the sequence ran.
    pub fn queue(&self) -> Option<Duration> {
        Some(self.started?.duration_since(self.arrived))
    }

    /// Until the first token.
    pub fn first_token(&self) -> Option<Duration> {
        Some(self.first_token?.duration_since(self.arrived))
    }
}

impl Metrics {
    pub fn new(model_name: &str, limits: &Limits, stats: &Stats) -> Metrics {
        let lengths = || Histogram::new(one_two_five(limits.max_model_len));
        let label = |name, value: String| (Cow::Borrowed(name), Cow::Owned(value));
        let labels = [label("model_name", model_name.to_owned()), label("engine", "0".to_owned())];
        let mut metrics = Metrics {
            registry: Registry::with_labels(labels.into_iter()),
            running: Gauge::default(),
            waiting: Gauge::default(),
            kv_usage: Share::default(),
            kv_waste: Share::default(),
            prefix_queries: Counter::default(),
            prefix_hits: Counter::default(),
            disk_hits: Counter::default(),
            disk_blocks: Counter::default(),
            preemptions: Counter::default(),
            preemptions_by_cause: Family::default(),
            draft_tokens: Counter::default(),
            accepted_tokens: Counter::default(),
            prompt_tokens: Counter::default(),
            generation_tokens: Counter::default(),
            finished: Family::default(),
            answers: Family::default(),
            first_token: Histogram::new(FIRST_TOKEN),
            next_token: Histogram::new(NEXT_TOKEN),
            time_per_token: Histogram::new(NEXT_TOKEN),
            total: Histogram::new(REQUEST),
            queue: Histogram::new(REQUEST),
            inference: Histogram::new(REQUEST),
            prefill: Histogram::new(REQUEST),
            decode: Histogram::new(REQUEST),
            request_prompt_tokens: lengths(),
            request_generation_tokens: lengths(),
            max_generation_tokens: lengths(),
            params_n: Histogram::new(CHOICES),
            params_max_tokens: lengths(),
        };
        metrics.register();
        // A reason that has not come yet is 0, not absent.
        use FinishReason::{Abort, Length, Stop, Timeout};
        for reason in [Stop, Length, Abort, Timeout] {
            metrics.of_reason(reason_name(reason)).inc_by(0);
        }
        let config: Family<CacheConfig, Gauge> = Family::default();
        let num_gpu_blocks = stats.kv_blocks as u64;
        let block_size = limits.kv_len as u64 / num_gpu_blocks.max(1);
        config.get_or_create(&CacheConfig { block_size, num_gpu_blocks }).set(1);
        let help = "The blocks of the KV cache, as labels";
        metrics.registry.register("vllm:cache_config_info", help, config);
        metrics
    }

    /// Gives everything its name.
    fn register(&mut self) {
        let Metrics { registry, .. } = self;
        macro_rules! register {
            ($($field:ident: $name:literal, $help:literal;)*) => {
                $(registry.register($name, $help, self.$field.clone());)*
            };
        }
        register! {
            running: "vllm:num_requests_running", "Sequences that run";
            waiting: "vllm:num_requests_waiting", "Sequences that wait for room";
            kv_usage: "vllm:kv_cache_usage_perc", "Share of the KV cache's blocks in use, 1 is all";
            prefix_queries: "vllm:prefix_cache_queries", "Tokens looked up in the prefix cache";
            prefix_hits: "vllm:prefix_cache_hits", "Tokens that the prefix cache had";
            preemptions: "vllm:num_preemptions", "Sequences that had to give up blocks";
            draft_tokens: "vllm:spec_decode_num_draft_tokens", "Drafts verified";
            accepted_tokens: "vllm:spec_decode_num_accepted_tokens", "Drafts accepted";
            prompt_tokens: "vllm:prompt_tokens", "Tokens of prompts, those of the prefix cache included";
            generation_tokens: "vllm:generation_tokens", "Tokens generated";
            finished: "vllm:request_success", "Sequences that ended, by reason";
            first_token: "vllm:time_to_first_token_seconds", "From a request's arrival to its first token";
            next_token: "vllm:inter_token_latency_seconds", "From a token to the next one";
            time_per_token: "vllm:request_time_per_output_token_seconds",
                "The mean of a sequence's times from a token to the next one";
            total: "vllm:e2e_request_latency_seconds", "From a request's arrival to its end";
            queue: "vllm:request_queue_time_seconds", "From a request's arrival until it ran";
            inference: "vllm:request_inference_time_seconds", "From when a sequence ran to its last token";
            prefill: "vllm:request_prefill_time_seconds", "From when a sequence ran to its first token";
            decode: "vllm:request_decode_time_seconds", "From a sequence's first token to its last";
            request_prompt_tokens: "vllm:request_prompt_tokens", "Tokens of a sequence's prompt";
            request_generation_tokens: "vllm:request_generation_tokens", "Tokens generated for a sequence";
            max_generation_tokens: "vllm:request_max_num_generation_tokens",
                "Tokens generated for the longest choice of a request";
            params_n: "vllm:request_params_n", "Choices asked for";
            params_max_tokens: "vllm:request_params_max_tokens", "The most tokens asked for";
            preemptions_by_cause: "paceline:preemptions",
                "Sequences that had to give up blocks, by cause";
            kv_waste: "paceline:kv_cache_waste_perc",
                "Share of the slots in the blocks in use that hold no token, the mean since the start";
            disk_hits: "paceline:prefix_cache_disk_hits",
                "Tokens of the prefix cache that were read from the disk";
            disk_blocks: "paceline:kv_cache_disk_blocks",
                "Blocks of the KV cache that were to be written to the disk";
            answers: "paceline:http_responses", "HTTP answers, by path and status; 499 is a client that left";
        }
    }

    fn of_reason(&self, finished_reason: &'static str) -> Counter {
        self.finished.get_or_create_owned(&Reason { finished_reason })
    }

    /// A prompt goes to the engine.
    pub fn asked(&self, n: usize, max_tokens: Option<usize>) {
        self.params_n.observe(n as f64);
        if let Some(max_tokens) = max_tokens {
            self.params_max_tokens.observe(max_tokens as f64);
        }
    }

    /// A sequence runs for the first time. `cached_tokens` are those of the prefix cache, if it was
    /// looked into.
    pub fn started(
        &self,
        clock: &mut Clock,
        at: Instant,
        prompt_len: usize,
        cached_tokens: Option<usize>,
    ) {
        clock.started = Some(at);
        if let Some(cached_tokens) = cached_tokens {
            self.prefix_queries.inc_by(prompt_len as u64);
            self.prefix_hits.inc_by(cached_tokens as u64);
        }
    }

    /// A sequence's prompt has been computed.
    pub fn prompt_read(&self, prompt_len: usize) {
        self.prompt_tokens.inc_by(prompt_len as u64);
    }

    /// A sequence has got a token.
    pub fn token(&self, clock: &mut Clock, at: Instant, prompt_len: usize) {
        match clock.last_token {
            None => {
                clock.first_token = Some(at);
                self.first_token.observe(seconds(clock.arrived, at));
                self.prompt_read(prompt_len);
            }
            Some(before) => self.next_token.observe(seconds(before, at)),
        }
        self.generation_tokens.inc();
        clock.last_token = Some(at);
        clock.n_tokens += 1;
    }

    /// A sequence has ended.
    pub fn ended(&self, clock: &Clock, at: Instant, prompt_len: usize, reason: FinishReason) {
        let Clock { arrived, started, first_token, last_token, n_tokens } = *clock;
        self.of_reason(reason_name(reason)).inc();
        self.total.observe(seconds(arrived, at));
        self.request_prompt_tokens.observe(prompt_len as f64);
        self.request_generation_tokens.observe(n_tokens as f64);
        let Some(started) = started else { return };
        self.queue.observe(seconds(arrived, started));
        let (Some(first), Some(last)) = (first_token, last_token) else { return };
        self.prefill.observe(seconds(started, first));
        self.decode.observe(seconds(first, last));
        self.inference.observe(seconds(started, last));
        if n_tokens > 1 {
            self.time_per_token.observe(seconds(first, last) / (n_tokens - 1) as f64);
        }
    }

    /// All choices of a prompt have ended.
    pub fn all_ended(&self, clocks: &[Clock]) {
        let longest = clocks.iter().map(|clock| clock.n_tokens).max().unwrap_or(0);
        self.max_generation_tokens.observe(longest as f64);
    }

    /// An HTTP request is over.
    pub fn answered(&self, path: &str, status: u16) {
        let path = path.to_owned();
        self.answers.get_or_create_owned(&Answer { path, status }).inc();
    }

    /// What the engine counts itself is read when somebody asks.
    fn read(&self, stats: &Stats) {
        self.running.set(stats.n_running as i64);
        self.waiting.set(stats.n_waiting as i64);
        self.kv_usage.set(stats.kv_blocks_used as f64 / stats.kv_blocks.max(1) as f64);
        self.kv_waste.set(stats.kv_waste());
        let set = |counter: &Counter, value| counter.inner().store(value, Ordering::Relaxed);
        set(&self.preemptions, stats.preemptions());
        for (cause, n) in
            [("yielded", stats.preemptions_yielded), ("stalled", stats.preemptions_stalled)]
        {
            set(&self.preemptions_by_cause.get_or_create_owned(&Cause { cause }), n);
        }
        set(&self.disk_hits, stats.tokens_restored);
        set(&self.disk_blocks, stats.blocks_stored);
        set(&self.draft_tokens, stats.drafts_proposed);
        set(&self.accepted_tokens, stats.drafts_accepted);
    }
}

fn seconds(from: Instant, to: Instant) -> f64 {
    to.duration_since(from).as_secs_f64()
}

/// 1, 2, 5, 10, 20, 50, .. up to `max`.
fn one_two_five(max: usize) -> impl Iterator<Item = f64> {
    let powers = (0..).map(|exponent| 10f64.powi(exponent));
    let steps = powers.flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * power));
    steps.take_while(move |&step| step <= max as f64)
}

pub(super) async fn get(state: Shared, headers: HeaderMap) -> Response {
    state.metrics.read(&state.llm.stats());
    let mut text = String::new();
    if encode(&mut text, &state.metrics.registry).is_err() {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or("");
    match accept.contains("application/openmetrics-text") {
        true => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(CONTENT_TYPE, kind)], text).into_response()
        }
        false => {
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            ([(CONTENT_TYPE, kind)], classic(&text)).into_response()
        }
    }
}

/// OpenMetrics' text in the older format, in which a counter's family has its samples' name and
/// nothing marks the end.
fn classic(text: &str) -> String {
    let is_counter = |name: &str| text.contains(&format!("# TYPE {name} counter\n"));
    let mut older = String::with_capacity(text.len());
    for line in text.lines().filter(|&line| line != "# EOF") {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(what), Some(name), Some(rest)) if is_counter(name) => {
                older += &format!("# {what} {name}_total {rest}\n");
            }
            _ => {
                older += line;
                older.push('\n');
            }
        }
    }
    older
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_of_lengths_are_vllms() {
        let buckets: Vec<f64> = one_two_five(4096).collect();
        assert_eq!(buckets[..4], [1.0, 2.0, 5.0, 10.0]);
        assert_eq!(buckets.last(), Some(&2000.0));
        assert_eq!(one_two_five(100).last(), Some(100.0));
    }

    #[test]
    fn the_older_format_calls_a_counter_by_its_samples() {
        let text = "# HELP a:b Sums, and.\n# TYPE a:b counter\na:b_total{x=\"y\"} 1\n# HELP c d.\n\
                    # TYPE c gauge\nc 2\n# EOF\n";
        let older = "# HELP a:b_total Sums, and.\n# TYPE a:b_total counter\na:b_total{x=\"y\"} 1\n\
                     # HELP c d.\n# TYPE c gauge\nc 2\n";
        assert_eq!(classic(text), older);
    }
}
