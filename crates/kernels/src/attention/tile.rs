//! A tile: some rows of attention over one segment of the cache.

use super::{AttentionParams, Folded};
use crate::cpu::Cpu;
use crate::kv::{KV_BLOCK, KvLayout, KvType, SEGMENT, as_f16, as_i8};
use crate::math;
use crate::simd::{Kernel, LANES, Simd};
use half::f16;
use std::ops::Range;

/// Pages of a segment, at most: the shortest block holds 16 tokens.
const MAX_PAGES: usize = SEGMENT / LANES;

/// The pages of one segment and one key/value head; those past the block table's end are empty.
#[derive(Default)]
pub(super) struct Pages<'a> {
    pub(super) k: [&'a [u8]; MAX_PAGES],
    pub(super) v: [&'a [u8]; MAX_PAGES],
}

/// 0, 1, 2 ...
const LANE_NUMBERS: [f32; LANES] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];

/// Rows of a tile, at most.
pub(super) const MAX_ROWS: usize = 12;

/// The number of rows that a tile of `n` is computed with: each is code of its own.
pub(super) fn padded_rows(n: usize) -> usize {
    match n {
        5 => 6,
        7 => 8,
        9..=12 => 12,
        n => n,
    }
}

/// A thread's memory for tiles of R rows.
#[derive(Default)]
pub(super) struct Scratch {
    /// Queries, `[E / 256][R]` of up to 256 values.
    q: Vec<[f32; SEGMENT]>,
    /// Scores, then probabilities, `[R]`.
    p: Vec<[f32; SEGMENT]>,
    /// Probabilities times scales, `[R]`.
    scaled: Vec<[f32; SEGMENT]>,
    /// Output, `[R][E]`.
    pub(super) o: Vec<f32>,
}

impl Scratch {
    /// Prepares for tiles of `n_rows`; contents are unspecified.
    pub(super) fn set_rows(&mut self, n_rows: usize, head_size: usize) {
        self.q.resize(n_rows * head_size.div_ceil(SEGMENT), [0.0; SEGMENT]);
        self.p.resize(n_rows, [0.0; SEGMENT]);
        self.scaled.resize(n_rows, [0.0; SEGMENT]);
        self.o.resize(n_rows * head_size, 0.0);
    }

    /// Sets the query of row `j` of `n_rows`.
    pub(super) fn set_query(&mut self, j: usize, n_rows: usize, q: &[f32]) {
        for (i, q) in q.chunks(SEGMENT).enumerate() {
            self.q[i * n_rows + j][..q.len()].copy_from_slice(q);
        }
    }
}

/// Some rows over one segment.
pub(super) struct Tile<'a> {
    pub(super) layout: &'a KvLayout,
    pub(super) params: &'a AttentionParams,
    pub(super) pages: Pages<'a>,
    /// The tokens of the segment that each row sees.
    pub(super) seen: &'a [Range<usize>],
}

/// `$body` with the constant `$R` set to one of the sizes of `padded_rows`.
macro_rules! with_rows {
    ($n:expr, $R:ident => $body:expr) => {
        with_rows!($n, $R => $body, 1 2 3 4 6 8 12)
    };
    ($n:expr, $R:ident => $body:expr, $($size:literal)*) => {
        match $n {
            $($size => {
                const $R: usize = $size;
                $body
            })*
            n => unreachable!("no tile has {n} rows"),
        }
    };
}

