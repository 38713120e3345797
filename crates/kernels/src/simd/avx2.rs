//! The lanes in AVX2, as two halves.

use super::{LANES, Simd};
use half::f16;
use std::arch::x86_64::*;
use std::mem::transmute;

/// AVX2 with FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// The proof that makes the methods safe.
    ///
    /// # Safety
    /// The processor has AVX2, FMA and F16C.
    #[inline(always)]
    pub(super) unsafe fn new() -> Avx2 {
        Avx2(())
    }
}

type F = [__m256; 2];

/// `$op` over the lanes of each of sixteen vectors: lane `i` of the result is that of `$x[i]`. Each
/// level halves the number of vectors, and of the lanes that belong to one.
macro_rules! reduce_each {
    ($x:expr, $op:ident) => {{
        let x: &[F; LANES] = $x;
        let mut fours = [_mm256_setzero_ps(); 4];
        for i in 0..4 {
            let one = |j: usize| $op(x[4 * i + j][0], x[4 * i + j][1]);
            let [a, b, c, d] = [one(0), one(1), one(2), one(3)];
            let ab = $op(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let cd = $op(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
            let (ab, cd) = (_mm256_castps_pd(ab), _mm256_castps_pd(cd));
            fours[i] = $op(
                _mm256_castpd_ps(_mm256_unpacklo_pd(ab, cd)),
                _mm256_castpd_ps(_mm256_unpackhi_pd(ab, cd)),
            );
        }
        let half =
            |a, b| $op(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b));
        [half(fours[0], fours[1]), half(fours[2], fours[3])]
    }};
}

// SAFETY of every block below: an `Avx2` exists only where the processor has the instructions, and
// the arrays are as long as the vectors loaded from and stored to them.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Avx2 {
    type F = F;
    type I = [__m256i; 2];
    const VECTORS: usize = 7;
    const BUSY_ROWS: usize = 6;

    #[inline(always)]
    fn fetch(self, at: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> F {
        unsafe { [_mm256_set1_ps(x); 2] }
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> F {
        unsafe { [_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x[8..].as_ptr())] }
    }

    #[inline(always)]
    fn store(self, x: F, to: &mut [f32; LANES]) {
        unsafe {
            _mm256_storeu_ps(to.as_mut_ptr(), x[0]);
            _mm256_storeu_ps(to[8..].as_mut_ptr(), x[1]);
        }
    }

    #[inline(always)]
    fn load_f16(self, x: &[f16; LANES]) -> F {
        unsafe {
            let halves = transmute::<[f16; LANES], [__m128i; 2]>(*x);
            [_mm256_cvtph_ps(halves[0]), _mm256_cvtph_ps(halves[1])]
        }
    }

    #[inline(always)]
    fn store_i8(self, x: F, to: &mut [i8; LANES]) {
        unsafe {
            let words = _mm256_packs_epi32(_mm256_cvtps_epi32(x[0]), _mm256_cvtps_epi32(x[1]));
            // The pack works in each 128-bit half: put the quarters in order.
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
            let high = _mm256_extracti128_si256::<1>(words);
            let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), high);
            *to = transmute::<__m128i, [i8; LANES]>(bytes);
        }
    }

    #[inline(always)]
    fn store_i16(self, x: F, to: &mut [i16; LANES]) {
        unsafe {
            let words = _mm256_packs_epi32(_mm256_cvtps_epi32(x[0]), _mm256_cvtps_epi32(x[1]));
            // The pack works in each 128-bit half: put the quarters in order.
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
            *to = transmute::<__m256i, [i16; LANES]>(words);
        }
    }

    #[inline(always)]
    fn zeros(self) -> Self::I {
        unsafe { [_mm256_setzero_si256(); 2] }
    }

    #[inline(always)]
    fn load_pairs(self, x: &[i16; 2 * LANES]) -> Self::I {
        unsafe {
            let halves = x.as_ptr().cast::<__m256i>();
            [_mm256_loadu_si256(halves), _mm256_loadu_si256(halves.add(1))]
        }
    }

    #[inline(always)]
    fn store_pairs(self, x: Self::I, to: &mut [i16; 2 * LANES]) {
        unsafe {
            _mm256_storeu_si256(to.as_mut_ptr().cast(), x[0]);
            _mm256_storeu_si256(to.as_mut_ptr().cast::<__m256i>().add(1), x[1]);
        }
    }

    #[inline(always)]
    fn splat_pair(self, pair: [i16; 2]) -> Self::I {
        unsafe { [_mm256_set1_epi32(transmute::<[i16; 2], i32>(pair)); 2] }
    }

    #[inline(always)]
    fn widen_pairs(self, a: &[i8; LANES], b: &[i8; LANES], by: Self::I) -> Self::I {
        unsafe {
            let a = transmute::<[i8; LANES], __m128i>(*a);
            let b = transmute::<[i8; LANES], __m128i>(*b);
            let low = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(a, b));
            let high = _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(a, b));
            [
                _mm256_mulhrs_epi16(_mm256_slli_epi16::<6>(low), by[0]),
                _mm256_mulhrs_epi16(_mm256_slli_epi16::<6>(high), by[1]),
            ]
        }
    }

    #[inline(always)]
    fn dot_pairs(self, a: Self::I, b: Self::I, c: Self::I) -> Self::I {
        unsafe {
            [
                _mm256_add_epi32(c[0], _mm256_madd_epi16(a[0], b[0])),
                _mm256_add_epi32(c[1], _mm256_madd_epi16(a[1], b[1])),
            ]
        }
    }

    #[inline(always)]
    fn to_float(self, x: Self::I) -> F {
        unsafe { [_mm256_cvtepi32_ps(x[0]), _mm256_cvtepi32_ps(x[1])] }
    }

    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn sub(self, a: F, b: F) -> F {
        unsafe { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn div(self, a: F, b: F) -> F {
        unsafe { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn fma(self, a: F, b: F, c: F) -> F {
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }

    #[inline(always)]
    fn max(self, a: F, b: F) -> F {
        unsafe { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn max_abs(self, a: F, b: F) -> F {
        unsafe {
            let sign = _mm256_set1_epi32(i32::MIN);
            let bits = |x| _mm256_andnot_si256(sign, _mm256_castps_si256(x));
            let larger = |a, b| _mm256_castsi256_ps(_mm256_max_epu32(bits(a), bits(b)));
            [larger(a[0], b[0]), larger(a[1], b[1])]
        }
    }

    #[inline(always)]
    fn round(self, x: F) -> F {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        unsafe { [_mm256_round_ps::<NEAREST>(x[0]), _mm256_round_ps::<NEAREST>(x[1])] }
    }

    #[inline(always)]
    fn raise(self, x: F, by: F) -> F {
        unsafe {
            let raise = |x, by| {
                let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(by));
                _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), exponent))
            };
            [raise(x[0], by[0]), raise(x[1], by[1])]
        }
    }

    #[inline(always)]
    fn select_lt(self, a: F, b: F, x: F, y: F) -> F {
        unsafe {
            let lt = |i: usize| _mm256_cmp_ps::<_CMP_LT_OQ>(a[i], b[i]);
            [_mm256_blendv_ps(y[0], x[0], lt(0)), _mm256_blendv_ps(y[1], x[1], lt(1))]
        }
    }

    #[inline(always)]
    fn sum(self, x: F) -> f32 {
        unsafe {
            let x = _mm256_add_ps(x[0], x[1]);
            let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
        }
    }

    #[inline(always)]
    fn largest(self, x: F) -> f32 {
        unsafe {
            let x = _mm256_max_ps(x[1], x[0]);
            let x = _mm_max_ps(_mm256_extractf128_ps::<1>(x), _mm256_castps256_ps128(x));
            let x = _mm_max_ps(_mm_movehl_ps(x, x), x);
            _mm_cvtss_f32(_mm_max_ss(_mm_movehdup_ps(x), x))
        }
    }

    #[inline(always)]
    fn largest_abs(self, x: F) -> f32 {
        unsafe {
            // Magnitudes are ordered as their bits are, and NaN come last.
            let x = _mm256_castps_si256(self.max_abs([x[0]; 2], [x[1]; 2])[0]);
            let x = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
            let x = _mm_max_epu32(x, _mm_unpackhi_epi64(x, x));
            let x = _mm_max_epu32(x, _mm_shuffle_epi32::<1>(x));
            f32::from_bits(_mm_cvtsi128_si32(x) as u32)
        }
    }

    #[inline(always)]
    fn largest_abs_each(self, x: &[F; LANES]) -> F {
        let max = |a, b| self.max_abs([a; 2], [b; 2])[0];
        unsafe { reduce_each!(x, max) }
    }

    #[inline(always)]
    fn sum_each(self, x: &[F; LANES]) -> F {
        let add = |a, b| unsafe { _mm256_add_ps(a, b) };
        unsafe { reduce_each!(x, add) }
    }
}
