//! Attention on one thread: prefill of a prompt and decoding at several context lengths, for heads
//! of real models.
//!
//! `cargo bench -p paceline-kernels --bench attention -- 'avx512/smollm2/F16'` picks some by name.
//! Elements are multiply-adds, bytes are those of K and V, both per second.

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use paceline_kernels::{
    Acts, AttentionParams, AttentionSpan, Cpu, Forms, Isa, KvCache, KvLayout, KvType, Mat,
};

/// Name, H, K, E.
const MODELS: [(&str, usize, usize, usize); 3] =
    [("smollm2", 9, 3, 64), ("gemma3", 4, 1, 256), ("qwen2.5", 12, 2, 128)];

/// Rows of the step and the position of the first.
const STEPS: [(usize, usize); 5] = [(1, 1023), (1, 4095), (5, 1019), (512, 0), (256, 3840)];

fn attention(criterion: &mut Criterion) {
    for isa in Isa::available().filter(|&isa| isa != Isa::Scalar) {
        let cpu = Cpu::new(isa, 1);
        for (name, n_heads, n_kv_heads, head_size) in MODELS {
            for kv_type in [KvType::I16, KvType::Q8_0] {
                let layout = KvLayout {
                    n_layers: 1,
                    n_kv_heads,
                    head_size,
                    block_len: 32,
                    k_type: kv_type,
                    v_type: kv_type,
                };
                let block_bytes = layout.block_bytes().unwrap();
                let mut kv = KvCache::new(layout, 128).unwrap();
                // Neighbours in the sequence are no neighbours in memory.
                let blocks: Vec<u32> = (0..128).map(|i| i * 37 % 128).collect();
                let rows = random(4096, n_kv_heads * head_size);
                let span = AttentionSpan { rows: 0..4096, position: 0, blocks: 0..128 };
                cpu.store_kv(&mut kv, 0, &rows, &rows, &[span], &blocks);

                let mut group = criterion.benchmark_group(format!("{isa}/{name}/{kv_type:?}"));
                group.sample_size(10);
                group.warm_up_time(Duration::from_millis(50));
                group.measurement_time(Duration::from_millis(200));
                for (n_rows, position) in STEPS {
                    let seen: usize = (position + 1..=position + n_rows).sum();
                    group.throughput(Throughput::ElementsAndBytes {
                        elements: (seen * n_heads * head_size * 2) as u64,
                        bytes: ((position + n_rows) * block_bytes / 32) as u64,
                    });
                    let q = random(n_rows, n_heads * head_size);
                    let forms = Forms { float: false, int8: true };
                    let mut y = Acts::new(n_heads * head_size, forms);
                    let span = AttentionSpan { rows: 0..n_rows, position, blocks: 0..128 };
                    let scale = 1.0 / (head_size as f32).sqrt();
                    let params = AttentionParams { scale, window: None, softcap: None };
                    let id = BenchmarkId::from_parameter(format!("{n_rows} rows at {position}"));
                    group.bench_function(id, |bencher| {
                        bencher.iter(|| {
                            let spans = std::slice::from_ref(&span);
                            cpu.attention(&q, &kv, 0, spans, &blocks, &params, &mut y);
                        });
                    });
                }
            }
        }
    }
}

/// Values between -1 and 1.
fn random(rows: usize, cols: usize) -> Mat {
    let mut mat = Mat::zeros(rows, cols);
    let mut state = 1u32;
    mat.as_mut_slice().fill_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    });
    mat
}

criterion_group!(benches, attention);
criterion_main!(benches);
