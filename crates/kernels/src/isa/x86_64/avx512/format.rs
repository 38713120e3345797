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
    // SAFETY: the module's rules; every section lies in the block, vectors on 64 bytes.
    unsafe {
        match F::CODES {
            Codes::Four => nibbles::<QUAD>(block, strip),
            Codes::Five { fifth } => {
                let fifth = block.add(fifth + 64 * strip + 8 * QUAD).cast::<u64>().read();
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
            Codes::Eight | Codes::Small { .. } => {
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
            Scales::Sixteens { d, sc } => {
                let sc = _mm_load_si128(block.add(sc + 32 * step + 16 * strip).cast());
                let sc = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(sc));
                _mm512_mul_ps(halves(unit.add(d + 32 * strip)), sc)
            }
            Scales::Expanded { dw, .. } => {
                _mm512_load_ps(block.add(dw + 128 * step + 64 * strip).cast())
            }
        }
    }
}

/// `m`, or `None` if the format has no minimum.
///
/// # Safety
/// See the module.
#[inline(always)]
pub(super) unsafe fn min<F: Format>(
    unit: *const u8,
    block: *const u8,
    strip: usize,
) -> Option<__m512> {
    // SAFETY: the module's rules; every section lies in the unit or block.
    unsafe {
        match F::SCALES {
            Scales::Plain { .. } | Scales::Sixteens { .. } => None,
            Scales::Expanded { min: false, .. } => None,
            Scales::Expanded { dw, steps, min: true } => {
                Some(_mm512_load_ps(block.add(dw + 128 * steps + 64 * strip).cast()))
            }
            Scales::Min { m, .. } => Some(halves(block.add(m + 32 * strip))),
            Scales::Super { dmin, m, .. } => {
                let m = _mm_load_si128(block.add(m + 16 * strip).cast());
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
        let pair = _mm512_load_si512(block.add(256 * strip + 64 * (QUAD % 4)).cast());
        let low = if QUAD < 4 { pair } else { _mm512_srli_epi16::<4>(pair) };
        _mm512_and_si512(low, _mm512_set1_epi8(15))
    }
}

/// # Safety
/// See the module; 32 bytes at `halves`, on 32 bytes.
#[inline(always)]
unsafe fn halves(halves: *const u8) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe { _mm512_cvtph_ps(_mm256_load_si256(halves.cast())) }
}
