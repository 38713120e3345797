//! exp, tanh and the activations, once for every instruction set: polynomials in fma form.
//!
//! Largest errors against f64, over the ranges that the tests walk: `exp` 1 ulp, `tanh` 2 ulp,
//! `silu` 3 ulp.

use crate::simd::Simd;

/// Below this the result of [`exp`] would be subnormal.
const EXP_MIN: f32 = -87.336_54;

/// Above this the result of [`exp`] would exceed f32.
const EXP_MAX: f32 = 88.722_83;

/// `e^x`. Exactly 1 at 0, 0 from -87.33654 down (where the result would be subnormal), infinite
/// above 88.72283; NaN for NaN.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    s.select_lt(s.splat(EXP_MAX), x, s.splat(f32::INFINITY), exp_bounded(s, x))
}

/// [`exp`] for `x` up to 88.72283, NaN included; the same bits.
///
/// With `n = round(x / ln 2)` and `r = x - n ln 2`, `e^x = 2^n (1 + r (1 + r P(r)))`.
#[inline(always)]
pub(crate) fn exp_bounded<S: Simd>(s: S, x: S::F) -> S::F {
    // At 1.5 * 2^23 the last bit of an f32 counts ones: the sum rounds x / ln 2 to a whole number
    // and has it in its last bits.
    let shift = s.splat(12_582_912.0);
    let shifted = s.fma(x, s.splat(std::f32::consts::LOG2_E), shift);
    let n = s.sub(shifted, shift);
    // ln 2 in two parts; the first has so few bits that n times it is exact.
    let r = s.fma(n, s.splat(-0.693_359_4), x);
    let r = s.fma(n, s.splat(2.121_944_4e-4), r);
    let mut p = s.splat(0.001_381_314_5);
    for c in [0.008_369_419, 0.041_668_456, 0.166_665_15, 0.499_999_94, 1.0, 1.0] {
        p = s.fma(p, r, s.splat(c));
    }
    // The maximum is 0 or NaN: see `Simd::max`.
    s.select_lt(s.splat(EXP_MIN), x, s.raise(p, shifted), s.max(s.splat(0.0), x))
}

/// The hyperbolic tangent: an odd polynomial below 0.625, `1 - 2 / (e^2|x| + 1)` above.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, x: S::F) -> S::F {
    let z = s.mul(x, x);
    let mut p = s.splat(-0.005_590_938_5);
    for c in [0.020_538_751, -0.053_709_637, 0.133_310_91, -0.333_332_7] {
        p = s.fma(p, z, s.splat(c));
    }
    let near = s.fma(s.mul(x, z), p, x);
    let zero = s.splat(0.0);
    let magnitude = s.max_abs(x, zero);
    let e = exp(s, s.add(magnitude, magnitude));
    let far = s.sub(s.splat(1.0), s.div(s.splat(2.0), s.add(e, s.splat(1.0))));
    let far = s.select_lt(x, zero, s.sub(zero, far), far);
    s.select_lt(magnitude, s.splat(0.625), near, far)
}

/// `x / (1 + e^-x)`; NaN at minus infinity.
#[inline(always)]
pub(crate) fn silu<S: Simd>(s: S, x: S::F) -> S::F {
    s.div(x, s.add(s.splat(1.0), exp(s, s.sub(s.splat(0.0), x))))
}

