//! A tile: some rows of attention over one segment of the cache.

use super::ahead::{AHEAD_BYTES, Ahead, FetchPage, LINE};
use super::{AttentionParams, Folded};
use crate::cpu::Cpu;
use crate::kv::{KV_BLOCK, KvLayout, KvType, SEGMENT, as_f16, as_i8};
use crate::math;
use crate::simd::{Kernel, LANES, Simd};
use half::f16;
use std::ops::Range;

/// Pages of a segment, at most: the shortest block holds 16 tokens.
pub(super) const MAX_PAGES: usize = SEGMENT / LANES;

/// The pages of one segment and one key/value head; those past the block table's end are empty.
#[derive(Default)]
pub(super) struct Pages<'a> {
    pub(super) k: [&'a [u8]; MAX_PAGES],
    pub(super) v: [&'a [u8]; MAX_PAGES],
}

/// The cells of the pages of K or of V, without what else is in them.
enum Cells<'a> {
    F16([&'a [f16]; MAX_PAGES]),
    I8([&'a [i8]; MAX_PAGES]),
    /// Either, turned into f32.
    F32([&'a [f32]; MAX_PAGES]),
}

impl<'a> Cells<'a> {
    /// The `n` cells of each page.
    fn of(pages: &[&'a [u8]; MAX_PAGES], kv_type: KvType, n: usize) -> Cells<'a> {
        match kv_type {
            KvType::F16 => Cells::F16(pages.map(as_f16)),
            KvType::Q8_0 => Cells::I8(pages.map(|page| &as_i8(page)[..page.len().min(n)])),
        }
    }

    /// The same as f32, in `to`.
    fn expand<'b>(&self, cpu: &Cpu, to: &'b mut Vec<f32>) -> Cells<'b> {
        fn all<'b, C: Cell>(
            cpu: &Cpu,
            pages: &[&[C]; MAX_PAGES],
            to: &'b mut Vec<f32>,
        ) -> [&'b [f32]; MAX_PAGES] {
            let len = pages.iter().map(|page| page.len()).sum();
            to.resize(len, 0.0);
            let mut rest = &mut to[..];
            pages.map(|page| {
                let (to, others) = std::mem::take(&mut rest).split_at_mut(page.len());
                rest = others;
                cpu.compute(Expand { page, to });
                &*to
            })
        }
        Cells::F32(match self {
            Cells::F16(pages) => all(cpu, pages, to),
            Cells::I8(pages) => all(cpu, pages, to),
            Cells::F32(pages) => all(cpu, pages, to),
        })
    }
}

/// `$body` with `$pages` the pages of the cells, of whatever type.
macro_rules! with_cells {
    ($cells:expr, $pages:ident => $body:expr) => {
        match $cells {
            Cells::F16($pages) => $body,
            Cells::I8($pages) => $body,
            Cells::F32($pages) => $body,
        }
    };
}

/// A page's cells as f32.
struct Expand<'a, C> {
    page: &'a [C],
    to: &'a mut [f32],
}

impl<C: Cell> Kernel for Expand<'_, C> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (to, cells) in self.to.as_chunks_mut().0.iter_mut().zip(self.page.as_chunks().0) {
            s.store(C::load(s, cells), to);
        }
    }
}

/// A segment of the cache as the tiles read it.
pub(super) struct Segment<'a> {
    layout: &'a KvLayout,
    pages: Pages<'a>,
    k: Cells<'a>,
    v: Cells<'a>,
    /// Tokens of a page of `v`.
    v_len: usize,
}

/// A thread's memory for a [`Segment`] in f32.
#[derive(Default)]
pub(super) struct Expanded {
    k: Vec<f32>,
    v: Vec<f32>,
}

