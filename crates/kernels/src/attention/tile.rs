//! A tile: some rows of attention over one segment of the cache.

use super::ahead::Ahead;
use super::segment::{Codes, Segment};
use super::{AttentionParams, Folded};
use crate::cpu::Cpu;
use crate::kv::{KvLayout, SEGMENT};
use crate::math;
use crate::quantize::wide_scale;
use crate::simd::{Kernel, LANES, Simd};
use std::ops::Range;

/// Values of a query whose products with K are summed in an i32.
pub(super) const CHUNK: usize = 64;

/// The largest code of a query, and of a weight of V.
const CODE_MAX: f32 = 32766.0;

/// The most that the magnitudes of a chunk's codes sum up to, each rounded by up to 1/2:
/// `(131000 + 32) * K_MAX < 2^31`.
const QUERY_SUM: f32 = 131_000.0;

/// The same of a segment's weights: `(262000 + 128) * V_MAX < 2^31`.
const WEIGHT_SUM: f32 = 262_000.0;

/// Scale of codes that keep both limits, and its inverse.
#[inline(always)]
fn scale(largest: f32, sum: f32, max_sum: f32) -> (f32, f32) {
    wide_scale((largest / CODE_MAX).max(sum / max_sum), 1.0)
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

/// The codes of a query `[E]`, chunk `i` at `to[i * stride]`; returns their scale.
pub(super) struct Query<'a> {
    pub(super) x: &'a [f32],
    pub(super) to: &'a mut [[i16; CHUNK]],
    pub(super) stride: usize,
}

impl Kernel for Query<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let (mut largest, mut sum) = (s.splat(0.0), 0.0f32);
        for chunk in self.x.chunks(CHUNK) {
            let mut chunk_sum = s.splat(0.0);
            for x in chunk.as_chunks().0 {
                let magnitude = s.max_abs(s.load(x), s.splat(0.0));
                largest = s.max_abs(largest, magnitude);
                chunk_sum = s.add(chunk_sum, magnitude);
            }
            sum = sum.max(s.sum(chunk_sum));
        }
        let (d, id) = scale(s.largest_abs(largest), sum, QUERY_SUM);
        for (i, x) in self.x.as_chunks().0.iter().enumerate() {
            let to = &mut self.to[i * LANES / CHUNK * self.stride];
            let (to, _) = to.as_chunks_mut();
            s.store_i16(s.mul(s.load(x), s.splat(id)), &mut to[i % (CHUNK / LANES)]);
        }
        d
    }
}

/// A thread's memory for tiles of R rows.
#[derive(Default)]
pub(super) struct Scratch {
    /// Scores, then weights of V, `[R]`.
    x: Vec<[f32; SEGMENT]>,
    /// Codes of the weights, `[R]`.
    codes: Vec<[i16; SEGMENT]>,
    /// Output, `[R][E]`.
    pub(super) o: Vec<f32>,
}

impl Scratch {
    /// Prepares for a tile of `n_rows`; contents are unspecified.
    fn set_rows(&mut self, n_rows: usize, head_size: usize) {
        self.x.resize(n_rows, [0.0; SEGMENT]);
        self.codes.resize(n_rows, [0; SEGMENT]);
        self.o.resize(n_rows * head_size, 0.0);
    }
}

/// Some rows over one segment.
pub(super) struct Tile<'a> {
    pub(super) segment: &'a Segment<'a>,
    pub(super) params: &'a AttentionParams,
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
    /// Reads the codes of the queries, `[E / 64][R]` of up to 64, and their scales, writes `o` of the
    /// scratch, and returns m and l. A row that sees nothing of the segment gets values without meaning.
    pub(super) fn compute(
        &self,
        cpu: &Cpu,
        (q, scales): (&[[i16; CHUNK]], &[f32]),
        ahead: &mut Ahead,
        scratch: &mut Scratch,
    ) -> Folded {
        let head_size = self.segment.layout.head_size;
        let n_rows = self.seen.len();
        scratch.set_rows(n_rows, head_size);
        let Scratch { x, codes, o } = scratch;
        let some = self.seen.iter().filter(|seen| !seen.is_empty());
        let start = some.clone().map(|seen| seen.start).min().unwrap_or(0);
        let end = some.map(|seen| seen.end).max().unwrap_or(0);
        // Whole vectors: a block is no shorter. What a row does not see of them is hidden from it.
        let vectors = start / LANES..end.div_ceil(LANES);
        let (segment, params, seen) = (self.segment, self.params, self.seen);
        with_rows!(n_rows, R => {
            let (q, vectors) = (q.as_chunks().0, vectors.clone());
            cpu.compute(Scores::<R> { segment, q, vectors, ahead, x });
        });
        let v = &segment.v;
        let (folded, units) = cpu.compute(Softmax { params, scales, seen, v, vectors, x, codes });
        with_rows!(n_rows, R => {
            let (codes, pairs) = (&codes.as_chunks().0[0], start / 2..end.div_ceil(2));
            cpu.compute(Sums::<R> { segment, codes, units: &units, pairs, ahead, o });
        });
        folded
    }
}

