//! `GET /v1/models` and `/v1/models/NAME`

use super::error::{ApiError, json_response};
use super::{Shared, State};
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

pub(super) async fn list(state: Shared) -> Response {
    json_response(StatusCode::OK, &json!({"object": "list", "data": [model(&state)]}))
}

pub(super) async fn show(state: Shared, Path(name): Path<String>) -> Result<Response, ApiError> {
    let served = &state.config.model_name;
    match name == *served {
        true => Ok(json_response(StatusCode::OK, &model(&state))),
        false => Err(ApiError::no_model(&name, served)),
    }
}

fn model(state: &State) -> Value {
    json!({
        "id": state.config.model_name,
        "object": "model",
        "created": 0,
        "owned_by": "paceline",
        "max_model_len": state.llm.limits().max_model_len,
    })
}