impl<'a> Segment<'a> {
    /// The segment as it is cached.
    pub(super) fn new(layout: &'a KvLayout, pages: Pages<'a>) -> Segment<'a> {
        let n = layout.head_size * layout.block_len;
        let k = Cells::of(&pages.k, layout.k_type, n);
        let v = Cells::of(&pages.v, layout.v_type, n);
        Segment { layout, pages, k, v, v_len: layout.block_len }
    }

    /// The segment in f32, for more than one tile.
    pub(super) fn expand(self, cpu: &Cpu, to: &'a mut Expanded) -> Segment<'a> {
        let k = self.k.expand(cpu, &mut to.k);
        self.v.expand(cpu, &mut to.v);
        // Token by token, pages that follow one another are one.
        let mut v = [&[][..]; MAX_PAGES];
        v[0] = &to.v[..];
        Segment { k, v: Cells::F32(v), v_len: SEGMENT, ..self }
    }

    /// What to ask memory for while tiles of few rows read the segment: its own pages, those of K
    /// first, then `next`, from [`AHEAD_BYTES`] on.
    pub(super) fn ahead(&self, next: &Pages<'_>) -> Ahead {
        let pages = self.pages.k.iter().chain(&self.pages.v).chain(&next.k);
        Ahead::over(pages.copied(), self.n_ahead())
    }

    /// Asks for what [`Segment::ahead`] leaves out, for who comes without notice.
    pub(super) fn fetch_start(&self, cpu: &Cpu) {
        let pages = self.pages.k.iter().take(self.n_ahead());
        pages.for_each(|page| cpu.compute(FetchPage(page)));
    }

    /// Pages in [`AHEAD_BYTES`].
    fn n_ahead(&self) -> usize {
        AHEAD_BYTES.div_ceil(self.pages.k[0].len().max(1))
    }
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
    /// Scores, then probabilities, `[R]`.
    p: Vec<[f32; SEGMENT]>,
    /// Probabilities times scales, `[R]`.
    scaled: Vec<[f32; SEGMENT]>,
    /// Output, `[R][E]`.
    pub(super) o: Vec<f32>,
}

