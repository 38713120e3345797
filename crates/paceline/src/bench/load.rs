//! [`LoadClient`]: many users of a server that speaks OpenAI's API, whoever made it.
//!
//! Every request is streamed, so that the time of each piece of the answer is known. The client does
//! all its work on the thread that polls it, to leave the cores to a server on the same machine.

use super::arrivals::poisson;
use super::dataset::{Ask, Input};
use super::events::Events;
use super::percentiles::Percentiles;
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use std::error::Error as StdError;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::rustls::crypto::ring;

/// The most of an error's body that is read.
const MAX_ERROR_BYTES: usize = 64 << 10;

/// How long the connection of an answer that is over may take to become free.
const DRAIN: Duration = Duration::from_millis(100);

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// So many a second at random, whether the server keeps up or not.
    Rate(f64),
    /// So many at a time: each that ends makes room for the next.
    Concurrency(usize),
}

/// What is asked of which server, and when.
#[derive(Clone, Debug)]
pub struct LoadConfig {
    /// The server: `http://127.0.0.1:8000`, with `/v1` or without.
    pub url: String,
    /// Sent as `Authorization: Bearer`.
    pub api_key: Option<String>,
    /// When requests are sent.
    pub arrivals: Arrivals,
    /// The most tokens of an answer, where the dataset does not say.
    pub max_tokens: usize,
    /// How tokens are sampled.
    pub temperature: f64,
    /// Asks the server to go on to `max_tokens`; not part of OpenAI's API, but vLLM, llama-server
    /// and paceline know it.
    pub ignore_eos: bool,
    /// Of the times of arrival.
    pub seed: u64,
    /// A request that has not ended by then has failed.
    pub timeout: Duration,
}

/// A server cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The address is none.
    #[error("--url {url}: {problem}; it looks like http://127.0.0.1:8000")]
    Url {
        /// As given.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The key cannot be sent.
    #[error("the API key has characters that no HTTP header can hold")]
    Key,
    /// The server does not say what models it has.
    #[error("{url}: {problem}; --model names the model to ask where a server has no list")]
    Models {
        /// What was asked.
        url: String,
        /// What came of it.
        problem: String,
    },
}

/// A client with its connections.
pub struct LoadClient {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    config: LoadConfig,
    /// Up to `/v1`.
    base: String,
    authorization: Option<HeaderValue>,
}

/// A request and what came of it. Times count from the start of the measurement.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// When it was sent.
    pub sent: Duration,
    /// The answer, or why there is none.
    pub outcome: Result<Answer, String>,
}

/// A complete answer.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// When each piece of text came.
    pub pieces: Vec<Duration>,
    /// When it was over.
    pub end: Duration,
    /// Tokens of the prompt, if the server says so.
    pub prompt_tokens: Option<usize>,
    /// Tokens of the answer, if the server says so.
    pub completion_tokens: Option<usize>,
}

impl Answer {
    /// When the first piece came; an answer without text begins with its end.
    pub fn first(&self) -> Duration {
        self.pieces.first().copied().unwrap_or(self.end)
    }

    /// Tokens of the answer: as the server says, else one for each piece.
    pub fn output_tokens(&self) -> usize {
        self.completion_tokens.unwrap_or(self.pieces.len())
    }

    /// The times between the pieces.
    pub fn gaps(&self) -> impl Iterator<Item = Duration> {
        self.pieces.windows(2).map(|pair| pair[1] - pair[0])
    }
}

/// What was measured.
#[derive(Clone, Debug, Default)]
pub struct Load {
    /// In the order in which they were sent.
    pub exchanges: Vec<Exchange>,
    /// From the start to the end of the last exchange.
    pub time: Duration,
}

impl Load {
    /// The answers that are complete, with the times at which they were asked for.
    pub fn answers(&self) -> impl Iterator<Item = (Duration, &Answer)> {
        let answers = self.exchanges.iter();
        answers.filter_map(|exchange| Some((exchange.sent, exchange.outcome.as_ref().ok()?)))
    }

