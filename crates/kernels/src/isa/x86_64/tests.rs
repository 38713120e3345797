//! Every kernel against the scalar one, bit by bit, on ragged shapes and extreme codes.

use crate::dtype::DType;
use crate::isa::{Isa, scalar};
use crate::linear::{LinearKernel, TileArgs};
use crate::mat::{ACT_BLOCK, Acts, Forms};
use crate::quant::{self, Block, match_format};
use crate::weight::QMat;

/// xorshift64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A value in -1..1.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// A weight of random bytes; `extreme` fills the codes with ones and leaves the scales random.
fn weight(random: &mut Random, dtype: DType, n_out: usize, n_in: usize, extreme: bool) -> QMat {
    let mut bytes = Vec::new();
    match_format!(dtype,
        B => while bytes.len() < dtype.n_bytes(n_out * n_in).unwrap() {
            let mut block: Vec<u8> = (0..size_of::<B>())
                .map(|i| {
                    let scales = i < 4 || i + 2 >= size_of::<B>();
                    if extreme && !scales { 0xFF } else { random.next() as u8 }
                })
                .collect();
            while !quant::blocks::<B>(&block)[0].is_finite() {
                block.iter_mut().for_each(|byte| *byte = random.next() as u8);
            }
            bytes.extend(block);
        },
        F => bytes.extend((0..n_out * n_in).flat_map(|_| {
            let bits = random.unit().to_bits();
            match dtype {
                DType::F32 => bits.to_le_bytes().to_vec(),
                DType::BF16 => bits.to_le_bytes()[2..].to_vec(),
                _ => half::f16::from_f32(f32::from_bits(bits)).to_le_bytes().to_vec(),
            }
        })),
        _ => unreachable!(),
    );
    QMat::pack(dtype, n_out, n_in, &bytes).unwrap()
}

fn acts(random: &mut Random, rows: usize, cols: usize, extreme: bool) -> Acts {
    let mut x = Acts::new(cols, Forms { float: true, int8: true });
    x.set_rows(rows);
    x.float.iter_mut().for_each(|value| *value = random.unit());
    for code in &mut x.codes {
        let sign = if random.next() & 64 == 0 { 1 } else { -1 };
        *code = if extreme { 127 * sign } else { (random.next() % 255) as u8 as i8 }.max(-127);
    }
    x.scales.iter_mut().for_each(|scale| *scale = random.unit().abs() / 64.0);
    for (sum, codes) in x.sums.iter_mut().zip(x.codes.chunks_exact(ACT_BLOCK)) {
        *sum = codes.iter().map(|&code| i32::from(code)).sum();
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

#[test]
fn every_kernel_has_the_bits_of_the_scalar_one() {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    for &dtype in DType::ALL.iter().filter(|&&dtype| quant::computes(dtype)) {
        let block_len = dtype.info().block_len.max(32);
        for (n_out, n_blocks) in [(1, 1), (17, 2), (32, 3), (70, 19)] {
            for extreme in [false, true] {
                let n_in = n_blocks.min(if block_len == 256 { 3 } else { 19 }) * block_len;
                let w = weight(&mut random, dtype, n_out, n_in, extreme);
                let bias: Vec<f32> = (0..n_out).map(|_| random.unit()).collect();
                for rows in (1..=13).chain([17, 33, 40]) {
                    let x = acts(&mut random, rows, n_in, extreme);
                    let (bias, add) = (Some(&bias[..]).filter(|_| rows % 2 == 0), rows % 3 == 0);
                    let expected = run(scalar::linear(dtype), &w, &x, bias, add);
                    for isa in Isa::available() {
                        let got = run(isa.linear(dtype), &w, &x, bias, add);
                        assert!(got == expected, "{isa} {dtype} [{rows}, {n_in}] x {n_out}");
                    }
                }
            }
        }
    }
}
