//! The thread team: fork-join over a handful of threads, thousands of times a second.
//!
//! A decoded token takes a few hundred parallel regions of some ten microseconds each, so a region
//! must start in well under a microsecond. Workers therefore spin for the next region for a bounded
//! time and then park; with more threads than cores they park at once, since a spinning thread
//! would burn the very time slice that its partner needs.
//!
//! The team never decides *what* is computed: work is cut into numbered items whose results do not
//! depend on the thread that runs them.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{JoinHandle, Thread};

/// Spins of a worker before it parks: some 50 us, longer than any gap inside a forward pass.
const SPINS: u32 = 4_000;

/// A fixed set of threads that run parallel regions together with the calling thread.
pub struct Team {
    shared: Arc<Shared>,
    workers: Vec<Worker>,
    /// Taken by the region in progress: a second caller would overwrite its job.
    busy: AtomicBool,
    /// Of each thread's share, the next piece.
    next: Vec<Next>,
}

/// On a line of its own.
#[repr(align(128))]
#[derive(Default)]
struct Next(AtomicUsize);

/// Pieces of a thread's share. Taking one costs some 20 ns.
const PIECES: usize = 4;

struct Worker {
    thread: Thread,
    handle: Option<JoinHandle<()>>,
}

/// A region's closure, borrowed from the caller's stack for the time of the region.
type Job = *const (dyn Fn(usize) + Sync);

struct Shared {
    job: UnsafeCell<Option<Job>>,
    /// Counts regions; a worker runs the job once each time it changes.
    epoch: AtomicUsize,
    /// Workers still inside the current region.
    running: AtomicUsize,
    parked: Vec<AtomicBool>,
    panicked: AtomicBool,
    stop: AtomicBool,
    spins: u32,
}

// SAFETY: `job` is written only by the caller of `run` while no worker is inside a region
// (`running == 0`), and read by workers only after the Release increment of `epoch`.
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer in `job` is only followed during the region whose caller keeps the closure alive.
unsafe impl Send for Shared {}

impl Team {
    /// A team of `n_threads`, the caller included.
    ///
    /// # Panics
    /// If `n_threads` is 0, or the system refuses a thread.
    pub fn new(n_threads: usize) -> Team {
        assert!(n_threads > 0, "a team needs at least one thread");
        let oversubscribed = n_threads > available_cores();
        let shared = Arc::new(Shared {
            job: UnsafeCell::new(None),
            epoch: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            parked: (1..n_threads).map(|_| AtomicBool::new(false)).collect(),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            spins: if oversubscribed { 0 } else { SPINS },
        });
        let workers = (1..n_threads)
            .map(|id| {
                let shared = Arc::clone(&shared);
                let handle = std::thread::Builder::new()
                    .name(format!("paceline-{id}"))
                    .spawn(move || work(&shared, id))
                    .expect("cannot start a worker thread");
                Worker { thread: handle.thread().clone(), handle: Some(handle) }
            })
            .collect();
        let next = std::iter::repeat_with(Next::default).take(n_threads).collect();
        Team { shared, workers, busy: AtomicBool::new(false), next }
    }