/// Vectors that [`chain`] keeps in registers: sums, and what several rows read.
const fn in_use(n_rows: usize, n: usize) -> usize {
    n_rows * n + if n_rows == 1 { 1 } else { n }
}

/// Calls a tile function on a range of vectors, with as many at a time as the registers hold.
macro_rules! widest {
    ($S:ident, $R:ident, $vectors:expr, $call:ident) => {{
        let vectors: Range<usize> = $vectors;
        let mut vector = vectors.start;
        if const { in_use($R, 1) > $S::VECTORS } {
            unreachable!("the registers do not hold a tile of {} rows", $R);
        }
        if const { in_use($R, 4) <= $S::VECTORS } {
            while vector + 4 <= vectors.end {
                $call!(vector, 4);
                vector += 4;
            }
        }
        if const { in_use($R, 2) <= $S::VECTORS } {
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

/// `x = q k` for R rows, but for the scales of the queries.
struct Scores<'a, const R: usize> {
    segment: &'a Segment<'a>,
    /// `[E / 64]`.
    q: &'a [[[i16; CHUNK]; R]],
    /// Of tokens.
    vectors: Range<usize>,
    ahead: &'a mut Ahead,
    x: &'a mut [[f32; SEGMENT]],
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
        let KvLayout { head_size, block_len, .. } = *self.segment.layout;
        let k = &self.segment.k;
        for (i, q) in self.q.iter().enumerate() {
            let first = i * CHUNK;
            let pairs = 0..CHUNK.min(head_size - first) / 2;
            let mut rows = [&[][..]; N];
            for v in 0..N {
                let token = (vector + v) * LANES;
                let start = first * block_len + token % block_len * 2;
                rows[v] = &k.pages[token / block_len][start..];
            }
            let sums = [[s.zeros(); N]; R];
            let sums = chain(s, sums, q, pairs, rows, 2 * block_len, self.ahead);
            let is_last = i + 1 == self.q.len();
            let mut scales = [s.splat(1.0); N];
            if is_last {
                for v in 0..N {
                    scales[v] = k.scales(s, (vector + v) * LANES);
                }
            }
            for r in 0..R {
                let (x, _) = self.x[r].as_chunks_mut();
                let x = &mut x[vector..vector + N];
                for v in 0..N {
                    let mut sum = s.to_float(sums[r][v]);
                    if i > 0 {
                        sum = s.add(s.load(&x[v]), sum);
                    }
                    if is_last {
                        sum = s.mul(sum, scales[v]);
                    }
                    s.store(sum, &mut x[v]);
                }
            }
        }
    }
}

/// Scales, caps and masks each row's scores, makes probabilities and weights of V of them, and returns m
/// and l, and the scales of the weights.
struct Softmax<'a> {
    params: &'a AttentionParams,
    /// Of the queries.
    scales: &'a [f32],
    seen: &'a [Range<usize>],
    v: &'a Codes<'a>,
    /// Of tokens, those that any row sees.
    vectors: Range<usize>,
    x: &'a mut [[f32; SEGMENT]],
    codes: &'a mut [[i16; SEGMENT]],
}

impl Kernel for Softmax<'_> {
    type Output = (Folded, [f32; LANES]);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> (Folded, [f32; LANES]) {
        let (mut folded, mut units) = (Folded::default(), [0.0; LANES]);
        let mut v_scales = [[0.0; LANES]; VECTORS];
        for vector in self.vectors.clone() {
            s.store(self.v.scales(s, vector * LANES), &mut v_scales[vector]);
        }
        let AttentionParams { scale: params_scale, softcap, .. } = *self.params;
        for (r, seen) in self.seen.iter().enumerate() {
            let (x, codes) = (as_vectors(&mut self.x[r]), as_vectors(&mut self.codes[r]));
            if seen.is_empty() {
                codes[self.vectors.clone()].fill([0; LANES]);
                continue;
            }
            let vectors = seen.start / LANES..seen.end.div_ceil(LANES);
            for vector in (self.vectors.start..vectors.start).chain(vectors.end..self.vectors.end) {
                codes[vector] = [0; LANES];
            }
            assert!(vectors.end <= VECTORS);
            let mask = Mask::new(seen);
            let factor = s.splat(self.scales[r] * params_scale);
            let mut m = s.splat(f32::NEG_INFINITY);
            for vector in vectors.clone() {
                let mut score = s.mul(s.load(&x[vector]), factor);
                if let Some(cap) = softcap {
                    let tanh = math::tanh(s, s.mul(score, s.splat(1.0 / cap)));
                    score = s.mul(tanh, s.splat(cap));
                }
                score = mask.hide(s, score, f32::NEG_INFINITY, vector);
                s.store(score, &mut x[vector]);
                m = s.max(score, m);
            }
            folded.m[r] = s.largest(m);
            let m = s.splat(folded.m[r]);
            let (mut l, mut sum, mut largest) = (s.splat(0.0), s.splat(0.0), s.splat(0.0));
            for vector in vectors.clone() {
                let p = math::exp_bounded(s, s.sub(s.load(&x[vector]), m));
                let weight = s.mul(p, s.load(&v_scales[vector]));
                let weight = mask.hide(s, weight, 0.0, vector);
                s.store(weight, &mut x[vector]);
                l = s.add(l, p);
                sum = s.add(sum, weight);
                largest = s.max_abs(largest, weight);
            }
            folded.l[r] = s.sum(l);
            let (unit, inverse) = scale(s.largest_abs(largest), s.sum(sum), WEIGHT_SUM);
            units[r] = unit;
            for vector in vectors {
                s.store_i16(s.mul(s.load(&x[vector]), s.splat(inverse)), &mut codes[vector]);
            }
        }
        (folded, units)
    }
}

