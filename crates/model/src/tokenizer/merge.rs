//! The merge loop that byte-level BPE and SentencePiece BPE share.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// A symbol that has no number: nothing merges with it by number.
pub(super) const NO_SYMBOL: u32 = u32::MAX;

/// Words longer than this are cut, which nobody will see.
const MAX_WORD_BYTES: usize = 1 << 30;

/// The word in parts that a [`Merger`] can hold: one, save for absurd lengths.
pub(super) fn parts_of(word: &str) -> impl Iterator<Item = &str> {
    let mut rest = word;
    std::iter::from_fn(move || {
        let end = match rest.len() {
            0 => return None,
            len if len <= MAX_WORD_BYTES => len,
            _ => (0..=MAX_WORD_BYTES).rev().find(|&i| rest.is_char_boundary(i))?,
        };
        let (part, after) = rest.split_at(end);
        rest = after;
        Some(part)
    })
}

/// Which neighbours may be joined.
pub(super) trait Merges {
    /// What joining `left` and `right`, which stand side by side in `word`, gives: its rank (the
    /// least is joined first) and the symbol it makes.
    fn merge(&self, word: &[u8], left: &Symbol, right: &Symbol) -> Option<(u32, u32)>;
}

/// A run of bytes of a word that has not been joined further yet.
///
/// Words have less than 4 GiB, so that four such numbers make a small entry of the heap: on long
/// words the time goes into moving those.
#[derive(Clone, Debug)]
pub(super) struct Symbol {
    pub id: u32,
    pub start: u32,
    pub end: u32,
    prev: u32,
    next: u32,
}

impl Symbol {
    /// The bytes of the word that it stands for.
    pub fn bytes(&self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    fn is_joined_to_its_left(&self) -> bool {
        self.start == self.end
    }
}

/// A possible merge; the order of the fields is the order in which merges happen.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    left: u32,
    end: u32,
    id: u32,
}

/// Joins symbols: always the pair of least rank, of equals the leftmost.
///
/// O(n log n) in the number of symbols, whatever the word. The memory is kept between words.
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

    /// Adds the next `len` bytes of the word as a symbol.
    pub fn push(&mut self, id: u32, len: usize) {
        let i = self.symbols.len() as u32;
        let start = self.symbols.last().map_or(0, |last| last.end);
        let end = start + len as u32;
        self.symbols.push(Symbol { id, start, end, prev: i.wrapping_sub(1), next: i + 1 });
    }

    /// Joins what can be joined.
    pub fn run(&mut self, word: &[u8], merges: &impl Merges) {
        for right in 1..self.symbols.len() as u32 {
            self.offer(word, merges, right - 1, right);
        }
        while let Some(Reverse(Candidate { left, end, id, .. })) = self.heap.pop() {
            let symbol = &self.symbols[left as usize];
            let right = symbol.next;
            // If either has grown meanwhile, the right one ends elsewhere.
            if symbol.is_joined_to_its_left()
                || self.symbols.get(right as usize).is_none_or(|right| right.end != end)
            {
                continue;
            }
            let prev = symbol.prev;
            let joined = &mut self.symbols[right as usize];
            let next = joined.next;
            joined.end = joined.start;
            let symbol = &mut self.symbols[left as usize];
            (symbol.id, symbol.end, symbol.next) = (id, end, next);
            if let Some(symbol) = self.symbols.get_mut(next as usize) {
                symbol.prev = left;
                self.offer(word, merges, left, next);
            }
            if (prev as usize) < self.symbols.len() {
                self.offer(word, merges, prev, left);
            }
        }
    }

    /// The symbols that are left, in text order.
    pub fn symbols(&self) -> impl Iterator<Item = &Symbol> {
        self.symbols.iter().filter(|symbol| !symbol.is_joined_to_its_left())
    }

    fn offer(&mut self, word: &[u8], merges: &impl Merges, left: u32, right: u32) {
        let (l, r) = (&self.symbols[left as usize], &self.symbols[right as usize]);
        if let Some((rank, id)) = merges.merge(word, l, r) {
            self.heap.push(Reverse(Candidate { rank, left, end: r.end, id }));
        }
    }
}
