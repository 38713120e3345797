//! Rotary position embedding (Su et al. 2021, arXiv:2104.09864).
//!
//! Pair `i` of a head is turned by the angle `position * frequency[i]`: for a pair `(a, b)`,
//! `a' = fma(a, cos, -(b * sin))` and `b' = fma(b, cos, a * sin)`. Angles, sines and cosines are
//! computed in f64 by portable code, so that they are the same on every machine, and rounded to f32.

use crate::cpu::Cpu;
use crate::mat::Mat;
use crate::profile::Op;
use crate::simd::{Kernel, Simd};
use crate::split::Split;

/// Which values of a head form a pair; R is the number of values that are rotated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RopeStyle {
    /// `2i` and `2i + 1`: `llama` models in GGUF files.
    Norm,
    /// `i` and `i + R / 2`: everything else, Hugging Face's files included.
    Neox,
}

/// How the frequencies are changed for contexts longer than those of the training.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Every frequency divided by `factor` (position interpolation, arXiv:2306.15595).
    Linear {
        /// Usually longest context over context of the training.
        factor: f32,
    },
    /// Llama 3.1: wavelengths longer than `original_context_len / low_freq_factor` are divided by
    /// `factor`, those shorter than `original_context_len / high_freq_factor` kept, linear between.
    Llama3 {
        /// Divides the low frequencies.
        factor: f32,
        /// Bounds the low frequencies.
        low_freq_factor: f32,
        /// Bounds the high frequencies.
        high_freq_factor: f32,
        /// Context of the training, in tokens.
        original_context_len: usize,
    },
    /// YaRN (arXiv:2309.00071): interpolated below `beta_slow` turns over the training's context,
    /// kept above `beta_fast`, linear in the pair's number between.
    Yarn {
        /// Divides the low frequencies.
        factor: f32,
        /// Context of the training, in tokens.
        original_context_len: usize,
        /// Usually 32.
        beta_fast: f32,
        /// Usually 1.
        beta_slow: f32,
        /// Factor on sine and cosine, usually `0.1 ln(factor) + 1`.
        attention_factor: f32,
    },
}

/// Frequencies of the pairs of a head.
#[derive(Clone, Debug)]
pub struct RopeTable {
    /// Radians per position, `[R / 2]`.
    frequencies: Vec<f64>,
    /// Factor on sine and cosine.
    magnitude: f64,
}

impl RopeTable {
    /// Frequencies `base^(-2i / n_rotated)` for the pairs of `n_rotated` values, scaled. `n_rotated`
    /// is the head size unless only the first values of a head are rotated.
    ///
    /// # Panics
    /// If `n_rotated` is odd.
    pub fn new(n_rotated: usize, base: f32, scaling: RopeScaling) -> RopeTable {
        assert!(n_rotated.is_multiple_of(2), "{n_rotated} values are no whole number of pairs");
        let base = f64::from(base);
        let frequency = |i: usize| libm::pow(base, -2.0 * i as f64 / n_rotated as f64);
        let ramp = yarn_ramp(n_rotated, base, scaling);
        let scaled = |i: usize| {
            let f = frequency(i);
            match scaling {
                RopeScaling::None => f,
                RopeScaling::Linear { factor } => f / f64::from(factor),
                RopeScaling::Llama3 {
                    factor,
                    low_freq_factor,
                    high_freq_factor,
                    original_context_len,
                } => {
                    let [factor, low_freq_factor, high_freq_factor] =
                        [factor, low_freq_factor, high_freq_factor].map(f64::from);
                    let turns = original_context_len as f64 * f / std::f64::consts::TAU;
                    let kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    if turns < low_freq_factor {
                        f / factor
                    } else if turns > high_freq_factor {
                        f
                    } else {
                        (1.0 - kept) * f / factor + kept * f
                    }
                }
                RopeScaling::Yarn { factor, .. } => {
                    let (low, high) = ramp;
                    let interpolated = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    f / f64::from(factor) * interpolated + f * (1.0 - interpolated)
                }
            }
        };
        let magnitude = match scaling {
            RopeScaling::Yarn { attention_factor, .. } => f64::from(attention_factor),
            _ => 1.0,
        };
        RopeTable { frequencies: (0..n_rotated / 2).map(scaled).collect(), magnitude }
    }

    /// The table with the frequency of pair `i` divided by `divisors[i]` as well (`rope_freqs.weight`
    /// of GGUF files of Llama 3.1 and later).
    ///
    /// # Panics
    /// If there is not one divisor for each pair.
    pub fn divided_by(mut self, divisors: &[f32]) -> RopeTable {
        assert_eq!(divisors.len(), self.frequencies.len(), "one divisor for each pair");
        for (frequency, &divisor) in self.frequencies.iter_mut().zip(divisors) {
            *frequency /= f64::from(divisor);
        }
        self
    }

