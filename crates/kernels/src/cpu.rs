//! [`Cpu`]: the processor as the rest of paceline sees it. Its methods are the ops; each lives in
//! the file named after it, checks its shapes once, cuts its work into items and runs the kernel of
//! the chosen instruction set on the team.

use crate::attention;
use crate::isa::Isa;
use crate::profile::Profile;
use crate::team::Team;
use std::sync::{Arc, Mutex};

/// A processor: an instruction set and a team of threads.
pub struct Cpu {
    pub(crate) isa: Isa,
    pub(crate) team: Team,
    pub(crate) attention: Mutex<attention::Scratch>,
    /// For each thread, products on their way through [`Cpu::linear_gated`].
    pub(crate) products: Vec<Mutex<Vec<f32>>>,
    pub(crate) profile: Arc<Profile>,
}

impl Cpu {
    /// A processor that runs `isa` on `n_threads` threads.
    ///
    /// # Panics
    /// If this machine cannot run `isa`, or `n_threads` is 0.
    pub fn new(isa: Isa, n_threads: usize) -> Cpu {
        assert!(isa.is_available(), "this machine cannot run {isa}");
        Cpu {
            isa,
            team: Team::new(n_threads),
            attention: Mutex::default(),
            products: (0..n_threads).map(|_| Mutex::default()).collect(),
            profile: Arc::default(),
        }
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Where the time of the ops goes.
    pub fn profile(&self) -> Arc<Profile> {
        self.profile.clone()
    }

    /// Threads in use, the calling one included.
    pub fn n_threads(&self) -> usize {
        self.team.n_threads()
    }
}
