//! What few rows of attention ask memory for before they need it.

use super::segment::MAX_PAGES;
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
    pages: [(*const u8, usize); 4 * MAX_PAGES],
    n_pages: usize,
    page: usize,
    /// The next line, and how many of the page are left.
    line: *const u8,
    n: usize,
}

impl Default for Ahead {
    /// Nothing.
    fn default() -> Ahead {
        let nothing = (std::ptr::null(), 0);
        let pages = [nothing; 4 * MAX_PAGES];
        Ahead { pages, n_pages: 0, page: 0, line: nothing.0, n: 0 }
    }
}

impl Ahead {
    /// Adds a page, if it is not empty.
    #[inline]
    pub(super) fn add(&mut self, page: &[u8]) {
        if page.is_empty() {
            return;
        }
        self.pages[self.n_pages] = (page.as_ptr(), page.len().div_ceil(LINE));
        self.n_pages += 1;
        if self.n_pages == 1 {
            self.turn_to(0);
        }
    }

    fn turn_to(&mut self, page: usize) {
        self.page = page;
        (self.line, self.n) = self.pages.get(page).copied().unwrap_or((std::ptr::null(), 0));
    }

    /// Asks for the next `n_lines`.
    #[inline(always)]
    pub(super) fn step<S: Simd>(&mut self, s: S, n_lines: usize) {
        if self.n < n_lines {
            if self.page < self.n_pages {
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

/// Asks for all of some pages from a byte on.
pub(super) struct Fetch<'a> {
    pub(super) pages: &'a [&'a [u8]],
    pub(super) from: usize,
}

impl Kernel for Fetch<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for page in self.pages {
            let bytes = page.get(self.from..).unwrap_or_default();
            bytes.chunks(LINE).for_each(|line| s.fetch(line.as_ptr()));
        }
    }
}