impl Tile<'_> {
    /// Reads `q` and writes `o` of the scratch, and returns m and l. A row that sees nothing of the
    /// segment gets values without meaning.
    pub(super) fn compute(&self, cpu: &Cpu, scratch: &mut Scratch) -> Folded {
        let KvLayout { head_size, block_len, v_type, .. } = *self.layout;
        let Scratch { q, p, scaled, o } = scratch;
        let n_rows = self.seen.len();
        let some = self.seen.iter().filter(|seen| !seen.is_empty());
        let start = some.clone().map(|seen| seen.start).min();
        let end = some.map(|seen| seen.end).max();
        // Whole vectors of tokens with all that some row sees; the rest of them is garbage.
        let vectors = start.unwrap_or(0) / LANES..end.unwrap_or(0).div_ceil(LANES);

        with_rows!(n_rows, R => {
            let vectors = vectors.clone();
            cpu.compute(Scores::<R> { tile: self, q: rows_of(q), vectors, p });
        });
        let folded = cpu.compute(Softmax { params: self.params, seen: self.seen, p });
        o.fill(0.0);
        match v_type {
            KvType::F16 => {
                let pages = self.pages.v.map(as_f16);
                self.sum_values(cpu, p, &pages, 0..head_size, o);
            }
            KvType::Q8_0 => {
                let pages =
                    self.pages.v.map(|page| &as_i8(page)[..page.len().min(head_size * block_len)]);
                for block in 0..head_size / KV_BLOCK {
                    let vectors = vectors.clone();
                    cpu.compute(ScaleByBlock { tile: self, block, vectors, p, scaled });
                    let values = block * KV_BLOCK..(block + 1) * KV_BLOCK;
                    self.sum_values(cpu, scaled, &pages, values, o);
                }
            }
        }
        folded
    }

    /// Adds `p v` to the given values of `o`, `[R][E]`.
    ///
    /// ```text
    /// row 0   |before|- - - common - - -|            tokens that all rows see: a tile
    /// row 1      |bef|- - - common - - -|after|      the others: row by row
    /// ```
    fn sum_values<C: Cell>(
        &self,
        cpu: &Cpu,
        p: &[[f32; SEGMENT]],
        pages: &[&[C]; MAX_PAGES],
        values: Range<usize>,
        o: &mut [f32],
    ) {
        let some = self.seen.iter().filter(|seen| !seen.is_empty());
        let start = some.clone().map(|seen| seen.start).max().unwrap_or(0);
        let common = start..some.map(|seen| seen.end).min().unwrap_or(0).max(start);
        let (layout, vectors) = (self.layout, values.start / LANES..values.end / LANES);
        let sum_row = |r: usize, tokens: Range<usize>, o: &mut [f32]| {
            if !tokens.is_empty() {
                let (p, vectors) = (rows_of(&p[r..]), vectors.clone());
                let o = &mut o[r * layout.head_size..];
                cpu.compute(Sums::<C, 1> { layout, pages, p: &p[0], tokens, vectors, o });
            }
        };
        for (r, seen) in self.seen.iter().enumerate() {
            sum_row(r, seen.start..seen.end.min(common.start), o);
        }
        if !common.is_empty() {
            with_rows!(self.seen.len(), R => {
                let (p, tokens, vectors) = (rows_of(p), common.clone(), vectors.clone());
                cpu.compute(Sums::<C, R> { layout, pages, p: &p[0], tokens, vectors, o });
            });
        }
        for (r, seen) in self.seen.iter().enumerate() {
            sum_row(r, seen.start.max(common.end)..seen.end, o);
        }
    }
}

/// Rows, R at a time.
fn rows_of<const R: usize>(rows: &[[f32; SEGMENT]]) -> &[[[f32; SEGMENT]; R]] {
    rows.as_chunks().0
}

/// Calls a tile function on a range of vectors, with as many at a time as the registers hold.
macro_rules! widest {
    ($S:ident, $R:ident, $vectors:expr, $call:ident) => {{
        let vectors: Range<usize> = $vectors;
        let mut vector = vectors.start;
        if const { $R > $S::ACCUMULATORS } {
            unreachable!("the registers do not hold a tile of {} rows", $R);
        }
        if const { 4 * $R <= $S::ACCUMULATORS } {
            while vector + 4 <= vectors.end {
                $call!(vector, 4);
                vector += 4;
            }
        }
        if const { 2 * $R <= $S::ACCUMULATORS } {
            while vector + 2 <= vectors.end {
                $call!(vector, 2);
                vector += 2;
            }
        }
        while vector < vectors.end {
            $call!(vector, 1);
            vector += 1;
        }
    }};
}

/// `p = q k` for R rows.
struct Scores<'a, const R: usize> {
    tile: &'a Tile<'a>,
    q: &'a [[[f32; SEGMENT]; R]],
    /// Of tokens.
    vectors: Range<usize>,
    p: &'a mut [[f32; SEGMENT]],
}

impl<const R: usize> Kernel for Scores<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        macro_rules! tile {
            ($vector:expr, $n:literal) => {
                self.tile::<S, $n>(s, $vector)
            };
        }
        widest!(S, R, self.vectors.clone(), tile);
    }
}

