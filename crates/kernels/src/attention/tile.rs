//! A tile: some rows of attention over one segment of the cache.

use super::AttentionParams;
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

/// A thread's memory for tiles.
#[derive(Default)]
pub(super) struct Scratch {
    q: Vec<f32>,
    p: Vec<[f32; SEGMENT]>,
    o: Vec<f32>,
}

impl Scratch {
    /// q `[E][R]`, p `[2][R][256]`, o `[R][E]`; contents unspecified.
    #[allow(clippy::type_complexity)]
    pub(super) fn parts<const R: usize>(
        &mut self,
        head_size: usize,
    ) -> (&mut [[f32; R]], &mut [[[f32; SEGMENT]; R]; 2], &mut [f32]) {
        let n_values = R * head_size;
        self.q.resize(n_values.max(self.q.len()), 0.0);
        self.o.resize(n_values.max(self.o.len()), 0.0);
        self.p.resize((2 * R).max(self.p.len()), [0.0; SEGMENT]);
        let (q, _) = self.q[..n_values].as_chunks_mut();
        let (p, _) = self.p[..2 * R].as_chunks_mut();
        (q, p.first_chunk_mut().expect("two sets of rows"), &mut self.o[..n_values])
    }
}

/// R rows over one segment: writes `o` and returns m and l. A row that sees nothing of the
/// segment gets values without meaning.
pub(super) struct Tile<'a, const R: usize> {
    pub(super) layout: &'a KvLayout,
    pub(super) params: &'a AttentionParams,
    /// `[E][R]`.
    pub(super) q: &'a [[f32; R]],
    /// Scores, then probabilities; and room for probabilities times scales.
    pub(super) p: &'a mut [[[f32; SEGMENT]; R]; 2],
    /// `[R][E]`.
    pub(super) o: &'a mut [f32],
    pub(super) pages: Pages<'a>,
    /// The tokens of the segment that each row sees.
    pub(super) seen: [Range<usize>; R],
}

impl<const R: usize> Kernel for Tile<'_, R> {
    type Output = [[f32; R]; 2];

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) -> [[f32; R]; 2] {
        assert!(R <= S::ACCUMULATORS, "a tile of {R} rows");
        self.scores(s);
        let mut m_and_l = [[0.0; R]; 2];
        for r in 0..R {
            [m_and_l[0][r], m_and_l[1][r]] = self.softmax(s, r);
        }
        match self.layout.v_type {
            KvType::F16 => self.values_f16(s),
            KvType::Q8_0 => self.values_q8(s),
        }
        m_and_l
    }
}

/// Calls a tile function with as many vectors as the registers hold, as long as that many are left.
macro_rules! widest {
    ($S:ident, $R:ident, $n:expr, $call:ident) => {{
        let n: usize = $n;
        let mut i = 0;
        if 4 * $R <= $S::ACCUMULATORS {
            while i + 4 <= n {
                $call!(i, 4);
                i += 4;
            }
        }
        if 2 * $R <= $S::ACCUMULATORS {
            while i + 2 <= n {
                $call!(i, 2);
                i += 2;
            }
        }
        while i < n {
            $call!(i, 1);
            i += 1;
        }
    }};
}

