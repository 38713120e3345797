//! `attention`: causal grouped-query attention over the paged KV cache.
//!
//! # The arithmetic
//!
//! Fixed by the position alone. The tokens that a row sees are cut at absolute multiples of
//! 256 into segments; in each, for one query head:
//!
//! ```text
//! k[t] = dk[t] ck[t],  v[t] = dv[t] cv[t],  q = dq cq          whole codes c, one scale d for each
//! dq   = max(max |q| / 32766, sum |q| / 131000)                 the largest sum of 64 values
//! s[t] = scale dq (dk[t] sum over e of cq[e] ck[t][e])          exact in i32 for 64 values at a time
//! m    = max s,  p[t] = exp(s[t] - m)
//! l    = sum p                                                  lane t % 16, t ascending, then Simd::sum
//! w[t] = p[t] dv[t] = u cw[t],  u = max(max w / 32766, sum w / 262000)
//! o[e] = u sum over t of cw[t] cv[t][e]                         exact in i32
//! ```
//!
//! Codes of K go up to 16383, of V to 8191; what that leaves of 31 bits is the queries' and the weights', whose
//! scales keep the sum of 64, or of a segment, below it: one large value among small ones is no loss for these.
//! Two products a lane are one instruction, twice as many as in f32, and being exact have no order.
//!
//! and the segments are folded in ascending order into (M, L, O), starting at (-inf, 0, 0):
//!
//! ```text
//! M' = max(M, m),  a = exp(M - M'),  b = exp(m - M')
//! L' = fma(L, a, l b),  O' = fma(O, a, o b);    y = O (1 / L)
//! ```
//!
//! K and V in Q8_0 are turned into such codes first (`segment.rs`). A soft cap replaces `s` by
//! `cap tanh(s / cap)`. Tokens outside a row's window have the score -inf and the weight 0 whatever the
//! cache holds, so memory that was never written, or is another sequence's, cannot reach a result.
//!
//! # The work
//!
//! Rows times query heads of one key/value head are cut into tiles of up to `Isa::tile_rows`, which
//! share each vector of K and V that is loaded. An item is some tiles of a span, which share what they
//! read and fold the segments as they go; where that is too much of the step's work for one
//! thread, an item is some segments of them, and the fold follows. Both fold the same numbers in the
//! same order.

mod ahead;
mod plan;
mod segment;
#[cfg(test)]
mod tests;
mod tile;

use crate::cpu::Cpu;
use crate::isa::Isa;
use crate::kv::{KvCache, SEGMENT};
use crate::mat::{Acts, Mat};
use crate::math;
use crate::profile::Op;
use crate::quantize::{ActRows, Quantize};
use crate::simd::{Kernel, LANES, Simd};
use crate::split::Split;
use ahead::Ahead;
use plan::{Item, Plan};
use segment::{Expanded, Pages, Segment};
use std::array::from_fn;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use tile::Tile;

/// Consecutive rows of one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttentionSpan {
    /// Rows of the step.
    pub rows: Range<usize>,
    /// Position of the first row in its sequence; the others follow.
    pub position: usize,
    /// The sequence's block table, as a range of the step's blocks. Position `p` lives in entry
    /// `p / B`, slot `p % B`; the table reaches at least to the last row.
    pub blocks: Range<usize>,
}

/// What a layer does to its scores.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AttentionParams {
    /// Multiplies the scores; usually `1 / sqrt(E)`.
    pub scale: f32,
    /// Tokens that a row sees, itself included; all if none.
    pub window: Option<usize>,
    /// `cap` of `cap tanh(s / cap)`.
    pub softcap: Option<f32>,
}

impl Isa {
    /// Rows of a tile, chosen so that its accumulators fill the registers.
    fn tile_rows(self) -> usize {
        match self {
            Isa::Scalar => 1,
            Isa::Avx2 => 6,
            Isa::Avx512 => 12,
        }
    }
}

/// Memory of the op, kept from one call to the next.
#[derive(Default)]
pub(crate) struct Scratch {
    plan: Plan,
    /// `[T, H * E]`: output before it is brought into its forms.
    y: Vec<f32>,
    /// Results of single segments.
    partials: Vec<f32>,
    threads: Vec<Mutex<Scratches>>,
}

