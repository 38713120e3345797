//! The linear op with float weights: one fused multiply-add per k and row.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::store;
use crate::isa::x86_64::share::{Ahead, Piece, SCRATCH, Weights, by_rows};
use crate::weight::tile::ROWS;

/// Weights of format F; many rows read them as F32.
pub(super) struct Floats<F>(PhantomData<F>);

impl<F: Float> Weights for Floats<F> {
    const CHUNK: usize = SCRATCH / (ROWS * F32::BYTES);
    // 4 octets x 3 accumulators, or 2 octets x 6 in two passes.
    const FEW: usize = 6;
    const MANY: usize = 6;
    const EXPAND_FROM: usize = 24;

    fn n_bytes(n: usize) -> usize {
        n * ROWS * F::BYTES
    }

    unsafe fn expand(w: *const u8, n: usize, to: *mut u8) -> *const u8 {
        if F::BYTES == F32::BYTES {
            return w;
        }
        // SAFETY: the caller's promise.
        unsafe { expand::<F>(w, n, to) };
        to
    }

    unsafe fn few(piece: &Piece<'_>) {
        // SAFETY: the caller's promise.
        unsafe {
            if piece.n_rows <= 3 {
                by_rows!(piece.n_rows, 1 2 3: tile::<F, _>(piece))
            } else {
                by_rows!(piece.n_rows, 4 5 6: half_tiles::<F, _>(piece))
            }
        }
    }

    unsafe fn many(piece: &Piece<'_>) {
        // SAFETY: the caller's promise.
        unsafe { by_rows!(piece.n_rows, 1 2 3 4 5 6: half_tiles::<F32, _>(piece)) }
    }
}

/// Weights are fetched ahead every so many k.
const FETCH_EVERY: usize = 4;

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

/// Turns the values of `n` k to f32.
///
/// # Safety
/// As [`Weights::expand`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn expand<F: Float>(w: *const u8, n: usize, to: *mut u8) {
    for octet in 0..4 * n {
        // SAFETY: octet `octet % 4` of k = `octet / 4`.
        unsafe {
            _mm256_store_ps(to.add(32 * octet).cast(), F::load(w.add(8 * F::BYTES * octet)));
        }
    }
}

/// A piece of MT rows, weights in format F, all four octets at once.
///
/// # Safety
/// As [`Weights::few`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile<F: Float, const MT: usize>(piece: &Piece<'_>) {
    // SAFETY: the caller's promise.
    unsafe { chains::<F, MT, 4>(piece, 0, piece.ahead) }
}

/// A piece of MT rows, weights in format F, in two passes.
///
/// # Safety
/// As [`Weights::few`].
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
/// As [`Weights::few`]; AVX2, shell.
#[inline(always)]
unsafe fn chains<F: Float, const MT: usize, const OCTETS: usize>(
    piece: &Piece<'_>,
    octet: usize,
    mut ahead: Ahead,
) {
    let stride = piece.args.x.cols;
    let n_lines = ahead.lines_per_step(piece.n.div_ceil(FETCH_EVERY));
    let mut w = piece.w.wrapping_add(8 * F::BYTES * octet);
    let mut x = piece.args.x.float[piece.t * stride + piece.first..].as_ptr();
    // SAFETY: the caller's promise; 32 values a row, the k of the piece.
    unsafe {
        let waiting = piece.acc.wrapping_add(8 * MT * octet).cast::<[[__m256; MT]; OCTETS]>();
        let mut acc = [[_mm256_setzero_ps(); MT]; OCTETS];
        if !piece.is_first() {
            acc = waiting.read();
        }
        for k in 0..piece.n {
            if k.is_multiple_of(FETCH_EVERY) {
                ahead.fetch(n_lines);
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
