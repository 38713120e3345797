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
    fn store_f16(self, x: F, to: &mut [f16; LANES]) {
        *to = x.map(f16::from_f32);
    }

    #[inline(always)]
    fn load_i8(self, x: &[i8; LANES]) -> F {
        x.map(f32::from)
    }

    #[inline(always)]
    fn store_i8(self, x: F, to: &mut [i8; LANES]) {
        *to = x.map(|x| x as i8);
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

/// The tree of [`Simd::sum`] with any operation on a low and a high lane.
#[inline(always)]
fn tree(x: F, op: impl Fn(f32, f32) -> f32) -> f32 {
    let x: [f32; 8] = from_fn(|i| op(x[i], x[i + 8]));
    let x: [f32; 4] = from_fn(|i| op(x[i], x[i + 4]));
    op(op(x[0], x[2]), op(x[1], x[3]))
}
