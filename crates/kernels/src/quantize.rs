//! `quantize`, and how every op writes its rows in the forms that weights read.

use crate::cpu::Cpu;
use crate::mat::{ACT_BLOCK, Acts, Mat};
use crate::simd::{Kernel, LANES, Simd};
use crate::split::Split;
use std::ops::Range;

/// A block whose largest magnitude is below this counts as zeros: the inverse of its scale must be
/// finite.
const SMALLEST_AMAX: f32 = 1e-36;

impl Cpu {
    /// `y = x`, in the forms that `y` has. `x` is `[T, D]`; `y` gets `T` rows.
    ///
    /// A block with an infinity or a NaN gets an infinite or NaN scale and codes that depend on
    /// nothing else: the product with any weight shows it, and other blocks are untouched.
    ///
    /// # Panics
    /// If `x` and `y` differ in width.
    pub fn quantize(&self, x: &Mat, y: &mut Acts) {
        assert_eq!(x.cols(), y.cols());
        y.set_rows(x.rows());
        let rows = ActRows::new(y);
        self.team.for_each(x.rows(), |t| {
            // SAFETY: each item has its own row.
            let y = unsafe { rows.row(t) };
            self.compute(Quantize { x: x.row(t), y });
        });
    }
}

/// One row of [`Cpu::quantize`].
pub(crate) struct Quantize<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) y: ActRow<'a>,
}

impl Kernel for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        for (i, x) in self.x.chunks(ACT_BLOCK).enumerate() {
            self.y.put(s, i, load_block(s, x));
        }
    }
}

/// Up to 32 values; those missing are 0.
#[inline(always)]
pub(crate) fn load_block<S: Simd>(s: S, x: &[f32]) -> [S::F; 2] {
    match x.split_at_checked(LANES) {
        Some((low, high)) => [s.load_start(low), s.load_start(high)],
        None => [s.load_start(x), s.splat(0.0)],
    }
}

/// Scale `d` and codes `q` of 32 values: `d = amax / 127`, `q = round_ties_even(x * (1 / d))`, with
/// the rounded `d` that the products will use, not `127 / amax`.
#[inline(always)]
pub(crate) fn quantize_block<S: Simd>(s: S, [low, high]: [S::F; 2]) -> (f32, [S::F; 2]) {
    let amax = s.largest_abs(s.max_abs(low, high));
    let d = amax / 127.0;
    let (d, id) = if amax < SMALLEST_AMAX { (0.0, 0.0) } else { (d, 1.0 / d) };
    // `max` makes a code of a NaN.
    let low = s.round(s.max(s.mul(low, s.splat(id)), s.splat(-127.0)));
    let high = s.round(s.max(s.mul(high, s.splat(id)), s.splat(-127.0)));
    (d, [low, high])
}

/// The rows of an [`Acts`], to be written by different threads.
pub(crate) struct ActRows<'a> {
    cols: usize,
    float: Split<'a, f32>,
    codes: Split<'a, i8>,
    scales: Split<'a, f32>,
    sums: Split<'a, [i32; 2]>,
}

/// A row, or a range of its columns; forms that are not asked for are empty.
pub(crate) struct ActRow<'a> {
    float: &'a mut [f32],
    codes: &'a mut [i8],
    scales: &'a mut [f32],
    sums: &'a mut [[i32; 2]],
}

impl<'a> ActRows<'a> {
    pub(crate) fn new(y: &'a mut Acts) -> ActRows<'a> {
        ActRows {
            cols: y.cols,
            float: Split::new(&mut y.float),
            codes: Split::new(&mut y.codes),
            scales: Split::new(&mut y.scales),
            sums: Split::new(&mut y.sums),
        }
    }

    /// Row `t`.
    ///
    /// # Safety
    /// No other part in use has the row.
    pub(crate) unsafe fn row(&self, t: usize) -> ActRow<'_> {
        // SAFETY: the caller's promise.
        unsafe { self.part(t, 0..self.cols) }
    }

    /// Columns of row `t`, from a multiple of [`ACT_BLOCK`] to another or to the end.
    ///
    /// # Safety
    /// No other part in use has any of them.
    pub(crate) unsafe fn part(&self, t: usize, cols: Range<usize>) -> ActRow<'_> {
        debug_assert!(cols.start.is_multiple_of(ACT_BLOCK) && cols.end <= self.cols);
        let values = t * self.cols + cols.start..t * self.cols + cols.end;
        let blocks = values.start / ACT_BLOCK..values.end / ACT_BLOCK;
        // SAFETY: rows and whole blocks of columns are disjoint in each form, so the caller's promise
        // carries over.
        unsafe {
            ActRow {
                float: part_if_any(&self.float, values.clone()),
                codes: part_if_any(&self.codes, values),
                scales: part_if_any(&self.scales, blocks.clone()),
                sums: part_if_any(&self.sums, blocks),
            }
        }
    }
}

