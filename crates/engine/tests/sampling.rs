//! Noise, truncation, penalties and log-probabilities against published vectors, hand-computed
//! numbers and plain full sorts.

use paceline_engine::SamplingParams;
use paceline_engine::sample::noise::{self, GUMBEL_MAX, Noise, philox4x32};
use paceline_engine::sample::processors::{self, Cut, History};
use paceline_engine::sample::{Place, Sampler};
use proptest::prelude::*;

#[test]
fn philox_gives_the_published_answers() {
    let ones = u32::MAX;
    assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    assert_eq!(
        philox4x32([ones; 4], [ones; 2]),
        [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
    );
    let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
    assert_eq!(
        philox4x32(pi, [0xa409_3822, 0x299f_31d0]),
        [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
    );
}

#[test]
fn noise_is_laid_out_as_documented() {
    let noise = Noise::new(0x0123_4567_89ab_cdef, 3, 1000);
    let block = philox4x32([5, 1000, 3, 0], [0x89ab_cdef, 0x0123_4567]);
    assert_eq!(noise.bits(5), block);
}

/// Distance in units of the last place.
fn ulps(a: f64, b: f64) -> u64 {
    (a.to_bits() as i64).abs_diff(b.to_bits() as i64)
}

#[test]
fn ln_and_exp_agree_with_libm_to_three_ulps() {
    let mut x = 1e-300;
    while x < 1e300 {
        assert!(ulps(noise::ln(x), x.ln()) <= 3, "ln {x}");
        x *= 1.37;
    }
    for i in 1..10_000 {
        // Around 1, where the logarithm is small.
        let x = 1.0 + (i - 5000) as f64 * 1e-5;
        assert!(ulps(noise::ln(x), x.ln()) <= 3, "ln {x}");
        let x = -i as f64 * 0.0699;
        assert!(ulps(noise::exp(x), x.exp()) <= 3, "exp {x}");
    }
    assert_eq!(noise::ln(1.0), 0.0);
    assert_eq!(noise::exp(0.0), 1.0);
    assert_eq!(noise::exp(-800.0), 0.0);
    assert_eq!(noise::exp(f64::NEG_INFINITY), 0.0);
}

#[test]
fn gumbel_is_finite_and_bounded() {
    let bits = (0..32).flat_map(|i| [u32::MAX >> i, u32::MAX << i, 1 << i, !(1 << i)]);
    for bits in bits.chain([0]).chain((0..1000).map(|i: u32| i.wrapping_mul(0x9e37_79b9))) {
        let (value, bound) = (noise::gumbel(bits), noise::gumbel_bound(bits));
        assert!(value.is_finite() && value <= bound && bound <= GUMBEL_MAX, "{bits:x}");
        assert!(value < 0.0 || bound - value < 1.1, "{bits:x}: {value} {bound}");
    }
    // -ln(-ln(2^-33)) and -ln(-ln(1 - 2^-33)).
    assert!((noise::gumbel(0) + 3.129_995).abs() < 1e-5);
    assert!((noise::gumbel(u32::MAX) - 22.873_857).abs() < 1e-5);
}

fn sample(logits: &[f32], params: &SamplingParams, place: Place) -> u32 {
    Sampler::default().sample(logits, params, &History::default(), [].into_iter(), place)
}

/// Pearson's statistic of counts against probabilities.
fn chi_square(counts: &[u32], probabilities: &[f64]) -> f64 {
    let n: u32 = counts.iter().sum();
    let term = |(&count, &p): (&u32, &f64)| (count as f64 - p * n as f64).powi(2) / (p * n as f64);
    counts.iter().zip(probabilities).map(term).sum()
}

fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let weights: Vec<f64> = logits.iter().map(|&l| (l as f64 / temperature).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|w| w / sum).collect()
}

#[test]
fn samples_follow_the_softmax() {
    let logits: Vec<f32> = (0..16).map(|i| ((i * 7) % 16) as f32 * 0.25).collect();
    for temperature in [0.5f32, 1.0, 2.0] {
        let params = SamplingParams { temperature, ..SamplingParams::default() };
        let expected = softmax(&logits, temperature as f64);
        // Along positions, along choices and along seeds.
        let places: [fn(usize) -> Place; 3] = [
            |i| Place { seed: 1, choice: 0, position: i },
            |i| Place { seed: 1, choice: i, position: 9 },
            |i| Place { seed: i as u64, choice: 0, position: 9 },
        ];
        for place in places {
            let mut counts = [0; 16];
            for i in 0..20_000 {
                counts[sample(&logits, &params, place(i)) as usize] += 1;
            }
            // 15 degrees of freedom: 44.3 is exceeded once in ten thousand.
            let statistic = chi_square(&counts, &expected);
            assert!(statistic < 44.3, "T {temperature}: {statistic} {counts:?}");
        }
    }
}

#[test]
fn samples_follow_the_truncated_softmax() {
    let logits = [2.0, 0.0, 1.5, -1.0, 1.0, 2.0, 0.5, -3.0];
    // Probabilities .295 .040 .179 .015 .109 .295 .066 .002.
    let cases = [
        (SamplingParams { top_k: 3, ..SamplingParams::default() }, vec![0, 2, 5]),
        (SamplingParams { top_p: 0.7, ..SamplingParams::default() }, vec![0, 2, 5]),
        (SamplingParams { min_p: 0.3, ..SamplingParams::default() }, vec![0, 2, 4, 5]),
        (SamplingParams { min_p: 0.5, top_k: 5, ..SamplingParams::default() }, vec![0, 2, 5]),
    ];
    for (params, kept) in cases {
        let kept_logits: Vec<f32> = kept.iter().map(|&id| logits[id]).collect();
        let mut counts = vec![0; kept.len()];
        for position in 0..10_000 {
            let token = sample(&logits, &params, Place { seed: 5, choice: 0, position });
            let place = kept.iter().position(|&id| id == token as usize).expect("a cut token");
            counts[place] += 1;
        }
        // At most 3 degrees of freedom.
        let statistic = chi_square(&counts, &softmax(&kept_logits, 1.0));
        assert!(statistic < 21.1, "{params:?}: {statistic}");
    }
}

#[test]
fn the_draw_for_a_seed_never_changes() {
    let logits: Vec<f32> = (0..64).map(|i| ((i * 37) % 64) as f32 * 0.1).collect();
    let draw = |seed, choice| {
        let token = |position| {
            sample(&logits, &SamplingParams::default(), Place { seed, choice, position })
        };
        (0..8).map(token).collect::<Vec<_>>()
    };
    // From an independent program: numpy's float64 and a Philox of its own.
    assert_eq!(draw(0, 0), SEED_0);
    assert_eq!(draw(0, 1), SEED_0_CHOICE_1);
    assert_eq!(draw(u64::MAX, 0), SEED_MAX);
}

const SEED_0: [u32; 8] = [38, 57, 24, 8, 3, 50, 38, 5];
const SEED_0_CHOICE_1: [u32; 8] = [19, 5, 12, 38, 43, 10, 24, 38];
const SEED_MAX: [u32; 8] = [46, 19, 62, 31, 19, 18, 43, 19];

#[test]
fn temperature_zero_takes_the_lowest_of_equal_tokens() {
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let place = Place { seed: 3, choice: 0, position: 0 };
    assert_eq!(sample(&[0.0, 2.0, 2.0, 1.0], &greedy, place), 1);
    assert_eq!(sample(&[-0.0, 0.0], &greedy, place), 0);
    // A broken row is not a panic, at any temperature and with any truncation.
    let nan = f32::NAN;
    let (inf, all) = (
        f32::INFINITY,
        SamplingParams { top_p: 0.5, top_k: 2, min_p: 0.1, ..SamplingParams::default() },
    );
    for params in [&greedy, &SamplingParams::default(), &all] {
        assert_eq!(sample(&[nan, -1.0, nan], params, place), 1);
        assert_eq!(sample(&[nan, nan], params, place), 0);
        assert_eq!(sample(&[-inf, -inf], params, place), 0);
        assert_eq!(sample(&[1.0, inf, inf], params, place), 1);
    }
}

#[test]
fn truncation_at_the_edges_keeps_the_most_likely_token() {
    let logits = [0.5, 3.0, 3.0, 1.0];
    let one = |params: &SamplingParams| {
        (0..200)
            .all(|position| sample(&logits, params, Place { seed: 1, choice: 0, position }) == 1)
    };
    assert!(one(&SamplingParams { top_k: 1, ..SamplingParams::default() }));
    assert!(one(&SamplingParams { top_p: 1e-9, ..SamplingParams::default() }));
    assert!(one(&SamplingParams { top_p: 0.3, ..SamplingParams::default() }));
    assert!(one(&SamplingParams { temperature: 1e-30, top_k: 1, ..SamplingParams::default() }));
    // Equal logits are equally likely: min-p alone cannot part them.
    assert!(!one(&SamplingParams { min_p: 1.0, ..SamplingParams::default() }));
    // k beyond the vocabulary and p of nearly 1 cut nothing.
    let all = |params: &SamplingParams| {
        let draw = |position| sample(&logits, params, Place { seed: 1, choice: 0, position });
        let mut seen: Vec<u32> = (0..500).map(draw).collect();
        seen.sort_unstable();
        seen.dedup();
        seen == [0, 1, 2, 3]
    };
    assert!(all(&SamplingParams { top_k: 100, ..SamplingParams::default() }));
    assert!(all(&SamplingParams { top_p: 0.999_999, ..SamplingParams::default() }));
    assert!(all(&SamplingParams { min_p: 1e-6, ..SamplingParams::default() }));
}

#[test]
fn a_wide_row_draws_as_the_plain_formula_does() {
    // All shortcuts of the sampler against argmax(l + T g) over a sorted prefix.
    let n = 5000u32;
    for (seed, temperature, top_k, top_p, min_p) in [
        (1, 1.0, 0, 1.0, 0.0),
        (2, 0.7, 0, 0.9, 0.0),
        (3, 1.5, 40, 1.0, 0.0),
        (4, 1.0, 300, 0.8, 0.01),
        (5, 0.3, 0, 0.99, 0.001),
        (6, 20.0, 0, 1.0, 0.0),
    ] {
        let logit = |i: u32| {
            let x = philox4x32([i, 0, 0, 77], [seed as u32, 1])[0] % 4000;
            x as f32 * 0.004 - 8.0
        };
        let logits: Vec<f32> = (0..n).map(logit).collect();
        let params =
            SamplingParams { temperature, top_k, top_p, min_p, ..SamplingParams::default() };
        let mut order: Vec<u32> = (0..n).collect();
        order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
        let weight = |id: u32| {
            let gap = (logits[order[0] as usize] - logits[id as usize]) as f64 / temperature as f64;
            (noise::exp(-gap) * (1u64 << 40) as f64) as u64
        };
        let weights: Vec<u64> = order.iter().map(|&id| weight(id)).collect();
        let mut len = order.len();
        if min_p > 0.0 {
            let floor = min_p as f64 * weights[0] as f64;
            len = weights.iter().filter(|&&w| w as f64 >= floor).count();
        }
        if top_k > 0 {
            len = len.min(top_k);
        }
        if top_p < 1.0 {
            let total: u64 = weights[..len].iter().sum();
            let mut sum = 0;
            len = 1 + weights[..len]
                .iter()
                .position(|w| {
                    sum += w;
                    sum as f64 >= total as f64 * top_p as f64
                })
                .unwrap();
        }
        for position in 0..50 {
            let score = |id: u32| {
                let bits = Noise::new(9, 2, position).bits(id / 4)[id as usize % 4];
                logits[id as usize] as f64 + temperature as f64 * noise::gumbel(bits)
            };
            let best = order[..len]
                .iter()
                .copied()
                .max_by(|&a, &b| score(a).total_cmp(&score(b)).then(b.cmp(&a)))
                .unwrap();
            let place = Place { seed: 9, choice: 2, position };
            assert_eq!(sample(&logits, &params, place), best, "case {seed} position {position}");
        }
    }
}

#[test]
fn penalties_by_hand() {
    let mut history = History::new(&[0, 1, 1]);
    for token in [2, 3, 3, 1] {
        history.push(token);
    }
    let params = SamplingParams {
        repetition_penalty: 2.0,
        frequency_penalty: 0.5,
        presence_penalty: 0.25,
        ..SamplingParams::default()
    };
    let mut logits = [1.0, -1.0, 4.0, 3.0, 5.0];
    history.penalize(&params, &mut logits);
    // 0: prompt, 1/2. 1: prompt and once, -1*2 - .5 - .25. 2: once, 4/2 - .75.
    // 3: twice, 3/2 - 1 - .25. 4: never.
    assert_eq!(logits, [0.5, -2.75, 1.25, 0.25, 5.0]);
}

#[test]
fn bias_comes_after_the_penalties_and_bans_last() {
    let history = History::new(&[0]);
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let place = Place { seed: 0, choice: 0, position: 1 };
    let mut sampler = Sampler::default();
    let mut pick = |params: &SamplingParams, logits: &[f32], banned: &[u32]| {
        sampler.sample(logits, params, &history, banned.iter().copied(), place)
    };
    let params =
        SamplingParams { repetition_penalty: 4.0, logit_bias: vec![(0, 3.0)], ..greedy.clone() };
    // 4/4 + 3 = 4 beats 3; (4 + 3) / 4 would not.
    assert_eq!(pick(&params, &[4.0, 3.0], &[]), 0);
    let params = SamplingParams { logit_bias: vec![(0, 100.0)], ..greedy };
    assert_eq!(pick(&params, &[4.0, 3.0], &[]), 0);
    assert_eq!(pick(&params, &[4.0, 3.0], &[0]), 1);
}

#[test]
fn logprobs_are_those_of_the_row() {
    let logits: Vec<f32> = (0..1000).map(|i| ((i * 619) % 1000) as f32 * 0.01).collect();
    let report = Sampler::default().logprobs(&logits, 17, 5);
    let expected = softmax(&logits, 1.0);
    assert!((report.logprob as f64 - expected[17].ln()).abs() < 1e-6);
    let mut order: Vec<u32> = (0..1000).collect();
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
    for (&(id, logprob), &best) in report.top.iter().zip(&order) {
        assert_eq!(id, best);
        assert!((logprob as f64 - expected[id as usize].ln()).abs() < 1e-6);
    }
    assert_eq!(report.top.len(), 5);
    assert_eq!(Sampler::default().logprobs(&logits, 17, 0).top, []);
}

proptest! {
    #[test]
    fn selection_equals_the_full_sort(
        // Few values, so that there are many ties.
        logits in prop::collection::vec(-20i32..20, 1..400),
        k in 0usize..200,
        p in 0.01f32..1.0,
    ) {
        let logits: Vec<f32> = logits.into_iter().map(|l| l as f32 * 0.25).collect();
        let mut order: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
        order.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));

        let mut top = Vec::new();
        processors::select_top(&logits, k, &mut top);
        prop_assert_eq!(&top[..], &order[..k.min(order.len())]);

        let max = order[0].1;
        let weight = |l: f32| (noise::exp(l as f64 - max as f64) * (1u64 << 40) as f64) as u64;
        let total: u64 = order.iter().map(|&(_, l)| weight(l)).sum();
        let mut sum = 0;
        let reached = |&(_, l): &(u32, f32)| {
            sum += weight(l);
            sum as f64 >= total as f64 * p as f64
        };
        let last = order[order.iter().position(reached).unwrap()];
        let cut = processors::top_p(&logits, Cut::NONE, max, 1.0, p, &mut Vec::new());
        prop_assert_eq!(cut, Cut { logit: last.1, id: last.0 });
    }
}
