//! The engine's thread: one thread owns the engine, so nothing in it needs a lock.
//!
//! ```text
//! callers -> Command -> [ take commands, step while there is work, else wait ] -> Event -> sinks
//! ```
//!
//! A panic in what is done for one request ends that request, one in what is done for all of a step
//! ends those under way; the thread goes on. A request that ends so has no last event: its sink is
//! dropped.

use paceline_engine::{Engine, Event, FinishReason, Request, RequestId, Stats};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// Takes a request's events, and when they happened; false if nobody is interested any more, which
/// aborts the request.
pub(crate) type Sink = Box<dyn FnMut(Instant, Event) -> bool + Send>;

/// All that one can ask of the engine's thread.
enum Command {
    Add { ticket: u64, asked: Vec<Asked> },
    Abort { ticket: u64 },
    AbortAll,
    Stop,
}

/// A request on its way to the engine.
struct Asked {
    request: Request,
    sink: Sink,
    place: Place,
}

/// The requests that nothing has been computed for yet.
#[derive(Default)]
struct Queue {
    len: AtomicUsize,
    /// Sequences that could run besides those that do: so many requests do not wait.
    free: AtomicUsize,
    /// How long the last one that left had been there, in milliseconds.
    wait: AtomicU64,
}

/// A place in the queue; dropping it gives it up.
struct Place {
    queue: Arc<Queue>,
    since: Instant,
}

impl Drop for Place {
    fn drop(&mut self) {
        let wait = self.since.elapsed().as_millis();
        self.queue.wait.store(u64::try_from(wait).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.queue.len.fetch_sub(1, Ordering::Relaxed);
    }
}

/// There is no room for requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// For now.
    Now {
        /// When to try again, in seconds.
        retry_after: u64,
    },
    /// They are more than there is ever room for.
    Always,
}

/// The engine's thread, from outside.
pub(crate) struct Worker {
    commands: Sender<Command>,
    queue: Arc<Queue>,
    max_num_seqs: usize,
    thread: Option<JoinHandle<()>>,
    next_ticket: AtomicU64,
    stats: Arc<Mutex<Stats>>,
}

/// Requests that are under way: dropping it aborts those that have not ended.
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
        let max_num_seqs = engine.limits().max_num_seqs;
        let queue = Arc::new(Queue { free: max_num_seqs.into(), ..Queue::default() });
        let shared = (stats.clone(), queue.clone());
        let thread = std::thread::Builder::new()
            .name("engine".to_owned())
            .spawn(move || run(engine, &receiver, &shared.0, &shared.1))?;
        let next_ticket = AtomicU64::new(0);
        Ok(Worker { commands, queue, max_num_seqs, thread: Some(thread), next_ticket, stats })
    }

    /// Hands requests to the engine, all or, if more than `max_queue` would wait then for others to
    /// end, none. If its thread has failed, the sinks are dropped without an event.
    pub fn submit(&self, requests: Vec<(Request, Sink)>, max_queue: usize) -> Result<Ticket, Full> {
        let (n, order) = (requests.len(), Ordering::Relaxed);
        if n > max_queue.saturating_add(self.max_num_seqs) {
            return Err(Full::Always);
        }
        let room = self.room(max_queue);
        let longer = |len: usize| len.checked_add(n).filter(|&len| len <= room);
        self.queue.len.fetch_update(order, order, longer).map_err(|_| self.full())?;
        let since = Instant::now();
        let asked = requests.into_iter().map(|(request, sink)| {
            let place = Place { queue: self.queue.clone(), since };
            Asked { request, sink, place }
        });
        let ticket = self.next_ticket.fetch_add(1, Ordering::Relaxed);
        let _ = self.commands.send(Command::Add { ticket, asked: asked.collect() });
        Ok(Ticket { number: ticket, commands: self.commands.clone() })
    }

    /// Whether there is room for one request at least, by now.
    #[cfg(feature = "server")]
    pub fn check_room(&self, max_queue: usize) -> Result<(), Full> {
        let has_room = self.queue.len.load(Ordering::Relaxed) < self.room(max_queue);
        if has_room { Ok(()) } else { Err(self.full()) }
    }

    /// How many requests may be there that nothing has been computed for.
    fn room(&self, max_queue: usize) -> usize {
        max_queue.saturating_add(self.queue.free.load(Ordering::Relaxed))
    }

    fn full(&self) -> Full {
        // When half of the queue is gone: it does not run empty, and not all come too early.
        let wait = self.queue.wait.load(Ordering::Relaxed) / 2;
        Full::Now { retry_after: wait.div_ceil(1000).clamp(1, 60) }
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
    /// Until its first choice has started.
    place: Option<Place>,
}

