//! [`Whole`]: the body of a request, within the limits of size and time.

use super::State;
use super::error::ApiError;
use super::record::Context;
use axum::body::{Body, HttpBody};
use axum::extract::{FromRequest, Request};
use http_body_util::BodyExt;
use std::ops::Deref;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The body of a request, which counts among those in memory until it is dropped.
pub(super) struct Whole {
    bytes: Vec<u8>,
    _held: Option<OwnedSemaphorePermit>,
}

impl Deref for Whole {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl FromRequest<Arc<State>> for Whole {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &Arc<State>) -> Result<Whole, ApiError> {
        let time = state.config.body_timeout;
        let (parts, body) = request.into_parts();
        let read = timeout(time, read(body, state.config.body_limit, &state.body_bytes)).await;
        let whole = read.unwrap_or_else(|_| Err(ApiError::too_slow(time)))?;
        if let Some(context) = parts.extensions.get::<Context>() {
            context.connection.answers();
            if state.config.log_prompts {
                let body = String::from_utf8_lossy(&whole);
                tracing::info!(id = &*context.id, %body, "prompt");
            }
        }
        Ok(whole)
    }
}

/// Reads a body of at most `limit` bytes, each of which takes one of `room`.
async fn read(mut body: Body, limit: usize, room: &Arc<Semaphore>) -> Result<Whole, ApiError> {
    // What is announced as too large is refused before it comes.
    if body.size_hint().lower() > limit as u64 {
        return Err(ApiError::too_large(limit));
    }
    let (mut bytes, mut held) = (Vec::new(), None::<OwnedSemaphorePermit>);
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| ApiError::body(format!("the body cannot be read: {error}")))?;
        // Trailers say nothing.
        let Ok(data) = frame.into_data() else { continue };
        if data.len() > limit - bytes.len() {
            return Err(ApiError::too_large(limit));
        }
        // Nobody waits here: those who wait hold what the others wait for.
        let more = u32::try_from(data.len()).ok();
        let more = more.and_then(|n| room.clone().try_acquire_many_owned(n).ok());
        let more = more.ok_or_else(ApiError::no_memory)?;
        match &mut held {
            Some(held) => held.merge(more),
            None => held = Some(more),
        }
        bytes.extend_from_slice(&data);
    }
    Ok(Whole { bytes, _held: held })
}
