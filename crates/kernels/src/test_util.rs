//! What tests share.

use crate::cpu::Cpu;
use crate::isa::Isa;
use crate::mat::{ACT_BLOCK, ActBlock, Acts, BLOCK_BYTES, Forms, Mat, Panel};

/// SplitMix64 (Steele et al. 2014).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In `0..n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Uniform in -1..1.
    pub(crate) fn value(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// Uniform in -1..1.
pub(crate) fn random_mat(random: &mut Random, rows: usize, cols: usize) -> Mat {
    let mut mat = Mat::zeros(rows, cols);
    mat.as_mut_slice().fill_with(|| random.value());
    mat
}

/// Both forms, if the width allows.
pub(crate) fn acts(cols: usize) -> Acts {
    Acts::new(cols, Forms { float: true, int8: cols.is_multiple_of(ACT_BLOCK) })
}

impl ActBlock {
    /// A block with its terms as they are defined.
    pub(crate) fn new(codes: [i8; ACT_BLOCK], scale: f32) -> ActBlock {
        let sum = |codes: &[i8]| codes.iter().map(|&code| i32::from(code)).sum::<i32>();
        ActBlock {
            codes,
            scale,
            offset: scale * sum(&codes) as f32,
            start: -128 * sum(&codes),
            half_start: -128 * sum(&codes[..16]),
        }
    }
}

impl Acts {
    /// Writes block `b` of row `t`.
    pub(crate) fn set_block(&mut self, t: usize, b: usize, block: &ActBlock) {
        let panel = Panel::of_row(self.rows, t);
        let (height, row) = (panel.height, t - panel.first);
        let start = panel.start(self.cols) + b * height * BLOCK_BYTES;
        let bytes = &mut self.parts_mut().1[start..start + height * BLOCK_BYTES];
        bytes[row * ACT_BLOCK..][..ACT_BLOCK].copy_from_slice(&block.codes.map(|q| q as u8));
        let terms = [
            block.scale.to_le_bytes(),
            block.offset.to_le_bytes(),
            block.start.to_le_bytes(),
            block.half_start.to_le_bytes(),
        ];
        for (i, term) in terms.iter().enumerate() {
            bytes[height * ACT_BLOCK + 4 * (i * height + row)..][..4].copy_from_slice(term);
        }
    }
}

/// All int8 blocks, row after row.
pub(crate) fn blocks(y: &Acts) -> Vec<ActBlock> {
    let n_blocks = if y.forms.int8 { y.cols / ACT_BLOCK } else { 0 };
    (0..y.rows).flat_map(|t| (0..n_blocks).map(move |b| y.block(t, b))).collect()
}

/// Runs an op on every instruction set with 1, 2 and 3 threads and checks that the bits of its
/// result are always the same; returns it.
pub(crate) fn run_everywhere(op: impl Fn(&Cpu) -> Acts) -> Acts {
    let bits = |y: &Acts| -> (Vec<u32>, Vec<u8>) {
        (y.float.iter().map(|x| x.to_bits()).collect(), y.panels().to_vec())
    };
    let expected = op(&Cpu::new(Isa::Scalar, 1));
    for isa in Isa::available() {
        for n_threads in 1..=3 {
            let y = op(&Cpu::new(isa, n_threads));
            assert!(bits(&y) == bits(&expected), "{isa}, {n_threads} threads");
        }
    }
    expected
}

/// The float form of `x`, to return a matrix where forms are expected.
pub(crate) fn as_acts(x: &Mat) -> Acts {
    let mut y = Acts::new(x.cols(), Forms { float: true, int8: false });
    y.set_rows(x.rows());
    y.float.copy_from_slice(x.as_slice());
    y
}

/// Checks that `y` is near `exact`, relative to the largest value.
#[track_caller]
pub(crate) fn assert_near(y: &[f32], exact: &[f64], tolerance: f64) {
    assert_eq!(y.len(), exact.len());
    let largest = exact.iter().fold(0.0f64, |a, x| a.max(x.abs()));
    for (i, (&y, &exact)) in y.iter().zip(exact).enumerate() {
        let error = (f64::from(y) - exact).abs();
        assert!(error <= tolerance * largest, "value {i}: {y} for {exact}");
    }
}