/// A thread's memory.
#[derive(Default)]
struct Scratches {
    tiles: Vec<TileRows>,
    queries: Vec<[i16; tile::CHUNK]>,
    outputs: Vec<f32>,
    expanded: Expanded,
    tile: tile::Scratch,
}

/// The rows of a tile and what is folded of them.
struct TileRows {
    /// Row `j` is query head `j % G` of the group at row `j / G` of the span.
    rows: Range<usize>,
    /// The step's row, its position, and its columns in q and y; the last one repeats.
    places: [(usize, usize, Range<usize>); tile::MAX_ROWS],
    /// Of the queries.
    scales: [f32; tile::MAX_ROWS],
    folded: Folded,
}

impl TileRows {
    /// The rows that are computed.
    fn padded(&self) -> &[(usize, usize, Range<usize>)] {
        &self.places[..tile::padded_rows(self.rows.len())]
    }
}

impl Cpu {
    /// `y = softmax(scale q k^T) v` over the cached tokens that each row sees: row at position `p`
    /// sees positions `max(0, p - window + 1)..=p`, itself included, so [`Cpu::store_kv`] of the
    /// step's rows comes first. `q` is `[T, H * E]`; `y` gets `T` rows of `H * E` in the forms it
    /// has. Query head `h` reads key/value head `h / (H / K)`.
    ///
    /// Infinities and NaN among a row's own q, k and v make that row NaN, and no other.
    ///
    /// # Panics
    /// If the shapes differ from the cache's, H is no multiple of K, the window is 0, or a span is
    /// malformed or names a block outside the cache.
    #[allow(clippy::too_many_arguments)] // Each is one thing.
    pub fn attention(
        &self,
        q: &Mat,
        kv: &KvCache,
        layer: usize,
        spans: &[AttentionSpan],
        blocks: &[u32],
        params: &AttentionParams,
        y: &mut Acts,
    ) {
        let layout = kv.layout();
        let head_size = layout.head_size;
        let kv_cols = layout.n_kv_heads * head_size;
        assert!(q.cols().is_multiple_of(kv_cols), "query heads are no multiple of key/value heads");
        assert_eq!(q.cols(), y.cols());
        assert_ne!(params.window, Some(0), "a window holds at least the row itself");
        kv.check(layer, q.rows(), spans, blocks);
        y.set_rows(q.rows());
        let _timer = self.profile.time(|| work(q, kv, spans, params));

        let group = q.cols() / kv_cols;
        let step = Step { cpu: self, q, kv, layer, spans, blocks, params, group };
        let mut scratch = self.attention.lock().unwrap_or_else(PoisonError::into_inner);
        let Scratch { plan, y: out, partials, threads } = &mut *scratch;
        plan.make(&step);
        out.resize(q.rows() * q.cols(), 0.0);
        partials.resize(plan.partials_len.max(partials.len()), 0.0);
        threads.resize_with(self.n_threads(), Mutex::default);

        let out = Split::new(out);
        let partials_out = Split::new(partials);
        let next = AtomicUsize::new(0);
        self.team.run(&|thread| {
            let mut scratch = threads[thread].lock().unwrap_or_else(PoisonError::into_inner);
            let claim = || plan.items.get(next.fetch_add(1, Ordering::Relaxed));
            let (mut item, mut is_first) = (claim(), true);
            while let Some(now) = item {
                item = claim();
                let order = Order { item: now, next: item, is_first };
                step.compute_item(order, plan, &out, &partials_out, &mut scratch);
                is_first = false;
            }
        });

        let rows = ActRows::new(y);
        self.team.for_each(q.rows(), |t| {
            // SAFETY: each item has its own row.
            let x = unsafe { out.part(t * q.cols()..(t + 1) * q.cols()) };
            step.fold_partials(plan, partials, t, x);
            // SAFETY: as above.
            self.compute(Quantize { x, y: unsafe { rows.row(t) } });
        });
    }
}

