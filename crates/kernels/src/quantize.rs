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
        let mut writer = Writer::new(s);
        for (i, x) in self.x.chunks(ACT_BLOCK).enumerate() {
            writer.put(&mut self.y, i, load_block(s, x));
        }
        writer.finish();
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
    (d, codes(s, [low, high], id))
}

/// The least magnitude that counts with i16 codes, for the same reason.
const SMALLEST_WIDE: f32 = 1e-33;

/// Scale of i16 codes: `d = amax / max`, NaN if that is not finite.
///
/// The codes are `round_ties_even(x * (1 / d))`: returns d and its inverse.
#[inline(always)]
pub(crate) fn wide_scale(amax: f32, max: f32) -> (f32, f32) {
    let d = amax / max;
    match d {
        _ if amax < SMALLEST_WIDE => (0.0, 0.0),
        _ if d.is_finite() => (d, 1.0 / d),
        _ => (f32::NAN, 0.0),
    }
}

/// The largest magnitude of whole vectors; a NaN is larger than infinity.
#[inline(always)]
pub(crate) fn largest_abs<S: Simd>(s: S, x: &[f32]) -> f32 {
    let mut largest = s.splat(0.0);
    for x in x.as_chunks().0 {
        largest = s.max_abs(largest, s.load(x));
    }
    s.largest_abs(largest)
}

/// The codes of values, `id` the inverse of their scale.
#[inline(always)]
fn codes<S: Simd>(s: S, values: [S::F; 2], id: f32) -> [S::F; 2] {
    // `max` makes a code of a NaN.
    let code = |x| s.round(s.max(s.mul(x, s.splat(id)), s.splat(-127.0)));
    let [low, high] = values;
    [code(low), code(high)]
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
        let panel = Panel::of_row(self.rows, t);
        // SAFETY: the caller's promise.
        unsafe { self.part_of(panel, t - panel.first, cols) }
    }

    /// Panel `i`.
    pub(crate) fn panel(&self, i: usize) -> Panel {
        Panel::nth(self.rows, i)
    }

    /// [`ActRows::part`] of a row of a panel.
    ///
    /// # Safety
    /// As there.
    #[inline]
    pub(crate) unsafe fn part_of(
        &self,
        panel: Panel,
        row: usize,
        cols: Range<usize>,
    ) -> ActRow<'_> {
        let t = panel.first + row;
        assert!(row < panel.height && t < self.rows);
        assert!(cols.start <= cols.end && cols.end <= self.cols);
        debug_assert!(cols.start.is_multiple_of(ACT_BLOCK));
        let float = match self.float.len() {
            0 => &mut [][..],
            // SAFETY: ranges of columns are disjoint, so the caller's promise carries over.
            _ => unsafe { self.float.part(t * self.cols + cols.start..t * self.cols + cols.end) },
        };
        let int8 = (self.panels.len() > 0).then(|| {
            let blocks = cols.start / ACT_BLOCK..cols.end / ACT_BLOCK;
            let first = panel.start(self.cols) + blocks.start * panel.height * BLOCK_BYTES;
            assert!(first + blocks.len() * panel.height * BLOCK_BYTES <= self.panels.len());
            PanelRow {
                start: self.panels.as_mut_ptr().wrapping_add(first),
                row,
                height: panel.height,
                n_blocks: blocks.len(),
                panels: PhantomData,
            }
        });
        ActRow { float, int8 }
    }
}

/// Blocks that a [`Writer`] handles together.
const BATCH: usize = LANES;

/// Writes blocks to rows. What is told of a whole block, its largest value and the sums of its codes,
/// is computed for sixteen blocks at once, each in a lane.
pub(crate) struct Writer<'a, S: Simd> {
    s: S,
    /// Blocks that wait.
    n: usize,
    values: [[S::F; 2]; BATCH],
    largest: [S::F; BATCH],
    places: [Option<Place<'a>>; BATCH],
}

/// Where the int8 form of a block goes.
#[derive(Clone, Copy)]
struct Place<'a> {
    codes: *mut [[i8; LANES]; 2],
    /// The first of the words, which are `height` apart.
    words: *mut u32,
    height: usize,
    panels: PhantomData<&'a mut [u8]>,
}

