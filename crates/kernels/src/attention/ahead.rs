//! What few rows of attention ask memory for before they need it.

use super::tile::MAX_PAGES;
use crate::simd::{Kernel, Simd};

/// Small tiles wait for memory: they ask for it so far ahead. Pages are too short for the processor
/// to see a pattern.
pub(super) const AHEAD_BYTES: usize = 8 << 10;

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

/// Pages that will be read soon, on their way line by line: asked for all at once they would hold
/// up what is read now.
pub(super) struct Ahead {
    /// The first line and the number of lines.
    pages: [(*const u8, usize); 3 * MAX_PAGES],
    page: usize,
    /// The next line, and how many of the page are left.
    line: *const u8,
    n: usize,
}

impl Default for Ahead {
    /// Nothing.
    fn default() -> Ahead {
        let nothing = (std::ptr::null(), 0);
        Ahead { pages: [nothing; 3 * MAX_PAGES], page: 0, line: nothing.0, n: 0 }
    }
}

impl Ahead {
    /// `pages` that are not empty, from the `first` of them on.
    pub(super) fn over<'a>(pages: impl Iterator<Item = &'a [u8]>, first: usize) -> Ahead {
        let mut ahead = Ahead::default();
        for (to, page) in ahead.pages.iter_mut().zip(pages.filter(|page| !page.is_empty())) {
            *to = (page.as_ptr(), page.len().div_ceil(LINE));
        }
        ahead.turn_to(first);
        ahead
    }

    fn turn_to(&mut self, page: usize) {
        self.page = page;
        (self.line, self.n) = self.pages.get(page).copied().unwrap_or((std::ptr::null(), 0));
    }

    /// Asks for the next `n_lines`.
    #[inline(always)]
    pub(super) fn step<S: Simd>(&mut self, s: S, n_lines: usize) {
        if self.n < n_lines {
            if self.page < self.pages.len() {
                self.turn_to(self.page + 1);
            }
            return;
        }
        for i in 0..n_lines {
            s.fetch(self.line.wrapping_add(LINE * i));
        }
        self.line = self.line.wrapping_add(LINE * n_lines);
        self.n -= n_lines;
    }
}

/// Asks for a whole page.
pub(super) struct FetchPage<'a>(pub(super) &'a [u8]);

impl Kernel for FetchPage<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.0.chunks(LINE).for_each(|line| s.fetch(line.as_ptr()));
    }
}