impl<const R: usize> Tile<'_, R> {
    /// The tokens that some row sees.
    fn any_seen(&self) -> Range<usize> {
        let seen = self.seen.iter().filter(|seen| !seen.is_empty());
        seen.clone().map(|seen| seen.start).min().unwrap_or(0)
            ..seen.map(|seen| seen.end).max().unwrap_or(0)
    }

    /// `p = q k`, for whole vectors of tokens; what no row sees of them is garbage.
    #[inline(always)]
    fn scores<S: Simd>(&mut self, s: S) {
        let any = self.any_seen();
        let first = any.start / LANES;
        macro_rules! tile {
            ($i:expr, $n:literal) => {{
                let start = first + $i;
                let scores = self.score_tile::<S, $n>(s, start);
                for (p, scores) in self.p[0].iter_mut().zip(scores) {
                    let (p, _) = p[start * LANES..].as_chunks_mut();
                    for (p, score) in p.iter_mut().zip(scores) {
                        s.store(score, p);
                    }
                }
            }};
        }
        widest!(S, R, any.end.div_ceil(LANES) - first, tile);
    }

    /// Scores of N vectors of tokens from vector `start`.
    #[inline(always)]
    fn score_tile<S: Simd, const N: usize>(&self, s: S, start: usize) -> [[S::F; N]; R] {
        let block_len = self.layout.block_len;
        let mut pages = [&[][..]; N];
        let mut offsets = [0; N];
        for v in 0..N {
            let token = (start + v) * LANES;
            pages[v] = self.pages.k[token / block_len];
            offsets[v] = token % block_len;
        }
        match self.layout.k_type {
            KvType::F16 => {
                let mut k = [&[][..]; N];
                for v in 0..N {
                    k[v] = &as_f16(pages[v])[offsets[v]..];
                }
                dot_tile(s, self.q, k, block_len)
            }
            KvType::Q8_0 => {
                let n_codes = self.layout.head_size * block_len;
                let mut total = [[s.splat(0.0); N]; R];
                for (b, q) in self.q.chunks_exact(KV_BLOCK).enumerate() {
                    let mut codes = [&[][..]; N];
                    for v in 0..N {
                        codes[v] = &as_i8(pages[v])[b * KV_BLOCK * block_len + offsets[v]..];
                    }
                    let chain = dot_tile(s, q, codes, block_len);
                    for v in 0..N {
                        let scales = &as_f16(&pages[v][n_codes..])[b * block_len + offsets[v]..];
                        let scale = f16::load(s, scales);
                        for r in 0..R {
                            total[r][v] = s.fma(chain[r][v], scale, total[r][v]);
                        }
                    }
                }
                total
            }
        }
    }

    /// Row `r`: scales, caps and masks its scores, makes probabilities of them, and returns (m, l).
    #[inline(always)]
    fn softmax<S: Simd>(&mut self, s: S, r: usize) -> [f32; 2] {
        let seen = self.seen[r].clone();
        let vectors = seen.start / LANES..seen.end.div_ceil(LANES);
        let (p, _) = self.p[0][r].as_chunks_mut::<LANES>();
        let p = &mut p[vectors.clone()];
        let lanes = s.load(&std::array::from_fn(|i| i as f32));
        let hidden = s.splat(f32::NEG_INFINITY);
        let mut m = hidden;
        for (p, vector) in p.iter_mut().zip(vectors) {
            let mut x = s.mul(s.load(p), s.splat(self.params.scale));
            if let Some(cap) = self.params.softcap {
                x = s.mul(math::tanh(s, s.mul(x, s.splat(1.0 / cap))), s.splat(cap));
            }
            // Below 0 or above 15 in the vectors that are seen whole.
            let start = seen.start as f32 - (vector * LANES) as f32;
            let end = seen.end as f32 - (vector * LANES) as f32;
            x = s.select_lt(lanes, s.splat(start), hidden, x);
            x = s.select_lt(lanes, s.splat(end), x, hidden);
            s.store(x, p);
            m = s.max(x, m);
        }
        let m = s.largest(m);
        let mut l = s.splat(0.0);
        for p in p {
            let x = math::exp(s, s.sub(s.load(p), s.splat(m)));
            s.store(x, p);
            l = s.add(l, x);
        }
        [m, s.sum(l)]
    }

    /// `o = p v`.
    #[inline(always)]
    fn values_f16<S: Simd>(&mut self, s: S) {
        let mut pages = [&[][..]; MAX_PAGES];
        for (page, bytes) in pages.iter_mut().zip(self.pages.v) {
            *page = as_f16(bytes);
        }
        let any = self.any_seen();
        macro_rules! tile {
            ($i:expr, $n:literal) => {{
                let start = $i * LANES;
                let sums: [[S::F; $n]; R] =
                    self.value_tile(s, &self.p[0], &pages, any.clone(), start);
                self.store_values(s, start, sums);
            }};
        }
        widest!(S, R, self.layout.head_size / LANES, tile);
    }

    /// `o = p v` over codes: for each block of values, `p` times their scale multiplies the codes.
    #[inline(always)]
    fn values_q8<S: Simd>(&mut self, s: S) {
        let block_len = self.layout.block_len;
        let n_codes = self.layout.head_size * block_len;
        let mut pages = [&[][..]; MAX_PAGES];
        for (page, bytes) in pages.iter_mut().zip(self.pages.v) {
            *page = as_i8(bytes);
        }
        let any = self.any_seen();
        for b in 0..self.layout.head_size / KV_BLOCK {
            for vector in any.start / LANES..any.end.div_ceil(LANES) {
                let (page, offset) = (vector * LANES / block_len, vector * LANES % block_len);
                let scales = as_f16(&self.pages.v[page][n_codes..]);
                let scale = f16::load(s, &scales[b * block_len + offset..]);
                let [p, scaled] = &mut *self.p;
                for r in 0..R {
                    let (p, _) = p[r].as_chunks();
                    let (scaled, _) = scaled[r].as_chunks_mut();
                    s.store(s.mul(s.load(&p[vector]), scale), &mut scaled[vector]);
                }
            }
            macro_rules! tile {
                ($i:expr, $n:literal) => {{
                    let start = b * KV_BLOCK + $i * LANES;
                    let sums: [[S::F; $n]; R] =
                        self.value_tile(s, &self.p[1], &pages, any.clone(), start);
                    self.store_values(s, start, sums);
                }};
            }
            widest!(S, R, KV_BLOCK / LANES, tile);
        }
    }

    /// Weighted sums of N vectors of values from value `start`.
    #[inline(always)]
    fn value_tile<S: Simd, C: Cell, const N: usize>(
        &self,
        s: S,
        p: &[[f32; SEGMENT]; R],
        pages: &[&[C]; MAX_PAGES],
        any: Range<usize>,
        start: usize,
    ) -> [[S::F; N]; R] {
        let (head_size, block_len) = (self.layout.head_size, self.layout.block_len);
        // What every row sees.
        let mut all = any.clone();
        for seen in &self.seen {
            all = all.start.max(seen.start)..all.end.min(seen.end);
        }
        let mut sums = [[s.splat(0.0); N]; R];
        for page in any.start / block_len..any.end.div_ceil(block_len) {
            let first = page * block_len;
            for t in any.start.max(first)..any.end.min(first + block_len) {
                let values = &pages[page][(t - first) * head_size + start..][..N * LANES];
                let mut v = [s.splat(0.0); N];
                for i in 0..N {
                    v[i] = C::load(s, &values[i * LANES..]);
                }
                let everyone = all.contains(&t);
                for r in 0..R {
                    if everyone || self.seen[r].contains(&t) {
                        let p = s.splat(p[r][t % SEGMENT]);
                        for i in 0..N {
                            sums[r][i] = s.fma(p, v[i], sums[r][i]);
                        }
                    }
                }
            }
        }
        sums
    }

    #[inline(always)]
    fn store_values<S: Simd, const N: usize>(&mut self, s: S, start: usize, sums: [[S::F; N]; R]) {
        let rows = self.o.chunks_exact_mut(self.layout.head_size);
        for (o, sums) in rows.zip(sums) {
            let (o, _) = o[start..].as_chunks_mut();
            for (o, sum) in o.iter_mut().zip(sums) {
                s.store(sum, o);
            }
        }
    }
}

/// An element of a page.
trait Cell: Copy {
    /// The first sixteen.
    fn load<S: Simd>(s: S, x: &[Self]) -> S::F;
}

impl Cell for f16 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[f16]) -> S::F {
        s.load_f16(x.first_chunk().expect("a vector of the page"))
    }
}

impl Cell for i8 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[i8]) -> S::F {
        s.load_i8(x.first_chunk().expect("a vector of the page"))
    }
}

/// Chains over the rows of q, `[n][R]`, and of k, at `stride` from each other, for N vectors.
#[inline(always)]
fn dot_tile<S: Simd, C: Cell, const R: usize, const N: usize>(
    s: S,
    q: &[[f32; R]],
    k: [&[C]; N],
    stride: usize,
) -> [[S::F; N]; R] {
    let mut sums = [[s.splat(0.0); N]; R];
    for (e, q) in q.iter().enumerate() {
        let mut lanes = [s.splat(0.0); N];
        for v in 0..N {
            lanes[v] = C::load(s, &k[v][e * stride..]);
        }
        for r in 0..R {
            let q = s.splat(q[r]);
            for v in 0..N {
                sums[r][v] = s.fma(q, lanes[v], sums[r][v]);
            }
        }
    }
    sums
}
