//! How a call is cut into items.

use super::{AttentionSpan, Step};
use std::cmp::Reverse;
use std::ops::Range;

/// An item is at most such a part of a thread's work, so that the threads end together.
const PARTS: usize = 8;

/// Most tiles of an item: from so many on, turning K and V into f32 costs next to nothing.
const MAX_TILES: usize = 16;

/// Fewer tiles than this do not share what is turned into f32: it would cost more than it saves.
const FEW_TILES: usize = 4;

/// Some tiles of a span and what they compute.
pub(super) struct Item {
    pub(super) span: usize,
    /// The key/value head.
    pub(super) head: usize,
    /// Rows of the tiles; row `j` is query head `j % G` of the group at row `j / G` of the span.
    rows: Range<usize>,
    n_tiles: usize,
    /// All that the tiles see, and the item folds them and leaves output; or some, and it leaves partial
    /// results.
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
    /// For each span whose items leave them.
    pub(super) partials: Vec<Option<Partials>>,
    pub(super) partials_len: usize,
}

impl Plan {
    pub(super) fn make(&mut self, step: &Step) {
        self.items.clear();
        self.partials.clear();
        self.partials_len = 0;
        let n_heads = step.kv.layout().n_kv_heads;
        let n_rows = |span: &AttentionSpan| span.rows.len() * step.group;
        let n_tiles = |n_rows: usize| n_rows.div_ceil(step.cpu.isa.tile_rows());
        let all =
            |span: &AttentionSpan| step.segments(span.position..span.position + span.rows.len());
        let work = |span| n_heads * n_tiles(n_rows(span)) * all(span).len();
        let n_parts = PARTS * step.cpu.n_threads();
        // In tiles of a segment.
        let most = (step.spans.iter().map(work).sum::<usize>() / n_parts).max(1);
        for (i, span) in step.spans.iter().enumerate() {
            let (n_rows, n_segments) = (n_rows(span), all(span).len());
            let tiles = n_tiles(n_rows);
            let mut max = if tiles < FEW_TILES { 1 } else { most.min(MAX_TILES) };
            let mut folds = max.min(tiles) * n_segments <= most;
            // Segments are split only where there are not enough tiles: partial results take memory.
            let enough = n_heads * tiles / n_parts;
            if !folds && enough >= FEW_TILES {
                (max, folds) = (enough.min(MAX_TILES), true);
            }
            let n_items = tiles.div_ceil(max);
            for (head, n) in (0..n_heads).flat_map(|head| (0..n_items).map(move |n| (head, n))) {
                let rows = n_rows * n / n_items..n_rows * (n + 1) / n_items;
                let n_tiles = n_tiles(rows.len());
                let first = span.position + rows.start / step.group;
                let last = span.position + (rows.end - 1) / step.group;
                let segments = step.segments(first..last + 1);
                let len = if folds { segments.len() } else { (most / n_tiles).max(1) };
                for start in segments.clone().step_by(len) {
                    let segments = start..segments.end.min(start + len);
                    let rows = rows.clone();
                    self.items.push(Item { span: i, head, rows, n_tiles, segments });
                }
            }
            self.partials.push((!folds).then(|| {
                let (start, segments) = (self.partials_len, all(span));
                let n_results = n_heads * n_rows * n_segments;
                self.partials_len += n_results * (step.kv.layout().head_size + 2);
                Partials { start, n_rows, segments }
            }));
        }
        // Long items first, so that the threads end together.
        self.items.sort_by_key(|item| Reverse(item.segments.len() * item.n_tiles));
    }
}
