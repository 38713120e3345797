//! Attention against f64, and against itself: cut, batched, threaded and on every instruction set.

use crate::attention::{AttentionParams, AttentionSpan};
use crate::cpu::Cpu;
use crate::isa::Isa;
use crate::kv::{KvCache, KvLayout, KvType};
use crate::mat::{ActBlock, Acts, Forms, Mat};
use crate::test_util::{Random, blocks, random_mat};
use half::f16;
use std::ops::Range;

/// A sequence of random q, k and v, and how it is attended to.
#[derive(Clone)]
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
        let (k_type, v_type) = (KvType::I16, KvType::I16);
        let scale = 2.0 / (head_size as f32).sqrt();
        Case {
            layout: KvLayout { n_layers: 2, n_kv_heads, head_size, block_len: 16, k_type, v_type },
            group,
            params: AttentionParams { scale, window: None, softcap: None },
            q: random_mat(&mut random, len, cols * group),
            k: random_mat(&mut random, len, cols),
            v: random_mat(&mut random, len, cols),
        }
    }

    fn with_types(mut self, k_type: KvType, v_type: KvType) -> Case {
        (self.layout.k_type, self.layout.v_type) = (k_type, v_type);
        self
    }

    fn with_params(mut self, window: Option<usize>, softcap: Option<f32>) -> Case {
        (self.params.window, self.params.softcap) = (window, softcap);
        self
    }

    fn with_block_len(mut self, block_len: usize) -> Case {
        self.layout.block_len = block_len;
        self
    }

    fn len(&self) -> usize {
        self.q.rows()
    }

    /// Runs the sequence in steps of the given numbers of rows (the last repeats); outputs of
    /// all rows.
    fn run(&self, cpu: &Cpu, steps: &[usize]) -> Output {
        let cases = [self];
        let mut world = World::new(&cases);
        let mut output = Output::default();
        let mut position = 0;
        let mut i = 0;
        while position < self.len() {
            let end = self.len().min(position + steps[i.min(steps.len() - 1)]);
            output.push(&world.step(cpu, &[(0, position..end)], true));
            (position, i) = (end, i + 1);
        }
        output
    }

    /// Output of the rows from `first` alone, the others being stored only.
    fn run_from(&self, cpu: &Cpu, first: usize) -> Output {
        let cases = [self];
        let mut world = World::new(&cases);
        world.step(cpu, &[(0, 0..first)], false);
        let mut output = Output::default();
        output.push(&world.step(cpu, &[(0, first..self.len())], true));
        output
    }

    /// What a cache of this type gives back.
    fn rounded(kv_type: KvType, max: f32, x: &[f32]) -> Vec<f64> {
        match kv_type {
            KvType::I16 => {
                let d = x.iter().fold(0.0f32, |a, x| a.max(x.abs())) / max;
                x.iter().map(|x| (x * (1.0 / d)).round_ties_even() as f64 * f64::from(d)).collect()
            }
            KvType::Q8_0 => x
                .chunks(32)
                .flat_map(|x| {
                    let amax = x.iter().fold(0.0f32, |a, x| a.max(x.abs()));
                    let d = f16::from_f32(amax / 127.0).to_f64();
                    x.iter().map(move |x| (x * (1.0 / (amax / 127.0))).round_ties_even() as f64 * d)
                })
                .collect(),
        }
    }

    /// The rows in f64.
    fn reference(&self, rows: Range<usize>) -> Vec<f64> {
        let e = self.layout.head_size;
        let scale = f64::from(self.params.scale);
        let mut y = Vec::new();
        for t in rows {
            let window = self.params.window.unwrap_or(usize::MAX);
            let seen = (t + 1).saturating_sub(window)..t + 1;
            for h in 0..self.q.cols() / e {
                let head = h / self.group * e..(h / self.group + 1) * e;
                let q = &self.q.row(t)[h * e..(h + 1) * e];
                let score = |i: usize| {
                    let k =
                        Self::rounded(self.layout.k_type, 16383.0, &self.k.row(i)[head.clone()]);
                    let s = scale * q.iter().zip(k).map(|(&q, k)| f64::from(q) * k).sum::<f64>();
                    let cap = |cap: f32| f64::from(cap) * (s / f64::from(cap)).tanh();
                    self.params.softcap.map_or(s, cap)
                };
                let scores: Vec<f64> = seen.clone().map(score).collect();
                let largest = scores.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
                let p: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
                let sum: f64 = p.iter().sum();
                let mut o = vec![0.0; e];
                for (i, p) in seen.clone().zip(p) {
                    let v = Self::rounded(self.layout.v_type, 8191.0, &self.v.row(i)[head.clone()]);
                    o.iter_mut().zip(v).for_each(|(o, v)| *o += p * v / sum);
                }
                y.extend(o);
            }
        }
        y
    }
}

