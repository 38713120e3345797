//! The HTTP server, in the dialect of OpenAI's API with vLLM's extras.
//!
//! A field of a request that would change the answer and is not supported is an error that names
//! it; nothing is ignored silently. A client that goes away aborts its sequences.

mod answer;
mod chat;
mod completions;
mod error;
mod fields;
mod health;
mod job;
mod loads;
mod logprobs;
mod models;
mod sampling;
mod sse;
mod tokenize;

use crate::llm::Llm;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::Uri;
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use error::ApiError;
use paceline_engine::SamplingParams;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Notify;

/// How the server answers.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The model's name in requests and answers.
    pub model_name: String,
    /// What a request means that says nothing else.
    pub defaults: SamplingParams,
    /// The largest body of a request, in bytes.
    pub body_limit: usize,
    /// How long running requests may go on after the shutdown began.
    pub grace: Duration,
    /// After such a silence a stream gets a comment.
    pub heartbeat: Duration,
}

impl ServerConfig {
    /// The usual settings: temperature 1, bodies of 16 MiB, 30 s of grace, a heartbeat after 10 s.
    pub fn new(model_name: impl Into<String>) -> ServerConfig {
        ServerConfig {
            model_name: model_name.into(),
            defaults: SamplingParams::default(),
            body_limit: 16 << 20,
            grace: Duration::from_secs(30),
            heartbeat: Duration::from_secs(10),
        }
    }
}

struct State {
    llm: Llm,
    config: ServerConfig,
    /// The shutdown has begun.
    stopping: AtomicBool,
}

type Shared = axum::extract::State<Arc<State>>;

/// Serves until `shutdown` completes: then no connection is accepted any more, running requests get
/// the time of grace to end, and what still runs is aborted.
///
/// # Errors
/// If the listener fails.
pub async fn run(
    listener: TcpListener,
    llm: Llm,
    config: ServerConfig,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let grace = config.grace;
    let state = Arc::new(State { llm, config, stopping: AtomicBool::new(false) });
    let app = router(state.clone());
    let stopping = Arc::new(Notify::new());
    let stopped = stopping.clone();
    // A token must not wait for the acknowledgement of the one before.
    let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
    let served = axum::serve(listener, app)
        .with_graceful_shutdown(async move { stopped.notified().await })
        .into_future();
    let mut served = pin!(served);
    tokio::select! {
        result = &mut served => return result,
        () = shutdown => stopping.notify_one(),
    }
    state.stopping.store(true, Ordering::Relaxed);
    if let Ok(result) = tokio::time::timeout(grace, &mut served).await {
        return result;
    }
    // The answers end with `abort`; a client that does not even read that is left behind.
    state.llm.abort_all();
    tokio::time::timeout(Duration::from_secs(2), served).await.unwrap_or(Ok(()))
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
        .fallback(async |uri: Uri| ApiError::not_found(format!("there is no {}", uri.path())))
        .method_not_allowed_fallback(async |uri: Uri| ApiError::method(uri.path()))
        .layer(DefaultBodyLimit::max(state.config.body_limit))
        .with_state(state)
}
