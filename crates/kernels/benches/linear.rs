//! The linear op on one thread: each format, a few shapes of real models, one row to many.
//!
//! `cargo bench -p paceline-kernels --bench linear -- 'avx512/Q4_0'` picks some by name. Elements are
//! multiply-adds, bytes are those of the weight, both per second; a line for each
//! instruction set gives the most multiply-adds that its integer unit could do. The weights of a case stay in the cache.

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use paceline_kernels::{Acts, Cpu, DType, Isa, Linear, Mat, QMat, quant};

const SHAPES: [(usize, usize); 3] = [(1536, 576), (576, 1536), (896, 4864)];

fn linear(criterion: &mut Criterion) {
    for isa in Isa::available().filter(|&isa| isa != Isa::Scalar) {
        let cpu = Cpu::new(isa, 1);
        let peak = cpu.int8_peak().unwrap_or(f64::NAN) / 1e9;
        println!("{isa}, one thread: at most {peak:.0} G int8 multiply-adds/s");
        for &dtype in DType::ALL.iter().filter(|&&dtype| quant::computes(dtype)) {
            for (n_out, n_in) in SHAPES {
                let n_in = n_in.next_multiple_of(dtype.info().block_len);
                let w = weight(dtype, n_out, n_in);
                let mut group = criterion.benchmark_group(format!("{isa}/{dtype}/{n_out}x{n_in}"));
                group.sample_size(10);
                group.warm_up_time(Duration::from_millis(50));
                group.measurement_time(Duration::from_millis(200));
                for rows in [1, 4, 8, 32, 512] {
                    group.throughput(Throughput::ElementsAndBytes {
                        elements: (rows * n_out * n_in) as u64,
                        bytes: w.n_bytes() as u64,
                    });
                    let x = acts(&cpu, &w, rows);
                    let mut y = Mat::zeros(rows, n_out);
                    group.bench_function(BenchmarkId::from_parameter(rows), |bencher| {
                        bencher.iter(|| {
                            let part = Linear { w: &w, bias: None, y: &mut y, add: false };
                            cpu.linear(&x, &mut [part]);
                        });
                    });
                }
            }
        }
    }
}

/// Any codes, and scales that are finite.
fn weight(dtype: DType, n_out: usize, n_in: usize) -> QMat {
    let mut state = 1u64;
    let n_bytes = dtype.n_bytes(n_out * n_in).expect("whole blocks");
    let random = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    });
    // An exponent of a float has its highest bit in bit 6 of a high byte.
    let mut bytes: Vec<u8> = random.take(n_bytes).map(|byte| byte & 0xBF).collect();
    if dtype == DType::MXFP4 {
        // Subnormal products are slow, and no model has them.
        bytes.chunks_exact_mut(dtype.info().block_bytes).for_each(|block| block[0] = 120);
    }
    QMat::pack(dtype, n_out, n_in, &bytes).expect("finite scales")
}

fn acts(cpu: &Cpu, w: &QMat, rows: usize) -> Acts {
    let mut x = Mat::zeros(rows, w.n_in());
    for (i, value) in x.as_mut_slice().iter_mut().enumerate() {
        *value = (i as f32).sin();
    }
    let mut acts = Acts::new(w.n_in(), w.forms());
    cpu.quantize(&x, &mut acts);
    acts
}

criterion_group!(benches, linear);
criterion_main!(benches);
