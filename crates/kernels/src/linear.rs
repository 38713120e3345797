//! The linear op: rows of activations times packed weights.
//!
//! # Numerics
//!
//! Every output element is one serial chain, k ascending, `acc` starting at 0, `fma` rounding once:
//!
//! - integer weights, per block of 32 k with activation codes q, scale dx and S = sum of q:
//!   `acc = fma(I as f32, dw * dx, acc)`, `I = sum (code - zero) q` exact in i32, then for formats
//!   with a minimum `acc = fma(m, dx * (S as f32), acc)`. K-quants and IQ4_XS: `dw = d * sc` and
//!   `m = -(dmin * m)`, each rounded once. Codebooks: `code - zero` is the integer that the codebook
//!   has for the code. MXFP4: `dw = 2^(e - 128)`.
//! - Q2_K, Q3_K and Q6_K take two such steps per block, one per 16 k: I and, in Q2_K, S are sums over
//!   these, and S may be had from the starts of the activations ([`crate::mat::Acts`]), exactly.
//!   Q2_K: `acc = fma(I0, dw0 * dx, acc)`, `acc = fma(m0, dx * S0, acc)`,
//!   `acc = fma(I1, dw1 * dx, acc)`, `acc = fma(m1, dx * S1, acc)`.
//! - float weights: `acc = fma(w, x, acc)` per k.
//!
//! Last come `acc + bias` (nothing without a bias) and then `+ y` if the op adds to its output, in
//! this order.

use std::ops::Range;

use crate::cpu::Cpu;
use crate::mat::{Acts, Mat, Panel};
use crate::profile::Op;
use crate::split::Split;
use crate::weight::QMat;
use crate::weight::tile::ROWS;

/// One product of a [`Cpu::linear`](crate::Cpu::linear) call.
pub struct Linear<'a> {
    /// The weight.
    pub w: &'a QMat,
    /// `[out]`, added to every row.
    pub bias: Option<&'a [f32]>,
    /// `[T, out]`.
    pub y: &'a mut Mat,
    /// Whether the product is added to what `y` holds.
    pub add: bool,
}

impl Cpu {
    /// For each part, in one parallel region: `y[t, o] = sum_i x[t, i] w[o, i]`, plus `bias[o]`, plus
    /// what `y[t, o]` held if the part adds. `x` is `[T, in]`, `y` `[T, out]`; the module
    /// documentation gives the chain.
    ///
    /// # Panics
    /// If the shapes differ, or `x` lacks a form that a weight reads.
    pub fn linear(&self, x: &Acts, parts: &mut [Linear<'_>]) {
        for Linear { w, bias, y, .. } in &*parts {
            assert_eq!(x.cols(), w.n_in(), "the weight's rows are as long as those of x");
            assert_eq!(y.rows(), x.rows(), "y has the rows of x");
            assert_eq!(y.cols(), w.n_out(), "y has the outputs of the weight");
            assert!(bias.is_none_or(|bias| bias.len() == w.n_out()), "one bias for each output");
            assert_eq!(x.forms.or(w.forms()), x.forms, "x has the form that the weight reads");
        }
        if x.rows() == 0 || parts.is_empty() {
            return;
        }
        let _timer = self.profile.time(|| {
            let n_out = parts.iter().map(|part| part.w.n_out()).sum();
            let n_bytes = parts.iter().map(|part| part.w.n_bytes()).sum();
            let op = Op::Linear { n_out, n_in: x.cols(), dtype: parts[0].w.dtype() };
            (op, n_bytes, x.rows() * x.cols() * n_out)
        });
        let parts: Vec<Part<'_>> = parts.iter_mut().map(Part::new).collect();
        let n_threads = self.team.n_threads();
        let n_bytes = parts.iter().map(|part| part.w.n_bytes()).sum::<usize>();
        let grid = Grid::new(x.rows(), n_threads);
        self.team.share(|_, share, piece| {
            // Threads take equal shares of the bytes, cut at row tiles:
            //   |---- part 0 ----|-- part 1 --|------- part 2 -------|
            //   |------ thread 0 ------|------ thread 1 -------|
            let (panels, share) = grid.place(share);
            let cut = |i: usize| (n_bytes as u128 * i as u128 / grid.n_shares as u128) as usize;
            let share = cut(share)..cut(share + 1);
            let mut first = 0;
            for part in &parts {
                let tiles = part.tiles_between(first, piece.of(share.clone()));
                let end = part.tiles_between(first, share.clone()).end;
                first += part.w.n_bytes();
                if !tiles.is_empty() {
                    let args = part.share(x, panels.clone(), tiles, end);
                    // SAFETY: `Cpu::new` checked the instruction set, the asserts above the shapes;
                    // the grid and the cuts give each part of `y` to one thread.
                    unsafe { (self.isa.linear(part.w.dtype()))(&args) };
                }
            }
        });
    }

    /// `y[t] = scale * table[ids[t]]`: rows of an embedding table. `y` is `[T, D]`, or gets so many rows.
    ///
    /// # Panics
    /// If an id is no row of the table, or `y` is not as wide.
    pub fn embed(&self, table: &QMat, ids: &[u32], scale: f32, y: &mut Mat) {
        assert_eq!(y.cols(), table.n_in(), "y is as wide as the table");
        let _timer = self.profile.time(|| (Op::Embed, 0, 0));
        y.set_rows(ids.len());
        let n_cols = y.cols();
        let values = Split::new(y.as_mut_slice());
        self.team.for_each(ids.len(), |t| {
            // SAFETY: each item has its own row.
            let row = unsafe { values.part(t * n_cols..(t + 1) * n_cols) };
            table.row(ids[t] as usize, row);
            row.iter_mut().for_each(|value| *value *= scale);
        });
    }
}

/// A [`Linear`] that threads share.
struct Part<'a> {
    w: &'a QMat,
    bias: Option<&'a [f32]>,
    y: Split<'a, f32>,
    add: bool,
}

