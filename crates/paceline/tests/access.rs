//! Who may ask, over what, and what the log says about it.
#![cfg(feature = "server")]

#[path = "support/fake.rs"]
mod fake;
#[path = "support/server.rs"]
mod server;

use fake::llm;
use paceline::server::{Keys, ServerConfig, Tls};
use serde_json::{Value, json};
use server::{CHAT, COMPLETIONS, Server};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

fn pem(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name)
}

fn keys(text: &str) -> Keys {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    Keys::read(file.path()).unwrap()
}

/// Status, headers and body of an answer.
fn ask(server: &Server, head: &str, body: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(server.url.strip_prefix("http://").unwrap()).unwrap();
    let length = body.len();
    let text =
        format!("{head}host: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), head.to_lowercase(), body.to_owned())
}

const REQUEST: &str = r#"{"prompt": "Hi", "max_tokens": 3}"#;

#[test]
fn who_has_a_key_may_ask() {
    let mut config = ServerConfig::new("fake");
    config.keys = keys("sk-one alice\nsk-two bob\n");
    let server = Server::start(llm(Duration::ZERO, true), config);
    for (header, expected) in [
        ("", 401),
        ("authorization: Bearer sk-one\r\n", 200),
        ("authorization: bearer  sk-two \r\n", 200),
        ("authorization: Bearer sk-three\r\n", 401),
        ("authorization: Bearer sk-on\r\n", 401),
        ("authorization: Bearer\r\n", 401),
        ("authorization: Bearer \r\n", 401),
        ("authorization: Basic sk-one\r\n", 401),
        ("authorization: sk-one\r\n", 401),
        ("api-key: sk-one\r\n", 401),
    ] {
        let head = format!("POST {COMPLETIONS} HTTP/1.1\r\n{header}");
        let (status, headers, body) = ask(&server, &head, REQUEST);
        assert_eq!(status, expected, "{header:?} -> {body}");
        if status == 401 {
            let error = serde_json::from_str::<Value>(&body).unwrap()["error"].clone();
            assert_eq!(error["code"], "invalid_api_key");
            assert_eq!(error["type"], "invalid_request_error");
            assert!(headers.contains("\r\nwww-authenticate: bearer"), "{headers}");
        }
    }
    // How the server is may be asked by everybody; what it has, and whether a path is there, not.
    for (path, expected) in [
        ("/health", 200),
        ("/ready", 200),
        ("/version", 200),
        ("/metrics", 200),
        ("/v1/models", 401),
        ("/v1/loads", 401),
        ("/nothing", 401),
        ("/health/", 401),
    ] {
        assert_eq!(ask(&server, &format!("GET {path} HTTP/1.1\r\n"), "").0, expected, "{path}");
    }
    // A body of a stranger is not read.
    let (status, _, _) = ask(&server, &format!("POST {CHAT} HTTP/1.1\r\n"), &"x".repeat(1_000));
    assert_eq!(status, 401);
}

#[test]
fn https_is_spoken() {
    let mut config = ServerConfig::new("fake");
    config.tls = Some(Tls::read(&pem("cert.pem"), &pem("key.pem")).unwrap());
    config.head_timeout = Duration::from_millis(500);
    let mut server = Server::start(llm(Duration::ZERO, true), config);
    let port = server.url.rsplit_once(':').unwrap().1.to_owned();
    let certificate = std::fs::read(pem("cert.pem")).unwrap();
    let roots = RootCerts::new_with_certs(&[Certificate::from_pem(&certificate).unwrap()]);
    let agent = |tls: TlsConfig| {
        let config = ureq::Agent::config_builder().proxy(None).tls_config(tls);
        config.timeout_global(Some(Duration::from_secs(20))).build().new_agent()
    };
    let trusting = agent(TlsConfig::builder().root_certs(roots).build());
    let url = format!("https://localhost:{port}{COMPLETIONS}");
    let mut answer = trusting.post(&url).send(REQUEST).unwrap();
    let answer: Value = serde_json::from_str(&answer.body_mut().read_to_string().unwrap()).unwrap();
    assert_eq!(answer["usage"]["completion_tokens"], 3);
    // Who does not know the certificate, or speaks without, gets nothing.
    assert!(agent(TlsConfig::default()).post(&url).send(REQUEST).is_err());
    let mut plain = TcpStream::connect(server.url.strip_prefix("http://").unwrap()).unwrap();
    plain.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    // Nor does one who never says hello hold a place for long, or the shutdown up.
    let mut silent = TcpStream::connect(server.url.strip_prefix("http://").unwrap()).unwrap();
    assert_eq!(silent.read(&mut [0]).unwrap_or(0), 0);
    let _silent = TcpStream::connect(server.url.strip_prefix("http://").unwrap()).unwrap();
    server.stop();
    server.join();
}

#[test]
fn files_that_give_no_https_are_named() {
    let error = |cert: &str, key: &str| Tls::read(&pem(cert), &pem(key)).unwrap_err().to_string();
    for (cert, key, parts) in [
        ("none.pem", "key.pem", &["none.pem", "certificate"][..]),
        ("cert.pem", "none.pem", &["none.pem", "private key"]),
        ("key.pem", "key.pem", &["key.pem", "certificate"]),
        ("cert.pem", "cert.pem", &["cert.pem", "private key"]),
        ("cert.pem", "other-key.pem", &["cert.pem", "other-key.pem"]),
    ] {
        let error = error(cert, key);
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
    // Cut off in the middle, and with something missing there.
    let folder = tempfile::tempdir().unwrap();
    for (name, kind) in [("cert.pem", "certificate"), ("key.pem", "private key")] {
        let text = std::fs::read_to_string(pem(name)).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let half = lines.len() / 2;
        let cut = lines[..half].join("\n");
        let holed = [&lines[..half], &lines[half + 1..]].concat().join("\n");
        for (text, says) in [(cut, "cut off"), (holed, "damaged")] {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            let (cert, key) = match name {
                "cert.pem" => (path, pem("key.pem")),
                _ => (pem("cert.pem"), path),
            };
            let error = Tls::read(&cert, &key).unwrap_err().to_string();
            for part in [name, kind, says] {
                assert!(error.contains(part), "{part}: {error}");
            }
        }
    }
}

/// What the log has so far, of all tests in this process.
fn log() -> &'static Mutex<Vec<u8>> {
    static LOG: OnceLock<Arc<Mutex<Vec<u8>>>> = OnceLock::new();
    LOG.get_or_init(|| {
        let log = Arc::new(Mutex::new(Vec::new()));
        let writer = log.clone();
        struct Writer(Arc<Mutex<Vec<u8>>>);
        impl Write for Writer {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().unwrap().extend(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        tracing_subscriber::fmt()
            .json()
            .flatten_event(true)
            .with_writer(move || Writer(writer.clone()))
            .init();
        log
    })
}

/// The log's line about a request, which comes when the answer has gone.
fn line(id: &str, message: &str) -> Value {
    for _ in 0..200 {
        let text = String::from_utf8(log().lock().unwrap().clone()).unwrap();
        let lines = text.lines().filter(|line| line.contains(id));
        let mut values = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
        if let Some(line) = values.find(|line| line["message"] == message) {
            return line;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("no line {message} of {id}");
}

#[test]
fn each_request_has_an_id_and_a_line() {
    log();
    let mut config = ServerConfig::new("fake");
    config.keys = keys("sk-secret alice\n");
    let server = Server::start(llm(Duration::ZERO, true), config);
    let head = |id: &str| {
        format!("POST {CHAT} HTTP/1.1\r\nauthorization: Bearer sk-secret\r\nx-request-id: {id}\r\n")
    };
    let body = r#"{"messages": [{"role": "user", "content": "a secret"}], "max_tokens": 5, "ignore_eos": true}"#;
    let (status, headers, answer) = ask(&server, &head("mine-1"), body);
    assert_eq!(status, 200);
    assert!(headers.contains("\r\nx-request-id: mine-1"), "{headers}");
    assert_eq!(serde_json::from_str::<Value>(&answer).unwrap()["id"], "chatcmpl-mine-1");
    let line = |id: &str| line(id, "request");
    let ended = line("mine-1");
    for (field, expected) in [
        ("level", json!("INFO")),
        ("tenant", json!("alice")),
        ("method", json!("POST")),
        ("path", json!(CHAT)),
        ("status", json!(200)),
        ("prompt_tokens", json!("user: a secret\nassistant: ".len())),
        ("cached_tokens", json!(0)),
        ("completion_tokens", json!(5)),
        ("finish_reason", json!("length")),
    ] {
        assert_eq!(ended[field], expected, "{field} in {ended}");
    }
    let time = |field: &str| ended[field].as_f64().unwrap();
    assert!(time("queue_s") <= time("first_token_s") && time("first_token_s") <= time("total_s"));

    let (status, _, _) = ask(&server, &head("mine-2"), r#"{"messages": [], "temperature": -1}"#);
    assert_eq!(status, 400);
    let refused = line("mine-2");
    assert_eq!(refused["status"], 400);
    assert!(refused["error"].as_str().unwrap().contains("temperature"), "{refused}");
    assert_eq!(refused.get("prompt_tokens"), None);

    // One that is no id gets another.
    for id in ["", "x".repeat(200).as_str(), "n\u{e4}me"] {
        let (_, headers, _) = ask(&server, &head(id), body);
        let (_, rest) = headers.split_once("\r\nx-request-id: ").unwrap();
        let given = rest.lines().next().unwrap();
        assert!(given.len() == 32 && given.bytes().all(|b| b.is_ascii_hexdigit()), "{given}");
        line(given);
    }
    // A client that leaves is told apart.
    let slow = Server::start(llm(Duration::from_millis(5), true), ServerConfig::new("fake"));
    let mut stream = TcpStream::connect(slow.url.strip_prefix("http://").unwrap()).unwrap();
    let long = r#"{"prompt": "Hi", "max_tokens": 4000, "ignore_eos": true}"#;
    let length = long.len();
    write!(
        stream,
        "POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\nx-request-id: left-1\r\ncontent-length: {length}\r\n\r\n{long}"
    )
    .unwrap();
    slow.wait_for_running(1);
    drop(stream);
    let left = line("left-1");
    assert_eq!((&left["status"], left["finish_reason"].is_null()), (&json!(499), true), "{left}");

    let text = String::from_utf8(log().lock().unwrap().clone()).unwrap();
    assert!(!text.contains("a secret") && !text.contains("sk-secret"), "{text}");
}

#[test]
fn prompts_are_logged_where_that_is_asked_for() {
    log();
    let mut config = ServerConfig::new("fake");
    config.log_prompts = true;
    let server = Server::start(llm(Duration::ZERO, true), config);
    let head = format!("POST {COMPLETIONS} HTTP/1.1\r\nx-request-id: open-1\r\n");
    assert_eq!(ask(&server, &head, r#"{"prompt": "no mystery", "max_tokens": 1}"#).0, 200);
    assert!(line("open-1", "prompt")["body"].as_str().unwrap().contains("no mystery"));
    line("open-1", "request");
}
