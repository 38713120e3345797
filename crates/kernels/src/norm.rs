//! Root mean square norms (Zhang and Sennrich 2019, arXiv:1910.07467).
//!
//! `norm(x) = x * r * weight` with `r = 1 / sqrt(mean(x^2) + eps)`. The squares are summed in 16
//! lanes (value `i` in lane `i % 16`, an fma chain in ascending order), the lanes as the tree of
//! `Simd::sum`; square root and division are IEEE, and `x * r` is rounded before the weight.

use crate::cpu::Cpu;
use crate::mat::{ACT_BLOCK, Acts, Mat};
use crate::profile::Op;
use crate::quantize::{ActRow, ActRows, Writer, load_block};
use crate::simd::{Kernel, LANES, Simd};
use crate::split::Split;

impl Cpu {
    /// `y = norm(x)`, in the forms that `y` has. `x` is `[T, D]`, `weight` `[D]`; `y` gets `T` rows.
    ///
    /// # Panics
    /// If the widths of `x`, `weight` and `y` differ.
    pub fn rms_norm(&self, x: &Mat, weight: &[f32], eps: f32, y: &mut Acts) {
        assert_eq!(x.cols(), weight.len());
        assert_eq!(x.cols(), y.cols());
        let _timer = self.profile.time(|| (Op::Norm, 0, 0));
        y.set_rows(x.rows());
        let rows = ActRows::new(y);
        self.team.for_each(x.rows(), |t| {
            // SAFETY: each item has its own row.
            let y = unsafe { rows.row(t) };
            self.compute(RmsNorm { x: x.row(t), weight, eps, y });
        });
    }

    /// `x = norm(x)` for each head apart, in place. `x` is `[T, n * E]`, `weight` `[E]`.
    ///
    /// # Panics
    /// If `weight` is not `head_size` long, or `x` no whole number of heads wide.
    pub fn rms_norm_heads(&self, x: &mut Mat, head_size: usize, weight: &[f32], eps: f32) {
        assert_eq!(weight.len(), head_size);
        assert!(x.cols().is_multiple_of(head_size), "{} columns in heads of {head_size}", x.cols());
        let _timer = self.profile.time(|| (Op::Norm, 0, 0));
        let (n_rows, cols) = (x.rows(), x.cols());
        let rows = Split::new(x.as_mut_slice());
        self.team.for_each(n_rows, |t| {
            // SAFETY: each item has its own row.
            let x = unsafe { rows.part(t * cols..(t + 1) * cols) };
            self.compute(RmsNormHeads { x, weight, eps });
        });
    }

    /// `y = y + norm(x)`: `fma(x * r, weight, y)`. `x` and `y` are `[T, D]`, `weight` `[D]`.
    ///
    /// # Panics
    /// If the shapes differ.
    pub fn rms_norm_add(&self, x: &Mat, weight: &[f32], eps: f32, y: &mut Mat) {
        assert_eq!(x.cols(), weight.len());
        assert_eq!((x.rows(), x.cols()), (y.rows(), y.cols()));
        let _timer = self.profile.time(|| (Op::Norm, 0, 0));
        let cols = x.cols();
        let rows = Split::new(y.as_mut_slice());
        self.team.for_each(x.rows(), |t| {
            // SAFETY: each item has its own row.
            let y = unsafe { rows.part(t * cols..(t + 1) * cols) };
            self.compute(RmsNormAdd { x: x.row(t), weight, eps, y });
        });
    }
}

/// `1 / sqrt(mean(x^2) + eps)`.
#[inline(always)]
fn reciprocal_rms<S: Simd>(s: S, x: &[f32], eps: f32) -> f32 {
    let mut squares = s.splat(0.0);
    for x in x.chunks(LANES) {
        let x = s.load_start(x);
        squares = s.fma(x, x, squares);
    }
    1.0 / (s.sum(squares) / x.len() as f32 + eps).sqrt()
}

struct RmsNorm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    y: ActRow<'a>,
}

impl Kernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let r = s.splat(reciprocal_rms(s, self.x, self.eps));
        let mut writer = Writer::new(s);
        let blocks = self.x.chunks(ACT_BLOCK).zip(self.weight.chunks(ACT_BLOCK));
        for (i, (x, weight)) in blocks.enumerate() {
            let (x, weight) = (load_block(s, x), load_block(s, weight));
            let y = [s.mul(s.mul(x[0], r), weight[0]), s.mul(s.mul(x[1], r), weight[1])];
            writer.put(&mut self.y, i, y);
        }
        writer.finish();
    }
}

