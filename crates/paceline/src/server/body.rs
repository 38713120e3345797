//! [`Whole`]: the body of a request, within the limits of size and time.

use super::State;
use super::error::ApiError;
use super::record::Context;
use axum::body::{Bytes, HttpBody};
use axum::extract::{FromRequest, Request};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use std::sync::Arc;
use tokio::time::timeout;

/// The body of a request.
pub(super) struct Whole(pub Bytes);

impl FromRequest<Arc<State>> for Whole {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &Arc<State>) -> Result<Whole, ApiError> {
        let (limit, time) = (state.config.body_limit, state.config.body_timeout);
        let (parts, body) = request.into_parts();
        // What is announced as too large is refused before it comes.
        if body.size_hint().lower() > limit as u64 {
            return Err(ApiError::too_large(limit));
        }
        let bytes = match timeout(time, Limited::new(body, limit).collect()).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) if error.is::<LengthLimitError>() => {
                return Err(ApiError::too_large(limit));
            }
            Ok(Err(error)) => {
                return Err(ApiError::body(format!("the body cannot be read: {error}")));
            }
            Err(_) => return Err(ApiError::too_slow(time)),
        };
        if let Some(context) = parts.extensions.get::<Context>() {
            context.connection.answers();
            if state.config.log_prompts {
                let body = String::from_utf8_lossy(&bytes);
                tracing::info!(id = &*context.id, %body, "prompt");
            }
        }
        Ok(Whole(bytes))
    }
}