impl<'a, S: Simd> Writer<'a, S> {
    /// A writer; nothing is sure to be written before [`Writer::finish`].
    #[inline(always)]
    pub(crate) fn new(s: S) -> Writer<'a, S> {
        let zero = s.splat(0.0);
        Writer {
            s,
            n: 0,
            values: [[zero; 2]; BATCH],
            largest: [zero; BATCH],
            places: [None; BATCH],
        }
    }

    /// Writes block `i` of a row: 32 values, or what the row's end leaves of them.
    #[inline(always)]
    pub(crate) fn put(&mut self, row: &mut ActRow<'a>, i: usize, [low, high]: [S::F; 2]) {
        let s = self.s;
        if !row.float.is_empty() {
            let start = i * ACT_BLOCK;
            let end = row.float.len().min(start + ACT_BLOCK);
            let to = &mut row.float[start..end];
            match to.split_at_mut_checked(LANES) {
                Some((to_low, to_high)) => {
                    s.store_start(low, to_low);
                    s.store_start(high, to_high);
                }
                None => s.store_start(low, to),
            }
        }
        if let Some(row) = &mut row.int8 {
            self.values[self.n] = [low, high];
            self.largest[self.n] = s.max_abs(low, high);
            self.places[self.n] = Some(row.place(i));
            self.n += 1;
            if self.n == BATCH {
                self.flush();
            }
        }
    }

    /// Writes what waits.
    #[inline(always)]
    pub(crate) fn finish(mut self) {
        if self.n > 0 {
            self.flush();
        }
    }

    #[inline(always)]
    fn flush(&mut self) {
        let s = self.s;
        let zero = s.splat(0.0);
        let amax = s.largest_abs_each(&self.largest);
        let d = s.div(amax, s.splat(127.0));
        let small = s.splat(SMALLEST_AMAX);
        let id = s.to_array(s.select_lt(amax, small, zero, s.div(s.splat(1.0), d)));
        let d = s.select_lt(amax, small, zero, d);
        let (mut halves, mut sums) = ([zero; BATCH], [zero; BATCH]);
        for lane in 0..self.n {
            let [low, high] = codes(s, self.values[lane], id[lane]);
            if let Some(place) = &self.places[lane] {
                // SAFETY: places are valid, and nobody else's; see `PanelRow::place`.
                let to = unsafe { &mut *place.codes };
                s.store_i8(low, &mut to[0]);
                s.store_i8(high, &mut to[1]);
            }
            halves[lane] = low;
            sums[lane] = s.add(low, high);
        }
        // Whole numbers below 2^24: the sums are exact.
        let (halves, sums) = (s.sum_each(&halves), s.sum_each(&sums));
        let start = s.splat(-START_ZERO as f32);
        // SAFETY: whole numbers below 2^31.
        let whole = |x: S::F| s.to_array(x).map(|x| unsafe { x.to_int_unchecked::<i32>() });
        let terms = [
            s.to_array(d).map(f32::to_bits),
            s.to_array(s.mul(d, sums)).map(f32::to_bits),
            whole(s.mul(start, sums)).map(|start| start as u32),
            whole(s.mul(start, halves)).map(|start| start as u32),
        ];
        for (lane, place) in self.places[..self.n].iter().flatten().enumerate() {
            for (i, term) in terms.iter().enumerate() {
                // SAFETY: as above.
                unsafe { *place.words.add(i * place.height) = term[lane] };
            }
        }
        self.n = 0;
    }
}

impl<'a> PanelRow<'a> {
    /// Where block `i` goes.
    #[inline(always)]
    fn place(&mut self, i: usize) -> Place<'a> {
        assert!(i < self.n_blocks);
        // The block lies in the panel, as `ActRows::part_of` checked; codes and words of different
        // rows and blocks are disjoint, and these are ours. A panel starts on 16 bytes.
        let block = self.start.wrapping_add(i * self.height * BLOCK_BYTES);
        let words = block.wrapping_add(self.height * ACT_BLOCK).cast::<u32>();
        Place {
            codes: block.wrapping_add(self.row * ACT_BLOCK).cast(),
            words: words.wrapping_add(self.row),
            height: self.height,
            panels: PhantomData,
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
