//! The packed formats as vectors of a strip: codes to unsigned bytes, scales to f32.
//!
//! # Safety
//! All functions here need AVX-512 as [`crate::Isa::Avx512`] asks for, `unit` and `block` at a unit
//! of the format and one of its blocks, and `strip` < 2.

use std::arch::x86_64::*;

use crate::isa::x86_64::format::{Codes, Format, Scales};

/// The codes at k = 4 QUAD..4 QUAD + 4, one dword per output row.
///
/// # Safety
/// See the module.
#[inline(always)]
pub(super) unsafe fn codes<F: Format, const QUAD: usize>(
    block: *const u8,
    strip: usize,
) -> __m512i {
    // SAFETY: the module's rules; every section lies in the block, vectors of 8 bits on 64 bytes.
    unsafe {
        match F::CODES {
            Codes::Two => pairs::<QUAD>(block, strip),
            Codes::Three { third } => {
                let third = bits::<QUAD>(block.add(third), strip);
                let low = pairs::<QUAD>(block, strip);
                _mm512_mask_add_epi8(low, third, low, _mm512_set1_epi8(4))
            }
            Codes::Four => nibbles::<QUAD>(block, strip),
            Codes::Five { fifth } => {
                let fifth = bits::<QUAD>(block.add(fifth), strip);
                let low = nibbles::<QUAD>(block, strip);
                _mm512_mask_add_epi8(low, fifth, low, _mm512_set1_epi8(16))
            }
            Codes::Six { high } => {
                let high = block.add(high + 128 * strip + 64 * (QUAD / 4));
                let high = _mm512_load_si512(high.cast());
                // Bits 2t, 2t + 1 to bits 4, 5; what crosses into the next byte is masked off.
                let high = match QUAD % 4 {
                    0 => _mm512_slli_epi16::<4>(high),
                    1 => _mm512_slli_epi16::<2>(high),
                    2 => high,
                    _ => _mm512_srli_epi16::<2>(high),
                };
                const LOW_OR_HIGH_AND_MASK: i32 = 0xF8;
                _mm512_ternarylogic_epi32::<LOW_OR_HIGH_AND_MASK>(
                    nibbles::<QUAD>(block, strip),
                    high,
                    _mm512_set1_epi8(0x30),
                )
            }
            Codes::Book { codes } => {
                let codes = _mm_loadu_si128(codes.as_ptr().cast());
                let codes = _mm512_broadcast_i32x4(codes);
                _mm512_shuffle_epi8(codes, nibbles::<QUAD>(block, strip))
            }
            Codes::Eight | Codes::Bytes { .. } => {
                _mm512_load_si512(block.add(512 * strip + 64 * QUAD).cast())
            }
        }
    }
}

/// `dw` for step `step` of the block.
///
/// # Safety
/// See the module.
#[inline(always)]
pub(super) unsafe fn scale<F: Format>(
    unit: *const u8,
    block: *const u8,
    strip: usize,
    step: usize,
) -> __m512 {
    // SAFETY: the module's rules; every section lies in the unit or block.
    unsafe {
        match F::SCALES {
            Scales::Plain { d } | Scales::Min { d, .. } => halves(block.add(d + 32 * strip)),
            Scales::Super { d, sc, .. } => {
                let sc = _mm_load_si128(block.add(sc + 16 * strip).cast());
                let sc = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(sc));
                _mm512_mul_ps(halves(unit.add(d + 32 * strip)), sc)
            }
            Scales::Signed { d, sc, .. } => {
                let sc = _mm_load_si128(block.add(sc + 32 * step + 16 * strip).cast());
                let sc = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(sc));
                _mm512_mul_ps(halves(unit.add(d + 32 * strip)), sc)
            }
            Scales::Joined { d, sc_m, .. } => {
                let sc = _mm_load_si128(block.add(sc_m + 32 * step + 16 * strip).cast());
                let sc = _mm_and_si128(sc, _mm_set1_epi8(15));
                let sc = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(sc));
                _mm512_mul_ps(halves(unit.add(d + 32 * strip)), sc)
            }
            Scales::Exponent { e } => {
                let e = _mm_load_si128(block.add(e + 16 * strip).cast());
                let double = _mm512_slli_epi32::<23>(_mm512_cvtepu8_epi32(e));
                // Of 2^-127 that is 0, and subnormal.
                let double = _mm512_max_epi32(double, _mm512_set1_epi32(1 << 22));
                _mm512_mul_ps(_mm512_castsi512_ps(double), _mm512_set1_ps(0.5))
            }
            Scales::Expanded { dw, .. } => {
                _mm512_load_ps(block.add(dw + 128 * step + 64 * strip).cast())
            }
        }
    }
}

