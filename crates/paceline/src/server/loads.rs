//! `GET /v1/loads`: the load in SGLang's terms, as request routers poll it. There is one engine, so
//! one entry.

use super::Shared;
use super::error::json_response;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::json;

pub(super) async fn get(state: Shared) -> Response {
    let (stats, limits) = (state.llm.stats(), state.llm.limits());
    let used = stats.kv_slots_used - stats.kv_slots_unused;
    let load = json!({
        "dp_rank": 0,
        "num_running_reqs": stats.n_running,
        "num_waiting_reqs": stats.n_waiting,
        "num_total_reqs": stats.n_running + stats.n_waiting,
        "max_running_requests": limits.max_num_seqs,
        "num_used_tokens": used,
        "max_total_num_tokens": limits.kv_len,
        "token_usage": used as f64 / limits.kv_len as f64,
    });
    let body = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "dp_rank_count": 1,
        "loads": [load],
    });
    json_response(StatusCode::OK, &body)
}