    /// Why requests failed, and how many for each reason, in the order of the first.
    pub fn errors(&self) -> Vec<(&str, usize)> {
        let mut errors: Vec<(&str, usize)> = Vec::new();
        for error in self.exchanges.iter().filter_map(|exchange| exchange.outcome.as_ref().err()) {
            match errors.iter_mut().find(|(seen, _)| seen == error) {
                Some((_, n)) => *n += 1,
                None => errors.push((error, 1)),
            }
        }
        errors
    }

    /// Milliseconds to the first piece.
    pub fn ttft(&self) -> Option<Percentiles> {
        Percentiles::of_times(self.answers().map(|(sent, answer)| answer.first() - sent))
    }

    /// Milliseconds between the pieces, those of all answers together.
    pub fn itl(&self) -> Option<Percentiles> {
        Percentiles::of_times(self.answers().flat_map(|(_, answer)| answer.gaps()))
    }

    /// Milliseconds to the end.
    pub fn e2e(&self) -> Option<Percentiles> {
        Percentiles::of_times(self.answers().map(|(sent, answer)| answer.end - sent))
    }

    /// Tokens generated in the complete answers.
    pub fn output_tokens(&self) -> usize {
        self.answers().map(|(_, answer)| answer.output_tokens()).sum()
    }

    /// Tokens of their prompts; `None` if the server did not say for all of them.
    pub fn prompt_tokens(&self) -> Option<usize> {
        self.answers().map(|(_, answer)| answer.prompt_tokens).sum()
    }

    /// Answers whose tokens the server did not count.
    pub fn n_uncounted(&self) -> usize {
        self.answers().filter(|(_, answer)| answer.completion_tokens.is_none()).count()
    }

    /// Answers whose first piece came within `ttft`, and whose pieces came on average within `itl`
    /// of one another.
    pub fn n_good(&self, ttft: Option<Duration>, itl: Option<Duration>) -> usize {
        let good = |&(sent, answer): &(Duration, &Answer)| {
            let first = answer.first();
            let n_gaps = answer.pieces.len().saturating_sub(1).max(1) as u32;
            let last = answer.pieces.last().copied().unwrap_or(first);
            ttft.is_none_or(|most| first - sent <= most)
                && itl.is_none_or(|most| (last - first) / n_gaps <= most)
        };
        self.answers().filter(good).count()
    }
}

