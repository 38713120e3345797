//! exp, tanh and the activations, once for every instruction set: polynomials in fma form.
//!
//! Largest errors against f64, over the ranges that the tests walk: `exp` 1 ulp, `tanh` 2 ulp,
//! `silu` 3 ulp.

use crate::simd::Simd;

/// Below this the result of [`exp`] would be subnormal.
const EXP_MIN: f32 = -87.336_54;

/// `e^x`. Exactly 1 at 0, 0 below -87.33654 (where the result would be subnormal), infinite where
/// it exceeds f32; NaN for NaN.
///
/// With `n = round(x / ln 2)` and `r = x - n ln 2`, `e^x = 2^n (1 + r + r^2 P(r))`.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    // The bound comes first, so that NaN passes: see `Simd::max`.
    let clamped = s.min(s.splat(89.0), s.max(s.splat(EXP_MIN), x));
    let n = s.round(s.mul(clamped, s.splat(std::f32::consts::LOG2_E)));
    // ln 2 in two parts; the first has so few bits that n times it is exact.
    let r = s.fma(n, s.splat(-0.693_359_4), clamped);
    let r = s.fma(n, s.splat(2.121_944_4e-4), r);
    let mut p = s.splat(0.001_381_314_5);
    for c in [0.008_369_419, 0.041_668_456, 0.166_665_15, 0.499_999_94] {
        p = s.fma(p, r, s.splat(c));
    }
    p = s.fma(s.mul(r, r), p, r);
    let y = s.scale(s.add(p, s.splat(1.0)), n);
    s.select_lt(x, s.splat(EXP_MIN), s.splat(0.0), y)
}

/// `e^x` of one value; the same bits as [`exp`].
#[inline(always)]
pub(crate) fn exp_one<S: Simd>(s: S, x: f32) -> f32 {
    s.to_array(exp(s, s.splat(x)))[0]
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