/// The part, or nothing of a form that is not asked for.
///
/// # Safety
/// As [`Split::part`].
#[allow(clippy::mut_from_ref)] // As there.
unsafe fn part_if_any<'a, T>(split: &'a Split<'_, T>, range: Range<usize>) -> &'a mut [T] {
    // SAFETY: the caller's promise.
    if split.len() == 0 { &mut [] } else { unsafe { split.part(range) } }
}

impl ActRow<'_> {
    /// Writes block `i`: 32 values, or what the row's end leaves of them.
    #[inline(always)]
    pub(crate) fn put<S: Simd>(&mut self, s: S, i: usize, [low, high]: [S::F; 2]) {
        let start = i * ACT_BLOCK;
        if !self.float.is_empty() {
            let end = self.float.len().min(start + ACT_BLOCK);
            let to = &mut self.float[start..end];
            match to.split_at_mut_checked(LANES) {
                Some((to_low, to_high)) => {
                    s.store_start(low, to_low);
                    s.store_start(high, to_high);
                }
                None => s.store_start(low, to),
            }
        }
        if let Some(codes) = self.codes.get_mut(start..start + ACT_BLOCK) {
            let (d, [low, high]) = quantize_block(s, [low, high]);
            let (codes, _) = codes.as_chunks_mut();
            s.store_i8(low, &mut codes[0]);
            s.store_i8(high, &mut codes[1]);
            self.scales[i] = d;
            // Whole numbers below 2^24: the sums are exact.
            self.sums[i] = [s.sum(low) as i32, s.sum(high) as i32];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mat::Forms;
    use crate::test_util::{Random, acts, random_mat, run_everywhere};

    fn quantized(x: &Mat) -> Acts {
        run_everywhere(|cpu| {
            let mut y = acts(x.cols());
            cpu.quantize(x, &mut y);
            y
        })
    }

    #[test]
    fn codes_follow_the_formula() {
        let mut x = random_mat(&mut Random::new(1), 5, 96);
        x.row_mut(1)[..32].fill(0.0);
        x.row_mut(2)[..32].fill(1e-40);
        x.row_mut(3).iter_mut().for_each(|x| *x *= 1e30);
        let y = quantized(&x);
        assert_eq!(y.float, x.as_slice());
        for (i, x) in x.as_slice().chunks(32).enumerate() {
            let amax = x.iter().fold(0.0f32, |a, x| a.max(x.abs()));
            let zeros = amax < SMALLEST_AMAX;
            let id = if zeros { 0.0 } else { 1.0 / (amax / 127.0) };
            let codes: Vec<i8> = x.iter().map(|x| (x * id).round_ties_even() as i8).collect();
            assert_eq!(y.codes[i * 32..(i + 1) * 32], codes);
            assert_eq!(y.scales[i], if zeros { 0.0 } else { amax / 127.0 });
            let (first, second) = codes.split_at(ACT_BLOCK / 2);
            let sum = |codes: &[i8]| codes.iter().map(|&code| i32::from(code)).sum::<i32>();
            assert_eq!(y.sums[i], [sum(first), sum(second)]);
        }
    }

    #[test]
    fn halves_round_to_even() {
        let mut x = Mat::zeros(1, 32);
        x.row_mut(0)[..6].copy_from_slice(&[127.0, 0.5, 1.5, 2.5, -0.5, -1.5]);
        assert_eq!(quantized(&x).codes[..6], [127, 0, 2, 2, 0, -2]);
    }

    #[test]
    fn what_is_not_finite_shows_in_its_block_alone() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let clean = random_mat(&mut Random::new(2), 2, 96);
            let mut x = clean.clone();
            x.row_mut(1)[40] = bad;
            x.row_mut(1)[50] = f32::NEG_INFINITY;
            let mut y = acts(96);
            for isa in crate::Isa::available() {
                Cpu::new(isa, 1).quantize(&x, &mut y);
                let clean = quantized(&clean);
                assert!(!y.scales[4].is_finite());
                for block in [0, 1, 2, 3, 5] {
                    let codes = block * 32..(block + 1) * 32;
                    assert_eq!(y.codes[codes.clone()], clean.codes[codes]);
                    assert_eq!(y.scales[block], clean.scales[block]);
                }
            }
        }
    }

    #[test]
    fn only_the_forms_asked_for() {
        let x = random_mat(&mut Random::new(3), 2, 64);
        let cpu = Cpu::new(crate::Isa::best(), 1);
        for (float, int8) in [(true, false), (false, true), (false, false)] {
            let mut y = Acts::new(64, Forms { float, int8 });
            cpu.quantize(&x, &mut y);
            assert_eq!(
                (y.float.len(), y.codes.len()),
                (128 * usize::from(float), 128 * usize::from(int8))
            );
        }
    }
}
