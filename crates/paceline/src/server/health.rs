//! `GET /health`

use super::Shared;
use super::error::json_response;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::json;

/// 200 while the engine runs, with its load; 503 if it has failed.
pub(super) async fn get(state: Shared) -> Response {
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