/// Vectors of a segment's tokens.
const VECTORS: usize = SEGMENT / LANES;

#[inline(always)]
fn as_vectors<T>(x: &mut [T; SEGMENT]) -> &mut [[T; LANES]; VECTORS] {
    x.as_chunks_mut().0.first_chunk_mut().expect("so many vectors are a segment")
}

/// What a row sees of a segment.
#[derive(Clone, Copy)]
struct Mask {
    /// The first token and the end.
    start: f32,
    end: f32,
    /// Vectors that are seen as a whole: the first and their number.
    whole: usize,
    n_whole: usize,
}

impl Mask {
    #[inline(always)]
    fn new(seen: &Range<usize>) -> Mask {
        let whole = seen.start.div_ceil(LANES);
        let n_whole = (seen.end / LANES).saturating_sub(whole);
        Mask { start: seen.start as f32, end: seen.end as f32, whole, n_whole }
    }

    /// `hidden` for tokens that are not seen, in the given vector of tokens.
    #[inline(always)]
    fn hide<S: Simd>(self, s: S, x: S::F, hidden: f32, vector: usize) -> S::F {
        if vector.wrapping_sub(self.whole) < self.n_whole {
            return x;
        }
        let tokens = s.add(s.load(&LANE_NUMBERS), s.splat((vector * LANES) as f32));
        let hidden = s.splat(hidden);
        let x = s.select_lt(tokens, s.splat(self.start), hidden, x);
        s.select_lt(tokens, s.splat(self.end), x, hidden)
    }
}

/// `o = w v` over the tokens of a segment, for R rows.
struct Sums<'a, const R: usize> {
    segment: &'a Segment<'a>,
    /// Of the weights; 0 for what a row does not see.
    codes: &'a [[i16; SEGMENT]; R],
    /// The scales of the codes.
    units: &'a [f32; LANES],
    /// Of tokens.
    pairs: Range<usize>,
    ahead: &'a mut Ahead,
    /// `[R][E]`.
    o: &'a mut [f32],
}

