//! `quantize`, and how every op writes its rows in the forms that weights read.

use crate::cpu::Cpu;
use crate::mat::{ACT_BLOCK, Acts, BLOCK_BYTES, Mat, Panel, START_ZERO};
use crate::simd::{Kernel, LANES, Simd};
use crate::split::Split;
use std::marker::PhantomData;
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
    rows: usize,
    cols: usize,
    float: Split<'a, f32>,
    panels: Split<'a, u8>,
}

/// A row, or a range of its columns; forms that are not asked for are empty.
pub(crate) struct ActRow<'a> {
    float: &'a mut [f32],
    int8: Option<PanelRow<'a>>,
}

/// Blocks of a row of a panel.
struct PanelRow<'a> {
    /// The first block of the panel's first row.
    start: *mut u8,
    /// Which row of the panel it is, of how many.
    row: usize,
    height: usize,
    n_blocks: usize,
    panels: PhantomData<&'a mut [u8]>,
}

impl<'a> ActRows<'a> {
    pub(crate) fn new(y: &'a mut Acts) -> ActRows<'a> {
        let (rows, cols) = (y.rows, y.cols);
        let (float, panels) = y.parts_mut();
        ActRows { rows, cols, float: Split::new(float), panels: Split::new(panels) }
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
        assert!(t < self.rows && cols.start <= cols.end && cols.end <= self.cols);
        debug_assert!(cols.start.is_multiple_of(ACT_BLOCK));
        let float = match self.float.len() {
            0 => &mut [][..],
            // SAFETY: ranges of columns are disjoint, so the caller's promise carries over.
            _ => unsafe { self.float.part(t * self.cols + cols.start..t * self.cols + cols.end) },
        };
        let int8 = (self.panels.len() > 0).then(|| {
            let panel = Panel::of_row(self.rows, t);
            let blocks = cols.start / ACT_BLOCK..cols.end / ACT_BLOCK;
            let first = panel.start(self.cols) + blocks.start * panel.height * BLOCK_BYTES;
            assert!(first + blocks.len() * panel.height * BLOCK_BYTES <= self.panels.len());
            PanelRow {
                start: self.panels.as_mut_ptr().wrapping_add(first),
                row: t - panel.first,
                height: panel.height,
                n_blocks: blocks.len(),
                panels: PhantomData,
            }
        });
        ActRow { float, int8 }
    }
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
        if let Some(row) = &mut self.int8 {
            let (d, [low, high]) = quantize_block(s, [low, high]);
            // Whole numbers below 2^24: the sums are exact.
            let (half, sum) = (s.sum(low), s.sum(s.add(low, high)));
            let terms = [
                d.to_bits(),
                (d * sum).to_bits(),
                (-START_ZERO * sum as i32) as u32,
                (-START_ZERO * half as i32) as u32,
            ];
            let (codes, words) = row.block(i);
            s.store_i8(low, &mut codes[0]);
            s.store_i8(high, &mut codes[1]);
            for (term, word) in terms.into_iter().zip(words) {
                *word = term;
            }
        }
    }
}

impl PanelRow<'_> {
    /// The codes and the words of block `i`.
    #[inline(always)]
    fn block(&mut self, i: usize) -> (&mut [[i8; LANES]; 2], [&mut u32; 4]) {
        assert!(i < self.n_blocks);
        let (row, height) = (self.row, self.height);
        // SAFETY: the block lies in the panel, as `ActRows::part` checked; codes and words of
        // different rows and blocks are disjoint, and these are ours. A panel starts on 16 bytes.
        unsafe {
            let block = self.start.add(i * height * BLOCK_BYTES);
            let codes = block.add(row * ACT_BLOCK).cast();
            let words = block.add(height * ACT_BLOCK).cast::<u32>().add(row);
            let word = |i: usize| &mut *words.add(i * height);
            (&mut *codes, [word(0), word(1), word(2), word(3)])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mat::{ActBlock, Forms};
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
            let codes = std::array::from_fn(|k| (x[k] * id).round_ties_even() as i8);
            let scale = if zeros { 0.0 } else { amax / 127.0 };
            assert_eq!(y.block(i / 3, i % 3), ActBlock::new(codes, scale));
        }
    }

    #[test]
    fn halves_round_to_even() {
        let mut x = Mat::zeros(1, 32);
        x.row_mut(0)[..6].copy_from_slice(&[127.0, 0.5, 1.5, 2.5, -0.5, -1.5]);
        assert_eq!(quantized(&x).block(0, 0).codes[..6], [127, 0, 2, 2, 0, -2]);
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
                assert!(!y.block(1, 1).scale.is_finite());
                for (t, b) in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 2)] {
                    assert_eq!(y.block(t, b), clean.block(t, b));
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
            assert_eq!((y.float.len(), y.panels().is_empty()), (128 * usize::from(float), !int8));
        }
    }
}