impl Scratch {
    /// Prepares for a tile of `n_rows`; contents are unspecified.
    pub(super) fn set_rows(&mut self, n_rows: usize, head_size: usize) {
        self.p.resize(n_rows, [0.0; SEGMENT]);
        self.scaled.resize(n_rows, [0.0; SEGMENT]);
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
    /// Reads the queries, `[E / 256][R]` of up to 256 values, writes `o` of the scratch, and returns
    /// m and l. A row that sees nothing of the
    /// segment gets values without meaning.
    pub(super) fn compute(
        &self,
        cpu: &Cpu,
        q: &[[f32; SEGMENT]],
        ahead: &mut Ahead,
        scratch: &mut Scratch,
    ) -> Folded {
        let KvLayout { head_size, v_type, .. } = *self.segment.layout;
        scratch.set_rows(self.seen.len(), head_size);
        let Scratch { p, scaled, o } = scratch;
        let n_rows = self.seen.len();
        let some = self.seen.iter().filter(|seen| !seen.is_empty());
        let start = some.clone().map(|seen| seen.start).min();
        let end = some.map(|seen| seen.end).max();
        // Whole vectors of tokens with all that some row sees; the rest of them is garbage.
        let vectors = start.unwrap_or(0) / LANES..end.unwrap_or(0).div_ceil(LANES);

        with_rows!(n_rows, R => {
            let vectors = vectors.clone();
            let segment = self.segment;
            with_cells!(&segment.k, pages => {
                let q = rows_of(q);
                cpu.compute(Scores::<_, R> { segment, pages, q, vectors, ahead, p });
            });
        });
        let folded = cpu.compute(Softmax { params: self.params, seen: self.seen, p });
        o.fill(0.0);
        match v_type {
            KvType::F16 => self.sum_values(cpu, p, 0..head_size, ahead, o),
            KvType::Q8_0 => {
                for block in 0..head_size / KV_BLOCK {
                    let vectors = vectors.clone();
                    let segment = self.segment;
                    cpu.compute(ScaleByBlock { segment, block, vectors, p, scaled });
                    let values = block * KV_BLOCK..(block + 1) * KV_BLOCK;
                    self.sum_values(cpu, scaled, values, ahead, o);
                }
            }
        }
        folded
    }

    /// Adds `p v` to the given values of `o`, `[R][E]`.
    ///
    /// ```text
    /// row 0   |before|- - - common - - -|            tokens that all rows see: a tile
    /// row 1      |bef|- - - common - - -|after|      the others: rows that see the same together
    /// ```
    fn sum_values(
        &self,
        cpu: &Cpu,
        p: &[[f32; SEGMENT]],
        values: Range<usize>,
        ahead: &mut Ahead,
        o: &mut [f32],
    ) {
        let some = self.seen.iter().filter(|seen| !seen.is_empty());
        let start = some.clone().map(|seen| seen.start).max().unwrap_or(0);
        let common = start..some.map(|seen| seen.end).min().unwrap_or(0).max(start);
        let (segment, vectors) = (self.segment, values.start / LANES..values.end / LANES);
        let head_size = segment.layout.head_size;
        let mut sum_rows = |rows: Range<usize>, tokens: Range<usize>, o: &mut [f32]| {
            let ahead = &mut *ahead;
            if tokens.is_empty() {
                return;
            }
            let (p, o) = (&p[rows.clone()], &mut o[rows.start * head_size..]);
            with_rows!(rows.len(), R => {
                let (p, tokens, vectors) = (&rows_of(p)[0], tokens, vectors.clone());
                with_cells!(&segment.v, pages => {
                    cpu.compute(Sums::<_, R> { segment, pages, p, tokens, vectors, ahead, o });
                });
            });
        };
        for (rows, seen) in self.alike() {
            sum_rows(rows, seen.start..seen.end.min(common.start), o);
        }
        sum_rows(0..self.seen.len(), common.clone(), o);
        for (rows, seen) in self.alike() {
            sum_rows(rows, seen.start.max(common.end)..seen.end, o);
        }
    }

    /// Consecutive rows that see the same tokens, as many as a tile may have.
    fn alike(&self) -> impl Iterator<Item = (Range<usize>, &Range<usize>)> {
        let mut row = 0;
        std::iter::from_fn(move || {
            let seen = self.seen.get(row)?;
            let n = self.seen[row..].iter().take_while(|other| *other == seen).count();
            // The largest tile that is not padded.
            let n = (1..=n).rev().find(|&n| padded_rows(n) == n).unwrap_or(1);
            row += n;
            Some((row - n..row, seen))
        })
    }
}

/// Rows, R at a time.
fn rows_of<const R: usize>(rows: &[[f32; SEGMENT]]) -> &[[[f32; SEGMENT]; R]] {
    rows.as_chunks().0
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

/// `p = q k` for R rows.
struct Scores<'a, C, const R: usize> {
    segment: &'a Segment<'a>,
    pages: &'a [&'a [C]; MAX_PAGES],
    q: &'a [[[f32; SEGMENT]; R]],
    /// Of tokens.
    vectors: Range<usize>,
    ahead: &'a mut Ahead,
    p: &'a mut [[f32; SEGMENT]],
}

impl<C: Cell, const R: usize> Kernel for Scores<'_, C, R> {
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