    /// Threads of the team, the caller included.
    pub fn n_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `job(thread)` once on every thread of the team, `thread` in `0..n_threads`, and waits for all.
    ///
    /// # Panics
    /// If a job panics (after all have ended), or a region is already in progress.
    pub fn run(&self, job: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() {
            return job(0);
        }
        assert!(!self.busy.swap(true, Ordering::Acquire), "a team runs one region at a time");
        let shared = &*self.shared;
        // SAFETY: the lifetime is erased only until the wait below ends, on every path out of this function.
        let job_ptr: Job = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(job) };
        // SAFETY: `running` is 0 and `busy` is ours: no other thread touches `job`.
        unsafe { *shared.job.get() = Some(job_ptr) };
        shared.running.store(self.workers.len(), Ordering::Relaxed);
        // SeqCst pairs with the parking worker: either it sees the new epoch or we see it parked.
        shared.epoch.fetch_add(1, Ordering::SeqCst);
        for (worker, parked) in self.workers.iter().zip(&shared.parked) {
            if parked.load(Ordering::SeqCst) {
                worker.thread.unpark();
            }
        }
        let ours = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job(0)));
        let mut spins = 0u32;
        while shared.running.load(Ordering::Acquire) > 0 {
            spins += 1;
            if spins <= shared.spins { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        let theirs = shared.panicked.swap(false, Ordering::Relaxed);
        self.busy.store(false, Ordering::Release);
        match ours {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => assert!(!theirs, "a worker thread panicked"),
        }
    }

    /// Cuts the share of each thread into pieces and runs `job(thread, share, piece)` once for each, on
    /// whatever thread: its own in order, and then what is left of the others', so that nobody waits long
    /// for one whose core the system gave away.
    ///
    /// # Panics
    /// As [`Team::run`].
    pub fn share(&self, job: impl Fn(usize, usize, Piece) + Sync) {
        let n_threads = self.n_threads();
        if n_threads == 1 {
            return job(0, 0, Piece { i: 0, n: 1 });
        }
        self.next.iter().for_each(|next| next.0.store(0, Ordering::Relaxed));
        self.run(&|thread| {
            for share in (thread..n_threads).chain(0..thread) {
                loop {
                    let i = self.next[share].0.fetch_add(1, Ordering::Relaxed);
                    if i >= PIECES {
                        break;
                    }
                    job(thread, share, Piece { i, n: PIECES });
                }
            }
        });
    }

    /// Runs `job(item)` for every item in `0..n_items`, one contiguous range being a thread's share.
    ///
    /// # Panics
    /// As [`Team::run`].
    pub fn for_each(&self, n_items: usize, job: impl Fn(usize) + Sync) {
        let n_threads = self.n_threads();
        if n_items <= 1 || n_threads == 1 {
            return (0..n_items).for_each(job);
        }
        self.share(|_, share, piece| {
            let cut = |share: usize| n_items * share / n_threads;
            piece.of(cut(share)..cut(share + 1)).for_each(&job);
        });
    }
}

/// Piece `i` of `n`.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    i: usize,
    n: usize,
}

impl Piece {
    /// Its part of a range.
    pub fn of(self, range: Range<usize>) -> Range<usize> {
        let cut =
            |i: usize| range.start + (range.len() as u128 * i as u128 / self.n as u128) as usize;
        cut(self.i)..cut(self.i + 1)
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        for worker in &mut self.workers {
            worker.thread.unpark();
            if let Some(handle) = worker.handle.take() {
                let _ = handle.join();
            }
        }
    }
}

fn work(shared: &Shared, id: usize) {
    let parked = &shared.parked[id - 1];
    let mut seen = 0;
    loop {
        let mut spins = 0;
        while shared.epoch.load(Ordering::Acquire) == seen {
            if spins < shared.spins {
                spins += 1;
                std::hint::spin_loop();
                continue;
            }
            parked.store(true, Ordering::SeqCst);
            while shared.epoch.load(Ordering::SeqCst) == seen {
                std::thread::park();
            }
            parked.store(false, Ordering::SeqCst);
        }
        seen = shared.epoch.load(Ordering::Acquire);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        // SAFETY: the Acquire load of `epoch` ordered the write of `job` before this read, and the
        // caller keeps the closure alive until `running` is 0, which happens after the call below.
        let job = unsafe { (*shared.job.get()).expect("a region has a job") };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            // SAFETY: as above.
            unsafe { (*job)(id) }
        }));
        if outcome.is_err() {
            shared.panicked.store(true, Ordering::Relaxed);
        }
        shared.running.fetch_sub(1, Ordering::Release);
    }
}

/// Cores that this process may use: affinity and the cgroup CPU quota included.
pub fn available_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_runs_once() {
        for n_threads in [1, 2, 3, 8] {
            let team = Team::new(n_threads);
            for n_items in [0, 1, 2, 7, 64] {
                let counts: Vec<AtomicUsize> = (0..n_items).map(|_| AtomicUsize::new(0)).collect();
                for _ in 0..100 {
                    team.for_each(n_items, |item| {
                        counts[item].fetch_add(1, Ordering::Relaxed);
                    });
                }
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 100));
            }
        }
    }

    #[test]
    fn parked_workers_wake_up() {
        let team = Team::new(3);
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(5));
            let count = AtomicUsize::new(0);
            team.run(&|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.load(Ordering::Relaxed), 3);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_survives() {
        let team = Team::new(2);
        for bad in [0, 1] {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                team.run(&|thread| assert_ne!(thread, bad));
            }));
            assert!(outcome.is_err());
        }
        team.run(&|_| {});
    }
}