fn run(mut engine: Engine, commands: &Receiver<Command>, stats: &Mutex<Stats>, queue: &Queue) {
    let mut clients: HashMap<RequestId, Client> = HashMap::new();
    // Some sequence found no room in the last step.
    let mut is_full = false;
    let origin = Instant::now();
    loop {
        let next = match engine.has_work() {
            true => commands.try_recv(),
            false => commands.recv().map_err(|_| TryRecvError::Disconnected),
        };
        engine.at(origin.elapsed());
        match next {
            Ok(Command::Add { ticket, asked }) => {
                for Asked { request, sink, place } in asked {
                    let (n_open, place) = (request.params().n, Some(place));
                    clients.insert(engine.add(request), Client { ticket, n_open, sink, place });
                }
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
            Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return engine.close(),
            Err(TryRecvError::Empty) => {
                let begun = Instant::now();
                let Ok(events) = catch_unwind(AssertUnwindSafe(|| engine.step())) else {
                    engine.reset();
                    is_full = false;
                    publish(&engine, is_full, stats, queue);
                    clients.clear();
                    continue;
                };
                let ended = Instant::now();
                engine.took(ended - begun);
                is_full = engine.stats().n_waiting > 0;
                for event in &events {
                    if let Event::Started { id, .. } = event
                        && let Some(client) = clients.get_mut(id)
                    {
                        client.place = None;
                    }
                }
                // Before the events: who reads them may look at the counters, or ask more, next.
                publish(&engine, is_full, stats, queue);
                for event in events {
                    let at = if matches!(event, Event::Started { .. }) { begun } else { ended };
                    deliver(at, event, &mut clients, &mut engine);
                }
            }
        }
        is_full &= engine.has_work();
        publish(&engine, is_full, stats, queue);
    }
}

fn publish(engine: &Engine, is_full: bool, shared: &Mutex<Stats>, queue: &Queue) {
    let stats = *engine.stats();
    let free =
        if is_full { 0 } else { engine.limits().max_num_seqs.saturating_sub(stats.n_running) };
    queue.free.store(free, Ordering::Relaxed);
    *shared.lock().unwrap_or_else(PoisonError::into_inner) = stats;
}

fn deliver(
    at: Instant,
    event: Event,
    clients: &mut HashMap<RequestId, Client>,
    engine: &mut Engine,
) {
    let (id, ends, fails) = match &event {
        Event::Started { id, .. } | Event::PromptLogprobs { id, .. } | Event::Token { id, .. } => {
            (*id, false, false)
        }
        Event::Finished { id, reason, .. } => (*id, true, *reason == FinishReason::Error),
    };
    // Events of an aborted request find no client.
    let Some(client) = clients.get_mut(&id) else { return };
    client.n_open -= usize::from(ends);
    let over = client.n_open == 0;
    let goes_on =
        !fails && catch_unwind(AssertUnwindSafe(|| (client.sink)(at, event))).unwrap_or(false);
    if !goes_on {
        engine.abort(id);
    }
    if !goes_on || over {
        clients.remove(&id);
    }
}
