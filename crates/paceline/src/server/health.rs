//! `GET /health`, `/ready` and `/version`

use super::Shared;
use super::error::json_response;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::json;

/// 200 while the engine runs, with its load; 503 if it has failed.
pub(super) async fn health(state: Shared) -> Response {
    let stats = state.llm.stats();
    let (status, text) = match state.llm.is_alive() {
        true => (StatusCode::OK, "ok"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "failed"),
    };
    let body = json!({
        "status": text,
        "sequences_running": stats.n_running,
        "sequences_waiting": stats.n_waiting,
        "kv_blocks": stats.kv_blocks,
        "kv_blocks_used": stats.kv_blocks_used,
    });
    json_response(status, &body)
}

/// 200 while new requests are welcome; 503 once the server is being stopped, or its engine has
/// failed.
pub(super) async fn ready(state: Shared) -> Response {
    let (status, text) = match (state.llm.is_alive(), state.is_stopping()) {
        (true, false) => (StatusCode::OK, "ready"),
        (true, true) => (StatusCode::SERVICE_UNAVAILABLE, "stopping"),
        (false, _) => (StatusCode::SERVICE_UNAVAILABLE, "failed"),
    };
    json_response(status, &json!({"status": text}))
}

pub(super) async fn version() -> Response {
    json_response(StatusCode::OK, &json!({"version": env!("CARGO_PKG_VERSION")}))
}