/// Several sequences in one cache.
struct World<'a> {
    cases: &'a [&'a Case],
    kv: KvCache,
    tables: Vec<Vec<u32>>,
}

impl<'a> World<'a> {
    /// A cache in which every value never stored is a NaN; the blocks of the sequences are mixed.
    fn new(cases: &'a [&'a Case]) -> World<'a> {
        let layout = cases[0].layout.clone();
        let n_blocks = |case: &Case| case.len().div_ceil(layout.block_len);
        let n_all = cases.iter().map(|case| n_blocks(case)).sum::<usize>() + 3;
        let mut blocks: Vec<u32> = (0..n_all as u32).collect();
        let mut random = Random::new(7);
        for i in (1..blocks.len()).rev() {
            blocks.swap(i, random.below(i + 1));
        }
        let tables = cases.iter().map(|case| blocks.split_off(blocks.len() - n_blocks(case)));
        let tables = tables.collect();
        let mut kv = KvCache::new(layout, n_all).unwrap();
        kv.fill(0xff);
        World { cases, kv, tables }
    }

    /// One step over rows of the sequences, in the given order: stores and, if asked to, attends.
    fn step(&mut self, cpu: &Cpu, parts: &[(usize, Range<usize>)], attend: bool) -> Acts {
        let rows_of = |mat: fn(&Case) -> &Mat| {
            let mut values = Vec::new();
            for (i, rows) in parts {
                rows.clone().for_each(|t| values.extend(mat(self.cases[*i]).row(t)));
            }
            let cols = mat(self.cases[0]).cols();
            let mut all = Mat::zeros(values.len() / cols, cols);
            all.as_mut_slice().copy_from_slice(&values);
            all
        };
        let (q, k, v) = (rows_of(|case| &case.q), rows_of(|case| &case.k), rows_of(|case| &case.v));
        let (mut spans, mut blocks, mut row) = (Vec::new(), Vec::new(), 0);
        for (i, rows) in parts {
            let table = blocks.len()..blocks.len() + self.tables[*i].len();
            blocks.extend(&self.tables[*i]);
            let next = row + rows.len();
            spans.push(AttentionSpan { rows: row..next, position: rows.start, blocks: table });
            row = next;
        }
        let forms = Forms { float: true, int8: q.cols().is_multiple_of(32) };
        let mut y = Acts::new(q.cols(), forms);
        cpu.store_kv(&mut self.kv, 1, &k, &v, &spans, &blocks);
        if attend {
            let params = &self.cases[0].params;
            cpu.attention(&q, &self.kv, 1, &spans, &blocks, params, &mut y);
        }
        y
    }
}

/// All forms of some output rows, as bits.
#[derive(Default, PartialEq, Debug)]
struct Output {
    float: Vec<u32>,
    blocks: Vec<ActBlock>,
}

impl Output {
    fn push(&mut self, y: &Acts) {
        self.float.extend(y.float.iter().map(|x| x.to_bits()));
        self.blocks.extend(blocks(y));
    }
}

