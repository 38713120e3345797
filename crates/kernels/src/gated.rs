//! `gated`: the product in the middle of a gated feed-forward layer (Shazeer 2020,
//! arXiv:2002.05202).

use crate::cpu::Cpu;
use crate::mat::{ACT_BLOCK, Acts, Mat};
use crate::math;
use crate::profile::Op;
use crate::quantize::{ActRow, ActRows, load_block};
use crate::simd::{Kernel, Simd};

/// The function on the gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activation {
    /// `x / (1 + e^-x)`.
    Silu,
    /// The tanh form of GELU: `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`.
    GeluTanh,
}

/// Columns of an item: some microsecond of work, so that one row still uses several threads.
const ITEM_COLS: usize = 1024;

impl Cpu {
    /// `y = act(gate) * up`, in the forms that `y` has. `gate` and `up` are `[T, F]`; `y` gets `T`
    /// rows.
    ///
    /// # Panics
    /// If the shapes differ.
    pub fn gated(&self, act: Activation, gate: &Mat, up: &Mat, y: &mut Acts) {
        assert_eq!((gate.rows(), gate.cols()), (up.rows(), up.cols()));
        assert_eq!(gate.cols(), y.cols());
        y.set_rows(gate.rows());
        let _timer = self.profile.time(|| (Op::Gated, 0, 0));
        let rows = ActRows::new(y);
        let n_parts = gate.cols().div_ceil(ITEM_COLS);
        self.team.for_each(gate.rows() * n_parts, |item| {
            let (t, part) = (item / n_parts, item % n_parts);
            let cols = part * ITEM_COLS..gate.cols().min((part + 1) * ITEM_COLS);
            // SAFETY: each item has its own columns of a row.
            let y = unsafe { rows.part(t, cols.clone()) };
            let (gate, up) = (&gate.row(t)[cols.clone()], &up.row(t)[cols]);
            self.compute(Gated { act, gate, up, y });
        });
    }
}

struct Gated<'a> {
    act: Activation,
    gate: &'a [f32],
    up: &'a [f32],
    y: ActRow<'a>,
}

impl Kernel for Gated<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let blocks = self.gate.chunks(ACT_BLOCK).zip(self.up.chunks(ACT_BLOCK));
        for (i, (gate, up)) in blocks.enumerate() {
            let (gate, up) = (load_block(s, gate), load_block(s, up));
            let act = match self.act {
                Activation::Silu => [math::silu(s, gate[0]), math::silu(s, gate[1])],
                Activation::GeluTanh => [math::gelu_tanh(s, gate[0]), math::gelu_tanh(s, gate[1])],
            };
            self.y.put(s, i, [s.mul(act[0], up[0]), s.mul(act[1], up[1])]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_util::{Random, acts, assert_near, random_mat, run_everywhere};

    #[test]
    fn close_to_f64() {
        for cols in [7, 64, 1536, 2080] {
            let mut random = Random::new(cols as u64);
            let mut gate = random_mat(&mut random, 3, cols);
            gate.as_mut_slice().iter_mut().for_each(|x| *x *= 8.0);
            let up = random_mat(&mut random, 3, cols);
            for act in [Activation::Silu, Activation::GeluTanh] {
                let y = run_everywhere(|cpu| {
                    let mut y = acts(cols);
                    cpu.gated(act, &gate, &up, &mut y);
                    y
                });
                let exact = gate.as_slice().iter().zip(up.as_slice()).map(|(&gate, &up)| {
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
