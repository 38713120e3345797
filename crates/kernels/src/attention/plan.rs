//! How a call is cut into items.

use super::Step;
use std::cmp::Reverse;
use std::ops::Range;

/// A span with fewer tiles than this (of all heads together) is cut into segments as well: enough
/// to keep many threads busy, and a bound on the memory of the partial results.
const FEW_TILES: usize = 16;

/// A tile of a span and what it computes.
pub(super) struct Item {
    pub(super) span: usize,
    /// The key/value head.
    pub(super) head: usize,
    /// Rows of the tile; row `j` is query head `j % G` of the group at row `j / G` of the span.
    pub(super) rows: Range<usize>,
    pub(super) segments: Range<usize>,
    /// Whether it folds its segments; else it is one of them, and leaves its result in the partials.
    pub(super) folds: bool,
}

/// Where a span's partial results are, if it has any: (o, m, l), E + 2 values, at
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
    /// For each span.
    pub(super) partials: Vec<Option<Partials>>,
    pub(super) partials_len: usize,
}

impl Plan {
    pub(super) fn make(&mut self, step: &Step) {
        self.items.clear();
        self.partials.clear();
        self.partials_len = 0;
        let n_heads = step.kv.layout().n_kv_heads;
        for (i, span) in step.spans.iter().enumerate() {
            let n_rows = span.rows.len() * step.group;
            let n_tiles = n_rows.div_ceil(step.cpu.isa.tile_rows());
            let folds = n_tiles * n_heads >= FEW_TILES;
            for head in 0..n_heads {
                for tile in 0..n_tiles {
                    let rows = n_rows * tile / n_tiles..n_rows * (tile + 1) / n_tiles;
                    let positions = span.position + rows.start / step.group
                        ..span.position + (rows.end - 1) / step.group + 1;
                    let segments = step.segments(positions);
                    let item =
                        |segments| Item { span: i, head, rows: rows.clone(), segments, folds };
                    if folds {
                        self.items.push(item(segments));
                    } else {
                        self.items.extend(segments.map(|segment| item(segment..segment + 1)));
                    }
                }
            }
            self.partials.push(if folds || n_rows == 0 {
                None
            } else {
                let segments = step.segments(span.position..span.position + span.rows.len());
                let start = self.partials_len;
                let n_results = n_heads * n_rows * segments.len();
                self.partials_len += n_results * (step.kv.layout().head_size + 2);
                Some(Partials { start, n_rows, segments })
            });
        }
        // Long items first, so that the threads end together.
        self.items.sort_unstable_by_key(|item| Reverse(item.segments.len()));
    }
}