#[track_caller]
fn assert_same(a: &Output, b: &Output, what: &str) {
    assert_eq!(a.float.len(), b.float.len(), "{what}");
    let differ = a.float.iter().zip(&b.float).filter(|(a, b)| a != b).count();
    assert!(differ == 0, "{what}: {differ} of {} values differ", a.float.len());
    assert!(a == b, "{what}: the int8 forms differ");
}

const TYPES: [(KvType, KvType); 3] =
    [(KvType::I16, KvType::I16), (KvType::I16, KvType::Q8_0), (KvType::Q8_0, KvType::Q8_0)];

#[test]
fn close_to_f64() {
    for isa in Isa::available() {
        let cpu = Cpu::new(isa, 2);
        for (len, e, n_kv_heads, group) in [(70, 64, 3, 3), (300, 96, 2, 1), (530, 128, 1, 2)] {
            for (window, softcap) in [(None, None), (Some(40), None), (Some(300), Some(2.0))] {
                for (k_type, v_type) in TYPES {
                    let case = Case::new(len as u64, len, e, n_kv_heads, group)
                        .with_types(k_type, v_type)
                        .with_params(window, softcap);
                    let first = len - 9;
                    let y = case.run_from(&cpu, first);
                    let reference = case.reference(first..len);
                    assert_eq!(y.float.len(), reference.len());
                    let mut worst = 0.0f64;
                    for (y, reference) in y.float.iter().zip(reference) {
                        let error = (f64::from(f32::from_bits(*y)) - reference).abs();
                        worst = error.max(worst);
                    }
                    assert!(worst < 1e-4, "{isa} {len} {window:?} {k_type:?}: {worst:e}");
                }
            }
        }
    }
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    // (E, G, length, window, softcap, B)
    let shapes = [
        (64, 1, 40, None, None, 16),
        (64, 3, 261, None, None, 16),
        (64, 9, 70, Some(30), None, 32),
        (80, 2, 300, None, Some(3.0), 64),
        (128, 6, 258, Some(200), None, 16),
        (256, 4, 520, Some(260), None, 16),
        (320, 1, 90, None, None, 128),
    ];
    for (e, group, len, window, softcap, block_len) in shapes {
        for (k_type, v_type) in TYPES {
            if e % 32 != 0 && v_type == KvType::Q8_0 {
                continue;
            }
            let case = Case::new(e as u64 + len as u64, len, e, 2, group)
                .with_types(k_type, v_type)
                .with_params(window, softcap)
                .with_block_len(block_len);
            let first = len - 7;
            let scalar = case.run_from(&Cpu::new(Isa::Scalar, 2), first);
            for isa in Isa::available() {
                let y = case.run_from(&Cpu::new(isa, 1), first);
                assert_same(
                    &y,
                    &scalar,
                    &format!("{isa}, E {e}, G {group}, {k_type:?} {v_type:?}"),
                );
            }
        }
    }
}

#[test]
fn every_group_size_gives_the_same_bits_as_one_query_head() {
    for isa in Isa::available() {
        let cpu = Cpu::new(isa, 2);
        for group in 1..=9 {
            let case = Case::new(group as u64, 37, 32, 1, group);
            let y = case.run(&cpu, &[37]);
            for head in 0..group {
                let mut alone = Case { group: 1, ..case.clone() };
                alone.q = Mat::zeros(37, 32);
                for t in 0..37 {
                    let q = &case.q.row(t)[head * 32..(head + 1) * 32];
                    alone.q.row_mut(t).copy_from_slice(q);
                }
                let alone = alone.run(&cpu, &[37]);
                for t in 0..37 {
                    let start = (t * group + head) * 32;
                    assert_eq!(alone.float[t * 32..(t + 1) * 32], y.float[start..start + 32]);
                }
            }
        }
    }
}

