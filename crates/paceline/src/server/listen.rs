//! Connections: accepted one after the other, each served by a task of its own, all in one thread.

use super::State;
use super::record::Connection;
use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::io::ErrorKind;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tower_service::Service;

/// The most headers of a request.
const MAX_HEADERS: usize = 64;

/// The longest head of a request, in bytes.
const MAX_HEAD_BYTES: usize = 32 << 10;

/// How long a shutdown waits for requests that are not here yet.
const LATECOMERS: Duration = Duration::from_secs(1);

/// How long a shutdown waits, after the time of grace, for clients to read the end of their answers.
const FAREWELL: Duration = Duration::from_secs(2);

/// Connections that the system holds until they are accepted. A crowd that comes at once would overrun the
/// standard library's 128, and some systems then reset connections that the client thinks are open.
const MAX_PENDING: i32 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Serving,
    /// Nothing new begins.
    Draining,
    /// The time of grace is over.
    Ending,
}

/// A listener for [`run`](super::run), which takes crowds; port 0 takes any that is free.
///
/// # Errors
///
/// When the address cannot be had.
pub fn listen(host: &str, port: u16) -> std::io::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind((host, port))?;
    listener.set_nonblocking(true)?;
    // The second time, `listen` only sets the length of the queue.
    socket2::SockRef::from(&listener).listen(MAX_PENDING)?;
    Ok(listener)
}

/// Serves until `shutdown` completes, and then until all is answered or the time of grace is over.
pub(super) async fn serve(
    listener: TcpListener,
    app: Router,
    state: &Arc<State>,
    shutdown: impl Future<Output = ()>,
) {
    let (phase, watched) = watch::channel(Phase::Serving);
    let mut connections = JoinSet::new();
    tokio::select! {
        () = accept(&listener, app, state, &watched, &mut connections) => {}
        () = shutdown => {}
    }
    drop(listener);
    state.stop();
    phase.send_replace(Phase::Draining);
    if timeout(state.config.grace, ended(&mut connections)).await.is_ok() {
        return;
    }
    // The answers end with `abort`; a client that does not even read that is left behind.
    state.llm.abort_all();
    phase.send_replace(Phase::Ending);
    let _ = timeout(FAREWELL, ended(&mut connections)).await;
}

async fn ended(connections: &mut JoinSet<()>) {
    while connections.join_next().await.is_some() {}
}

async fn accept(
    listener: &TcpListener,
    app: Router,
    state: &Arc<State>,
    phase: &watch::Receiver<Phase>,
    connections: &mut JoinSet<()>,
) {
    let places = Arc::new(Semaphore::new(state.config.max_connections));
    loop {
        // Without a place the next one waits in the system's queue. The semaphore is never closed.
        let Ok(place) = places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let talk = talk(stream, app.clone(), state.clone(), phase.clone());
                connections.spawn(async {
                    talk.await;
                    drop(place);
                });
            }
            // It was gone before it was accepted.
            Err(error) if is_of_client(error.kind()) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection: trying again");
                sleep(Duration::from_millis(200)).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

fn is_of_client(kind: ErrorKind) -> bool {
    use ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(kind, ConnectionAborted | ConnectionRefused | ConnectionReset)
}

async fn talk(
    stream: TcpStream,
    app: Router,
    state: Arc<State>,
    mut phase: watch::Receiver<Phase>,
) {
    // A token must not wait for the acknowledgement of the one before.
    let _ = stream.set_nodelay(true);
    let Some(tls) = &state.config.tls else { return converse(stream, app, &state, phase).await };
    let handshake = timeout(state.config.head_timeout, tls.0.accept(stream));
    let stream = tokio::select! {
        result = handshake => result,
        _ = phase.wait_for(|phase| *phase > Phase::Serving) => return,
    };
    if let Ok(Ok(stream)) = stream {
        converse(stream, app, &state, phase).await;
    }
}

/// Answers the requests of a connection.
async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    app: Router,
    state: &State,
    mut phase: watch::Receiver<Phase>,
) {
    let connection = Connection::default();
    let shared = connection.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(shared.clone());
        app.clone().call(request)
    });
    let mut talk = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(state.config.head_timeout)
            .max_headers(MAX_HEADERS)
            .max_header_size(MAX_HEAD_BYTES)
            .serve_connection(TokioIo::new(stream), service)
    );
    tokio::select! {
        _ = talk.as_mut() => return,
        _ = phase.wait_for(|phase| *phase > Phase::Serving) => {}
    }
    talk.as_mut().graceful_shutdown();
    let latecomers = async {
        let ending = phase.wait_for(|phase| *phase > Phase::Draining);
        let _ = timeout(LATECOMERS, ending).await;
    };
    tokio::select! {
        _ = talk.as_mut() => return,
        () = latecomers => {}
    }
    if connection.is_answering() {
        let _ = talk.await;
    }
}
