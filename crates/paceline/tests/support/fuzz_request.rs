//! What the fuzz target `request` does with its bytes.

#[path = "fake.rs"]
mod fake;

use paceline::server::Reader;
use std::sync::OnceLock;
use std::time::Duration;

/// The first line is the path of an endpoint, the rest the body of a request to it: requests for the
/// engine, or an error of OpenAI's form within bounds. Returns whether the body was a good one.
pub fn run(bytes: &[u8]) -> bool {
    static READER: OnceLock<Reader> = OnceLock::new();
    let reader = READER.get_or_init(|| Reader::new(fake::llm(Duration::ZERO, true)));
    let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else { return false };
    let (path, body) = (String::from_utf8_lossy(&bytes[..end]), &bytes[end + 1..]);
    match reader.read(&path, body) {
        None => false,
        Some(Ok(n_requests)) => {
            assert!(n_requests <= 1024, "{n_requests} requests");
            true
        }
        Some(Err(answer)) => {
            let error = serde_json::from_str::<serde_json::Value>(&answer).expect("JSON");
            let message = error["error"]["message"].as_str().expect("a message");
            assert!(!message.is_empty() && message.chars().count() <= 1_001, "{message}");
            assert_eq!(error["error"]["type"], "invalid_request_error", "{message}");
            false
        }
    }
}