/// The op, its bytes of K and V, and its multiply-adds.
fn work(
    q: &Mat,
    kv: &KvCache,
    spans: &[AttentionSpan],
    params: &AttentionParams,
) -> (Op, usize, usize) {
    let window = params.window.unwrap_or(usize::MAX);
    let seen = |span: &AttentionSpan| -> usize {
        let ends = span.position + 1..=span.position + span.rows.len();
        ends.map(|end| end.min(window)).sum()
    };
    let reach = |span: &AttentionSpan| {
        let end = span.position + span.rows.len();
        end.min(window.saturating_add(span.rows.len() - 1))
    };
    let spans = spans.iter().filter(|span| !span.rows.is_empty());
    let n_read: usize = spans.clone().map(reach).sum();
    let n_seen: usize = spans.map(seen).sum();
    (Op::Attention, n_read * kv.layout().token_bytes(), 2 * n_seen * q.cols())
}

/// An item and what a thread computes before and after it.
struct Order<'a> {
    item: &'a Item,
    next: Option<&'a Item>,
    is_first: bool,
}

/// The arguments of one call.
struct Step<'a> {
    cpu: &'a Cpu,
    q: &'a Mat,
    kv: &'a KvCache,
    layer: usize,
    spans: &'a [AttentionSpan],
    blocks: &'a [u32],
    params: &'a AttentionParams,
    /// G: query heads of a key/value head.
    group: usize,
}