impl<C: Cell, const R: usize> Scores<'_, C, R> {
    /// N vectors of tokens, `vector` the first.
    #[inline(always)]
    fn tile<S: Simd, const N: usize>(&mut self, s: S, vector: usize) {
        let KvLayout { head_size, block_len, k_type, .. } = *self.segment.layout;
        let mut pages = [&[][..]; N];
        let mut scales = [&[][..]; N];
        let mut slots = [0; N];
        for v in 0..N {
            let token = (vector + v) * LANES;
            let page = token / block_len;
            pages[v] = self.pages[page];
            slots[v] = token % block_len;
            if k_type == KvType::Q8_0 {
                scales[v] = as_f16(&self.segment.pages.k[page][head_size * block_len..]);
            }
        }
        match k_type {
            KvType::F16 => {
                let mut sums = [[s.splat(0.0); N]; R];
                for (i, q) in self.q.iter().enumerate() {
                    let first = i * SEGMENT;
                    let mut k = [&[][..]; N];
                    for v in 0..N {
                        k[v] = &pages[v][first * block_len + slots[v]..];
                    }
                    let values = 0..SEGMENT.min(head_size - first);
                    chain(s, &mut sums, q, values, k, block_len, self.ahead);
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
                    let mut d = [s.splat(0.0); N];
                    for v in 0..N {
                        codes[v] = &pages[v][first * block_len + slots[v]..];
                        let (halves, _) = scales[v][b * block_len + slots[v]..].as_chunks();
                        d[v] = s.load_f16(&halves[0]);
                    }
                    let mut sums = [[s.splat(0.0); N]; R];
                    chain(s, &mut sums, q, values, codes, block_len, self.ahead);
                    for (p, sums) in self.p.iter_mut().zip(sums) {
                        let (p, _) = p[vector * LANES..].as_chunks_mut();
                        for (p, (sum, d)) in p.iter_mut().zip(sums.into_iter().zip(d)) {
                            s.store(s.fma(sum, d, s.load(p)), p);
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
    segment: &'a Segment<'a>,
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
        let KvLayout { head_size, block_len, .. } = *self.segment.layout;
        for vector in self.vectors {
            let token = vector * LANES;
            let scales = as_f16(&self.segment.pages.v[token / block_len][head_size * block_len..]);
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
    segment: &'a Segment<'a>,
    pages: &'a [&'a [C]; MAX_PAGES],
    p: &'a [[f32; SEGMENT]; R],
    tokens: Range<usize>,
    /// Of values.
    vectors: Range<usize>,
    ahead: &'a mut Ahead,
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
        let (head_size, page_len) = (self.segment.layout.head_size, self.segment.v_len);
        let mut sums = [[s.splat(0.0); N]; R];
        for (sums, o) in sums.iter_mut().zip(self.o.chunks(head_size)) {
            let (o, _) = o[vector * LANES..].as_chunks();
            for (sum, o) in sums.iter_mut().zip(o) {
                *sum = s.load(o);
            }
        }
        for page in self.tokens.start / page_len..self.tokens.end.div_ceil(page_len) {
            let first = page * page_len;
            let tokens = self.tokens.start.max(first)..self.tokens.end.min(first + page_len);
            let mut v = [&[][..]; N];
            for i in 0..N {
                let value = (vector + i) * LANES;
                v[i] = &self.pages[page][(tokens.start - first) * head_size + value..];
            }
            chain(s, &mut sums, self.p, tokens, v, head_size, self.ahead);
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
    ahead: &mut Ahead,
) {
    assert!(k.end <= SEGMENT);
    for b in b {
        assert!(k.is_empty() || (k.len() - 1) * stride + LANES <= b.len());
    }
    // What is not behind a reference stays in registers.
    let mut own = *sums;
    for (j, k) in k.enumerate() {
        if R < S::BUSY_ROWS {
            ahead.step(s, const { (N * LANES * size_of::<C>()).div_ceil(LINE) });
        }
        let mut vectors = [s.splat(0.0); N];
        for i in 0..N {
            // SAFETY: `j` is below the length of `k`, so the sixteen lie in `b[i]` by the assert.
            vectors[i] = C::load(s, unsafe { &*b[i].as_ptr().add(j * stride).cast() });
        }
        for r in 0..R {
            // SAFETY: `k` < SEGMENT by the assert.
            let a = s.splat(unsafe { *a[r].get_unchecked(k) });
            for i in 0..N {
                own[r][i] = s.fma(a, vectors[i], own[r][i]);
            }
        }
    }
    *sums = own;
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

impl Cell for f32 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[f32; LANES]) -> S::F {
        s.load(x)
    }
}

impl Cell for i8 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[i8; LANES]) -> S::F {
        s.load_i8(x)
    }
}
