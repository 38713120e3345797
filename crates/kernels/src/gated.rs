//! `linear_gated`: the first half of a gated feed-forward layer (Shazeer 2020, arXiv:2002.05202).

use crate::cpu::Cpu;
use crate::linear::{Grid, TileArgs};
use crate::mat::{ACT_BLOCK, Acts, Panel};
use crate::math;
use crate::profile::Op;
use crate::quantize::{ActRows, Writer, load_block};
use crate::simd::{Kernel, Simd};
use crate::weight::QMat;
use crate::weight::tile::ROWS;
use std::ops::Range;
use std::sync::PoisonError;

/// The function on the gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activation {
    /// `x / (1 + e^-x)`.
    Silu,
    /// The tanh form of GELU: `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`.
    GeluTanh,
}

/// Bytes of gates and their partners that wait in a second-level cache.
const CHUNK_BYTES: usize = 256 << 10;

impl Cpu {
    /// `y = act(gate x) * (up x)`, in the forms that `y` has: both products and what follows, some
    /// outputs at a time, so that the products never leave the caches. `x` is `[T, D]`, the weights
    /// `[F, D]`; `y` gets `T` rows of `F`. The chains are those of [`Cpu::linear`].
    ///
    /// # Panics
    /// If the shapes differ, or `x` lacks a form that a weight reads.
    pub fn linear_gated(&self, x: &Acts, [gate, up]: [&QMat; 2], act: Activation, y: &mut Acts) {
        assert_eq!((gate.n_out(), gate.n_in()), (up.n_out(), up.n_in()));
        assert_eq!((x.cols(), y.cols()), (gate.n_in(), gate.n_out()));
        let forms = gate.forms().or(up.forms());
        assert_eq!(x.forms.or(forms), x.forms, "x has the forms that the weights read");
        y.set_rows(x.rows());
        if x.rows() == 0 {
            return;
        }
        let (n_rows, n_out) = (x.rows(), gate.n_out());
        let _timer = self.profile.time(|| {
            let op = Op::LinearGated { n_out, n_in: x.cols(), dtype: gate.dtype() };
            (op, gate.n_bytes() + up.n_bytes(), 2 * n_rows * x.cols() * n_out)
        });
        let rows = ActRows::new(y);
        let grid = Grid::new(n_rows, self.n_threads());
        self.team.share(|thread, share, piece| {
            let (panels, share) = grid.place(share);
            let tile = |share: usize| gate.n_tiles() * share / grid.n_shares;
            let end = tile(share + 1);
            let tiles = piece.of(tile(share)..end);
            let Range { start: first_row, end: end_row } = Panel::rows(n_rows, panels.clone());
            let n_rows = end_row - first_row;
            let chunk = (CHUNK_BYTES / (2 * n_rows * ROWS * size_of::<f32>()).max(1)).max(1);
            let mut products = self.products[thread].lock().unwrap_or_else(PoisonError::into_inner);
            for first in tiles.clone().step_by(chunk) {
                let cols = first * ROWS..n_out.min(tiles.end.min(first + chunk) * ROWS);
                let n = n_rows * cols.len();
                if products.len() < 2 * n {
                    products.resize(2 * n, 0.0);
                }
                let (gates, ups) = products[..2 * n].split_at_mut(n);
                for (w, y) in [(gate, &mut *gates), (up, &mut *ups)] {
                    let share = w.tiles()[..end * w.tile_bytes()].split_at(first * w.tile_bytes());
                    let args = TileArgs {
                        // More than these columns need, to be fetched ahead.
                        tiles: share.1,
                        n_out: cols.len(),
                        x,
                        panels: panels.clone(),
                        bias: None,
                        // The first row of the panels is the first of the products.
                        y: y.as_mut_ptr().wrapping_sub(first_row * cols.len()),
                        y_stride: cols.len(),
                        add: false,
                    };
                    // SAFETY: `Cpu::new` checked the instruction set, the asserts above the shapes;
                    // `y` has T rows of so many columns, and is this thread's.
                    unsafe { (self.isa.linear(w.dtype()))(&args) };
                }
                // Each piece has its own columns.
                self.compute(Gated { act, gates, ups, y: &rows, panels: panels.clone(), cols });
            }
        });
    }
}

/// What follows the products, for some columns of all rows.
struct Gated<'a> {
    act: Activation,
    /// `[T, cols]` both.
    gates: &'a [f32],
    ups: &'a [f32],
    y: &'a ActRows<'a>,
    panels: Range<usize>,
    cols: Range<usize>,
}

