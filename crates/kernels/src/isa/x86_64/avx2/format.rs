//! The packed formats as vectors of an octet: codes to unsigned bytes, scales to f32.
//!
//! # Safety
//! All functions here need AVX2 as [`crate::Isa::Avx2`] asks for, `unit` and `block` at a unit of
//! the format and one of its blocks, and `octet` < 4.

use std::arch::x86_64::*;

use crate::isa::x86_64::format::{Codes, Format, Scales};

/// The codes at k = 4 QUAD..4 QUAD + 4, one dword per output row.
///
/// # Safety
/// See the module.
#[inline(always)]
pub(super) unsafe fn codes<F: Format, const QUAD: usize>(
    block: *const u8,
    octet: usize,
) -> __m256i {
    let (strip, half) = (octet / 2, octet % 2);
    // SAFETY: the module's rules; every section lies in the block, vectors on 32 bytes.
    unsafe {
        match F::CODES {
            Codes::Two => pairs::<QUAD>(block, octet),
            Codes::Three { third } => {
                let third =
                    _mm256_and_si256(bits::<QUAD>(block.add(third), octet), _mm256_set1_epi8(4));
                _mm256_or_si256(pairs::<QUAD>(block, octet), third)
            }
            Codes::Four => nibbles::<QUAD>(block, octet),
            Codes::Five { fifth } => {
                let fifth =
                    _mm256_and_si256(bits::<QUAD>(block.add(fifth), octet), _mm256_set1_epi8(16));
                _mm256_or_si256(nibbles::<QUAD>(block, octet), fifth)
            }
            Codes::Six { high } => {
                let high = block.add(high + 128 * strip + 64 * (QUAD / 4) + 32 * half);
                let high = _mm256_load_si256(high.cast());
                // Bits 2t, 2t + 1 to bits 4, 5; what crosses into the next byte is masked off.
                let high = match QUAD % 4 {
                    0 => _mm256_slli_epi16::<4>(high),
                    1 => _mm256_slli_epi16::<2>(high),
                    2 => high,
                    _ => _mm256_srli_epi16::<2>(high),
                };
                let high = _mm256_and_si256(high, _mm256_set1_epi8(0x30));
                _mm256_or_si256(nibbles::<QUAD>(block, octet), high)
            }
            Codes::Book { codes } => {
                let codes = _mm_loadu_si128(codes.as_ptr().cast());
                let codes = _mm256_broadcastsi128_si256(codes);
                _mm256_shuffle_epi8(codes, nibbles::<QUAD>(block, octet))
            }
            Codes::Eight | Codes::Bytes { .. } => {
                let codes = block.add(512 * strip + 64 * QUAD + 32 * half);
                _mm256_load_si256(codes.cast())
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
    octet: usize,
    step: usize,
) -> __m256 {
    // SAFETY: the module's rules; every section lies in the unit or block.
    unsafe {
        match F::SCALES {
            Scales::Plain { d } | Scales::Min { d, .. } => halves(block.add(d + 16 * octet)),
            Scales::Super { d, sc, .. } => {
                let sc = _mm_loadl_epi64(block.add(sc + 8 * octet).cast());
                let sc = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(sc));
                _mm256_mul_ps(halves(unit.add(d + 16 * octet)), sc)
            }
            Scales::Signed { d, sc, .. } => {
                let sc = _mm_loadl_epi64(block.add(sc + 32 * step + 8 * octet).cast());
                let sc = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(sc));
                _mm256_mul_ps(halves(unit.add(d + 16 * octet)), sc)
            }
            Scales::Joined { d, sc_m, .. } => {
                let sc = _mm_loadl_epi64(block.add(sc_m + 32 * step + 8 * octet).cast());
                let sc = _mm_and_si128(sc, _mm_set1_epi8(15));
                let sc = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(sc));
                _mm256_mul_ps(halves(unit.add(d + 16 * octet)), sc)
            }
            Scales::Exponent { e } => {
                let e = _mm_loadl_epi64(block.add(e + 8 * octet).cast());
                let double = _mm256_slli_epi32::<23>(_mm256_cvtepu8_epi32(e));
                // Of 2^-127 that is 0, and subnormal.
                let double = _mm256_max_epi32(double, _mm256_set1_epi32(1 << 22));
                _mm256_mul_ps(_mm256_castsi256_ps(double), _mm256_set1_ps(0.5))
            }
            Scales::Expanded { dw, .. } => {
                _mm256_load_ps(block.add(dw + 128 * step + 32 * octet).cast())
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
    octet: usize,
    step: usize,
) -> Option<__m256> {
    // SAFETY: the module's rules; every section lies in the unit or block.
    unsafe {
        match F::SCALES {
            Scales::Plain { .. } | Scales::Signed { .. } | Scales::Exponent { .. } => None,
            Scales::Expanded { min: false, .. } => None,
            Scales::Expanded { dw, steps, min: true } => {
                Some(_mm256_load_ps(block.add(dw + 128 * (steps + step) + 32 * octet).cast()))
            }
            Scales::Min { m, .. } => Some(halves(block.add(m + 16 * octet))),
            Scales::Super { dmin, m, .. } => {
                let m = _mm_loadl_epi64(block.add(m + 8 * octet).cast());
                let m = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(m));
                let product = _mm256_mul_ps(halves(unit.add(dmin + 16 * octet)), m);
                Some(_mm256_xor_ps(product, _mm256_set1_ps(-0.0)))
            }
            Scales::Joined { dmin, sc_m, .. } => {
                let m = _mm_loadl_epi64(block.add(sc_m + 32 * step + 8 * octet).cast());
                let m = _mm_and_si128(_mm_srli_epi16::<4>(m), _mm_set1_epi8(15));
                let m = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(m));
                let product = _mm256_mul_ps(halves(unit.add(dmin + 16 * octet)), m);
                Some(_mm256_xor_ps(product, _mm256_set1_ps(-0.0)))
            }
        }
    }
}

/// # Safety
/// See the module.
#[inline(always)]
unsafe fn nibbles<const QUAD: usize>(block: *const u8, octet: usize) -> __m256i {
    // SAFETY: inside the 512 bytes of 4-bit codes.
    unsafe {
        let pair = block.add(256 * (octet / 2) + 64 * (QUAD % 4) + 32 * (octet % 2));
        let pair = _mm256_load_si256(pair.cast());
        let low = if QUAD < 4 { pair } else { _mm256_srli_epi16::<4>(pair) };
        _mm256_and_si256(low, _mm256_set1_epi8(15))
    }
}

/// # Safety
/// See the module.
#[inline(always)]
unsafe fn pairs<const QUAD: usize>(block: *const u8, octet: usize) -> __m256i {
    // SAFETY: inside the 256 bytes of 2-bit codes.
    unsafe {
        let four = block.add(128 * (octet / 2) + 64 * (QUAD / 4) + 32 * (octet % 2));
        let four = _mm256_load_si256(four.cast());
        let pairs = _mm256_srl_epi16(four, _mm_cvtsi32_si128(2 * (QUAD % 4) as i32));
        _mm256_and_si256(pairs, _mm256_set1_epi8(3))
    }
}

/// All bits of the bytes whose single bit is set.
///
/// # Safety
/// See the module; 128 bytes of single bits at `bits`.
#[inline(always)]
unsafe fn bits<const QUAD: usize>(bits: *const u8, octet: usize) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let bits = bits.add(64 * (octet / 2) + 8 * QUAD + 4 * (octet % 2)).cast::<i32>();
        // Byte n of the result gets the byte with bit n, then that bit alone.
        let bytes = _mm256_shuffle_epi8(
            _mm256_set1_epi32(bits.read()),
            _mm256_setr_epi64x(
                0,
                0x0101_0101_0101_0101,
                0x0202_0202_0202_0202,
                0x0303_0303_0303_0303,
            ),
        );
        let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit)
    }
}

/// # Safety
/// See the module; 16 bytes at `halves`, on 16 bytes.
#[inline(always)]
unsafe fn halves(halves: *const u8) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe { _mm256_cvtph_ps(_mm_load_si128(halves.cast())) }
}
