//! An [`Llm`] without arithmetic, and a server for it on a port of its own.
#![allow(dead_code)]

use paceline::server::{self, ServerConfig};
use paceline::{ChatError, ChatOptions, Llm, LlmConfig, Text, TokenId, Vocab};
use paceline_engine::testing::{FakeModel, FakeVocab};
use paceline_model::chat::ChatError as Template;
use paceline_model::{Batch, KvMemoryError, Mat, Model, ModelSpec};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

pub const VOCAB_LEN: usize = 600;
pub const CONTEXT_LEN: usize = 4096;

/// Bytes are tokens; a message is a line.
pub struct FakeText {
    vocab: FakeVocab,
    pub template: bool,
}

impl FakeText {
    pub fn new(template: bool) -> FakeText {
        FakeText { vocab: FakeVocab::new(VOCAB_LEN), template }
    }
}

impl Vocab for FakeText {
    fn token_bytes(&self, id: TokenId) -> &[u8] {
        self.vocab.token_bytes(id)
    }

    fn is_control(&self, id: TokenId) -> bool {
        self.vocab.is_control(id)
    }

    fn eos_ids(&self) -> &[TokenId] {
        self.vocab.eos_ids()
    }
}

impl Text for FakeText {
    fn encode(&self, text: &str) -> Vec<TokenId> {
        text.bytes().map(TokenId::from).collect()
    }

    fn encode_chat(
        &self,
        messages: &[Value],
        options: &ChatOptions,
    ) -> Result<Vec<TokenId>, ChatError> {
        if !self.template {
            return Err(ChatError::NoTemplate);
        }
        let mut text = String::new();
        for (i, message) in messages.iter().enumerate() {
            let role = message["role"].as_str().ok_or(Template::Message(i))?;
            let content = message["content"].as_str().ok_or(Template::Part(i))?;
            if role == "narrator" {
                return Err(Template::Refused("no narrator".to_owned()).into());
            }
            text += &format!("{role}: {content}\n");
        }
        if let Some(language) = options.variables.get("language") {
            text += &format!("in {language}\n");
        }
        Ok(self.encode(&(text + "assistant: ")))
    }

    fn has_chat_template(&self) -> bool {
        self.template
    }
}

/// A model that takes its time.
struct Slow(FakeModel, Duration);

impl Model for Slow {
    fn spec(&self) -> &ModelSpec {
        self.0.spec()
    }

    fn reserve_kv(&mut self, n_blocks: usize) -> Result<(), KvMemoryError> {
        self.0.reserve_kv(n_blocks)
    }

    fn forward(&mut self, batch: &Batch) {
        std::thread::sleep(self.1);
        self.0.forward(batch);
    }

    fn logits(&mut self, outputs: Range<usize>, logits: &mut Mat) {
        self.0.logits(outputs, logits);
    }
}

/// An engine whose steps take at least `step`.
pub fn llm(step: Duration, template: bool) -> Llm {
    let model = Slow(FakeModel::new(VOCAB_LEN, 16, CONTEXT_LEN), step);
    let text = Arc::new(FakeText::new(template));
    Llm::from_parts(Box::new(model), text, LlmConfig::default()).unwrap()
}

/// A server in a thread of its own.
pub struct Server {
    pub url: String,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl Server {
    pub fn start(llm: Llm, config: ServerConfig) -> Server {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                server::run(listener, llm, config, async { drop(stopped.await) }).await
            })
        });
        Server { url, stop: Some(stop), thread: Some(thread) }
    }

    /// A fast server with the usual settings.
    pub fn new() -> Server {
        Server::start(llm(Duration::ZERO, true), ServerConfig::new("fake"))
    }

    /// Begins the shutdown.
    pub fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    /// Waits until the server has ended by itself.
    pub fn join(mut self) {
        self.thread.take().unwrap().join().unwrap().unwrap();
    }

    pub fn get(&self, path: &str) -> (u16, Value) {
        answer(agent().get(format!("{}{path}", self.url)).call())
    }

    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.post_bytes(path, body.to_string().as_bytes())
    }

    pub fn post_bytes(&self, path: &str, body: &[u8]) -> (u16, Value) {
        let url = format!("{}{path}", self.url);
        answer(agent().post(url).content_type("application/json").send(body))
    }

    /// Posts and asserts success.
    #[track_caller]
    pub fn ok(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.post(path, body);
        assert_eq!(status, 200, "{body} -> {answer}");
        answer
    }

    /// Posts and returns the lines of the stream as they come.
    pub fn stream(&self, path: &str, body: &Value) -> Events {
        let url = format!("{}{path}", self.url);
        let response = agent().post(url).send(body.to_string()).unwrap();
        assert_eq!(response.status(), 200);
        let kind = response.headers()["content-type"].to_str().unwrap();
        assert!(kind.starts_with("text/event-stream"), "{kind}");
        Events { lines: BufReader::new(response.into_body().into_reader()) }
    }

    pub fn running(&self) -> u64 {
        let (status, health) = self.get("/health");
        assert_eq!(status, 200);
        health["sequences_running"].as_u64().unwrap()
            + health["sequences_waiting"].as_u64().unwrap()
    }

    /// Waits until so many sequences are in the engine.
    #[track_caller]
    pub fn wait_for_running(&self, n: u64) {
        for _ in 0..200 {
            if self.running() == n {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("{} sequences are running, not {n}", self.running());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder()
        .http_status_as_error(false)
        .proxy(None)
        .timeout_per_read(Some(Duration::from_secs(30)))
        .build()
        .new_agent()
}

fn answer(response: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> (u16, Value) {
    let mut response = response.unwrap();
    let text = response.body_mut().read_to_string().unwrap();
    let value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("no JSON: {text}"));
    (response.status().as_u16(), value)
}

/// The events of a stream: the data of each, as the protocol frames them.
pub struct Events {
    lines: BufReader<ureq::BodyReader<'static>>,
}

impl Events {
    /// The JSON of all events up to `[DONE]`, which must come, and nothing after it.
    pub fn all(mut self) -> Vec<Value> {
        let mut all = Vec::new();
        loop {
            let data = self.data().expect("the stream ends with [DONE]");
            if data == "[DONE]" {
                assert_eq!(self.data(), None);
                return all;
            }
            all.push(serde_json::from_str(&data).unwrap());
        }
    }

    fn data(&mut self) -> Option<String> {
        let mut line = String::new();
        if self.lines.read_line(&mut line).unwrap() == 0 {
            return None;
        }
        let data = line.strip_prefix("data: ").expect("a data line").trim_end().to_owned();
        line.clear();
        self.lines.read_line(&mut line).unwrap();
        assert_eq!(line, "\n", "an empty line ends an event");
        Some(data)
    }
}

impl Iterator for Events {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        self.data().filter(|data| data != "[DONE]").map(|data| serde_json::from_str(&data).unwrap())
    }
}