#[test]
fn chunks_and_threads_do_not_matter() {
    let isa = Isa::best();
    for (i, (k_type, v_type)) in TYPES.into_iter().enumerate() {
        for window in [None, Some(100)] {
            let case = Case::new(i as u64, 530, 64, 2, 3)
                .with_types(k_type, v_type)
                .with_params(window, None);
            let whole = case.run(&Cpu::new(isa, 1), &[530]);
            for n_threads in [2, 3] {
                let cpu = Cpu::new(isa, n_threads);
                assert_same(&case.run(&cpu, &[530]), &whole, "threads");
                for steps in [&[1][..], &[17], &[255, 2, 1, 200, 40], &[500, 1]] {
                    assert_same(&case.run(&cpu, steps), &whole, &format!("steps {steps:?}"));
                }
            }
        }
    }
}

#[test]
fn other_sequences_do_not_matter() {
    let cpu = Cpu::new(Isa::best(), 2);
    for (k_type, v_type) in TYPES {
        let cases: Vec<Case> = [70, 300, 5, 264]
            .into_iter()
            .map(|len| Case::new(len as u64, len, 64, 1, 7).with_types(k_type, v_type))
            .collect();
        let cases: Vec<&Case> = cases.iter().collect();
        let mut world = World::new(&cases);
        // A prefill chunk, single rows and drafts in one step, after steps that stored what precedes.
        let parts = [(0, 69..70), (1, 200..300), (2, 0..5), (3, 258..264)];
        for (i, rows) in &parts {
            world.step(&cpu, &[(*i, 0..rows.start)], false);
        }
        let mut together = Output::default();
        together.push(&world.step(&cpu, &parts, true));
        let mut alone = Output::default();
        for (i, rows) in &parts {
            let mut world = World::new(&cases[*i..i + 1]);
            world.step(&cpu, &[(0, 0..rows.start)], false);
            alone.push(&world.step(&cpu, &[(0, rows.clone())], true));
        }
        assert_same(&together, &alone, "batch");
    }
}

#[test]
fn block_length_does_not_matter() {
    let cpu = Cpu::new(Isa::best(), 2);
    for (k_type, v_type) in TYPES {
        let case = Case::new(1, 300, 64, 2, 2).with_types(k_type, v_type);
        let y = case.run(&cpu, &[300]);
        for block_len in [32, 64, 128, 256] {
            assert_same(&case.clone().with_block_len(block_len).run(&cpu, &[300]), &y, "block");
        }
    }
}

#[test]
fn a_later_nan_does_not_reach_earlier_rows() {
    for isa in Isa::available() {
        let cpu = Cpu::new(isa, 2);
        let case = Case::new(1, 40, 64, 1, 3);
        let clean = case.run(&cpu, &[40]);
        let mut dirty = case.clone();
        dirty.k.row_mut(33)[5] = f32::NAN;
        dirty.v.row_mut(33)[7] = f32::NAN;
        let dirty = dirty.run(&cpu, &[40]);
        let n_before = 33 * case.q.cols();
        assert_eq!(dirty.float[..n_before], clean.float[..n_before]);
        assert!(dirty.float[n_before..].iter().all(|&x| f32::from_bits(x).is_nan()));
    }
}

#[test]
fn one_token_gives_its_value() {
    for isa in Isa::available() {
        let case = Case::new(1, 1, 64, 2, 2);
        let y = case.run(&Cpu::new(isa, 1), &[1]);
        for (i, y) in y.float.iter().enumerate() {
            let v = case.v.row(0)[i / 128 * 64 + i % 64];
            let head = &case.v.row(0)[i / 128 * 64..][..64];
            let d = head.iter().fold(0.0f32, |a, x| a.max(x.abs())) / 8191.0;
            assert!((f32::from_bits(*y) - v).abs() <= 0.501 * d);
        }
    }
}

#[test]
#[should_panic(expected = "a block outside the cache")]
fn a_block_outside_the_cache() {
    let case = Case::new(1, 20, 64, 1, 1);
    let cases = [&case];
    let mut world = World::new(&cases);
    world.tables[0][1] = world.kv.n_blocks() as u32;
    world.step(&Cpu::new(Isa::Scalar, 1), &[(0, 0..20)], true);
}