impl Step<'_> {
    /// The positions that the row at `position` sees.
    fn seen(&self, position: usize) -> Range<usize> {
        let window = self.params.window.unwrap_or(usize::MAX);
        (position + 1).saturating_sub(window)..position + 1
    }

    /// The segments that the rows at `positions` see.
    fn segments(&self, positions: Range<usize>) -> Range<usize> {
        if positions.is_empty() {
            return 0..0;
        }
        let (first, last) = (self.seen(positions.start), self.seen(positions.end - 1));
        first.start / SEGMENT..last.end.div_ceil(SEGMENT)
    }

    /// Computes an item: the output rows of its tiles, or its part of the partial results.
    fn compute_item(
        &self,
        Order { item, next, is_first }: Order<'_>,
        plan: &Plan,
        out: &Split<f32>,
        partials: &Split<f32>,
        scratch: &mut Scratches,
    ) {
        let span = &self.spans[item.span];
        let layout = self.kv.layout();
        let head_size = layout.head_size;
        let Scratches { tiles, queries, outputs, expanded, tile: scratch } = scratch;
        tiles.clear();
        tiles.extend(item.tiles().map(|rows| self.tile_rows(span, item.head, rows)));
        // Queries of a tile, `[E / 64][R]`.
        let n_chunks = head_size.div_ceil(tile::CHUNK);
        let n_queries = n_chunks * tile::MAX_ROWS;
        queries.resize(n_queries * tiles.len(), [0; tile::CHUNK]);
        for (tile, queries) in tiles.iter_mut().zip(queries.chunks_exact_mut(n_queries)) {
            let stride = tile.padded().len();
            for j in 0..stride {
                let (row, _, cols) = &tile.places[j];
                let (x, to) = (&self.q.row(*row)[cols.clone()], &mut queries[j..]);
                tile.scales[j] = self.cpu.compute(tile::Query { x, to, stride });
            }
        }
        // What is folded of a tile, `[R][E]`.
        let n_outputs = tile::MAX_ROWS * head_size;
        outputs.clear();
        outputs.resize(n_outputs * tiles.len(), 0.0);
        let waits = tiles.len() == 1;
        for number in item.segments.clone() {
            let start = number * SEGMENT;
            let segment = Segment::new(self.cpu, layout, self.pages(item, number), expanded);
            let mut ahead = Ahead::default();
            if waits {
                segment.fetch_scales(self.cpu);
                if is_first && number == item.segments.start {
                    segment.fetch_start(self.cpu);
                }
                let following = match number + 1 < item.segments.end {
                    true => self.pages(item, number + 1),
                    false => next
                        .map_or_else(Pages::default, |next| self.pages(next, next.segments.start)),
                };
                ahead = segment.ahead(&following);
            }
            let work = tiles.iter_mut().zip(queries.chunks_exact(n_queries));
            for ((tile, queries), y) in work.zip(outputs.chunks_exact_mut(n_outputs)) {
                let seen = tile.places.each_ref().map(|&(_, position, _)| {
                    let seen = self.seen(position);
                    let end = seen.end.clamp(start, start + SEGMENT);
                    seen.start.clamp(start, end) - start..end - start
                });
                let (n_rows, padded) = (tile.rows.len(), tile.padded().len());
                if seen[..n_rows].iter().all(Range::is_empty) {
                    continue;
                }
                let work = Tile { segment: &segment, params: self.params, seen: &seen[..padded] };
                let queries = (&queries[..n_chunks * padded], &tile.scales[..padded]);
                let next = work.compute(self.cpu, queries, &mut ahead, scratch);
                if let Some(place) = &plan.partials[item.span] {
                    let o = |j: usize| &scratch.o[j * head_size..(j + 1) * head_size];
                    for j in (0..n_rows).filter(|&j| !seen[j].is_empty()) {
                        let row = tile.rows.start + j;
                        let range = place.range(item.head, row, number..number + 1, head_size + 2);
                        // SAFETY: only this item has this row of this segment.
                        let partial = unsafe { partials.part(range) };
                        partial[..head_size].copy_from_slice(o(j));
                        partial[head_size..].copy_from_slice(&[next.m[j], next.l[j]]);
                    }
                } else {
                    let (folded, o) = (&mut tile.folded, &scratch.o[..]);
                    let seen = &seen[..n_rows];
                    self.cpu.compute(Fold { folded, next: &next, seen, head_size, y, o });
                }
            }
        }
        if plan.partials[item.span].is_none() {
            for (tile, outputs) in tiles.iter().zip(outputs.chunks_exact(n_outputs)) {
                for (j, o) in (0..tile.rows.len()).zip(outputs.chunks_exact(head_size)) {
                    let (row, _, cols) = &tile.places[j];
                    let start = row * self.q.cols();
                    // SAFETY: only this item has these columns of the row.
                    let y = unsafe { out.part(start + cols.start..start + cols.end) };
                    y.copy_from_slice(o);
                    self.cpu.compute(Scale { factor: 1.0 / tile.folded.l[j], y });
                }
            }
        }
    }

    /// The pages of a segment that an item reads.
    fn pages(&self, item: &Item, segment: usize) -> Pages<'_> {
        let layout = self.kv.layout();
        let table = &self.blocks[self.spans[item.span].blocks.clone()];
        let blocks = &table[segment * SEGMENT / layout.block_len..];
        let mut pages = Pages::default();
        for (i, &block) in blocks.iter().take(SEGMENT / layout.block_len).enumerate() {
            pages.k[i] = self.kv.k_page(block, self.layer, item.head);
            pages.v[i] = self.kv.v_page(block, self.layer, item.head);
        }
        pages
    }

    /// The rows of a tile, before anything is folded.
    fn tile_rows(&self, span: &AttentionSpan, head: usize, rows: Range<usize>) -> TileRows {
        let head_size = self.kv.layout().head_size;
        let places = from_fn(|j| {
            let row = rows.start + j.min(rows.len() - 1);
            let head = head * self.group + row % self.group;
            let row = row / self.group;
            (span.rows.start + row, span.position + row, head * head_size..(head + 1) * head_size)
        });
        let scales = [0.0; tile::MAX_ROWS];
        TileRows { rows, places, scales, folded: Folded::default() }
    }

    /// Folds the partial results of row `t`, if it has some, into its output `[H * E]`.
    fn fold_partials(&self, plan: &Plan, partials: &[f32], t: usize, out: &mut [f32]) {
        let i = self.spans.partition_point(|span| span.rows.end <= t);
        let Some(place) = &plan.partials[i] else { return };
        let head_size = self.kv.layout().head_size;
        let offset = t - self.spans[i].rows.start;
        let position = self.spans[i].position + offset;
        let segments = self.segments(position..position + 1);
        for (h, y) in out.chunks_exact_mut(head_size).enumerate() {
            let row = offset * self.group + h % self.group;
            let range = place.range(h / self.group, row, segments.clone(), head_size + 2);
            self.cpu.compute(FoldPartials { partials: &partials[range], y });
        }
    }
}