    /// R: values of a head that are rotated.
    pub fn n_rotated(&self) -> usize {
        self.frequencies.len() * 2
    }
}

/// The pairs between which YaRN passes from kept to interpolated frequencies.
fn yarn_ramp(n_rotated: usize, base: f64, scaling: RopeScaling) -> (f64, f64) {
    let RopeScaling::Yarn { original_context_len, beta_fast, beta_slow, .. } = scaling else {
        return (0.0, 1.0);
    };
    // The pair that makes `turns` turns over the training's context.
    let pair = |turns: f64| {
        let wavelength = original_context_len as f64 / (turns * std::f64::consts::TAU);
        n_rotated as f64 * libm::log(wavelength) / (2.0 * libm::log(base))
    };
    let low = pair(f64::from(beta_fast)).floor().max(0.0);
    let high = pair(f64::from(beta_slow)).ceil().min(n_rotated as f64 - 1.0);
    (low, if high > low { high } else { low + 0.001 })
}

/// Sines and cosines of the rows of a step for one [`RopeTable`]; filled once, used by all layers.
#[derive(Clone, Debug, Default)]
pub struct RopeAngles {
    rows: usize,
    /// R / 2.
    n_pairs: usize,
    /// `[T, R / 2]`.
    cos: Vec<f32>,
    /// `[T, R / 2]`.
    sin: Vec<f32>,
}

impl Cpu {
    /// Fills `angles` for rows at `positions`, `[T]`.
    pub fn rope_angles(&self, table: &RopeTable, positions: &[usize], angles: &mut RopeAngles) {
        let _timer = self.profile.time(|| (Op::Rope, 0, 0));
        let n_pairs = table.frequencies.len();
        (angles.rows, angles.n_pairs) = (positions.len(), n_pairs);
        angles.cos.resize(positions.len() * n_pairs, 0.0);
        angles.sin.resize(positions.len() * n_pairs, 0.0);
        let (all_cos, all_sin) = (Split::new(&mut angles.cos), Split::new(&mut angles.sin));
        self.team.for_each(positions.len(), |t| {
            let range = t * n_pairs..(t + 1) * n_pairs;
            // SAFETY: each item has its own row.
            let (cos, sin) = unsafe { (all_cos.part(range.clone()), all_sin.part(range)) };
            for ((frequency, cos), sin) in table.frequencies.iter().zip(cos).zip(sin) {
                let (s, c) = libm::sincos(positions[t] as f64 * frequency);
                *cos = (c * table.magnitude) as f32;
                *sin = (s * table.magnitude) as f32;
            }
        });
    }

    /// Rotates every head of every row of `x`, `[T, n * E]`, in place.
    ///
    /// # Panics
    /// If `x` is no whole number of heads wide, its rows are not those of `angles`, or a head is
    /// smaller than what is rotated of it.
    pub fn rope(&self, angles: &RopeAngles, style: RopeStyle, x: &mut Mat, head_size: usize) {
        assert_eq!(x.rows(), angles.rows, "angles are of other rows");
        assert!(x.cols().is_multiple_of(head_size), "{} columns in heads of {head_size}", x.cols());
        let _timer = self.profile.time(|| (Op::Rope, 0, 0));
        let n_pairs = angles.n_pairs;
        assert!(2 * n_pairs <= head_size, "{} of {head_size} values rotated", 2 * n_pairs);
        let (n_rows, cols) = (x.rows(), x.cols());
        let rows = Split::new(x.as_mut_slice());
        self.team.for_each(n_rows, |t| {
            // SAFETY: each item has its own row.
            let x = unsafe { rows.part(t * cols..(t + 1) * cols) };
            let range = t * n_pairs..(t + 1) * n_pairs;
            let (cos, sin) = (&angles.cos[range.clone()], &angles.sin[range]);
            self.compute(Rope { style, cos, sin, head_size, x });
        });
    }
}

struct Rope<'a> {
    style: RopeStyle,
    cos: &'a [f32],
    sin: &'a [f32],
    head_size: usize,
    x: &'a mut [f32],
}

