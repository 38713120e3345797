//! The lanes in portable Rust.

use super::{LANES, Simd};
use half::f16;
use std::array::from_fn;

/// Portable Rust: the oracle of the other instruction sets.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

type F = [f32; LANES];

impl Simd for Scalar {
    type F = F;
    type I = [i32; LANES];
    const VECTORS: usize = 2;
    const BUSY_ROWS: usize = 1;

    #[inline(always)]
    fn splat(self, x: f32) -> F {
        [x; LANES]
    }

    #[inline(always)]
    fn load(self, x: &F) -> F {
        *x
    }

    #[inline(always)]
    fn store(self, x: F, to: &mut F) {
        *to = x;
    }

    #[inline(always)]
    fn load_f16(self, x: &[f16; LANES]) -> F {
        // Moves exponent and fraction into place; the product corrects the exponent's bias, and is
        // exact for subnormals too. Infinities and NaN get the largest exponent.
        x.map(|x| {
            let bits = u32::from(x.to_bits());
            let magnitude =
                f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((254 - 15) << 23);
            let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
            f32::from_bits(magnitude.to_bits() | special | (bits & 0x8000) << 16)
        })
    }

    #[inline(always)]
    fn store_i8(self, x: F, to: &mut [i8; LANES]) {
        *to = x.map(|x| x as i8);
    }

    #[inline(always)]
    fn store_i16(self, x: F, to: &mut [i16; LANES]) {
        *to = x.map(nearest);
    }

    #[inline(always)]
    fn zeros(self) -> Self::I {
        [0; LANES]
    }

    #[inline(always)]
    fn load_pairs(self, x: &[i16; 2 * LANES]) -> Self::I {
        from_fn(|i| join([x[2 * i], x[2 * i + 1]]))
    }

    #[inline(always)]
    fn store_pairs(self, x: Self::I, to: &mut [i16; 2 * LANES]) {
        to.as_chunks_mut().0.iter_mut().zip(x).for_each(|(to, x)| *to = split(x));
    }

    #[inline(always)]
    fn splat_pair(self, pair: [i16; 2]) -> Self::I {
        [join(pair); LANES]
    }

    #[inline(always)]
    fn widen_pairs(self, a: &[i8; LANES], b: &[i8; LANES], by: Self::I) -> Self::I {
        let widen = |x: i8, by: i16| ((i32::from(x) * 64 * i32::from(by) + (1 << 14)) >> 15) as i16;
        from_fn(|i| join([widen(a[i], split(by[i])[0]), widen(b[i], split(by[i])[1])]))
    }

    #[inline(always)]
    fn dot_pairs(self, a: Self::I, b: Self::I, c: Self::I) -> Self::I {
        from_fn(|i| {
            let ([a0, a1], [b0, b1]) = (split(a[i]).map(i32::from), split(b[i]).map(i32::from));
            c[i].wrapping_add(a0 * b0).wrapping_add(a1 * b1)
        })
    }

    #[inline(always)]
    fn to_float(self, x: Self::I) -> F {
        x.map(|x| x as f32)
    }

    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn sub(self, a: F, b: F) -> F {
        from_fn(|i| a[i] - b[i])
    }

    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        from_fn(|i| a[i] * b[i])
    }

    #[inline(always)]
    fn div(self, a: F, b: F) -> F {
        from_fn(|i| a[i] / b[i])
    }

    #[inline(always)]
    fn fma(self, a: F, b: F, c: F) -> F {
        from_fn(|i| a[i].mul_add(b[i], c[i]))
    }

    #[inline(always)]
    fn max(self, a: F, b: F) -> F {
        from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn max_abs(self, a: F, b: F) -> F {
        from_fn(|i| f32::from_bits(a[i].abs().to_bits().max(b[i].abs().to_bits())))
    }

    #[inline(always)]
    fn round(self, x: F) -> F {
        x.map(f32::round_ties_even)
    }

    #[inline(always)]
    fn raise(self, x: F, by: F) -> F {
        from_fn(|i| f32::from_bits(x[i].to_bits().wrapping_add(by[i].to_bits() << 23)))
    }

    #[inline(always)]
    fn select_lt(self, a: F, b: F, x: F, y: F) -> F {
        from_fn(|i| if a[i] < b[i] { x[i] } else { y[i] })
    }

    #[inline(always)]
    fn sum(self, x: F) -> f32 {
        tree(x, |low, high| low + high)
    }

    #[inline(always)]
    fn largest(self, x: F) -> f32 {
        tree(x, |low, high| if high > low { high } else { low })
    }

    #[inline(always)]
    fn largest_abs(self, x: F) -> f32 {
        tree(x, |low, high| f32::from_bits(low.abs().to_bits().max(high.abs().to_bits())))
    }
}

#[inline(always)]
fn nearest(x: f32) -> i16 {
    x.round_ties_even() as i16
}

/// A pair as a lane holds it.
#[inline(always)]
fn join([low, high]: [i16; 2]) -> i32 {
    i32::from(high) << 16 | i32::from(low as u16)
}

#[inline(always)]
fn split(pair: i32) -> [i16; 2] {
    [pair as i16, (pair >> 16) as i16]
}

/// The tree of [`Simd::sum`] with any operation on a low and a high lane.
#[inline(always)]
fn tree(x: F, op: impl Fn(f32, f32) -> f32) -> f32 {
    let x: [f32; 8] = from_fn(|i| op(x[i], x[i + 8]));
    let x: [f32; 4] = from_fn(|i| op(x[i], x[i + 4]));
    op(op(x[0], x[2]), op(x[1], x[3]))
}
