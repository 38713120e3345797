//! The HTTP server, in the dialect of OpenAI's API with vLLM's extras.
//!
//! A field of a request that would change the answer and is not supported is an error that names
//! it; nothing is ignored silently. A client that goes away aborts its sequences.

mod answer;
mod body;
mod chat;
mod completions;
mod error;
mod fields;
mod gate;
mod health;
mod job;
mod keys;
mod listen;
mod loads;
mod logprobs;
mod metrics;
mod models;
mod record;
mod sampling;
mod sse;
mod tls;
mod tokenize;

pub use keys::{Keys, KeysError};
pub use listen::listen;
pub use tls::{Tls, TlsError};

use crate::llm::{Llm, draw_seed};
use axum::Router;
use axum::http::Uri;
use axum::middleware;
use axum::routing::{get, post};
use error::ApiError;
use metrics::Metrics;
use paceline_engine::SamplingParams;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Bodies of the largest size that may be in memory at once; who brings more finds a 503.
pub const MAX_BODIES: usize = 16;

/// How the server answers.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The model's name in requests and answers.
    pub model_name: String,
    /// What a request means that says nothing else.
    pub defaults: SamplingParams,
    /// Who may ask; everybody, if there are none.
    pub keys: Keys,
    /// Speaks HTTPS, and nothing else.
    pub tls: Option<Tls>,
    /// The largest body of a request, in bytes; [`MAX_BODIES`] of them may be in memory.
    pub body_limit: usize,
    /// How long the head of a request may take to come, and how long a connection may be idle.
    pub head_timeout: Duration,
    /// How long the body of a request may take to come.
    pub body_timeout: Duration,
    /// The most requests that wait for their first step; more are refused.
    pub max_queue: usize,
    /// The most connections at once; more wait to be accepted.
    pub max_connections: usize,
    /// How long running requests may go on after the shutdown began.
    pub grace: Duration,
    /// After such a silence a stream gets a comment.
    pub heartbeat: Duration,
    /// Writes what is asked into the log.
    pub log_prompts: bool,
}

impl ServerConfig {
    /// The usual settings: temperature 1, no keys, bodies of 16 MiB that come within 60 s, heads
    /// within 30 s, 512 requests that wait, 4096 connections, 30 s of grace, a heartbeat after 10 s.
    pub fn new(model_name: impl Into<String>) -> ServerConfig {
        ServerConfig {
            model_name: model_name.into(),
            defaults: SamplingParams::default(),
            keys: Keys::default(),
            tls: None,
            body_limit: 16 << 20,
            head_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(60),
            max_queue: 512,
            max_connections: 4096,
            grace: Duration::from_secs(30),
            heartbeat: Duration::from_secs(10),
            log_prompts: false,
        }
    }
}

struct State {
    llm: Llm,
    config: ServerConfig,
    metrics: Metrics,
    /// Bytes of the longest text that can be a prompt: nobody waits until a longer one is tokenized.
    max_text_bytes: usize,
    /// Bytes that bodies may still take.
    body_bytes: Arc<Semaphore>,
    /// The shutdown has begun.
    stopping: AtomicBool,
}

impl State {
    fn new(llm: Llm, config: ServerConfig) -> State {
        let metrics = Metrics::new(&config.model_name, llm.limits(), &llm.stats());
        let max_text_bytes =
            llm.limits().max_model_len.saturating_mul(llm.text().max_token_bytes());
        let most = config.body_limit.saturating_mul(MAX_BODIES).min(Semaphore::MAX_PERMITS);
        let (body_bytes, stopping) = (Arc::new(Semaphore::new(most)), AtomicBool::new(false));
        State { llm, config, metrics, max_text_bytes, body_bytes, stopping }
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }
}

type Shared = axum::extract::State<Arc<State>>;

/// Serves until `shutdown` completes: then no connection is accepted any more, running requests get
/// the time of grace to end, and what still runs is aborted.
pub async fn run(
    listener: TcpListener,
    llm: Llm,
    config: ServerConfig,
    shutdown: impl Future<Output = ()>,
) {
    let state = Arc::new(State::new(llm, config));
    let app = router(state.clone());
    listen::serve(listener, app, &state, shutdown).await;
    // Its engine may have much to write, and signals are still to be heard.
    let _ = tokio::task::spawn_blocking(move || drop(state)).await;
}

fn router(state: Arc<State>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat::post))
        .route("/v1/completions", post(completions::post))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*name}", get(models::show))
        .route("/v1/loads", get(loads::get))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/health", get(health::health))
        .route("/ready", get(health::ready))
        .route("/version", get(health::version))
        .route("/metrics", get(metrics::get))
        .fallback(async |uri: Uri| ApiError::not_found(format!("there is no {}", uri.path())))
        .method_not_allowed_fallback(async |uri: Uri| ApiError::method(uri.path()))
        .layer(middleware::from_fn_with_state(state.clone(), gate::gate))
        .with_state(state)
}

/// What reads the bodies of requests, without a server around it: for the fuzz target.
#[doc(hidden)]
pub struct Reader(State);

impl Reader {
    /// A reader that makes requests for that engine.
    pub fn new(llm: Llm) -> Reader {
        Reader(State::new(llm, ServerConfig::new("fuzz")))
    }

    /// What the endpoint at `path` makes of a body: how many requests for the engine, or which
    /// answer. `None` if there is no such endpoint.
    pub fn read(&self, path: &str, body: &[u8]) -> Option<Result<usize, String>> {
        let state = &self.0;
        let read = match path {
            "/v1/chat/completions" => chat::read(state, body).map(|asked| asked.requests.len()),
            "/v1/completions" => completions::read(state, body).map(|asked| asked.requests.len()),
            "/tokenize" => tokenize::tokens(state, body).map(|_| 0),
            "/detokenize" => tokenize::text(state, body).map(|_| 0),
            _ => return None,
        };
        Some(read.map_err(|error| error.to_json().to_string()))
    }
}

/// A name that nothing else has.
fn new_id() -> String {
    format!("{:016x}{:016x}", draw_seed(), draw_seed())
}