/// `m` for step `step` of the block, or `None` if the format has no minimum.
///
/// # Safety
/// See the module.
#[inline(always)]
pub(super) unsafe fn min<F: Format>(
    unit: *const u8,
    block: *const u8,
    strip: usize,
    step: usize,
) -> Option<__m512> {
    // SAFETY: the module's rules; every section lies in the unit or block.
    unsafe {
        match F::SCALES {
            Scales::Plain { .. } | Scales::Signed { .. } | Scales::Exponent { .. } => None,
            Scales::Expanded { min: false, .. } => None,
            Scales::Expanded { dw, steps, min: true } => {
                Some(_mm512_load_ps(block.add(dw + 128 * (steps + step) + 64 * strip).cast()))
            }
            Scales::Min { m, .. } => Some(halves(block.add(m + 32 * strip))),
            Scales::Super { dmin, m, .. } => {
                let m = _mm_load_si128(block.add(m + 16 * strip).cast());
                let m = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(m));
                let product = _mm512_mul_ps(halves(unit.add(dmin + 32 * strip)), m);
                Some(_mm512_xor_ps(product, _mm512_set1_ps(-0.0)))
            }
            Scales::Joined { dmin, sc_m, .. } => {
                let m = _mm_load_si128(block.add(sc_m + 32 * step + 16 * strip).cast());
                let m = _mm_and_si128(_mm_srli_epi16::<4>(m), _mm_set1_epi8(15));
                let m = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(m));
                let product = _mm512_mul_ps(halves(unit.add(dmin + 32 * strip)), m);
                Some(_mm512_xor_ps(product, _mm512_set1_ps(-0.0)))
            }
        }
    }
}

/// # Safety
/// See the module.
#[inline(always)]
unsafe fn nibbles<const QUAD: usize>(block: *const u8, strip: usize) -> __m512i {
    // SAFETY: inside the 512 bytes of 4-bit codes.
    unsafe {
        // Blocks of some formats are on 32 bytes.
        let pair = _mm512_loadu_si512(block.add(256 * strip + 64 * (QUAD % 4)).cast());
        let low = if QUAD < 4 { pair } else { _mm512_srli_epi16::<4>(pair) };
        _mm512_and_si512(low, _mm512_set1_epi8(15))
    }
}

/// # Safety
/// See the module.
#[inline(always)]
unsafe fn pairs<const QUAD: usize>(block: *const u8, strip: usize) -> __m512i {
    // SAFETY: inside the 256 bytes of 2-bit codes.
    unsafe {
        let four = _mm512_load_si512(block.add(128 * strip + 64 * (QUAD / 4)).cast());
        let pairs = _mm512_srl_epi16(four, _mm_cvtsi32_si128(2 * (QUAD % 4) as i32));
        _mm512_and_si512(pairs, _mm512_set1_epi8(3))
    }
}

/// The bytes whose single bit is set.
///
/// # Safety
/// See the module; 128 bytes of single bits at `bits`.
#[inline(always)]
unsafe fn bits<const QUAD: usize>(bits: *const u8, strip: usize) -> __mmask64 {
    // SAFETY: the caller's promise.
    unsafe { bits.add(64 * strip + 8 * QUAD).cast::<u64>().read() }
}

/// # Safety
/// See the module; 32 bytes at `halves`, on 32 bytes.
#[inline(always)]
unsafe fn halves(halves: *const u8) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe { _mm512_cvtph_ps(_mm256_load_si256(halves.cast())) }
}
