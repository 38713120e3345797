//! The linear op with float weights: one fused multiply-add per k and row.

use std::arch::x86_64::*;

use super::{spilled, store};
use crate::isa::x86_64::share::{Kernels, Piece, SCRATCH, by_rows};
use crate::mat::PANEL;
use crate::weight::tile::ROWS;

/// The kernels of format F; many rows read it as F32.
pub(super) const fn kernels<F: Float>() -> Kernels {
    Kernels {
        float: true,
        unit: 1,
        unit_bytes: ROWS * F::BYTES,
        chunk: SCRATCH / (ROWS * F32::BYTES),
        max_rows: PANEL,
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
    unsafe { by_rows!(piece.group.n_rows, 1 2 3 4 5 6 7 8: chains::<F, _>(piece)) }
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

    /// 16 values.
    ///
    /// # Safety
    /// AVX-512; 16 values at `w`, aligned to their size.
    unsafe fn load(w: *const u8) -> __m512;
}

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct BF16;

impl Float for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load(w: *const u8) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_load_ps(w.cast()) }
    }
}

impl Float for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load(w: *const u8) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_cvtph_ps(_mm256_load_si256(w.cast())) }
    }
}

impl Float for BF16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load(w: *const u8) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe {
            let w = _mm512_cvtepu16_epi32(_mm256_load_si256(w.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(w))
        }
    }
}

/// Turns the values to f32.
///
/// # Safety
/// As [`Expand`](crate::isa::x86_64::share::Expand).
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn expand<F: Float>(w: *const u8, n: usize, to: *mut u8) -> *const u8 {
    if F::BYTES == F32::BYTES {
        return w;
    }
    for strip in 0..2 * n {
        // SAFETY: strip `strip % 2` of k = `strip / 2`.
        unsafe {
            _mm512_store_ps(to.add(64 * strip).cast(), F::load(w.add(16 * F::BYTES * strip)));
        }
    }
    to
}

/// A piece of MT rows, weights in format F.
///
/// # Safety
/// As [`Compute`](crate::isa::x86_64::share::Compute).
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn chains<F: Float, const MT: usize>(piece: &Piece<'_>) {
    let stride = piece.args.x.cols;
    let mut fetch = piece.ahead.over(piece.n.div_ceil(FETCH_EVERY), lines::<F>());
    let mut w = piece.w;
    let mut x = piece.args.x.float[piece.group.t() * stride + piece.first..].as_ptr();
    let mut acc = [[_mm512_setzero_ps(); MT]; 2];
    if !piece.is_first() {
        // SAFETY: 32 values a row.
        acc = unsafe { piece.acc.cast::<[[__m512; MT]; 2]>().read() };
    }
    for k in 0..piece.n {
        if k.is_multiple_of(FETCH_EVERY) {
            fetch.step(lines::<F>());
        }
        // SAFETY: the k of the piece.
        unsafe {
            let strips = [F::load(w), F::load(w.add(16 * F::BYTES))];
            for m in 0..MT {
                let x = _mm512_set1_ps(*x.add(m * stride));
                acc[0][m] = _mm512_fmadd_ps(strips[0], x, acc[0][m]);
                acc[1][m] = _mm512_fmadd_ps(strips[1], x, acc[1][m]);
            }
        }
        w = w.wrapping_add(ROWS * F::BYTES);
        x = x.wrapping_add(1);
    }
    // SAFETY: the caller's promise; 32 values a row.
    unsafe {
        if piece.is_last() {
            store(piece, spilled(&acc).as_flattened());
        } else {
            piece.acc.cast::<[[__m512; MT]; 2]>().write(acc);
        }
    }
}