impl Kernel for Rope<'_> {
    type Output = ();

    // Plain loops: the compiler makes vectors of them, and exact arithmetic has but one result.
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let n_pairs = self.cos.len();
        for head in self.x.chunks_exact_mut(self.head_size) {
            match self.style {
                RopeStyle::Norm => {
                    let (pairs, _) = head.as_chunks_mut::<2>();
                    for ((pair, cos), sin) in pairs.iter_mut().zip(self.cos).zip(self.sin) {
                        let [a, b] = *pair;
                        *pair = [a.mul_add(*cos, -(b * sin)), b.mul_add(*cos, a * sin)];
                    }
                }
                RopeStyle::Neox => {
                    let (low, high) = head[..2 * n_pairs].split_at_mut(n_pairs);
                    let angles = self.cos.iter().zip(self.sin);
                    for ((low, high), (cos, sin)) in low.iter_mut().zip(high).zip(angles) {
                        let (a, b) = (*low, *high);
                        *low = a.mul_add(*cos, -(b * sin));
                        *high = b.mul_add(*cos, a * sin);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_util::{Random, as_acts, assert_near, random_mat, run_everywhere};

    /// Rotates in f64, with complex numbers written out.
    fn exact(
        x: &Mat,
        table: &RopeTable,
        style: RopeStyle,
        positions: &[usize],
        e: usize,
    ) -> Vec<f64> {
        let mut y: Vec<f64> = x.as_slice().iter().map(|&x| f64::from(x)).collect();
        let half = table.frequencies.len();
        for (t, row) in y.chunks_mut(x.cols()).enumerate() {
            for head in row.chunks_mut(e) {
                for i in 0..half {
                    let (sin, cos) = (positions[t] as f64 * table.frequencies[i]).sin_cos();
                    let (a, b) = match style {
                        RopeStyle::Norm => (2 * i, 2 * i + 1),
                        RopeStyle::Neox => (i, i + half),
                    };
                    (head[a], head[b]) =
                        (head[a] * cos - head[b] * sin, head[b] * cos + head[a] * sin);
                }
            }
        }
        y
    }

    #[test]
    fn close_to_f64() {
        let positions = [0, 1, 511, 100_000];
        for (e, n_rotated) in [(64, 64), (80, 32), (256, 256), (18, 10)] {
            let x = random_mat(&mut Random::new(e as u64), positions.len(), 3 * e);
            let table = RopeTable::new(n_rotated, 10_000.0, RopeScaling::None);
            for style in [RopeStyle::Norm, RopeStyle::Neox] {
                let y = run_everywhere(|cpu| {
                    let mut angles = RopeAngles::default();
                    cpu.rope_angles(&table, &positions, &mut angles);
                    let mut y = x.clone();
                    cpu.rope(&angles, style, &mut y, e);
                    as_acts(&y)
                });
                assert_near(&y.float, &exact(&x, &table, style, &positions, e), 2e-7);
            }
        }
    }

    #[test]
    fn unscaled_frequencies() {
        let table = RopeTable::new(8, 10_000.0, RopeScaling::None);
        let expected = [1.0, 0.1, 0.01, 0.001];
        for (frequency, expected) in table.frequencies.iter().zip(expected) {
            assert!((frequency / expected - 1.0f64).abs() < 1e-15);
        }
        let linear = RopeTable::new(8, 10_000.0, RopeScaling::Linear { factor: 4.0 });
        assert!(linear.frequencies.iter().zip(&table.frequencies).all(|(a, b)| a * 4.0 == *b));
        let scaled = table.clone().divided_by(&[1.0, 2.0, 4.0, 8.0]);
        assert!((scaled.frequencies[3] * 8.0 - table.frequencies[3]).abs() < 1e-18);
    }

    /// Pair and frequency, from the published formulas written apart in numpy and f32: Llama 3.1 8B.
    const LLAMA3: [(usize, f64); 10] = [
        (0, 1.0),
        (10, 1.286_873_8e-1),
        (28, 3.211_446_1e-3),
        (29, 2.166_570_6e-3),
        (30, 1.371_893_7e-3),
        (32, 5.248_460_2e-4),
        (34, 1.785_077_9e-4),
        (35, 9.556_212_9e-5),
        (36, 7.784_655_5e-5),
        (63, 3.068_925_9e-7),
    ];

    /// The same for YaRN: head size 128, base 1e6, factor 4, 32,768 tokens.
    const YARN: [(usize, f64); 9] = [
        (0, 1.0),
        (20, 1.333_521_5e-2),
        (23, 6.978_306_0e-3),
        (24, 5.375_321_5e-3),
        (30, 1.064_361_1e-3),
        (39, 6.490_394_3e-5),
        (40, 4.445_698_5e-5),
        (41, 3.582_531_3e-5),
        (63, 3.102_344_4e-7),
    ];

    #[test]
    fn scaled_frequencies() {
        let llama3 = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context_len: 8192,
        };
        let table = RopeTable::new(128, 500_000.0, llama3);
        for (i, expected) in LLAMA3 {
            assert!((table.frequencies[i] / expected - 1.0).abs() < 1e-5, "pair {i}");
        }
        let yarn = RopeScaling::Yarn {
            factor: 4.0,
            original_context_len: 32768,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: 1.138_629_4,
        };
        let table = RopeTable::new(128, 1e6, yarn);
        for (i, expected) in YARN {
            assert!((table.frequencies[i] / expected - 1.0).abs() < 1e-5, "pair {i}");
        }
    }
}