impl<'a> Part<'a> {
    fn new(part: &'a mut Linear<'_>) -> Part<'a> {
        let y = Split::new(part.y.as_mut_slice());
        Part { w: part.w, bias: part.bias, y, add: part.add }
    }

    /// The row tiles that start in the byte range `cut`, this part's first byte being `first`.
    fn tiles_between(&self, first: usize, cut: Range<usize>) -> Range<usize> {
        let tile = |byte: usize| {
            byte.saturating_sub(first).div_ceil(self.w.tile_bytes()).min(self.w.n_tiles())
        };
        tile(cut.start)..tile(cut.end)
    }

    /// A piece of a share that ends at tile `end`.
    fn share(
        &self,
        x: &'a Acts,
        panels: Range<usize>,
        tiles: Range<usize>,
        end: usize,
    ) -> TileArgs<'a> {
        let (n_out, tile_bytes) = (self.w.n_out(), self.w.tile_bytes());
        let outputs = tiles.start * ROWS..n_out.min(tiles.end * ROWS);
        TileArgs {
            // Those of the next pieces as well, to be fetched ahead.
            tiles: &self.w.tiles()[tiles.start * tile_bytes..end * tile_bytes],
            n_out: outputs.len(),
            x,
            panels,
            bias: self.bias.map(|bias| &bias[outputs.clone()]),
            y: self.y.as_mut_ptr().wrapping_add(outputs.start),
            y_stride: n_out,
            add: self.add,
        }
    }
}

/// Rows that are worth all weights: with fewer, turning weights into plain bytes costs too much.
const ROWS_PER_SHARE: usize = 128;

/// How threads share a product. Of few rows each thread takes some outputs of all; many rows are cut
/// as well, so that what a thread reads next is what it wrote, and lies in its own cache.
pub(crate) struct Grid {
    n_rows: usize,
    /// Cuts of the rows.
    n_cuts: usize,
    /// Shares of the outputs.
    pub(crate) n_shares: usize,
}

impl Grid {
    pub(crate) fn new(n_rows: usize, n_threads: usize) -> Grid {
        let cuts = (1..=n_threads).rev().filter(|n| n_threads.is_multiple_of(*n));
        let n_cuts = cuts.into_iter().find(|n| n_rows / n >= ROWS_PER_SHARE).unwrap_or(1);
        Grid { n_rows, n_cuts, n_shares: n_threads / n_cuts }
    }

    /// The panels of a thread, and which share of the outputs.
    pub(crate) fn place(&self, thread: usize) -> (Range<usize>, usize) {
        let (cut, n_panels) = (thread / self.n_shares, Panel::count(self.n_rows));
        let start = |cut: usize| n_panels * cut / self.n_cuts;
        (start(cut)..start(cut + 1), thread % self.n_shares)
    }
}

/// A share of one product for one thread: consecutive row tiles times some panels.
pub(crate) struct TileArgs<'a> {
    /// Whole row tiles, at least as many as `n_out` takes.
    pub(crate) tiles: &'a [u8],
    /// Output rows in them: the last tile may be ragged.
    pub(crate) n_out: usize,
    /// The activations `[T, in]`, in the form that the format reads; `x.cols` is the weight's `in`.
    pub(crate) x: &'a Acts,
    /// The panels of `x` to compute.
    pub(crate) panels: Range<usize>,
    /// `[n_out]`.
    pub(crate) bias: Option<&'a [f32]>,
    /// `y[t * y_stride + o]`, for o in `0..n_out`.
    pub(crate) y: *mut f32,
    /// Distance of two rows of `y`.
    pub(crate) y_stride: usize,
    /// Whether to add to `y`.
    pub(crate) add: bool,
}

/// Computes a share: all of `y[t][0..n_out]` for the rows of its panels, and touches nothing else of `y`.
///
/// # Safety
/// The processor has the kernel's instruction set; the tiles are of the kernel's format and as many
/// as `n_out` needs; `x` has the form that the format reads; `y` is valid for those elements and no
/// other thread touches them.
pub(crate) type LinearKernel = unsafe fn(args: &TileArgs<'_>);

impl TileArgs<'_> {
    /// The rows of the panels.
    pub(crate) fn rows(&self) -> Range<usize> {
        Panel::rows(self.x.rows(), self.panels.clone())
    }

    /// Ends the chains of row `t` with tile `tile` of the share: bias, sum with `y`, store. For
    /// kernels that have nothing better, and for the ragged last tile.
    ///
    /// # Safety
    /// As [`LinearKernel`].
    pub(crate) unsafe fn store(&self, t: usize, tile: usize, acc: &[f32; ROWS]) {
        let first = tile * ROWS;
        for o in first..self.n_out.min(first + ROWS) {
            let mut value = acc[o - first];
            if let Some(bias) = self.bias {
                value += bias[o];
            }
            // SAFETY: `t` < T and `o` < n_out: the caller promises that `y` is valid there.
            let y = unsafe { &mut *self.y.add(t * self.y_stride + o) };
            if self.add {
                value += *y;
            }
            *y = value;
        }
    }
}
