//! The lanes in AVX-512.

use super::avx2::Avx2;
use super::{LANES, Simd};
use half::f16;
use std::arch::x86_64::*;
use std::mem::transmute;

/// AVX-512 with F, BW, DQ, VL and VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// The proof that makes the methods safe.
    ///
    /// # Safety
    /// The processor has AVX-512 F, BW, DQ, VL and VNNI.
    #[inline(always)]
    pub(super) unsafe fn new() -> Avx512 {
        Avx512(())
    }

    /// A vector as AVX2 has it.
    #[inline(always)]
    #[allow(clippy::undocumented_unsafe_blocks)] // As below; and what has AVX-512 has AVX2.
    fn halves(self, x: __m512) -> (Avx2, [__m256; 2]) {
        unsafe { (Avx2::new(), [_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x)]) }
    }
}

/// `$op` over the lanes of each of sixteen vectors: lane `i` of the result is that of `$x[i]`. Each
/// level halves the number of vectors, and of the lanes that belong to one.
macro_rules! reduce_each {
    ($x:expr, $op:ident) => {{
        let x: &[__m512; LANES] = $x;
        let mut fours = [_mm512_setzero_ps(); 4];
        for i in 0..4 {
            let [a, b, c, d] = [x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]];
            let ab = $op(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            let cd = $op(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
            let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
            fours[i] = $op(
                _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)),
                _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)),
            );
        }
        let [a, b, c, d] = fours;
        let ab = $op(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xEE>(a, b));
        let cd = $op(_mm512_shuffle_f32x4::<0x44>(c, d), _mm512_shuffle_f32x4::<0xEE>(c, d));
        $op(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xDD>(ab, cd))
    }};
}

// SAFETY of every block below: an `Avx512` exists only where the processor has the instructions,
// and the arrays are as long as the vectors loaded from and stored to them.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;
    const VECTORS: usize = 31;
    const BUSY_ROWS: usize = 9;

    #[inline(always)]
    fn fetch(self, at: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> __m512 {
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, x: __m512, to: &mut [f32; LANES]) {
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), x) }
    }

    #[inline(always)]
    fn load_f16(self, x: &[f16; LANES]) -> __m512 {
        unsafe { _mm512_cvtph_ps(transmute::<[f16; LANES], __m256i>(*x)) }
    }

    #[inline(always)]
    fn store_i8(self, x: __m512, to: &mut [i8; LANES]) {
        unsafe {
            let bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x));
            *to = transmute::<__m128i, [i8; LANES]>(bytes);
        }
    }

    #[inline(always)]
    fn store_i16(self, x: __m512, to: &mut [i16; LANES]) {
        unsafe {
            let words = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(x));
            *to = transmute::<__m256i, [i16; LANES]>(words);
        }
    }

    #[inline(always)]
    fn zeros(self) -> __m512i {
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    fn load_pairs(self, x: &[i16; 2 * LANES]) -> __m512i {
        unsafe { _mm512_loadu_si512(x.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store_pairs(self, x: __m512i, to: &mut [i16; 2 * LANES]) {
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), x) }
    }

    #[inline(always)]
    fn splat_pair(self, pair: [i16; 2]) -> __m512i {
        unsafe { _mm512_set1_epi32(transmute::<[i16; 2], i32>(pair)) }
    }

    #[inline(always)]
    fn widen_pairs(self, a: &[i8; LANES], b: &[i8; LANES], by: __m512i) -> __m512i {
        unsafe {
            let a = transmute::<[i8; LANES], __m128i>(*a);
            let b = transmute::<[i8; LANES], __m128i>(*b);
            let pairs = _mm256_set_m128i(_mm_unpackhi_epi8(a, b), _mm_unpacklo_epi8(a, b));
            let pairs = _mm512_slli_epi16::<6>(_mm512_cvtepi8_epi16(pairs));
            _mm512_mulhrs_epi16(pairs, by)
        }
    }

    #[inline(always)]
    fn dot_pairs(self, a: __m512i, b: __m512i, c: __m512i) -> __m512i {
        unsafe { _mm512_dpwssd_epi32(c, a, b) }
    }

    #[inline(always)]
    fn to_float(self, x: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(x) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    fn max_abs(self, a: __m512, b: __m512) -> __m512 {
        unsafe {
            let bits = |x| _mm512_castps_si512(_mm512_abs_ps(x));
            _mm512_castsi512_ps(_mm512_max_epu32(bits(a), bits(b)))
        }
    }

    #[inline(always)]
    fn round(self, x: __m512) -> __m512 {
        unsafe { _mm512_roundscale_ps::<_MM_FROUND_TO_NEAREST_INT>(x) }
    }

    #[inline(always)]
    fn raise(self, x: __m512, by: __m512) -> __m512 {
        unsafe {
            let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(by));
            _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), exponent))
        }
    }

    #[inline(always)]
    fn select_lt(self, a: __m512, b: __m512, x: __m512, y: __m512) -> __m512 {
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), y, x) }
    }

    #[inline(always)]
    fn sum(self, x: __m512) -> f32 {
        let (avx2, halves) = self.halves(x);
        avx2.sum(halves)
    }

    #[inline(always)]
    fn largest(self, x: __m512) -> f32 {
        let (avx2, halves) = self.halves(x);
        avx2.largest(halves)
    }

    #[inline(always)]
    fn largest_abs(self, x: __m512) -> f32 {
        let (avx2, halves) = self.halves(x);
        avx2.largest_abs(halves)
    }

    #[inline(always)]
    fn largest_abs_each(self, x: &[__m512; LANES]) -> __m512 {
        let max = |a, b| self.max_abs(a, b);
        unsafe { reduce_each!(x, max) }
    }

    #[inline(always)]
    fn sum_each(self, x: &[__m512; LANES]) -> __m512 {
        let add = |a, b| self.add(a, b);
        unsafe { reduce_each!(x, add) }
    }
}
