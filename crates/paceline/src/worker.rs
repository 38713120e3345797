//! The engine's thread: one thread owns the engine, so nothing in it needs a lock.
//!
//! ```text
//! callers -> Command -> [ take commands, step while there is work, else wait ] -> Event -> sinks
//! ```

use paceline_engine::{Engine, Event, Request, RequestId, Stats};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// Takes a request's events, and when they happened; false if nobody is interested any more, which
/// aborts the request.
pub(crate) type Sink = Box<dyn FnMut(Instant, Event) -> bool + Send>;

/// All that one can ask of the engine's thread.
enum Command {
    Add { ticket: u64, request: Box<Request>, sink: Sink },
    Abort { ticket: u64 },
    AbortAll,
    Stop,
}

/// The engine's thread, from outside.
pub(crate) struct Worker {
    commands: Sender<Command>,
    thread: Option<JoinHandle<()>>,
    next_ticket: AtomicU64,
    stats: Arc<Mutex<Stats>>,
}

/// A request that is under way: dropping it aborts the request, if that has not ended.
pub(crate) struct Ticket {
    number: u64,
    commands: Sender<Command>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // No thread, nothing to abort.
        let _ = self.commands.send(Command::Abort { ticket: self.number });
    }
}

impl Worker {
    /// Gives an engine a thread of its own.
    pub fn start(engine: Engine) -> std::io::Result<Worker> {
        let (commands, receiver) = channel();
        let stats = Arc::new(Mutex::new(*engine.stats()));
        let shared = stats.clone();
        let thread = std::thread::Builder::new()
            .name("engine".to_owned())
            .spawn(move || run(engine, &receiver, &shared))?;
        let next_ticket = AtomicU64::new(0);
        Ok(Worker { commands, thread: Some(thread), next_ticket, stats })
    }

    /// Hands a request to the engine. If its thread has failed, `sink` is dropped without an event.
    pub fn submit(&self, request: Request, sink: Sink) -> Ticket {
        let ticket = self.next_ticket.fetch_add(1, Ordering::Relaxed);
        let request = Box::new(request);
        let _ = self.commands.send(Command::Add { ticket, request, sink });
        Ticket { number: ticket, commands: self.commands.clone() }
    }

    /// Ends all requests; each gets its last event.
    pub fn abort_all(&self) {
        let _ = self.commands.send(Command::AbortAll);
    }

    /// Whether the thread still runs; it ends before its worker only by a bug.
    pub fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// The engine's counters after its last step.
    pub fn stats(&self) -> Stats {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Stop);
        if let Some(thread) = self.thread.take() {
            // Its panic, if there was one, has been printed.
            let _ = thread.join();
        }
    }
}

/// Where the events of a request go.
struct Client {
    ticket: u64,
    /// Choices that have not ended.
    n_open: usize,
    sink: Sink,
}

fn run(mut engine: Engine, commands: &Receiver<Command>, stats: &Mutex<Stats>) {
    let mut clients: HashMap<RequestId, Client> = HashMap::new();
    let origin = Instant::now();
    loop {
        let next = match engine.has_work() {
            true => commands.try_recv(),
            false => commands.recv().map_err(|_| TryRecvError::Disconnected),
        };
        engine.at(origin.elapsed());
        match next {
            Ok(Command::Add { ticket, request, sink }) => {
                let n_open = request.params().n;
                clients.insert(engine.add(*request), Client { ticket, n_open, sink });
            }
            Ok(Command::Abort { ticket }) => {
                let ids = clients.iter().filter(|(_, client)| client.ticket == ticket);
                let ids: Vec<RequestId> = ids.map(|(id, _)| *id).collect();
                for id in ids {
                    engine.abort(id);
                    clients.remove(&id);
                }
            }
            Ok(Command::AbortAll) => clients.keys().for_each(|id| engine.abort(*id)),
            Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {
                let begun = Instant::now();
                let events = engine.step();
                let ended = Instant::now();
                engine.took(ended - begun);
                // Before the events: who reads them may look at the counters next.
                publish(&engine, stats);
                for event in events {
                    let at = if matches!(event, Event::Started { .. }) { begun } else { ended };
                    deliver(at, event, &mut clients, &mut engine);
                }
            }
        }
        publish(&engine, stats);
    }
}

fn publish(engine: &Engine, stats: &Mutex<Stats>) {
    *stats.lock().unwrap_or_else(PoisonError::into_inner) = *engine.stats();
}

fn deliver(
    at: Instant,
    event: Event,
    clients: &mut HashMap<RequestId, Client>,
    engine: &mut Engine,
) {
    let (id, ends) = match &event {
        Event::Started { id, .. } | Event::PromptLogprobs { id, .. } | Event::Token { id, .. } => {
            (*id, false)
        }
        Event::Finished { id, .. } => (*id, true),
    };
    // Events of an aborted request find no client.
    let Some(client) = clients.get_mut(&id) else { return };
    client.n_open -= usize::from(ends);
    let over = client.n_open == 0;
    if !(client.sink)(at, event) {
        engine.abort(id);
        clients.remove(&id);
    } else if over {
        clients.remove(&id);
    }
}
