//! OpenAI's own Python client, where it is in the cache, against a real model.
#![cfg(feature = "server")]

#[path = "support/cached.rs"]
mod cached;
#[path = "support/server.rs"]
mod server;

use cached::cached;
use paceline::Llm;
use paceline::server::ServerConfig;
use server::Server;
use std::path::Path;
use std::process::Command;

/// `tools/openai_client.py` says what is asked and expected.
#[test]
fn the_client_gets_what_it_expects() {
    let Some(model) = cached("smollm2-135m") else { return };
    let llm = Llm::builder(model).kv_memory(1 << 30).build().expect("the model loads");
    let server = Server::start(llm, ServerConfig::new("smollm2-135m"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/openai_client.py");
    let Ok(ran) = Command::new("python3").arg(script).arg(&server.url).output() else {
        return eprintln!("skipped: there is no python3");
    };
    let said = String::from_utf8_lossy(&ran.stderr);
    match ran.status.code() {
        Some(0) => {}
        Some(77) => eprintln!("skipped: {said}"),
        code => panic!("{code:?}: {said}"),
    }
    server.wait_for_running(0);
}
