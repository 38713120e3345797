//! The linear op: every instruction set, format, shape, number of rows and of threads against the
//! scalar kernel bit for bit, and the scalar kernel against plain sums in f64.

use paceline_kernels::{Acts, Cpu, DType, Forms, Isa, Linear, Mat, QMat, quant};

/// Most rows of activations in a test.
const MAX_ROWS: usize = 33;

#[test]
fn every_isa_and_shape_gives_the_bits_of_the_scalar_kernel() {
    let cpus = cpus();
    for dtype in computing() {
        for (n_out, n_in) in shapes(dtype) {
            let mut random = Random(n_out as u64 * 1000 + n_in as u64);
            let weight = weight(&mut random, dtype, n_out, n_in);
            let x = random.mat(MAX_ROWS, n_in);
            let bias = random.values(n_out);
            let bias = (n_out % 2 == 1).then_some(&bias[..]);
            let expected = product(&cpus[0], &weight.packed, bias, &x);
            for cpu in &cpus {
                for n_rows in (1..=9).chain([17, MAX_ROWS]) {
                    // Other rows each time: a row alone is the same as among others.
                    let first = (n_rows * 7) % (MAX_ROWS - n_rows + 1);
                    let x = rows(&x, first, n_rows);
                    let y = product(cpu, &weight.packed, bias, &x);
                    for t in 0..n_rows {
                        assert_eq!(
                            bits(y.row(t)),
                            bits(expected.row(first + t)),
                            "{} x {} threads, {dtype} {n_out} x {n_in}, row {t} of {n_rows}",
                            cpu.isa(),
                            cpu.n_threads(),
                        );
                    }
                }
            }
        }
    }
}

/// `|y - exact| <= 2^-24 (2 steps + 8) 4 sum_i max|w| |x_i|`: a rounding for each step of the chain
/// and each scale, terms at most four times as large as the largest weight of the row (a scaled
/// code and a minimum that nearly cancel).
#[test]
fn the_scalar_kernel_is_near_the_exact_product() {
    let cpu = Cpu::new(Isa::Scalar, 1);
    for dtype in computing() {
        for (n_out, n_in) in shapes(dtype) {
            let mut random = Random(n_out as u64 * 77 + n_in as u64);
            let weight = weight(&mut random, dtype, n_out, n_in);
            let x = random.mat(3, n_in);
            let y = product(&cpu, &weight.packed, None, &x);
            let n_steps = if weight.packed.forms().float { n_in } else { n_in / 8 };
            for t in 0..x.rows() {
                let x = if weight.packed.forms().float {
                    x.row(t).iter().map(|&x| f64::from(x)).collect()
                } else {
                    rounded(x.row(t))
                };
                for (o, w) in weight.values.chunks_exact(n_in).enumerate() {
                    let exact: f64 = w.iter().zip(&x).map(|(&w, x)| f64::from(w) * x).sum();
                    let largest = w.iter().fold(0.0, |max: f32, w| max.max(w.abs()));
                    let sum: f64 = x.iter().map(|x| f64::from(largest) * x.abs()).sum();
                    let bound = 2f64.powi(-24) * (2 * n_steps + 8) as f64 * 4.0 * sum;
                    let error = (f64::from(y.row(t)[o]) - exact).abs();
                    assert!(
                        error <= bound,
                        "{dtype} {n_out} x {n_in}, y[{t}, {o}]: {error} > {bound}"
                    );
                }
            }
        }
    }
}

#[test]
fn parts_of_one_call_are_products_of_their_own() {
    let mut random = Random(5);
    let x = random.mat(5, 256);
    let weights: Vec<Weight> =
        [(DType::Q4_K, 70), (DType::Q6_K, 1), (DType::F16, 33), (DType::Q8_0, 96)]
            .into_iter()
            .map(|(dtype, n_out)| weight(&mut random, dtype, n_out, 256))
            .collect();
    let biases: Vec<Vec<f32>> = weights.iter().map(|w| random.values(w.packed.n_out())).collect();
    let before: Vec<Mat> = weights.iter().map(|w| random.mat(5, w.packed.n_out())).collect();
    for cpu in cpus() {
        let mut ys = before.clone();
        let mut parts: Vec<Linear<'_>> = weights
            .iter()
            .zip(&biases)
            .zip(&mut ys)
            .enumerate()
            .map(|(i, ((w, bias), y))| Linear {
                w: &w.packed,
                bias: (i != 1).then_some(&bias[..]),
                y,
                add: i < 2,
            })
            .collect();
        cpu.linear(&acts(&cpu, &x, Forms { float: true, int8: true }), &mut parts);
        for (i, w) in weights.iter().enumerate() {
            let alone = product(&cpu, &w.packed, (i != 1).then_some(&biases[i][..]), &x);
            for t in 0..5 {
                let sum = |(y, before): (&f32, &f32)| if i < 2 { y + before } else { *y };
                let expected: Vec<f32> =
                    alone.row(t).iter().zip(before[i].row(t)).map(sum).collect();
                assert_eq!(bits(ys[i].row(t)), bits(&expected), "part {i}, row {t}");
            }
        }
    }
}

