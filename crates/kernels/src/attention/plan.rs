//! How a call is cut into items.

use super::{AttentionSpan, Step};
use std::cmp::Reverse;
use std::ops::Range;

/// With fewer tiles than this for each thread the step is cut into segments as well: enough for the
/// threads to end together, and a bound on the memory of the partial results.
const FEW_TILES: usize = 8;

/// Most tiles of an item: from so many on, turning K and V into f32 costs next to nothing.
const MAX_TILES: usize = 16;

/// Some tiles of a span and what they compute.
pub(super) struct Item {
    pub(super) span: usize,
    /// The key/value head.
    pub(super) head: usize,
    /// Rows of the tiles; row `j` is query head `j % G` of the group at row `j / G` of the span.
    rows: Range<usize>,
    n_tiles: usize,
    /// All that the tiles see if the items fold, else one of them.
    pub(super) segments: Range<usize>,
}

impl Item {
    /// The rows of each tile.
    pub(super) fn tiles(&self) -> impl Iterator<Item = Range<usize>> {
        let (start, len, n) = (self.rows.start, self.rows.len(), self.n_tiles);
        (0..n).map(move |i| start + len * i / n..start + len * (i + 1) / n)
    }
}

/// Where a span's partial results are: (o, m, l), E + 2 values, at
/// `start + ((head * n_rows + row) * segments.len() + segment - segments.start) * (E + 2)`.
pub(super) struct Partials {
    start: usize,
    n_rows: usize,
    segments: Range<usize>,
}

impl Partials {
    /// The results of one row for consecutive segments.
    pub(super) fn range(
        &self,
        head: usize,
        row: usize,
        segments: Range<usize>,
        len: usize,
    ) -> Range<usize> {
        let first = (head * self.n_rows + row) * self.segments.len();
        let result = |segment| self.start + (first + segment - self.segments.start) * len;
        result(segments.start)..result(segments.end)
    }
}

/// The items of a call.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) items: Vec<Item>,
    /// Whether each item folds its segments and leaves output; else it leaves a partial result.
    pub(super) folds: bool,
    /// For each span, unless the items fold.
    pub(super) partials: Vec<Partials>,
    pub(super) partials_len: usize,
}

impl Plan {
    pub(super) fn make(&mut self, step: &Step) {
        self.items.clear();
        self.partials.clear();
        self.partials_len = 0;
        let n_heads = step.kv.layout().n_kv_heads;
        let n_rows = |span: &AttentionSpan| span.rows.len() * step.group;
        let n_tiles = |span| n_rows(span).div_ceil(step.cpu.isa.tile_rows());
        let n_all: usize = step.spans.iter().map(|span| n_tiles(span) * n_heads).sum();
        self.folds = n_all >= FEW_TILES * step.cpu.n_threads();
        let max = (n_all / (FEW_TILES * step.cpu.n_threads())).clamp(1, MAX_TILES);
        for (i, span) in step.spans.iter().enumerate() {
            let (n_rows, n_tiles) = (n_rows(span), n_tiles(span));
            let n_items = n_tiles.div_ceil(max);
            for head in 0..n_heads {
                for n in 0..n_items {
                    let rows = n_rows * n / n_items..n_rows * (n + 1) / n_items;
                    let n_tiles = rows.len().div_ceil(step.cpu.isa.tile_rows());
                    let first = span.position + rows.start / step.group;
                    let last = span.position + (rows.end - 1) / step.group;
                    let segments = step.segments(first..last + 1);
                    let item = |segments| {
                        let rows = rows.clone();
                        Item { span: i, head, rows, n_tiles, segments }
                    };
                    if self.folds {
                        self.items.push(item(segments));
                    } else {
                        self.items.extend(segments.map(|segment| item(segment..segment + 1)));
                    }
                }
            }
            if !self.folds {
                let segments = step.segments(span.position..span.position + span.rows.len());
                let start = self.partials_len;
                let n_results = n_heads * n_rows * segments.len();
                self.partials_len += n_results * (step.kv.layout().head_size + 2);
                self.partials.push(Partials { start, n_rows, segments });
            }
        }
        // Long items first, so that the threads end together.
        self.items.sort_unstable_by_key(|item| Reverse(item.segments.len()));
    }
}