impl<const R: usize> Kernel for Sums<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let KvLayout { head_size, block_len, .. } = *self.segment.layout;
        // Where each pair of tokens is: a loop over pages would be too short.
        let mut rows = [std::ptr::null(); SEGMENT / 2];
        let n = block_len / 2;
        for page in self.pairs.start / n..self.pairs.end.div_ceil(n) {
            let values = self.segment.v.pages[page];
            assert!(values.len() >= block_len * head_size);
            for (i, row) in rows[page * n..(page + 1) * n].iter_mut().enumerate() {
                *row = values.as_ptr().wrapping_add(i * 2 * head_size);
            }
        }
        let rows = &rows[self.pairs.clone()];
        macro_rules! tile {
            ($vector:expr, $n:literal) => {
                // SAFETY: the rows were just made.
                unsafe { self.tile::<S, $n>(s, rows, $vector) }
            };
        }
        widest!(S, R, 0..head_size / LANES, tile);
    }
}

impl<const R: usize> Sums<'_, R> {
    /// N vectors of values, `vector` the first.
    ///
    /// # Safety
    /// Each row is `[E][2]` values of one of the pairs.
    #[inline(always)]
    unsafe fn tile<S: Simd, const N: usize>(&mut self, s: S, rows: &[*const i16], vector: usize) {
        let head_size = self.segment.layout.head_size;
        assert!(2 * self.pairs.end <= SEGMENT && (vector + N) * LANES <= head_size);
        let mut sums = [[s.zeros(); N]; R];
        for (&row, k) in rows.iter().zip(self.pairs.clone()) {
            let mut at = [row; N];
            for i in 0..N {
                at[i] = row.wrapping_add((vector + i) * 2 * LANES);
            }
            // SAFETY: the caller's promise, and the assert's.
            sums = unsafe { add(s, sums, self.codes, k, at, self.ahead) };
        }
        for r in 0..R {
            let (o, _) = self.o[r * head_size + vector * LANES..].as_chunks_mut();
            for i in 0..N {
                s.store(s.mul(s.to_float(sums[r][i]), s.splat(self.units[r])), &mut o[i]);
            }
        }
    }
}

/// The inner loop over K: adds `a[r][k] b[i][j * stride..]`, of pairs, to `sums[r][i]` for each k,
/// the j-th of them.
#[inline(always)]
fn chain<S: Simd, const R: usize, const N: usize, const L: usize>(
    s: S,
    mut sums: [[S::I; N]; R],
    a: &[[i16; L]; R],
    k: Range<usize>,
    b: [&[i16]; N],
    stride: usize,
    ahead: &mut Ahead,
) -> [[S::I; N]; R] {
    assert!(2 * k.end <= L);
    for b in b {
        assert!(k.is_empty() || (k.len() - 1) * stride + 2 * LANES <= b.len());
    }
    for (j, k) in k.enumerate() {
        let mut at = [std::ptr::null(); N];
        for i in 0..N {
            at[i] = b[i].as_ptr().wrapping_add(j * stride);
        }
        // SAFETY: `j` is below the length of `k`, so the pairs lie in `b[i]` by the assert, and
        // `2 k + 1` is below L.
        sums = unsafe { add(s, sums, a, k, at, ahead) };
    }
    sums
}

/// Adds `a[r][k] b[i]`, of pairs, to `sums[r][i]`.
///
/// # Safety
/// There are vectors of pairs at `b`, and `2 k + 1` is below L.
#[inline(always)]
unsafe fn add<S: Simd, const R: usize, const N: usize, const L: usize>(
    s: S,
    mut sums: [[S::I; N]; R],
    a: &[[i16; L]; R],
    k: usize,
    b: [*const i16; N],
    ahead: &mut Ahead,
) -> [[S::I; N]; R] {
    if R < S::BUSY_ROWS {
        ahead.step(s, N);
    }
    let mut vectors = [s.zeros(); N];
    for i in 0..N {
        // SAFETY: the caller's promise.
        vectors[i] = s.load_pairs(unsafe { &*b[i].cast() });
    }
    for r in 0..R {
        // SAFETY: the caller's promise.
        let a = s.splat_pair(unsafe { *a[r].as_ptr().add(2 * k).cast() });
        for i in 0..N {
            sums[r][i] = s.dot_pairs(vectors[i], a, sums[r][i]);
        }
    }
    sums
}