impl LoadClient {
    /// A client for a server; nothing is sent yet.
    ///
    /// # Errors
    /// If the address or the key cannot be used.
    pub fn new(config: LoadConfig) -> Result<LoadClient, LoadError> {
        let wrong =
            |problem: &str| LoadError::Url { url: config.url.clone(), problem: problem.to_owned() };
        let base = config.url.trim_end_matches('/');
        let base = format!("{}/v1", base.strip_suffix("/v1").unwrap_or(base));
        let uri: Uri = base.parse().map_err(|error| wrong(&format!("{error}")))?;
        let port = uri.authority().and_then(|authority| authority.as_str().rsplit_once(':'));
        if port.is_some_and(|(_, port)| !port.ends_with(']') && uri.port_u16().is_none()) {
            return Err(wrong("a port is a number of at most 65535"));
        }
        if uri.host().is_none_or(str::is_empty) || uri.query().is_some() {
            return Err(wrong("it is no address of a server"));
        }
        if !["http", "https"].contains(&uri.scheme_str().unwrap_or_default()) {
            return Err(wrong("it must begin with http:// or https://"));
        }
        let authorization = config
            .api_key
            .as_ref()
            .map(|key| HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| LoadError::Key));
        let authorization = authorization.transpose()?;
        let mut http = HttpConnector::new();
        http.set_nodelay(true);
        http.enforce_http(false);
        let provider = ring::default_provider();
        let https = hyper_rustls::HttpsConnectorBuilder::new()
            .with_provider_and_webpki_roots(provider)
            .map_err(|error| wrong(&error.to_string()))?
            .https_or_http()
            .enable_http1()
            .wrap_connector(http);
        // A connection for each request: a server may close an idle one just as the next request
        // goes out on it, and that would count as its failure.
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(https);
        Ok(LoadClient { client, config, base, authorization })
    }

    /// The first model that the server names.
    ///
    /// # Errors
    /// If it cannot be reached, or names none.
    pub async fn first_model(&self) -> Result<String, LoadError> {
        let failed = |problem| LoadError::Models { url: format!("{}/models", self.base), problem };
        let ask = async {
            let response = self.send(Method::GET, "models", String::new()).await?;
            let body = Limited::new(response.into_body(), 16 << 20).collect().await;
            let body = body.map_err(|error| cause(error.as_ref()))?.to_bytes();
            let list: Value = serde_json::from_slice(&body).unwrap_or_default();
            list["data"][0]["id"].as_str().map(str::to_owned).ok_or("it names no model".to_owned())
        };
        timeout(self.config.timeout, ask)
            .await
            .map_err(|_| failed("no answer".to_owned()))?
            .map_err(failed)
    }

    /// Sends all requests and waits for their ends; `ended` is told of each.
    pub async fn run(&self, model: &str, asks: &[Ask], mut ended: impl FnMut(&Exchange)) -> Load {
        let n = asks.len();
        let (n_at_once, starts) = match self.config.arrivals {
            Arrivals::Rate(rate) => (n, poisson(n, rate, self.config.seed)),
            Arrivals::Concurrency(n_at_once) => (n_at_once, vec![Duration::ZERO; n]),
        };
        let begin = Instant::now();
        let exchange = |(ask, start)| async move {
            sleep_until(begin + start).await;
            let sent = begin.elapsed();
            let limit = self.config.timeout;
            let outcome = timeout(limit, self.answer(model, ask, begin)).await;
            let outcome =
                outcome.unwrap_or_else(|_| Err(format!("no end within {} s", limit.as_secs_f64())));
            Exchange { sent, outcome }
        };
        let exchanges = stream::iter(asks.iter().zip(starts)).map(exchange);
        let mut exchanges = std::pin::pin!(exchanges.buffer_unordered(n_at_once.max(1)));
        let mut load = Load::default();
        while let Some(exchange) = exchanges.next().await {
            load.time = begin.elapsed();
            ended(&exchange);
            load.exchanges.push(exchange);
        }
        load.exchanges.sort_by_key(|exchange| exchange.sent);
        load
    }

    /// Asks, and reads the answer as it comes.
    async fn answer(&self, model: &str, ask: &Ask, begin: Instant) -> Result<Answer, String> {
        let mut fields = json!({
            "model": model,
            "max_tokens": ask.max_tokens.unwrap_or(self.config.max_tokens),
            "temperature": self.config.temperature,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        if self.config.ignore_eos {
            fields["ignore_eos"] = true.into();
        }
        let endpoint = match &ask.input {
            Input::Prompt(prompt) => {
                fields["prompt"] = prompt.as_str().into();
                "completions"
            }
            Input::Messages(messages) => {
                fields["messages"] = messages.clone();
                "chat/completions"
            }
        };
        let response = self.send(Method::POST, endpoint, fields.to_string()).await?;
        let mut body = response.into_body();
        let (mut events, mut reading) = (Events::default(), Reading::default());
        while !reading.over {
            let Some(frame) = body.frame().await else { break };
            let frame =
                frame.map_err(|error| format!("the stream broke off: {}", cause(&error)))?;
            let now = begin.elapsed();
            if let Some(bytes) = frame.data_ref() {
                events.push(bytes, |data| reading.event(data, now))?;
            }
        }
        // So that the connection can be used again.
        let rest = async { while body.frame().await.is_some_and(|frame| frame.is_ok()) {} };
        let _ = timeout(DRAIN, rest).await;
        reading.finish()
    }

    async fn send(
        &self,
        method: Method,
        endpoint: &str,
        body: String,
    ) -> Result<Response<Incoming>, String> {
        let mut request = Request::new(Full::from(body));
        *request.method_mut() = method;
        let uri = format!("{}/{endpoint}", self.base);
        *request.uri_mut() = uri.parse().map_err(|error| format!("{uri}: {error}"))?;
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.extend(self.authorization.iter().map(|value| (AUTHORIZATION, value.clone())));
        let response = self.client.request(request).await.map_err(|error| cause(&error))?;
        match response.status() {
            StatusCode::OK => Ok(response),
            status => {
                let body = Limited::new(response.into_body(), MAX_ERROR_BYTES).collect().await;
                let body = body.map(|body| body.to_bytes()).unwrap_or_default();
                Err(format!("{status}: {}", message(&body)))
            }
        }
    }
}

/// An answer that is being read.
#[derive(Default)]
struct Reading {
    answer: Answer,
    /// A reason to finish was given, or the stream said that it is done.
    complete: bool,
    /// Nothing more is to come.
    over: bool,
    n_events: usize,
    error: Option<String>,
}

impl Reading {
    fn event(&mut self, data: &[u8], now: Duration) {
        if self.over {
            return;
        }
        self.n_events += 1;
        if data == b"[DONE]" {
            (self.complete, self.over) = (true, true);
            if self.answer.end.is_zero() {
                self.answer.end = now;
            }
            return;
        }
        let Ok(chunk) = serde_json::from_slice::<Value>(data) else {
            return self.fail(format!("an event that is no JSON: {}", message(data)));
        };
        if !chunk["error"].is_null() {
            return self.fail(message(data));
        }
        for choice in chunk["choices"].as_array().into_iter().flatten() {
            self.answer.end = now;
            let said = |field: &Value| match field {
                Value::String(text) => !text.is_empty(),
                Value::Array(calls) => !calls.is_empty(),
                _ => false,
            };
            let delta = &choice["delta"];
            let fields = ["content", "reasoning_content", "reasoning", "tool_calls"];
            if said(&choice["text"]) || fields.iter().any(|field| said(&delta[*field])) {
                self.answer.pieces.push(now);
            }
            self.complete |= !choice["finish_reason"].is_null();
        }
        let tokens = |field: &str| chunk["usage"][field].as_u64().map(|n| n as usize);
        let answer = &mut self.answer;
        answer.prompt_tokens = tokens("prompt_tokens").or(answer.prompt_tokens);
        answer.completion_tokens = tokens("completion_tokens").or(answer.completion_tokens);
    }

    fn fail(&mut self, error: String) {
        self.error = Some(error);
        self.over = true;
    }

    fn finish(self) -> Result<Answer, String> {
        match (self.error, self.n_events) {
            (Some(error), _) => Err(error),
            (None, 0) => Err("the answer is no stream of events".to_owned()),
            (None, _) if !self.complete => Err("the stream ended before the answer".to_owned()),
            _ => Ok(self.answer),
        }
    }
}

/// What an error's body says, on one short line.
fn message(body: &[u8]) -> String {
    const MAX_CHARS: usize = 200;
    let text = String::from_utf8_lossy(body);
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    let places = [&value["error"]["message"], &value["error"], &value["message"], &value["detail"]];
    let said = places.into_iter().find_map(Value::as_str).unwrap_or(&text);
    let words: Vec<&str> = said.split_whitespace().collect();
    let line: String = words.join(" ").chars().take(MAX_CHARS).collect();
    if line.is_empty() { "no word of why".to_owned() } else { line }
}

/// What an error comes down to.
fn cause(error: &(dyn StdError + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// Reads events that come a millisecond apart.
    fn read(events: &[&str]) -> Result<Answer, String> {
        let mut reading = Reading::default();
        for (i, event) in events.iter().enumerate() {
            reading.event(event.as_bytes(), ms(i as u64 + 1));
        }
        reading.finish()
    }

    #[test]
    fn an_answer_is_timed_by_the_pieces_that_show_something() {
        let answer = read(&[
            r#"{"choices": [{"delta": {"role": "assistant", "content": ""}}]}"#,
            r#"{"choices": [{"delta": {"content": "Hel"}, "finish_reason": null}]}"#,
            r#"{"choices": [{"delta": {"reasoning_content": "hm"}}], "usage": null}"#,
            r#"{"choices": [{"text": "lo"}]}"#,
            r#"{"choices": [{"delta": {}, "finish_reason": "stop"}]}"#,
            r#"{"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 9}}"#,
            "[DONE]",
        ])
        .unwrap();
        assert_eq!(answer.pieces, [ms(2), ms(3), ms(4)]);
        assert_eq!((answer.first(), answer.end), (ms(2), ms(5)));
        assert_eq!((answer.prompt_tokens, answer.output_tokens()), (Some(7), 9));
        assert!(answer.gaps().eq([ms(1), ms(1)]));
        // Without usage a piece counts as a token; without a word the end is the first.
        let answer = read(&[r#"{"choices": [{"text": "a"}]}"#, "[DONE]"]).unwrap();
        assert_eq!((answer.prompt_tokens, answer.output_tokens()), (None, 1));
        let answer = read(&[r#"{"choices": [{"text": "", "finish_reason": "stop"}]}"#]).unwrap();
        assert_eq!((answer.first(), answer.output_tokens()), (ms(1), 0));
        assert_eq!(read(&["[DONE]"]).unwrap().end, ms(1));
    }

    #[test]
    fn a_broken_answer_is_a_failure_with_a_reason() {
        for (events, part) in [
            (&[][..], "no stream of events"),
            (&[r#"{"choices": [{"text": "a"}]}"#], "ended before"),
            (&["{\"choices\": [{", "[DONE]"], "no JSON: {\"choices\": [{"),
            (&[r#"{"error": {"message": "out of\nluck"}}"#, "[DONE]"], "out of luck"),
            (&[r#"{"error": "busy"}"#], "busy"),
        ] {
            let error = read(events).unwrap_err();
            assert!(error.contains(part), "{events:?}: {error}");
        }
    }

    #[test]
    fn goodput_counts_answers_within_both_limits() {
        let exchange = |sent: u64, pieces: &[u64]| {
            let pieces: Vec<Duration> = pieces.iter().map(|&piece| ms(piece)).collect();
            let answer = Answer { end: *pieces.last().unwrap(), pieces, ..Answer::default() };
            Exchange { sent: ms(sent), outcome: Ok(answer) }
        };
        let load = Load {
            exchanges: vec![
                exchange(0, &[100, 110, 120]),
                exchange(50, &[100, 180, 200]),
                exchange(50, &[400, 405]),
                exchange(60, &[90]),
                Exchange { sent: ms(0), outcome: Err("no".to_owned()) },
            ],
            time: ms(500),
        };
        let good = |ttft: Option<u64>, itl: Option<u64>| load.n_good(ttft.map(ms), itl.map(ms));
        assert_eq!(good(None, None), 4);
        assert_eq!(good(Some(100), None), 3);
        assert_eq!(good(None, Some(10)), 3);
        assert_eq!(good(Some(100), Some(10)), 2);
        assert_eq!(good(Some(99), Some(50)), 2);
        assert_eq!(load.ttft().unwrap().p50, 75.0);
        assert_eq!(load.e2e().unwrap().mean, (120.0 + 150.0 + 355.0 + 30.0) / 4.0);
        assert_eq!(load.itl().unwrap().p50, 10.0);
        assert_eq!((load.output_tokens(), load.prompt_tokens(), load.n_uncounted()), (9, None, 4));
        assert_eq!(load.errors(), [("no", 1)]);
    }

    #[test]
    fn an_address_is_a_server() {
        let config = |url: &str| LoadConfig {
            url: url.to_owned(),
            api_key: None,
            arrivals: Arrivals::Concurrency(1),
            max_tokens: 1,
            temperature: 0.0,
            ignore_eos: false,
            seed: 0,
            timeout: ms(1),
        };
        let base = |url: &str| LoadClient::new(config(url)).map(|client| client.base);
        for url in ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"] {
            assert_eq!(base(url).unwrap(), "http://h:1/v1");
        }
        assert_eq!(base("https://a.b/proxy").unwrap(), "https://a.b/proxy/v1");
        for url in ["", "localhost:8000", "ftp://h", "http://", "http://a b", "http://h?x=1"] {
            let error = base(url).unwrap_err().to_string();
            assert!(error.contains("http://127.0.0.1:8000"), "{url}: {error}");
        }
        let key = LoadConfig { api_key: Some("a\nb".to_owned()), ..config("http://h") };
        assert!(matches!(LoadClient::new(key), Err(LoadError::Key)));
    }
}