#[test]
fn an_embedding_is_a_scaled_row() {
    let mut random = Random(6);
    let table = weight(&mut random, DType::Q5_0, 50, 96);
    for cpu in cpus() {
        let mut y = Mat::zeros(0, 96);
        cpu.embed(&table.packed, &[49, 0, 33, 0], 1.5, &mut y);
        assert_eq!(y.rows(), 4);
        for (t, i) in [49, 0, 33, 0].into_iter().enumerate() {
            let expected: Vec<f32> =
                table.values[i * 96..(i + 1) * 96].iter().map(|value| value * 1.5).collect();
            assert_eq!(bits(y.row(t)), bits(&expected));
        }
    }
}

#[test]
fn no_rows_are_no_work() {
    let weight = weight(&mut Random(7), DType::Q8_0, 3, 32);
    for cpu in cpus() {
        assert_eq!(product(&cpu, &weight.packed, None, &Mat::zeros(0, 32)).rows(), 0);
    }
}

/// One of each instruction set and number of threads; the first is the oracle.
fn cpus() -> Vec<Cpu> {
    Isa::available().flat_map(|isa| [1, 2, 3].map(|n_threads| Cpu::new(isa, n_threads))).collect()
}

fn computing() -> impl Iterator<Item = DType> {
    DType::ALL.iter().copied().filter(|&dtype| quant::computes(dtype))
}

fn shapes(dtype: DType) -> impl Iterator<Item = (usize, usize)> {
    let widths = match dtype.info().block_len {
        256 => [256, 768],
        _ => [32, 160],
    };
    [1, 15, 16, 31, 32, 33, 100].into_iter().zip(widths.into_iter().cycle())
}

fn product(cpu: &Cpu, w: &QMat, bias: Option<&[f32]>, x: &Mat) -> Mat {
    let mut y = Mat::zeros(x.rows(), w.n_out());
    cpu.linear(&acts(cpu, x, w.forms()), &mut [Linear { w, bias, y: &mut y, add: false }]);
    y
}

fn acts(cpu: &Cpu, x: &Mat, forms: Forms) -> Acts {
    let mut acts = Acts::new(x.cols(), forms);
    cpu.quantize(x, &mut acts);
    acts
}

fn rows(x: &Mat, first: usize, n_rows: usize) -> Mat {
    let mut rows = Mat::zeros(n_rows, x.cols());
    (0..n_rows).for_each(|t| rows.row_mut(t).copy_from_slice(x.row(first + t)));
    rows
}

/// A row through int8 and back.
fn rounded(x: &[f32]) -> Vec<f64> {
    let block = |x: &[f32]| -> Vec<f64> {
        let amax = x.iter().fold(0.0, |max: f32, x| max.max(x.abs()));
        let inverse = if amax == 0.0 { 0.0 } else { 127.0 / amax };
        let value = |x: &f32| f64::from(amax / 127.0) * f64::from((x * inverse).round_ties_even());
        x.iter().map(value).collect()
    };
    x.chunks_exact(32).flat_map(block).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

struct Weight {
    packed: QMat,
    /// Decoded, row-major.
    values: Vec<f32>,
}

/// Random bytes with sensible scales.
fn weight(random: &mut Random, dtype: DType, n_out: usize, n_in: usize) -> Weight {
    let n_values = n_out * n_in;
    let mut bytes = vec![0; dtype.n_bytes(n_values).unwrap()];
    let scales: &[usize] = match dtype {
        DType::F32 | DType::F16 | DType::BF16 => {
            quant::encode(dtype, &random.values(n_values), &mut bytes).unwrap();
            &[]
        }
        DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
        DType::Q2_K => &[80, 82],
        DType::Q3_K => &[108],
        DType::Q6_K => &[208],
        DType::MXFP4 => {
            bytes.fill_with(|| (random.next() >> 32) as u8);
            let exponents = bytes.iter_mut().step_by(dtype.info().block_bytes);
            exponents.for_each(|e| *e = 116 + *e % 16);
            &[]
        }
        _ => &[0],
    };
    if !scales.is_empty() {
        bytes.fill_with(|| (random.next() >> 32) as u8);
        for block in bytes.chunks_exact_mut(dtype.info().block_bytes) {
            for &at in scales {
                let scale = half::f16::from_f32(random.value() * 0.1);
                block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
            }
        }
        // A block of zeros.
        bytes[..dtype.info().block_bytes].fill(0);
    }
    let mut values = vec![0.0; n_values];
    quant::decode(dtype, &bytes, &mut values).unwrap();
    Weight { packed: QMat::pack(dtype, n_out, n_in, &bytes).unwrap(), values }
}

/// Random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In -1..1.
    fn value(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.value()).collect()
    }

    /// Activations of mixed magnitude, with blocks of zeros and single large values.
    fn mat(&mut self, n_rows: usize, n_cols: usize) -> Mat {
        let mut mat = Mat::zeros(n_rows, n_cols);
        for block in mat.as_mut_slice().chunks_mut(32) {
            let scale = [0.0, 0.01, 1.0, 1.0, 30.0][(self.next() >> 32) as usize % 5];
            block.fill_with(|| self.value() * scale);
            block[(self.next() >> 32) as usize % block.len()] *= 8.0;
        }
        mat
    }
}
