//! Every kernel against the scalar one, bit by bit, on ragged shapes and extreme codes: sums that
//! fill an i16 to the brim do not come up by chance.

use crate::dtype::DType;
use crate::isa::{Isa, scalar};
use crate::linear::{LinearKernel, TileArgs};
use crate::mat::{ACT_BLOCK, Acts, Forms};
use crate::quant::{self, Block, match_format};
use crate::test_util::Random;
use crate::weight::QMat;

/// A weight of random bytes; in an `extreme` one all codes of a block are the same, all bits set
/// or none, or the largest or smallest signed number.
fn weight(random: &mut Random, dtype: DType, n_out: usize, n_in: usize, extreme: bool) -> QMat {
    let mut bytes = Vec::new();
    match_format!(dtype,
        B => while bytes.len() < dtype.n_bytes(n_out * n_in).unwrap() {
            let mut block: Vec<u8> = (0..size_of::<B>()).map(|_| random.next() as u8).collect();
            while !quant::blocks::<B>(&block)[0].is_finite() {
                block.iter_mut().for_each(|byte| *byte = random.next() as u8);
            }
            if extreme {
                // Scales lie in the first four bytes or in the last two.
                let end = block.len() - 2;
                block[4..end].fill([0xFF, 0, 0x7F, 0x80][random.below(4)]);
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

fn acts(random: &mut Random, rows: usize, cols: usize, forms: Forms, extreme: bool) -> Acts {
    let mut x = Acts::new(cols, forms);
    x.set_rows(rows);
    x.float.iter_mut().for_each(|value| *value = random.value());
    for code in &mut x.codes {
        let bits = random.next();
        let any = (bits % 255) as i32 - 127;
        *code = if !extreme { any as i8 } else { [127, -127][bits.is_multiple_of(64) as usize] };
    }
    x.scales.iter_mut().for_each(|scale| *scale = random.value().abs() / 64.0);
    for (sums, codes) in x.sums.iter_mut().zip(x.codes.chunks_exact(ACT_BLOCK)) {
        let (first, second) = codes.split_at(ACT_BLOCK / 2);
        *sums = [first, second].map(|codes| codes.iter().map(|&code| i32::from(code)).sum());
    }
    x
}

fn run(kernel: LinearKernel, w: &QMat, x: &Acts, bias: Option<&[f32]>, add: bool) -> Vec<u32> {
    let stride = w.n_out() + 3;
    let mut y: Vec<f32> = (0..x.rows * stride).map(|i| i as f32).collect();
    let args = TileArgs {
        tiles: w.tiles(),
        n_out: w.n_out(),
        x,
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
    let mut x = acts(&mut random, most, n_in, w.forms(), extreme);
    let expected = run(scalar::linear(dtype), &w, &x, bias, add);
    for &rows in rows {
        x.rows = rows;
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
