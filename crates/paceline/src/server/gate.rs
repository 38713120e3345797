//! The way in and out of every request: its id, its key, its record, and a net for panics.

use super::error::{ApiError, Problem};
use super::record::{Context, Record, Recorded};
use super::{Shared, State};
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest id that a client may give its request.
const MAX_ID_BYTES: usize = 128;

/// Paths that need no key: they show how the server is, and nothing of what it is asked.
const OPEN: [&str; 4] = ["/health", "/ready", "/version", "/metrics"];

pub(super) async fn gate(state: Shared, mut request: Request, next: Next) -> Response {
    let id = request_id(&request);
    let tenant = tenant(&state, &request);
    let context =
        Context::new(&request, id.as_str().into(), tenant.as_ref().ok().cloned().flatten());
    let mut record = Record::begin(state.0, &request, context.clone());
    let mut response = match tenant {
        Ok(_) => {
            request.extensions_mut().insert(context);
            // Who panics harms nobody else; the message is on standard error.
            let response = AssertUnwindSafe(next.run(request)).catch_unwind().await;
            response.unwrap_or_else(|_| ApiError::bug().into_response())
        }
        Err(error) => error.into_response(),
    };
    record.answer(response.status(), response.extensions_mut().remove::<Problem>());
    if let Ok(id) = HeaderValue::try_from(id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response.map(|body| Body::new(Recorded::new(body, record)))
}

/// The client's own, if it is one, else a new one.
fn request_id(request: &Request) -> String {
    let given = request.headers().get(REQUEST_ID).and_then(|id| id.to_str().ok());
    match given.filter(|id| !id.is_empty() && id.len() <= MAX_ID_BYTES) {
        Some(id) => id.to_owned(),
        None => super::new_id(),
    }
}

/// Who asks, if keys are asked for.
fn tenant(state: &State, request: &Request) -> Result<Option<Arc<str>>, ApiError> {
    let keys = &state.config.keys;
    if keys.is_empty() || OPEN.contains(&request.uri().path()) {
        return Ok(None);
    }
    let header = request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes);
    let key = header.and_then(|header| match header.split_at_checked(7) {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case(b"Bearer ") => Some(key.trim_ascii()),
        _ => None,
    });
    match key.map(|key| keys.tenant(key)) {
        Some(Some(tenant)) => Ok(Some(tenant)),
        Some(None) => Err(ApiError::unauthorized("this API key is not known here")),
        None => Err(ApiError::unauthorized("an API key is needed: Authorization: Bearer KEY")),
    }
}
