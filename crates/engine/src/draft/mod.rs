//! Guesses of what comes next, verified many at a time in one step.
//!
//! A draft cannot change the text: the engine samples every position from the model as usual and
//! keeps going along the drafts while they equal the samples. A better drafter is a faster one.

mod lookup;

pub use lookup::Lookup;
use paceline_model::TokenId;

/// Guesses the continuation of one sequence.
pub trait Drafter: Send {
    /// Appends at most `max` guesses for what follows `tokens`; may append none. From call to call
    /// `tokens` only grows.
    fn draft(&mut self, tokens: &[TokenId], max: usize, out: &mut Vec<TokenId>);
}

/// Where drafts come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speculate {
    /// Nowhere.
    #[default]
    Off,
    /// From what followed the last time that the sequence's last tokens occurred in it.
    Lookup {
        /// K: the most drafts of one sequence in one step.
        max_drafts: usize,
    },
}

impl Speculate {
    /// A drafter for a new sequence, with the largest depth to use it at.
    pub(crate) fn start(&self) -> Option<Speculation> {
        match *self {
            Speculate::Off | Speculate::Lookup { max_drafts: 0 } => None,
            Speculate::Lookup { max_drafts } => Some(Speculation {
                drafter: Box::new(Lookup::new()),
                depth: Depth::new(max_drafts),
            }),
        }
    }
}

/// A sequence's drafter and how far it is trusted.
pub(crate) struct Speculation {
    pub drafter: Box<dyn Drafter>,
    pub depth: Depth,
}

/// How many drafts to ask for: follows what was accepted, down to none.
///
/// All accepted: two more. Some rejected: as many as were accepted. None accepted: no drafts for a
/// number of steps that doubles each time, then one to see.
#[derive(Clone, Debug)]
pub struct Depth {
    max: usize,
    depth: usize,
    /// Steps to go without drafts.
    rest: usize,
    next_rest: usize,
}

/// The longest time without a draft, in steps.
const MAX_REST: usize = 64;

impl Depth {
    /// Begins at `max`, and never exceeds it.
    pub fn new(max: usize) -> Depth {
        Depth { max, depth: max, rest: 0, next_rest: 1 }
    }

    /// The number of drafts for the next step.
    pub fn n_drafts(&mut self) -> usize {
        if self.rest > 0 {
            self.rest -= 1;
            return 0;
        }
        self.depth
    }

    /// Learns how many of the proposed drafts were accepted.
    pub fn learn(&mut self, proposed: usize, accepted: usize) {
        if proposed == 0 {
            return;
        }
        if accepted == proposed {
            self.depth = (self.depth + 2).min(self.max);
            self.next_rest = 1;
        } else if accepted > 0 {
            self.depth = accepted;
            self.next_rest = 1;
        } else {
            self.depth = 1;
            self.rest = self.next_rest;
            self.next_rest = (self.next_rest * 2).min(MAX_REST);
        }
    }
}
