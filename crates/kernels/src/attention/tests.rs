//! Attention against f64, and against itself: cut, batched, threaded and on every instruction set.

use crate::attention::{AttentionParams, AttentionSpan};
use crate::cpu::Cpu;
use crate::isa::Isa;
use crate::kv::{KvCache, KvLayout, KvType};
use crate::mat::{Acts, Forms, Mat};
use crate::test_util::{Random, random_mat};

/// A sequence of random q, k, v, and how it is attended to.
struct Case {
    layout: KvLayout,
    /// G.
    group: usize,
    params: AttentionParams,
    q: Mat,
    k: Mat,
    v: Mat,
}

impl Case {
    fn new(seed: u64, len: usize, head_size: usize, n_kv_heads: usize, group: usize) -> Case {
        let mut random = Random::new(seed);
        let cols = n_kv_heads * head_size;
        Case {
            layout: KvLayout {
                n_layers: 2,
                n_kv_heads,
                head_size,
                block_len: 16,
                k_type: KvType::F16,
                v_type: KvType::F16,
            },
            group,
            params: AttentionParams {
                scale: 1.0 / (head_size as f32).sqrt(),
                window: None,
                softcap: None,
            },
            q: random_mat(&mut random, len, cols * group),
            k: random_mat(&mut random, len, cols),
            v: random_mat(&mut random, len, cols),
        }
    }

    fn len(&self) -> usize {
        self.q.rows()
    }

    /// A cache whose every byte is part of a NaN, with room for `n_sequences` copies of the sequence.
    fn cache(&self, n_sequences: usize) -> KvCache {
        let n_blocks = (self.len().div_ceil(self.layout.block_len) + 1) * n_sequences;
        let mut kv = KvCache::new(self.layout.clone(), n_blocks).unwrap();
        kv.fill(0xff);
        kv
    }

    /// A block table in random order for each of `n_sequences`.
    fn tables(&self, kv: &KvCache, n_sequences: usize) -> Vec<Vec<u32>> {
        let mut blocks: Vec<u32> = (0..kv.n_blocks() as u32).collect();
        let mut random = Random::new(7);
        for i in (1..blocks.len()).rev() {
            blocks.swap(i, random.below(i + 1));
        }
        let n_blocks = self.len().div_ceil(self.layout.block_len);
        blocks.chunks(n_blocks).take(n_sequences).map(<[u32]>::to_vec).collect()
    }

    /// Attention of the whole sequence, in steps of the given numbers of rows (the last repeats).
    fn run(&self, cpu: &Cpu, steps: &[usize]) -> Vec<Acts> {
        let forms = Forms { float: true, int8: self.q.cols().is_multiple_of(32) };
        let mut kv = self.cache(1);
        let table = self.tables(&kv, 1).remove(0);
        let mut outputs = Vec::new();
        let mut position = 0;
        let mut steps = steps.iter();
        let mut n_rows = 1;
        while position < self.len() {
            n_rows = *steps.next().unwrap_or(&n_rows);
            let end = self.len().min(position + n_rows);
            let rows = |x: &Mat| {
                let mut part = Mat::zeros(end - position, x.cols());
                let values = &x.as_slice()[position * x.cols()..end * x.cols()];
                part.as_mut_slice().copy_from_slice(values);
                part
            };
            let spans =
                [AttentionSpan { rows: 0..end - position, position, blocks: 0..table.len() }];
            let mut y = Acts::new(self.q.cols(), forms);
            cpu.store_kv(&mut kv, 1, &rows(&self.k), &rows(&self.v), &spans, &table);
            cpu.attention(&rows(&self.q), &kv, 1, &spans, &table, &self.params, &mut y);
            outputs.push(y);
            position = end;
        }
        outputs
    }

    /// The same in f64, from K and V rounded to f16; for the last rows only.
    fn reference(&self, rows: std::ops::Range<usize>) -> Vec<f64> {
        let e = self.layout.head_size;
        let round = |x: f32| half::f16::from_f32(x).to_f64();
        let mut y = Vec::new();
        for t in rows {
            let window = self.params.window.unwrap_or(usize::MAX);
            let seen = (t + 1).saturating_sub(window)..t + 1;
            for h in 0..self.q.cols() / e {
                let head = h / self.group * e..(h / self.group + 1) * e;
                let q = &self.q.row(t)[h * e..(h + 1) * e];
                let scores: Vec<f64> = seen
                    .clone()
                    .map(|i| {
                        let k = &self.k.row(i)[head.clone()];
                        let dot: f64 =
                            q.iter().zip(k).map(|(q, &k)| f64::from(*q) * round(k)).sum();
                        let s = dot * f64::from(self.params.scale);
                        self.params
                            .softcap
                            .map_or(s, |cap| f64::from(cap) * (s / f64::from(cap)).tanh())
                    })
                    .collect();
                let largest = scores.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
                let p: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
                let sum: f64 = p.iter().sum();
                for j in head {
                    let o: f64 =
                        seen.clone().zip(&p).map(|(i, p)| p * round(self.v.row(i)[j])).sum();
                    y.push(o / sum);
                }
            }
        }
        y
    }
}

/// The rows of several outputs, one after the other.
fn rows(outputs: &[Acts]) -> (Vec<u32>, Vec<i8>, Vec<u32>) {
    let mut all = (Vec::new(), Vec::new(), Vec::new());
    for y in outputs {
        all.0.extend(y.float.iter().map(|x| x.to_bits()));
        all.1.extend(&y.codes);
        all.2.extend(y.scales.iter().map(|x| x.to_bits()));
    }
    all
}

#[test]
fn close_to_f64() {
    for isa in Isa::available() {
        let cpu = Cpu::new(isa, 2);
        for (len, e, n_kv_heads, group) in [(70, 64, 3, 3), (300, 80, 1, 1)] {
            for (window, softcap) in [(None, None), (Some(40), None), (Some(300), Some(2.0))] {
                let mut case = Case::new(len as u64, len, e, n_kv_heads, group);
                (case.params.window, case.params.softcap) = (window, softcap);
                let y = case.run(&cpu, &[len]).remove(0);
                let reference = case.reference(len - 20..len);
                let ours = &y.float[(len - 20) * y.cols..];
                assert_eq!(ours.len(), reference.len());
                for (a, b) in ours.iter().zip(&reference) {
                    assert!((f64::from(*a) - b).abs() < 2e-6, "{isa} {len} {window:?}: {a} {b}");
                }
            }
        }
    }
}

#[test]
fn cut_into_steps() {
    let cpu = Cpu::new(Isa::best(), 2);
    let case = Case::new(3, 270, 64, 1, 3);
    let whole = rows(&case.run(&cpu, &[270]));
    for steps in [&[17][..], &[255, 2, 1, 12]] {
        assert_eq!(rows(&case.run(&cpu, steps)), whole, "{steps:?}");
    }
}