struct RmsNormHeads<'a> {
    x: &'a mut [f32],
    weight: &'a [f32],
    eps: f32,
}

impl Kernel for RmsNormHeads<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for x in self.x.chunks_mut(self.weight.len()) {
            let r = s.splat(reciprocal_rms(s, x, self.eps));
            for (x, weight) in x.chunks_mut(LANES).zip(self.weight.chunks(LANES)) {
                let y = s.mul(s.mul(s.load_start(x), r), s.load_start(weight));
                s.store_start(y, x);
            }
        }
    }
}

struct RmsNormAdd<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    y: &'a mut [f32],
}

impl Kernel for RmsNormAdd<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let r = s.splat(reciprocal_rms(s, self.x, self.eps));
        let weights = self.weight.chunks(LANES);
        for ((x, weight), y) in self.x.chunks(LANES).zip(weights).zip(self.y.chunks_mut(LANES)) {
            let x = s.mul(s.load_start(x), r);
            s.store_start(s.fma(x, s.load_start(weight), s.load_start(y)), y);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_util::{
        Random, acts, as_acts, assert_near, blocks, random_mat, run_everywhere,
    };

    const EPS: f32 = 1e-5;

    fn exact(x: &[f32], weight: &[f32]) -> Vec<f64> {
        let squares: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
        let rms = (squares / x.len() as f64 + f64::from(EPS)).sqrt();
        x.iter().zip(weight).map(|(&x, &w)| f64::from(x) / rms * f64::from(w)).collect()
    }

    #[test]
    fn whole_rows() {
        for cols in [1, 15, 16, 33, 64, 576, 1000] {
            let mut random = Random::new(cols as u64);
            let x = random_mat(&mut random, 5, cols);
            let weight = random_mat(&mut random, 1, cols);
            let y = run_everywhere(|cpu| {
                let mut y = acts(cols);
                cpu.rms_norm(&x, weight.as_slice(), EPS, &mut y);
                y
            });
            let exact: Vec<f64> = (0..5).flat_map(|t| exact(x.row(t), weight.as_slice())).collect();
            assert_near(&y.float, &exact, 3e-7);
            // The int8 form is that of the float form.
            let mut floats = Mat::zeros(5, cols);
            floats.as_mut_slice().copy_from_slice(&y.float);
            let mut quantized = acts(cols);
            Cpu::new(crate::Isa::Scalar, 1).quantize(&floats, &mut quantized);
            assert_eq!(blocks(&y), blocks(&quantized));
        }
    }

    #[test]
    fn heads() {
        for head_size in [16, 80, 128] {
            let mut random = Random::new(head_size as u64);
            let x = random_mat(&mut random, 4, 3 * head_size);
            let weight = random_mat(&mut random, 1, head_size);
            let y = run_everywhere(|cpu| {
                let mut y = x.clone();
                cpu.rms_norm_heads(&mut y, head_size, weight.as_slice(), EPS);
                as_acts(&y)
            });
            let heads = x.as_slice().chunks(head_size);
            let exact: Vec<f64> = heads.flat_map(|head| exact(head, weight.as_slice())).collect();
            assert_near(&y.float, &exact, 3e-7);
        }
    }

    #[test]
    fn added() {
        for cols in [20, 640] {
            let mut random = Random::new(cols as u64);
            let x = random_mat(&mut random, 4, cols);
            let weight = random_mat(&mut random, 1, cols);
            let before = random_mat(&mut random, 4, cols);
            let y = run_everywhere(|cpu| {
                let mut y = before.clone();
                cpu.rms_norm_add(&x, weight.as_slice(), EPS, &mut y);
                as_acts(&y)
            });
            let norms = (0..4).flat_map(|t| exact(x.row(t), weight.as_slice()));
            let before = before.as_slice().iter().map(|&y| f64::from(y));
            assert_near(&y.float, &before.zip(norms).map(|(a, b)| a + b).collect::<Vec<_>>(), 3e-7);
        }
    }

    #[test]
    fn a_row_of_zeros_stays_zero() {
        let y = run_everywhere(|cpu| {
            let mut y = acts(64);
            cpu.rms_norm(&Mat::zeros(1, 64), &[1.0; 64], EPS, &mut y);
            y
        });
        assert_eq!(y.float, vec![0.0; 64]);
        assert!(blocks(&y).iter().all(|block| block.scale == 0.0));
    }
}
