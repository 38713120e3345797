//! Every kernel against the scalar one, bit by bit, on ragged shapes and extreme codes: sums that
//! fill an i16 to the brim do not come up by chance.

use crate::dtype::DType;
use crate::isa::{Isa, scalar};
use crate::linear::{LinearKernel, TileArgs};
use crate::mat::{ACT_BLOCK, ActBlock, Acts, Forms, Panel};
use crate::quant::{self, Block, match_format};
use crate::test_util::Random;
use crate::weight::QMat;

/// A weight of random bytes; in an `extreme` one all codes of a block are the same, all bits set
/// or none, the largest or smallest signed number, or the largest of MXFP4.
fn weight(random: &mut Random, dtype: DType, n_out: usize, n_in: usize, extreme: bool) -> QMat {
    let mut bytes = Vec::new();
    match_format!(dtype,
        B => while bytes.len() < dtype.n_bytes(n_out * n_in).unwrap() {
            let mut block: Vec<u8> = (0..size_of::<B>()).map(|_| random.next() as u8).collect();
            while !quant::blocks::<B>(&block)[0].is_finite() {
                block.iter_mut().for_each(|byte| *byte = random.next() as u8);
            }
            if dtype == DType::MXFP4 {
                // Sums stay finite; where a block is alone, its scale is subnormal.
                block[0] = if n_in == ACT_BLOCK { 0 } else { 120 + random.below(16) as u8 };
            }
            if extreme {
                // All but the floats.
                let (head, tail) = match dtype {
                    DType::MXFP4 => (1, 0),
                    DType::Q2_K => (0, 4),
                    DType::Q3_K | DType::Q6_K => (0, 2),
                    DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => (4, 0),
                    _ => (2, 0),
                };
                let end = block.len() - tail;
                block[head..end].fill([0xFF, 0, 0x7F, 0x80, 0x77][random.below(5)]);
            }
            bytes.extend(block);
        },
        F => bytes.extend((0..n_out * n_in).flat_map(|_| {
            let value = random.value();
            match dtype {
                DType::F32 => value.to_le_bytes().to_vec(),
                DType::BF16 => value.to_le_bytes()[2..].to_vec(),
                _ => half::f16::from_f32(value).to_le_bytes().to_vec(),
            }
        })),
        _ => unreachable!(),
    );
    QMat::pack(dtype, n_out, n_in, &bytes).unwrap()
}

/// Rows of f32, and of codes that no quantizer would write.
struct Rows {
    float: Vec<f32>,
    blocks: Vec<ActBlock>,
}

impl Rows {
    fn new(random: &mut Random, rows: usize, cols: usize, extreme: bool) -> Rows {
        let float = (0..rows * cols).map(|_| random.value()).collect();
        let code = |bits: u64| match extreme {
            false => ((bits % 255) as i32 - 127) as i8,
            true => [127, -127][usize::from(bits.is_multiple_of(64))],
        };
        let blocks = (0..rows * (cols / ACT_BLOCK)).map(|_| {
            let codes = std::array::from_fn(|_| code(random.next()));
            ActBlock::new(codes, random.value().abs() / 64.0)
        });
        Rows { float, blocks: blocks.collect() }
    }

    /// The first `rows` rows.
    fn acts(&self, rows: usize, cols: usize, forms: Forms) -> Acts {
        let mut x = Acts::new(cols, forms);
        x.set_rows(rows);
        if forms.float {
            x.float.copy_from_slice(&self.float[..rows * cols]);
        }
        if forms.int8 {
            let n_blocks = cols / ACT_BLOCK;
            let blocks = self.blocks[..rows * n_blocks].iter().enumerate();
            blocks.for_each(|(i, block)| x.set_block(i / n_blocks, i % n_blocks, block));
        }
        x
    }
}

fn run(kernel: LinearKernel, w: &QMat, x: &Acts, bias: Option<&[f32]>, add: bool) -> Vec<u32> {
    let stride = w.n_out() + 3;
    let mut y: Vec<f32> = (0..x.rows * stride).map(|i| i as f32).collect();
    let args = TileArgs {
        tiles: w.tiles(),
        n_out: w.n_out(),
        x,
        panels: 0..Panel::count(x.rows),
        bias,
        y: y.as_mut_ptr(),
        y_stride: stride,
        add,
    };
    // SAFETY: an available instruction set, tiles of its format, and all of `y`.
    unsafe { kernel(&args) };
    y.into_iter().map(f32::to_bits).collect()
}

/// All of `rows` counts of rows against one run of the scalar kernel on the most.
fn check(dtype: DType, n_out: usize, n_in: usize, extreme: bool, rows: &[usize]) {
    let mut random = Random::new((n_out * 1000 + n_in) as u64);
    let w = weight(&mut random, dtype, n_out, n_in, extreme);
    let bias: Vec<f32> = (0..n_out).map(|_| random.value()).collect();
    let bias = n_out.is_multiple_of(2).then_some(&bias[..]);
    let add = n_out.is_multiple_of(3);
    let most = rows.iter().copied().max().unwrap();
    let x = Rows::new(&mut random, most, n_in, extreme);
    let expected = run(scalar::linear(dtype), &w, &x.acts(most, n_in, w.forms()), bias, add);
    for &rows in rows {
        let x = x.acts(rows, n_in, w.forms());
        for isa in Isa::available() {
            let got = run(isa.linear(dtype), &w, &x, bias, add);
            assert!(
                expected.starts_with(&got),
                "{isa} {dtype} [{rows}, {n_in}] x {n_out}, extreme: {extreme}"
            );
        }
    }
}

fn computing() -> impl Iterator<Item = DType> {
    DType::ALL.iter().copied().filter(|&dtype| quant::computes(dtype))
}

#[test]
fn every_kernel_has_the_bits_of_the_scalar_one() {
    let rows = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 16, 17, 23, 24, 31, 43];
    for dtype in computing() {
        for (n_out, n_in) in [(1, 32), (18, 64), (32, 96), (69, 1184_usize)] {
            let n_in = match dtype.info().block_len {
                1 => n_in - 3,
                32 => n_in,
                block_len => n_in.next_multiple_of(block_len),
            };
            for extreme in [false, true] {
                check(dtype, n_out, n_in, extreme, &rows);
            }
        }
    }
}

#[test]
fn so_do_more_rows_than_wait_together() {
    for dtype in computing() {
        check(dtype, 33, 768, false, &[240, 241, 300]);
    }
}
