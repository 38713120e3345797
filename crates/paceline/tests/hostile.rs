//! Clients that do what no client should, over raw sockets: each gets an error within bounds, and
//! nobody else notices.
#![cfg(feature = "server")]

#[path = "support/cached.rs"]
mod cached;
#[path = "support/fake.rs"]
mod fake;
#[path = "support/server.rs"]
mod server;

use fake::llm;
use paceline::server::{MAX_BODIES, ServerConfig};
use paceline::{ChatError, ChatOptions, Text, TokenId, Vocab};
use paceline_model::file::ModelFile;
use paceline_model::{ChatTemplate, load_text};
use serde_json::{Value, json};
use server::{CHAT, COMPLETIONS, Server};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// A fast server with the usual settings.
fn start() -> Server {
    Server::start(llm(Duration::ZERO, true), ServerConfig::new("fake"))
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.url.strip_prefix("http://").unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// All that comes until the server closes the connection; it may also reset it.
fn read_all(mut stream: &TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    loop {
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(n) => bytes.extend(&part[..n]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
            Err(error) => panic!("{error} after {}", String::from_utf8_lossy(&bytes)),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn status(answer: &str) -> u16 {
    let code = answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3));
    code.unwrap_or_else(|| panic!("no answer: {answer:?}")).parse().unwrap()
}

fn head(path: &str, fields: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{fields}\r\n")
}

/// A server of short patience, on which somebody is being answered all the time.
struct Watched {
    server: Server,
    expected: Value,
}

impl Watched {
    fn start() -> Watched {
        let mut config = ServerConfig::new("fake");
        config.body_limit = 100_000;
        config.head_timeout = Duration::from_millis(300);
        config.body_timeout = Duration::from_millis(300);
        let server = Server::start(llm(Duration::ZERO, true), config);
        let expected = server.ok(COMPLETIONS, &Watched::request())["choices"].clone();
        Watched { server, expected }
    }

    fn request() -> Value {
        json!({"prompt": "Hello", "max_tokens": 200, "temperature": 0.8, "seed": 3})
    }

    /// Nobody else has noticed: who asks gets what he got, and the engine is idle.
    fn check(&self) {
        assert_eq!(self.server.ok(COMPLETIONS, &Watched::request())["choices"], self.expected);
        self.server.wait_for_running(0);
    }
}

#[test]
fn a_body_that_is_announced_as_too_large_is_refused_before_it_comes() {
    let watched = Watched::start();
    let mut stream = connect(&watched.server);
    stream.write_all(head(COMPLETIONS, "content-length: 100001\r\n").as_bytes()).unwrap();
    let answer = read_all(&stream);
    assert_eq!(status(&answer), 413);
    assert!(answer.contains("100000 bytes at most"), "{answer}");
    // One that is not announced, when it has become too large.
    let mut stream = connect(&watched.server);
    stream.write_all(head(COMPLETIONS, "transfer-encoding: chunked\r\n").as_bytes()).unwrap();
    for _ in 0..11 {
        let chunk = format!("2710\r\n{}\r\n", " ".repeat(10_000));
        if stream.write_all(chunk.as_bytes()).is_err() {
            break;
        }
    }
    assert_eq!(status(&read_all(&stream)), 413);
    watched.check();
}

#[test]
fn all_bodies_together_have_a_limit() {
    let mut config = ServerConfig::new("fake");
    config.body_limit = 10_000;
    let server = Server::start(llm(Duration::ZERO, true), config);
    let body = json!({"prompt": "Hello", "max_tokens": 2, "temperature": 0});
    let expected = server.ok(COMPLETIONS, &body)["choices"].clone();
    // Each lacks a byte, so it is held; one that finds no room is refused itself.
    let hold = || {
        let mut stream = connect(&server);
        let half = head(COMPLETIONS, "content-length: 10000\r\n") + &" ".repeat(9_999);
        let _ = stream.write_all(half.as_bytes());
        stream
    };
    let mut held: Vec<TcpStream> = (0..MAX_BODIES).map(|_| hold()).collect();
    let start = Instant::now();
    let refusal = loop {
        let mut stream = connect(&server);
        let body = body.to_string();
        let head = head(COMPLETIONS, &format!("content-length: {}\r\n", body.len()));
        stream.write_all((head + &body).as_bytes()).unwrap();
        let answer = read_all(&stream);
        if status(&answer) != 200 || start.elapsed() > Duration::from_secs(10) {
            break answer;
        }
        held.push(hold());
    };
    assert_eq!(status(&refusal), 503, "{refusal}");
    assert!(refusal.contains("retry-after: 1") && refusal.contains("overloaded"), "{refusal}");
    assert_eq!(server.get("/health").0, 200);
    drop(held);
    while server.post(COMPLETIONS, &body).0 == 503 {
        assert!(start.elapsed() < Duration::from_secs(10), "what was held is not given back");
    }
    assert_eq!(server.ok(COMPLETIONS, &body)["choices"], expected);
}

#[test]
fn who_sends_slowly_is_left() {
    let watched = Watched::start();
    let start = Instant::now();
    // Of the head, byte by byte; some of the body; none of it.
    let half = format!("{}{{\"prompt\":", head(COMPLETIONS, "content-length: 50\r\n"));
    let none = head(CHAT, "content-length: 50\r\n");
    let mut slow = connect(&watched.server);
    let bytes = head(COMPLETIONS, "").into_bytes();
    let dripping = std::thread::spawn(move || {
        for byte in bytes.iter().cycle().take(400) {
            if slow.write_all(&[*byte]).is_err() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(25));
        }
        false
    });
    for text in [half, none] {
        let mut stream = connect(&watched.server);
        stream.write_all(text.as_bytes()).unwrap();
        let answer = read_all(&stream);
        assert_eq!(status(&answer), 408);
        assert!(answer.contains("did not come within 0.3 s"), "{answer}");
    }
    assert!(dripping.join().unwrap(), "the server still listens to a head that never ends");
    let idle = connect(&watched.server);
    assert_eq!(read_all(&idle), "");
    assert!(start.elapsed() < Duration::from_secs(15));
    watched.check();
}

#[test]
fn heads_have_limits() {
    let watched = Watched::start();
    for fields in [
        "x-flood: 1\r\n".repeat(200),
        format!("x-long: {}\r\n", "x".repeat(100_000)),
        format!("authorization: Bearer {}\r\n", "x".repeat(40_000)),
    ] {
        let mut stream = connect(&watched.server);
        // The server may close the connection before all is sent.
        let _ = stream.write_all(head(COMPLETIONS, &fields).as_bytes());
        let answer = read_all(&stream);
        assert!(answer.is_empty() || status(&answer) == 431, "{answer}");
    }
    for text in [
        "\x00\x01\x02\r\n\r\n",
        "GET\r\n\r\n",
        "GET /health HTTP/9.9\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
    ] {
        let mut stream = connect(&watched.server);
        stream.write_all(text.as_bytes()).unwrap();
        let answer = read_all(&stream);
        assert!(answer.is_empty() || (400..500).contains(&status(&answer)), "{text:?} -> {answer}");
    }
    watched.check();
}

#[test]
fn bodies_that_are_no_requests_are_refused() {
    let watched = Watched::start();
    let deep = |open: &str, close: &str| format!("{}{}", open.repeat(10_000), close.repeat(10_000));
    let messages = |content: &[u8]| {
        let mut body = br#"{"max_tokens": 1, "messages": [{"role": "user", "content": ""#.to_vec();
        body.extend(content);
        body.extend(br#""}]}"#);
        body
    };
    for body in [
        b"".to_vec(),
        b"{".to_vec(),
        b"{\"prompt\": \"a\"} trailing".to_vec(),
        b"\xff\xfe{}".to_vec(),
        b"null".to_vec(),
        deep("[", "]").into_bytes(),
        deep("{\"a\":", "}").into_bytes(),
        format!("{{\"messages\": {}}}", deep("[", "]")).into_bytes(),
        messages(b"\xff\xfe"),
        messages(b"\xed\xa0\x80"),
        messages(b"\\ud800"),
        b"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"max_tokens\": 1e999}"
            .to_vec(),
        b"{\"prompt\": [[1, 2], \"three\"]}".to_vec(),
    ] {
        for path in [CHAT, COMPLETIONS, "/tokenize", "/detokenize"] {
            let (status, answer) = watched.server.post_bytes(path, &body);
            let shown = String::from_utf8_lossy(&body[..body.len().min(60)]);
            assert_eq!(status, 400, "{path} {shown} -> {answer}");
            let message = answer["error"]["message"].as_str().unwrap();
            assert!(message.len() < 500, "{message}");
        }
    }
    watched.check();
}

#[test]
fn half_closed_and_cut_connections_leave_nothing_behind() {
    let watched = Watched::start();
    let body = json!({"prompt": "x", "max_tokens": 4000, "ignore_eos": true}).to_string();
    for sent in [10, 80, 120, usize::MAX] {
        let whole = head(COMPLETIONS, &format!("content-length: {}\r\n", body.len())) + &body;
        let mut stream = connect(&watched.server);
        stream.write_all(&whole.as_bytes()[..whole.len().min(sent)]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        // A client that has nothing more to say is taken for one that has left.
        let answer = read_all(&stream);
        assert!(answer.is_empty() || status(&answer) == 400, "{answer}");
    }
    watched.check();
}

#[test]
fn many_at_once_are_served_in_turn() {
    let mut config = ServerConfig::new("fake");
    config.max_connections = 3;
    config.head_timeout = Duration::from_millis(500);
    let server = Server::start(llm(Duration::ZERO, true), config);
    // They hold all places, until they are left.
    let idle: Vec<TcpStream> = (0..3).map(|_| connect(&server)).collect();
    assert_eq!(server.get("/health").0, 200);
    drop(idle);
    let answers = std::thread::scope(|scope| {
        let ask = || server.ok(COMPLETIONS, &Watched::request())["choices"].clone();
        let threads: Vec<_> = (0..20).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<Value>>()
    });
    assert!(answers.iter().all(|answer| *answer == answers[0]));
}

#[test]
fn a_shutdown_does_not_wait_for_requests_that_never_come() {
    for sent in ["", "POST /v1/comp", "body"] {
        let mut server = start();
        let mut stream = connect(&server);
        match sent {
            "body" => {
                let half = head(COMPLETIONS, "content-length: 100\r\n") + "{";
                stream.write_all(half.as_bytes()).unwrap();
            }
            _ => stream.write_all(sent.as_bytes()).unwrap(),
        }
        // So that it is read before the end begins.
        server.get("/health");
        let start = Instant::now();
        server.stop();
        server.join();
        assert!(start.elapsed() < Duration::from_secs(20), "less than the time of grace");
    }
}

#[test]
fn a_request_that_comes_during_the_shutdown_hears_of_it() {
    let mut server = start();
    let mut stream = connect(&server);
    stream.write_all(b"GET /ready HTTP/1.1\r\nhost: x\r\n").unwrap();
    server.get("/health");
    server.stop();
    // The thread of the server has to hear of the end first.
    std::thread::sleep(Duration::from_millis(200));
    let sent = stream.write_all(b"\r\n");
    let answer = read_all(&stream);
    assert!(sent.is_ok(), "{sent:?}");
    assert_eq!(status(&answer), 503);
    assert!(answer.contains("stopping") && answer.contains("connection: close"), "{answer}");
    server.join();
}

/// What panics here is the vocabulary, asked by the server about a token with a certain number.
#[test]
fn a_panic_ends_one_request() {
    let mut text = fake::FakeText::new(true);
    text.panics_on = Some(b'!'.into());
    let llm = fake::build(Duration::ZERO, text, Default::default());
    let server = Server::start(llm, ServerConfig::new("fake"));
    let only = |id: u8, path: &str| {
        let mut body = json!({
            "max_tokens": 3, "temperature": 0, "logprobs": if path == CHAT { json!(true) } else { json!(1) },
            "logit_bias": {id.to_string(): 100},
        });
        match path {
            CHAT => body["messages"] = json!([{"role": "user", "content": "Hi"}]),
            _ => body["prompt"] = "Hi".into(),
        }
        body
    };
    for path in [CHAT, COMPLETIONS] {
        let (status, answer) = server.post(path, &only(b'!', path));
        assert_eq!((status, &answer["error"]["type"]), (500, &json!("server_error")), "{answer}");
        let mut stream = only(b'!', path);
        stream["stream"] = true.into();
        let events: Vec<Value> = server.stream(path, &stream).collect();
        assert_eq!(events.last().unwrap()["error"]["type"], "server_error");
        server.ok(path, &only(b'?', path));
    }
    // In the thread that reads long texts.
    let (status, _) =
        server.post("/tokenize", &json!({"prompt": "Hi!", "return_token_strs": true}));
    assert_eq!(status, 500);
    server.wait_for_running(0);
}

/// Text whose conversations go through a real template, for variables that the client chooses.
struct Templated {
    fake: fake::FakeText,
    template: ChatTemplate,
}

impl Vocab for Templated {
    fn token_bytes(&self, id: TokenId) -> &[u8] {
        self.fake.token_bytes(id)
    }

    fn is_control(&self, id: TokenId) -> bool {
        self.fake.is_control(id)
    }

    fn eos_ids(&self) -> &[TokenId] {
        self.fake.eos_ids()
    }
}

impl Text for Templated {
    fn encode(&self, text: &str, add_bos: bool) -> Vec<TokenId> {
        self.fake.encode(text, add_bos)
    }

    fn encode_chat(
        &self,
        messages: &[Value],
        options: &ChatOptions,
    ) -> Result<Vec<TokenId>, ChatError> {
        Ok(self.encode(&self.template.render(messages, options)?.text(), false))
    }

    fn has_chat_template(&self) -> bool {
        true
    }
}

#[test]
fn a_template_bomb_is_an_error() {
    let Some(model) = cached::cached("smollm2-135m") else { return };
    let (tokenizer, _) = load_text(&ModelFile::open(&model).unwrap()).unwrap();
    let source = "\
{%- macro again(x) %}{{ again(x) }}{% endmacro -%}
{%- if kind == 'loop' %}{% for a in range(n) %}{% for b in range(n) %}x{% endfor %}{% endfor %}
{%- elif kind == 'text' %}{{ 'x' * n }}
{%- elif kind == 'list' %}{{ ([1] * n) | join }}
{%- elif kind == 'macro' %}{{ again(1) }}
{%- else %}{{ messages[0]['content'] }}{% endif %}";
    let template = ChatTemplate::new(source, None, &tokenizer).unwrap();
    let text = Templated { fake: fake::FakeText::new(true), template };
    let llm = fake::build(Duration::ZERO, text, Default::default());
    let server = Server::start(llm, ServerConfig::new("fake"));
    let body = |kind: &str| {
        json!({
            "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "temperature": 0,
            "chat_template_kwargs": {"kind": kind, "n": 100_000},
        })
    };
    let expected = server.ok(CHAT, &body("none"))["choices"].clone();
    std::thread::scope(|scope| {
        for kind in ["loop", "text", "list", "macro"].into_iter().cycle().take(8) {
            let (server, body) = (&server, body(kind));
            scope.spawn(move || {
                let (status, answer) = server.post(CHAT, &body);
                assert_eq!(status, 400, "{kind} -> {answer}");
                // A prompt that is too long, or a template that does too much.
                let error = &answer["error"];
                assert!(error["param"] == "messages" || error["param"] == "prompt", "{answer}");
            });
        }
        assert_eq!(server.get("/health").0, 200);
        assert_eq!(server.ok(CHAT, &body("none"))["choices"], expected);
    });
}

#[test]
fn what_would_take_too_long_is_refused_before_it_is_computed() {
    let server = start();
    let refused = |path: &str, body: Value, says: &str| {
        let (status, answer) = server.post(path, &body);
        let message = answer["error"]["message"].as_str().unwrap().to_owned();
        assert!(status == 400 && message.contains(says), "{status}: {message}");
    };
    let text = "a".repeat(8 << 20);
    refused(COMPLETIONS, json!({"prompt": text}), "prompt has 8388608 bytes: at most");
    refused(COMPLETIONS, json!({"prompt": ["a", text]}), "prompt[1] has 8388608 bytes: at most");
    let messages = json!([{"role": "user", "content": [{"type": "text", "text": text}]}]);
    refused(CHAT, json!({"messages": messages}), "bytes: at most");
    let prompt = vec![72; 100];
    let body = json!({"prompt": prompt, "max_tokens": 0, "echo": true, "logprobs": 100, "n": 128});
    refused(COMPLETIONS, body, "1305728 log-probabilities: at most 1048576");
}
