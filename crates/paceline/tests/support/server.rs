//! A server on a port of its own, and a client for it.
#![allow(dead_code)]

use paceline::Llm;
use paceline::server::{self, ServerConfig};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

pub const CHAT: &str = "/v1/chat/completions";
pub const COMPLETIONS: &str = "/v1/completions";

/// The text of choice `index` of a stream.
pub fn text(chunks: &[Value], index: u64) -> String {
    let choices = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap());
    choices
        .filter(|choice| choice["index"] == index)
        .map(|choice| choice["text"].as_str().or(choice["delta"]["content"].as_str()).unwrap_or(""))
        .collect()
}

/// A server in a thread of its own.
pub struct Server {
    pub url: String,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl Server {
    pub fn start(llm: Llm, config: ServerConfig) -> Server {
        let listener = server::listen("127.0.0.1", 0).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                server::run(listener, llm, config, async { drop(stopped.await) }).await;
                Ok(())
            })
        });
        Server { url, stop: Some(stop), thread: Some(thread) }
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

    /// Asks for the head of an answer alone.
    pub fn head(&self, path: &str) -> u16 {
        agent().head(format!("{}{path}", self.url)).call().unwrap().status().as_u16()
    }

    /// The kind and text of what is no JSON.
    pub fn text(&self, path: &str, headers: &[(&str, &str)]) -> (String, String) {
        let get = headers
            .iter()
            .fold(agent().get(format!("{}{path}", self.url)), |get, (name, value)| {
                get.header(*name, *value)
            });
        let mut response = get.call().unwrap();
        assert_eq!(response.status(), 200);
        let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
        (kind, response.body_mut().read_to_string().unwrap())
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
        Events { n_comments: 0, lines: BufReader::new(response.into_body().into_reader()) }
    }

    /// The texts of streams, one after the other and then all at once, which must be the same.
    pub fn check_streams(&self, path: &str, bodies: &[Value]) -> Vec<String> {
        let stream = |body: &Value| text(&self.stream(path, body).all(), 0);
        let alone: Vec<String> = bodies.iter().map(stream).collect();
        let together: Vec<String> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                bodies.iter().map(|body| scope.spawn(move || stream(body))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(alone, together);
        assert_eq!(self.running(), 0);
        alone
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
    pub n_comments: usize,
    lines: BufReader<ureq::BodyReader<'static>>,
}

impl Events {
    /// The JSON of all events up to `[DONE]`, which must come, and nothing after it.
    pub fn all(mut self) -> Vec<Value> {
        self.rest()
    }

    /// The same, for those who look at the comments afterwards.
    pub fn rest(&mut self) -> Vec<Value> {
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
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            let mut end = String::new();
            self.lines.read_line(&mut end).unwrap();
            assert_eq!(end, "\n", "an empty line ends an event");
            match line.strip_prefix("data: ") {
                Some(data) => return Some(data.trim_end().to_owned()),
                None if line.starts_with(": ") => self.n_comments += 1,
                None => panic!("no data line: {line}"),
            }
        }
    }
}

impl Iterator for Events {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        self.data().filter(|data| data != "[DONE]").map(|data| serde_json::from_str(&data).unwrap())
    }
}