/// (M, L) of the rows of a tile, or of nothing yet.
struct Folded {
    m: [f32; LANES],
    l: [f32; LANES],
}

impl Default for Folded {
    fn default() -> Folded {
        Folded { m: [f32::NEG_INFINITY; LANES], l: [0.0; LANES] }
    }
}

/// Folds (m, l) of a segment into (M, L); returns what O and o are multiplied by. A row that
/// sees nothing of the segment (`l` is 0) keeps its (M, L).
#[inline(always)]
fn fold<S: Simd>(s: S, [m, l]: [S::F; 2], [next_m, next_l]: [S::F; 2]) -> ([S::F; 2], [S::F; 2]) {
    let largest = s.max(next_m, m);
    let a = math::exp_bounded(s, s.sub(m, largest));
    let b = math::exp_bounded(s, s.sub(next_m, largest));
    let sum = s.fma(l, a, s.mul(next_l, b));
    // An l is at least 1, since the largest score has exp(0), or NaN.
    let seen = |old, new| s.select_lt(next_l, s.splat(0.5), old, new);
    ([seen(m, largest), seen(l, sum)], [a, b])
}

/// [`fold`] for the rows of a tile, and `y = fma(y, a, o b)` for those that see something.
struct Fold<'a> {
    folded: &'a mut Folded,
    next: &'a Folded,
    seen: &'a [Range<usize>],
    head_size: usize,
    /// `[R][E]` both.
    y: &'a mut [f32],
    o: &'a [f32],
}

impl Kernel for Fold<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Fold { folded, next, seen, head_size, y, o } = self;
        let folded_lanes = [s.load(&folded.m), s.load(&folded.l)];
        let ([m, l], [a, b]) = fold(s, folded_lanes, [s.load(&next.m), s.load(&next.l)]);
        s.store(m, &mut folded.m);
        s.store(l, &mut folded.l);
        let (a, b) = (s.to_array(a), s.to_array(b));
        let rows = y.chunks_exact_mut(head_size).zip(o.chunks_exact(head_size));
        for (j, ((y, o), seen)) in rows.zip(seen).enumerate() {
            if !seen.is_empty() {
                combine(s, y, s.splat(a[j]), o, s.splat(b[j]));
            }
        }
    }
}

/// [`fold`] over the partial results (o, m, l) of one row, and `y = O (1 / L)`.
struct FoldPartials<'a> {
    partials: &'a [f32],
    y: &'a mut [f32],
}

impl Kernel for FoldPartials<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let FoldPartials { partials, y } = self;
        let mut folded = [s.splat(f32::NEG_INFINITY), s.splat(0.0)];
        y.fill(0.0);
        for partial in partials.chunks_exact(y.len() + 2) {
            let (o, next) = partial.split_at(y.len());
            let (a, b);
            (folded, [a, b]) = fold(s, folded, [s.splat(next[0]), s.splat(next[1])]);
            combine(s, y, a, o, b);
        }
        scale(s, y, s.div(s.splat(1.0), folded[1]));
    }
}

/// `y = fma(y, a, o b)`.
#[inline(always)]
fn combine<S: Simd>(s: S, y: &mut [f32], a: S::F, o: &[f32], b: S::F) {
    let (o, _) = o.as_chunks();
    let (y, _) = y.as_chunks_mut();
    for (y, o) in y.iter_mut().zip(o) {
        s.store(s.fma(s.load(y), a, s.mul(s.load(o), b)), y);
    }
}

/// `y = y factor`.
struct Scale<'a> {
    factor: f32,
    y: &'a mut [f32],
}

impl Kernel for Scale<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        scale(s, self.y, s.splat(self.factor));
    }
}

#[inline(always)]
fn scale<S: Simd>(s: S, y: &mut [f32], factor: S::F) {
    let (y, _) = y.as_chunks_mut();
    for y in y {
        s.store(s.mul(s.load(y), factor), y);
    }
}
