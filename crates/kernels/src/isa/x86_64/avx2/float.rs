//! The linear op with float weights: one fused multiply-add per k and row.

use std::arch::x86_64::*;

use super::store;
use crate::isa::x86_64::share::{Ahead, Kernels, Piece, SCRATCH, by_rows};
use crate::weight::tile::ROWS;

/// The kernels of format F; many rows read it as F32.
pub(super) const fn kernels<F: Float>() -> Kernels {
    Kernels {
        float: true,
        unit: 1,
        unit_bytes: ROWS * F::BYTES,
        chunk: SCRATCH / (ROWS * F32::BYTES),
        // 4 octets x 3 accumulators, or 2 octets x 6 in two passes.
        max_rows: 6,
        expand_from: 24,
        expand: expand::<F>,
        few: compute::<F>,
        many: compute::<F32>,
    }
}

/// # Safety
/// As [`Compute`](crate::isa::x86_64::share::Compute).
unsafe fn compute<F: Float>(piece: &Piece<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        if piece.group.n_rows <= 3 {
            by_rows!(piece.group.n_rows, 1 2 3: tile::<F, _>(piece))
        } else {
            by_rows!(piece.group.n_rows, 4 5 6: half_tiles::<F, _>(piece))
        }
    }
}

/// Weights are fetched ahead every so many k.
const FETCH_EVERY: usize = 4;

/// Cache lines of so many.
const fn lines<F: Float>() -> usize {
    FETCH_EVERY * ROWS * F::BYTES / 64
}

/// A float format.
pub(super) trait Float {
    /// Bytes of a value.
    const BYTES: usize;

    /// 8 values.
    ///
    /// # Safety
    /// AVX2, F16C; 8 values at `w`, aligned to their size.
    unsafe fn load(w: *const u8) -> __m256;
}

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct BF16;

impl Float for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load(w: *const u8) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_load_ps(w.cast()) }
    }
}

impl Float for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load(w: *const u8) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_cvtph_ps(_mm_load_si128(w.cast())) }
    }
}

impl Float for BF16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load(w: *const u8) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe {
            let w = _mm256_cvtepu16_epi32(_mm_load_si128(w.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(w))
        }
    }
}

/// Turns the values to f32.
///
/// # Safety
/// As [`Expand`](crate::isa::x86_64::share::Expand).
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn expand<F: Float>(w: *const u8, n: usize, to: *mut u8) -> *const u8 {
    if F::BYTES == F32::BYTES {
        return w;
    }
    for octet in 0..4 * n {
        // SAFETY: octet `octet % 4` of k = `octet / 4`.
        unsafe {
            _mm256_store_ps(to.add(32 * octet).cast(), F::load(w.add(8 * F::BYTES * octet)));
        }
    }
    to
}

/// A piece of MT rows, weights in format F, all four octets at once.
///
/// # Safety
/// As [`Compute`](crate::isa::x86_64::share::Compute).
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile<F: Float, const MT: usize>(piece: &Piece<'_>) {
    // SAFETY: the caller's promise.
    unsafe { chains::<F, MT, 4>(piece, 0, piece.ahead) }
}

/// A piece of MT rows, weights in format F, in two passes.
///
/// # Safety
/// As [`Compute`](crate::isa::x86_64::share::Compute).
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn half_tiles<F: Float, const MT: usize>(piece: &Piece<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        chains::<F, MT, 2>(piece, 0, piece.ahead);
        chains::<F, MT, 2>(piece, 2, Ahead::NOTHING);
    }
}

/// The chains of OCTETS octets from octet `octet`.
///
/// # Safety
/// As [`Compute`](crate::isa::x86_64::share::Compute); AVX2, shell.
#[inline(always)]
unsafe fn chains<F: Float, const MT: usize, const OCTETS: usize>(
    piece: &Piece<'_>,
    octet: usize,
    ahead: Ahead,
) {
    let stride = piece.args.x.cols;
    let mut fetch = ahead.over(piece.n.div_ceil(FETCH_EVERY), lines::<F>());
    let mut w = piece.w.wrapping_add(8 * F::BYTES * octet);
    let mut x = piece.args.x.float[piece.group.t() * stride + piece.first..].as_ptr();
    // SAFETY: the caller's promise; 32 values a row, the k of the piece.
    unsafe {
        let waiting = piece.acc.wrapping_add(8 * MT * octet).cast::<[[__m256; MT]; OCTETS]>();
        let mut acc = [[_mm256_setzero_ps(); MT]; OCTETS];
        if !piece.is_first() {
            acc = waiting.read();
        }
        for k in 0..piece.n {
            if k.is_multiple_of(FETCH_EVERY) {
                fetch.step(lines::<F>());
            }
            // What is in the outer loop stays in registers.
            if OCTETS < MT {
                let mut octets = [_mm256_setzero_ps(); OCTETS];
                for o in 0..OCTETS {
                    octets[o] = F::load(w.add(8 * F::BYTES * o));
                }
                for m in 0..MT {
                    let x = _mm256_set1_ps(*x.add(m * stride));
                    for o in 0..OCTETS {
                        acc[o][m] = _mm256_fmadd_ps(octets[o], x, acc[o][m]);
                    }
                }
            } else {
                for o in 0..OCTETS {
                    let w = F::load(w.add(8 * F::BYTES * o));
                    for m in 0..MT {
                        let x = _mm256_set1_ps(*x.add(m * stride));
                        acc[o][m] = _mm256_fmadd_ps(w, x, acc[o][m]);
                    }
                }
            }
            w = w.wrapping_add(ROWS * F::BYTES);
            x = x.wrapping_add(1);
        }
        if !piece.is_last() {
            return waiting.write(acc);
        }
        let mut copy = [[_mm256_setzero_ps(); MT]; OCTETS];
        for o in 0..OCTETS {
            for m in 0..MT {
                copy[o][m] = acc[o][m];
            }
        }
        for o in 0..OCTETS {
            store(piece, octet + o, &copy[o]);
        }
    }
}
