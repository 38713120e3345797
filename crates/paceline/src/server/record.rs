//! [`Record`]: one HTTP request from its head to the end of its answer, for the log and the metrics.

use super::State;
use super::error::{ApiError, Problem};
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{FromRequestParts, MatchedPath, Request};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use hyper::body::{Frame, SizeHint};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{self, Poll};
use std::time::{Duration, Instant};

/// A connection, for who has to decide whether to wait for it.
#[derive(Clone, Default)]
pub(super) struct Connection(Arc<AtomicBool>);

impl Connection {
    /// A request is here as a whole, and its answer is not.
    pub fn is_answering(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub fn answers(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn has_answered(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// What an answer has cost.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    pub prompt_tokens: usize,
    pub cached_tokens: usize,
    pub completion_tokens: usize,
    /// Until the first sequence ran.
    pub queue: Option<Duration>,
    /// Until the first token.
    pub first_token: Option<Duration>,
    /// Of the last choice that ended.
    pub finish_reason: Option<&'static str>,
}

/// What is known of a request before it is read.
#[derive(Clone)]
pub(super) struct Context {
    pub id: Arc<str>,
    /// Whom the key stands for.
    pub tenant: Option<Arc<str>>,
    pub arrived: Instant,
    pub connection: Connection,
    figures: Arc<Mutex<Figures>>,
}

impl Context {
    pub fn new(request: &Request, id: Arc<str>, tenant: Option<Arc<str>>) -> Context {
        let connection = request.extensions().get::<Connection>().cloned().unwrap_or_default();
        Context { id, tenant, arrived: Instant::now(), connection, figures: Arc::default() }
    }

    pub fn figures(&self) -> MutexGuard<'_, Figures> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Sync> FromRequestParts<S> for Context {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Context, ApiError> {
        parts.extensions.get().cloned().ok_or_else(ApiError::bug)
    }
}

/// A request under way. When it is dropped, it is over, and gets its line in the log.
pub(super) struct Record {
    state: Arc<State>,
    context: Context,
    method: Method,
    path: String,
    /// As the routes spell it.
    route: Option<MatchedPath>,
    status: Option<StatusCode>,
    problem: Option<Problem>,
    /// The answer went out as a whole.
    complete: bool,
}

impl Record {
    pub fn begin(state: Arc<State>, request: &Request, context: Context) -> Record {
        Record {
            state,
            context,
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
            route: request.extensions().get().cloned(),
            status: None,
            problem: None,
            // Of an answer to HEAD there is only the head.
            complete: request.method() == Method::HEAD,
        }
    }

    /// The head of the answer is there.
    pub fn answer(&mut self, status: StatusCode, problem: Option<Problem>) {
        (self.status, self.problem) = (Some(status), problem);
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let context = &self.context;
        context.connection.has_answered();
        let figures = context.figures().clone();
        let seconds = |time: Duration| time.as_secs_f64();
        // As proxies write it for a client that did not wait.
        let status =
            if self.complete { self.status.map_or(499, |status| status.as_u16()) } else { 499 };
        let route = self.route.as_ref().map_or("other", |route| route.as_str());
        self.state.metrics.answered(route, status);
        macro_rules! log {
            ($level:ident, $($figures:tt)*) => {
                tracing::$level!(
                    id = &*context.id,
                    tenant = context.tenant.as_deref(),
                    method = self.method.as_str(),
                    path = self.path,
                    status,
                    error = self.problem.as_ref().map(|problem| problem.0.as_str()),
                    $($figures)*
                    total_s = seconds(context.arrived.elapsed()),
                    "request",
                )
            };
        }
        match self.method {
            Method::POST if figures.prompt_tokens > 0 => log!(
                info,
                prompt_tokens = figures.prompt_tokens,
                cached_tokens = figures.cached_tokens,
                completion_tokens = figures.completion_tokens,
                finish_reason = figures.finish_reason,
                queue_s = figures.queue.map(seconds),
                first_token_s = figures.first_token.map(seconds),
            ),
            Method::POST => log!(info,),
            _ => log!(debug,),
        }
    }
}

/// The body of an answer, with the record that it ends.
pub(super) struct Recorded {
    body: Body,
    record: Record,
}

impl Recorded {
    pub fn new(body: Body, record: Record) -> Recorded {
        Recorded { body, record }
    }
}

impl HttpBody for Recorded {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut task::Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        self.record.complete |= matches!(polled, Poll::Ready(None));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        self.record.complete |= self.body.is_end_stream();
    }
}