impl<const R: usize> Scores<'_, R> {
    /// N vectors of tokens, `vector` the first.
    #[inline(always)]
    fn tile<S: Simd, const N: usize>(&mut self, s: S, vector: usize) {
        let KvLayout { head_size, block_len, k_type, .. } = *self.tile.layout;
        let mut pages = [&[][..]; N];
        let mut slots = [0; N];
        for v in 0..N {
            let token = (vector + v) * LANES;
            pages[v] = self.tile.pages.k[token / block_len];
            slots[v] = token % block_len;
        }
        match k_type {
            KvType::F16 => {
                let mut sums = [[s.splat(0.0); N]; R];
                for (i, q) in self.q.iter().enumerate() {
                    let first = i * SEGMENT;
                    let mut k = [&[][..]; N];
                    for v in 0..N {
                        k[v] = &as_f16(pages[v])[first * block_len + slots[v]..];
                    }
                    chain(s, &mut sums, q, 0..SEGMENT.min(head_size - first), k, block_len);
                }
                for (p, sums) in self.p.iter_mut().zip(sums) {
                    store_vectors(s, sums, &mut p[vector * LANES..]);
                }
            }
            KvType::Q8_0 => {
                for p in &mut *self.p {
                    p[vector * LANES..][..N * LANES].fill(0.0);
                }
                for b in 0..head_size / KV_BLOCK {
                    let first = b * KV_BLOCK;
                    let q = &self.q[first / SEGMENT];
                    let values = first % SEGMENT..first % SEGMENT + KV_BLOCK;
                    let mut codes = [&[][..]; N];
                    let mut scales = [s.splat(0.0); N];
                    for v in 0..N {
                        codes[v] = &as_i8(pages[v])[first * block_len + slots[v]..];
                        let halves = as_f16(&pages[v][head_size * block_len..]);
                        let (halves, _) = halves[b * block_len + slots[v]..].as_chunks();
                        scales[v] = s.load_f16(&halves[0]);
                    }
                    let mut sums = [[s.splat(0.0); N]; R];
                    chain(s, &mut sums, q, values, codes, block_len);
                    for (p, sums) in self.p.iter_mut().zip(sums) {
                        let (p, _) = p[vector * LANES..].as_chunks_mut();
                        for (p, (sum, scale)) in p.iter_mut().zip(sums.into_iter().zip(scales)) {
                            s.store(s.fma(sum, scale, s.load(p)), p);
                        }
                    }
                }
            }
        }
    }
}

/// Scales, caps and masks each row's scores, makes probabilities of them, and returns m and l.
struct Softmax<'a> {
    params: &'a AttentionParams,
    seen: &'a [Range<usize>],
    p: &'a mut [[f32; SEGMENT]],
}

impl Kernel for Softmax<'_> {
    type Output = Folded;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Folded {
        let mut folded = Folded::default();
        for (r, (seen, p)) in self.seen.iter().zip(self.p).enumerate() {
            if seen.is_empty() {
                continue;
            }
            let vectors = seen.start / LANES..seen.end.div_ceil(LANES);
            let p = &mut p.as_chunks_mut::<LANES>().0[vectors.clone()];
            let mut m = s.splat(f32::NEG_INFINITY);
            for (p, vector) in p.iter_mut().zip(vectors) {
                let mut x = s.mul(s.load(p), s.splat(self.params.scale));
                if let Some(cap) = self.params.softcap {
                    x = s.mul(math::tanh(s, s.mul(x, s.splat(1.0 / cap))), s.splat(cap));
                }
                let first = vector * LANES;
                if first < seen.start || first + LANES > seen.end {
                    x = hide(s, x, first, seen);
                }
                s.store(x, p);
                m = s.max(x, m);
            }
            folded.m[r] = s.largest(m);
            let m = s.splat(folded.m[r]);
            let mut l = s.splat(0.0);
            for p in p {
                let x = math::exp_bounded(s, s.sub(s.load(p), m));
                s.store(x, p);
                l = s.add(l, x);
            }
            folded.l[r] = s.sum(l);
        }
        folded
    }
}

/// Minus infinity for tokens that are not seen; `first` is that of the vector.
#[inline(always)]
fn hide<S: Simd>(s: S, x: S::F, first: usize, seen: &Range<usize>) -> S::F {
    let tokens = s.add(s.load(&LANE_NUMBERS), s.splat(first as f32));
    let hidden = s.splat(f32::NEG_INFINITY);
    let x = s.select_lt(tokens, s.splat(seen.start as f32), hidden, x);
    s.select_lt(tokens, s.splat(seen.end as f32), x, hidden)
}

/// `scaled = p d` with the scales d of one block of the values.
struct ScaleByBlock<'a> {
    tile: &'a Tile<'a>,
    block: usize,
    /// Of tokens.
    vectors: Range<usize>,
    p: &'a [[f32; SEGMENT]],
    scaled: &'a mut [[f32; SEGMENT]],
}

