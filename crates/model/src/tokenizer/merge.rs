//! The merge loop that byte-level BPE and SentencePiece BPE share.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// A symbol that has no number: nothing merges with it by number.
pub(super) const NO_SYMBOL: u32 = u32::MAX;

/// Which neighbours may be joined.
pub(super) trait Merges {
    /// What joining `left` and `right`, which stand side by side in `text`, gives: its rank (the
    /// least is joined first) and the symbol it makes.
    fn merge(&self, text: &[u8], left: &Symbol, right: &Symbol) -> Option<(u32, u32)>;
}

/// A run of bytes that has not been joined further yet.
#[derive(Clone, Debug)]
pub(super) struct Symbol {
    pub id: u32,
    pub bytes: Range<usize>,
    prev: usize,
    next: usize,
}

/// A possible merge; the order of the fields is the order in which merges happen.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    left: usize,
    right: usize,
    end: usize,
    id: u32,
}

/// Joins symbols: always the pair of least rank, of equals the leftmost.
///
/// O(n log n) in the number of symbols, whatever the text. The memory is kept between words.
#[derive(Default)]
pub(super) struct Merger {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Reverse<Candidate>>,
}

impl Merger {
    /// Starts a word: symbols then come in by [`Merger::push`].
    pub fn clear(&mut self) {
        self.symbols.clear();
        self.heap.clear();
    }

    /// Adds a symbol after those already there; its bytes must follow theirs.
    pub fn push(&mut self, id: u32, bytes: Range<usize>) {
        let i = self.symbols.len();
        self.symbols.push(Symbol { id, bytes, prev: i.wrapping_sub(1), next: i + 1 });
    }

    /// Joins what can be joined.
    pub fn run(&mut self, text: &[u8], merges: &impl Merges) {
        for right in 1..self.symbols.len() {
            self.offer(text, merges, right - 1, right);
        }
        while let Some(Reverse(best)) = self.heap.pop() {
            let Candidate { left, right, end, id, .. } = best;
            // A symbol that was joined to its left is empty, one that grew ends elsewhere.
            if self.symbols[left].bytes.is_empty()
                || self.symbols[left].next != right
                || self.symbols[right].bytes.end != end
            {
                continue;
            }
            let next = self.symbols[right].next;
            self.symbols[right].bytes.end = self.symbols[right].bytes.start;
            self.symbols[left].id = id;
            self.symbols[left].bytes.end = end;
            self.symbols[left].next = next;
            if next < self.symbols.len() {
                self.symbols[next].prev = left;
                self.offer(text, merges, left, next);
            }
            let prev = self.symbols[left].prev;
            if prev < self.symbols.len() {
                self.offer(text, merges, prev, left);
            }
        }
    }

    /// The symbols that are left, in text order.
    pub fn symbols(&self) -> impl Iterator<Item = &Symbol> {
        self.symbols.iter().filter(|symbol| !symbol.bytes.is_empty())
    }

    fn offer(&mut self, text: &[u8], merges: &impl Merges, left: usize, right: usize) {
        let (l, r) = (&self.symbols[left], &self.symbols[right]);
        if let Some((rank, id)) = merges.merge(text, l, r) {
            self.heap.push(Reverse(Candidate { rank, left, right, end: r.bytes.end, id }));
        }
    }
}
