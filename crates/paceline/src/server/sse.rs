//! Server-sent events: an answer as it is generated.

use super::answer::{Answer, Format};
use super::error::ApiError;
use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::{FutureExt, stream};
use paceline_engine::Event;
use serde_json::Value;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::panic::AssertUnwindSafe;

/// An answer as a stream of events. When the client goes away the body is dropped, and with it the
/// job, which aborts its sequences.
pub(super) fn respond<F: Format>(answer: Answer<F>) -> Response {
    let ready = answer.open().iter().map(event).collect();
    let events = Events { answer, ready, over: false };
    let body = stream::unfold(events, async |mut events| {
        // Who panics harms nobody else; the message is on standard error.
        let next = AssertUnwindSafe(events.next()).catch_unwind().await;
        let bytes = match next {
            Ok(next) => next?,
            Err(_) => events.fail(ApiError::bug()),
        };
        Some((Ok::<Bytes, Infallible>(bytes), events))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
        // Asks proxies to pass each event on at once.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(body)).into_response()
}

/// A comment, which says nothing to the client and keeps proxies from giving up on a silent stream.
const HEARTBEAT: Bytes = Bytes::from_static(b": still computing\n\n");

struct Events<F> {
    answer: Answer<F>,
    ready: VecDeque<Bytes>,
    over: bool,
}

impl<F: Format> Events<F> {
    /// The next event; `None` when there are no more.
    async fn next(&mut self) -> Option<Bytes> {
        while self.ready.is_empty() && !self.over {
            let heartbeat = self.answer.heartbeat();
            let next = tokio::time::timeout(heartbeat, self.answer.job.next());
            let Ok(next) = next.await else {
                return Some(HEARTBEAT);
            };
            match next {
                Ok(Some((prompt, event))) => self.show(prompt, event),
                Ok(None) => {
                    if self.answer.delivery.include_usage {
                        self.ready.push_back(event(&self.answer.usage()));
                    }
                    self.ready.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
                    self.over = true;
                }
                Err(error) => return Some(self.fail(error.into())),
            }
        }
        self.ready.pop_front()
    }

    fn show(&mut self, prompt: usize, engine_event: Event) {
        let index = |choice| prompt * self.answer.job.n + choice;
        match engine_event {
            Event::Started { .. } | Event::PromptLogprobs { .. } => {}
            Event::Token { choice, token, text, logprobs, .. } => {
                let index = index(choice);
                let chunk = self.answer.token(index, token, &text, logprobs.as_ref());
                self.ready.extend(chunk.as_ref().map(event));
            }
            Event::Finished { choice, reason, stop, .. } => {
                let chunk = self.answer.close(index(choice), reason, stop.as_ref());
                self.ready.push_back(event(&chunk));
            }
        }
    }

    fn fail(&mut self, error: ApiError) -> Bytes {
        self.over = true;
        self.ready.clear();
        event(&error.to_json())
    }
}

/// `data: {...}`; JSON on one line needs no more framing.
fn event(value: &Value) -> Bytes {
    Bytes::from(format!("data: {value}\n\n"))
}