impl Gated<'_> {
    /// # Safety
    /// No other part in use has these columns of `y`.
    #[inline(always)]
    unsafe fn rows<S: Simd>(self, s: S) {
        let Gated { act, gates, ups, y, panels, cols } = self;
        let mut rows = gates.chunks_exact(cols.len()).zip(ups.chunks_exact(cols.len()));
        let mut writer = Writer::new(s);
        for panel in panels.map(|i| y.panel(i)) {
            for (row, (gates, ups)) in (0..panel.height).zip(&mut rows) {
                // SAFETY: the caller's promise; rows are disjoint.
                let mut y = unsafe { y.part_of(panel, row, cols.clone()) };
                let blocks = gates.chunks(ACT_BLOCK).zip(ups.chunks(ACT_BLOCK));
                for (i, (gate, up)) in blocks.enumerate() {
                    let (gate, up) = (load_block(s, gate), load_block(s, up));
                    let gate = match act {
                        Activation::Silu => [math::silu(s, gate[0]), math::silu(s, gate[1])],
                        Activation::GeluTanh => {
                            [math::gelu_tanh(s, gate[0]), math::gelu_tanh(s, gate[1])]
                        }
                    };
                    writer.put(&mut y, i, [s.mul(gate[0], up[0]), s.mul(gate[1], up[1])]);
                }
            }
        }
        writer.finish();
    }
}

impl Kernel for Gated<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: who makes one promises it.
        unsafe { self.rows(s) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::linear::Linear;
    use crate::mat::{Forms, Mat};
    use crate::test_util::{Random, acts, assert_near, random_mat, run_everywhere};

    /// Weights of F32 and of Q8_0, `[n_out, n_in]`.
    fn weights(random: &mut Random, n_out: usize, n_in: usize) -> [QMat; 2] {
        let values: Vec<f32> = (0..n_out * n_in).map(|_| random.value()).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let blocks: Vec<u8> = (0..n_out * n_in / 32)
            .flat_map(|_| {
                let scale = half::f16::from_f32(random.value() / 64.0).to_le_bytes();
                let codes: Vec<u8> = (0..32).map(|_| random.next() as u8).collect();
                scale.into_iter().chain(codes).collect::<Vec<u8>>()
            })
            .collect();
        [
            QMat::pack(DType::F32, n_out, n_in, &bytes).unwrap(),
            QMat::pack(DType::Q8_0, n_out, n_in, &blocks).unwrap(),
        ]
    }

    #[test]
    fn it_is_both_products_and_what_follows() {
        for (n_rows, n_out) in [(1, 32), (3, 70), (8, 7), (9, 256), (60, 2080), (300, 96)] {
            let mut random = Random::new(n_out as u64);
            let mut x = random_mat(&mut random, n_rows, 64);
            x.as_mut_slice().iter_mut().for_each(|x| *x *= 2.0);
            let [gate, up] = weights(&mut random, n_out, 64);
            for act in [Activation::Silu, Activation::GeluTanh] {
                let y = run_everywhere(|cpu| {
                    let mut both = Acts::new(64, Forms { float: true, int8: true });
                    cpu.quantize(&x, &mut both);
                    let mut y = acts(n_out);
                    cpu.linear_gated(&both, [&gate, &up], act, &mut y);
                    y
                });
                // The products by the op for them, then the formula.
                let cpu = Cpu::new(crate::Isa::Scalar, 1);
                let mut both = Acts::new(64, Forms { float: true, int8: true });
                cpu.quantize(&x, &mut both);
                let [gates, ups] = [&gate, &up].map(|w| {
                    let mut y = Mat::zeros(n_rows, n_out);
                    cpu.linear(&both, &mut [Linear { w, bias: None, y: &mut y, add: false }]);
                    y
                });
                let exact = gates.as_slice().iter().zip(ups.as_slice()).map(|(&gate, &up)| {
                    let x = f64::from(gate);
                    let cubic = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
                    f64::from(up)
                        * match act {
                            Activation::Silu => x / (1.0 + (-x).exp()),
                            Activation::GeluTanh => x / 2.0 * (1.0 + cubic.tanh()),
                        }
                });
                assert_near(&y.float, &exact.collect::<Vec<_>>(), 1e-6);
            }
        }
    }
}