impl Kernel for ScaleByBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let KvLayout { head_size, block_len, .. } = *self.tile.layout;
        for vector in self.vectors {
            let token = vector * LANES;
            let scales = as_f16(&self.tile.pages.v[token / block_len][head_size * block_len..]);
            let (scales, _) = scales[self.block * block_len + token % block_len..].as_chunks();
            let scale = s.load_f16(&scales[0]);
            for (p, scaled) in self.p.iter().zip(&mut *self.scaled) {
                let p = s.load(&p.as_chunks().0[vector]);
                s.store(s.mul(p, scale), &mut scaled.as_chunks_mut().0[vector]);
            }
        }
    }
}

/// `o += p v` over some tokens, for R rows and some vectors of values.
struct Sums<'a, C, const R: usize> {
    layout: &'a KvLayout,
    pages: &'a [&'a [C]; MAX_PAGES],
    p: &'a [[f32; SEGMENT]; R],
    tokens: Range<usize>,
    /// Of values.
    vectors: Range<usize>,
    /// `[R][E]`.
    o: &'a mut [f32],
}

impl<C: Cell, const R: usize> Kernel for Sums<'_, C, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        macro_rules! tile {
            ($vector:expr, $n:literal) => {
                self.tile::<S, $n>(s, $vector)
            };
        }
        widest!(S, R, self.vectors.clone(), tile);
    }
}

impl<C: Cell, const R: usize> Sums<'_, C, R> {
    /// N vectors of values, `vector` the first.
    #[inline(always)]
    fn tile<S: Simd, const N: usize>(&mut self, s: S, vector: usize) {
        let KvLayout { head_size, block_len, .. } = *self.layout;
        let mut sums = [[s.splat(0.0); N]; R];
        for (sums, o) in sums.iter_mut().zip(self.o.chunks(head_size)) {
            let (o, _) = o[vector * LANES..].as_chunks();
            for (sum, o) in sums.iter_mut().zip(o) {
                *sum = s.load(o);
            }
        }
        for page in self.tokens.start / block_len..self.tokens.end.div_ceil(block_len) {
            let first = page * block_len;
            let tokens = self.tokens.start.max(first)..self.tokens.end.min(first + block_len);
            let mut v = [&[][..]; N];
            for i in 0..N {
                let value = (vector + i) * LANES;
                v[i] = &self.pages[page][(tokens.start - first) * head_size + value..];
            }
            chain(s, &mut sums, self.p, tokens, v, head_size);
        }
        for (o, sums) in self.o.chunks_mut(head_size).zip(sums) {
            store_vectors(s, sums, &mut o[vector * LANES..]);
        }
    }
}

/// The inner loop of all: `sums[r][i] = fma(a[r][k], b[i][j * stride..], sums[r][i])` for each k,
/// ascending, the j-th of them.
#[inline(always)]
fn chain<S: Simd, C: Cell, const R: usize, const N: usize>(
    s: S,
    sums: &mut [[S::F; N]; R],
    a: &[[f32; SEGMENT]; R],
    k: Range<usize>,
    b: [&[C]; N],
    stride: usize,
) {
    assert!(k.end <= SEGMENT);
    for b in b {
        assert!(k.is_empty() || (k.len() - 1) * stride + LANES <= b.len());
    }
    for (j, k) in k.enumerate() {
        let mut vectors = [s.splat(0.0); N];
        for i in 0..N {
            // SAFETY: `j` is below the length of `k`, so the sixteen lie in `b[i]` by the assert.
            vectors[i] = C::load(s, unsafe { &*b[i].as_ptr().add(j * stride).cast() });
        }
        for r in 0..R {
            // SAFETY: `k` < SEGMENT by the assert.
            let a = s.splat(unsafe { *a[r].get_unchecked(k) });
            for i in 0..N {
                sums[r][i] = s.fma(a, vectors[i], sums[r][i]);
            }
        }
    }
}

#[inline(always)]
fn store_vectors<S: Simd, const N: usize>(s: S, x: [S::F; N], to: &mut [f32]) {
    let (to, _) = to.as_chunks_mut();
    for (to, x) in to.iter_mut().zip(x) {
        s.store(x, to);
    }
}

/// An element of a page.
trait Cell: Copy {
    /// Sixteen of them.
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F;
}

impl Cell for f16 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[f16; LANES]) -> S::F {
        s.load_f16(x)
    }
}

impl Cell for i8 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[i8; LANES]) -> S::F {
        s.load_i8(x)
    }
}