/// `x / 2 (1 + tanh u)` with `u = sqrt(2 / pi) (x + 0.044715 x^3)`, as `x / (1 + e^-2u)`; NaN at
/// minus infinity.
#[inline(always)]
pub(crate) fn gelu_tanh<S: Simd>(s: S, x: S::F) -> S::F {
    // -2 sqrt(2 / pi) and the same times 0.044715.
    let slope = s.fma(s.mul(x, x), s.splat(-0.071_354_81), s.splat(-1.595_769_2));
    s.div(x, s.add(s.splat(1.0), exp(s, s.mul(x, slope))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Cpu;
    use crate::isa::Isa;
    use crate::simd::{Kernel, LANES};

    /// A function of this file, of one value.
    #[derive(Clone, Copy)]
    enum Function {
        Exp,
        Tanh,
        Silu,
        GeluTanh,
    }

    struct Apply<'a>(Function, &'a mut [f32]);

    impl Kernel for Apply<'_> {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            for x in self.1.chunks_mut(LANES) {
                let y = s.load_start(x);
                let y = match self.0 {
                    Function::Exp => exp(s, y),
                    Function::Tanh => tanh(s, y),
                    Function::Silu => silu(s, y),
                    Function::GeluTanh => gelu_tanh(s, y),
                };
                s.store_start(y, x);
            }
        }
    }

    fn apply(isa: Isa, function: Function, x: &[f32]) -> Vec<f32> {
        let mut y = x.to_vec();
        Cpu::new(isa, 1).compute(Apply(function, &mut y));
        y
    }

    /// Every 5,003rd f32 in the range, and the same with the other sign, and some special ones.
    fn inputs(largest: f32) -> Vec<f32> {
        let mut x = vec![0.0, -0.0, 0.625, f32::MIN_POSITIVE, 1e-42, EXP_MIN, largest];
        x.extend((0..largest.to_bits()).step_by(5003).map(f32::from_bits));
        let negative: Vec<f32> = x.iter().map(|x| -x).collect();
        x.extend(negative);
        x
    }

    /// The largest error in units in the last place of the exact value.
    fn max_ulp(function: Function, largest: f32, exact: impl Fn(f64) -> f64) -> f64 {
        let x = inputs(largest);
        let y = apply(Isa::best(), function, &x);
        let mut max = 0.0f64;
        for (&x, y) in x.iter().zip(y) {
            let exact = exact(f64::from(x));
            if exact.abs() < 1.0001 * f64::from(f32::MIN_POSITIVE) {
                assert!(y.abs() <= 1.0001 * f32::MIN_POSITIVE, "{x}: {y} for {exact}");
                continue;
            }
            let ulp = f64::powi(2.0, exact.abs().log2().floor() as i32 - 23);
            max = max.max((f64::from(y) - exact).abs() / ulp);
        }
        max
    }

    #[test]
    fn accuracy() {
        for (name, error, bound) in [
            ("exp", max_ulp(Function::Exp, 88.0, f64::exp), 1.0),
            ("tanh", max_ulp(Function::Tanh, 20.0, f64::tanh), 2.0),
            ("silu", max_ulp(Function::Silu, 80.0, |x| x / (1.0 + (-x).exp())), 3.0),
        ] {
            eprintln!("{name}: {error:.3} ulp");
            assert!(error <= bound, "{name}: {error} ulp");
        }
    }

    #[test]
    fn gelu_is_close() {
        let x = inputs(12.0);
        let y = apply(Isa::best(), Function::GeluTanh, &x);
        for (&x, y) in x.iter().zip(y) {
            let wide = f64::from(x);
            let u = (2.0 / std::f64::consts::PI).sqrt() * (wide + 0.044715 * wide.powi(3));
            let exact = wide / (1.0 + (-2.0 * u).exp());
            let error = (f64::from(y) - exact).abs();
            // The error of the exponent grows with it, where the result is tiny.
            let scale = exact.abs().max(wide.abs() * 1e-3).max(f64::from(f32::MIN_POSITIVE));
            assert!(error <= 1e-6 * scale, "{x}: {y} for {exact}");
        }
    }

    #[test]
    fn special_values() {
        for isa in Isa::available() {
            let infinity = f32::INFINITY;
            let x = [0.0, -0.0, -infinity, infinity, -1e30, -87.4, 1e30, f32::NAN];
            let y = apply(isa, Function::Exp, &x);
            assert_eq!(y[..7], [1.0, 1.0, 0.0, infinity, 0.0, 0.0, infinity]);
            assert!(y[7].is_nan());
            let y = apply(isa, Function::Tanh, &[0.0, infinity, -infinity, 40.0, f32::NAN]);
            assert_eq!(y[..4], [0.0, 1.0, -1.0, 1.0]);
            assert!(y[4].is_nan());
            let y = apply(isa, Function::Silu, &[0.0, infinity, -1e30, 1e30]);
            assert_eq!(y, [0.0, infinity, 0.0, 1e30]);
            let y = apply(isa, Function::GeluTanh, &[0.0, infinity, -1e30, 1e30]);
            assert_eq!(y, [0.0, infinity, 0.0, 1e30]);
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        use Function::*;
        let x = inputs(1e5);
        for function in [Exp, Tanh, Silu, GeluTanh] {
            let bits = |isa| apply(isa, function, &x).into_iter().map(f32::to_bits);
            for isa in Isa::available() {
                assert!(bits(isa).eq(bits(Isa::Scalar)), "{isa}");
            }
        }
    }
}
