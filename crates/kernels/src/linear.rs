//! The linear op: rows of activations times packed weights.
//!
//! # Numerics
//!
//! Every output element is one serial chain, k ascending, `acc` starting at 0, `fma` rounding once:
//!
//! - integer weights, per block of 32 k with activation codes q, scale dx and S = sum of q:
//!   `acc = fma(I as f32, dw * dx, acc)`, `I = sum (code - zero) q` exact in i32, then for formats
//!   with a minimum `acc = fma(m, dx * (S as f32), acc)`. K-quants: `dw = d * sc` and
//!   `m = -(dmin * m)`, each rounded once. Q6_K takes two such steps, one per 16 k.
//! - float weights: `acc = fma(w, x, acc)` per k.
//!
//! Last come `acc + bias` (nothing without a bias) and then `+ y` if the op adds to its output, in
//! this order.
#![allow(dead_code)] // Until the op lands.

use crate::mat::{Acts, Mat};
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

/// A share of one product for one thread: consecutive row tiles times all T rows.
pub(crate) struct TileArgs<'a> {
    /// Whole row tiles.
    pub(crate) tiles: &'a [u8],
    /// Output rows in them: the last tile may be ragged.
    pub(crate) n_out: usize,
    /// The activations `[T, in]`, in the form that the format reads; `x.cols` is the weight's `in`.
    pub(crate) x: &'a Acts,
    /// `[n_out]`.
    pub(crate) bias: Option<&'a [f32]>,
    /// `y[t * y_stride + o]`, for o in `0..n_out`.
    pub(crate) y: *mut f32,
    /// Distance of two rows of `y`.
    pub(crate) y_stride: usize,
    /// Whether to add to `y`.
    pub(crate) add: bool,
}

/// Computes a share: all of `y[0..T][0..n_out]`, and touches nothing else of `y`.
///
/// # Safety
/// The processor has the kernel's instruction set; the tiles are of the kernel's format and as many
/// as `n_out` needs; `x` has the form that the format reads; `y` is valid for those elements and no
/// other thread touches them.
pub(crate) type LinearKernel = unsafe fn(args: &TileArgs<'_>);

impl TileArgs<'_> {
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
