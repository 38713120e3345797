//! The linear op with float weights: one fused multiply-add per k and row.

use std::arch::x86_64::*;

use super::store;
use crate::isa::x86_64::row_groups;
use crate::linear::TileArgs;
use crate::weight::tile::ROWS;

/// Most activation rows that go through a weight tile together: 2 octets x 6 accumulators.
const MAX_ROWS: usize = 6;

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

/// The kernel for format F.
///
/// # Safety
/// As [`crate::linear::LinearKernel`].
pub(super) unsafe fn linear<F: Float>(args: &TileArgs<'_>) {
    for tile in 0..args.n_out.div_ceil(ROWS) {
        for (t, n_rows) in row_groups(args.x.rows, MAX_ROWS) {
            // Few rows take all four octets at once, many take the tile in two passes.
            // SAFETY: the caller's promise.
            unsafe {
                match n_rows {
                    1 => rows::<F, 1, 4>(args, tile, t),
                    2 => rows::<F, 2, 4>(args, tile, t),
                    3 => rows::<F, 3, 4>(args, tile, t),
                    4 => rows::<F, 4, 2>(args, tile, t),
                    5 => rows::<F, 5, 2>(args, tile, t),
                    _ => rows::<F, 6, 2>(args, tile, t),
                }
            }
        }
    }
}

/// Rows `t..t + MT` times weight tile `tile` of the share, OCTETS octets at a time.
///
/// # Safety
/// As [`crate::linear::LinearKernel`]; the rows and the tile exist.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows<F: Float, const MT: usize, const OCTETS: usize>(
    args: &TileArgs<'_>,
    tile: usize,
    t: usize,
) {
    let n_in = args.x.cols;
    let tile_bytes = n_in * ROWS * F::BYTES;
    let tile_start = args.tiles[tile * tile_bytes..][..tile_bytes].as_ptr();
    for first in (0..4).step_by(OCTETS) {
        let mut w = tile_start.wrapping_add(8 * F::BYTES * first);
        let mut x = args.x.float[t * n_in..(t + MT) * n_in].as_ptr();
        let mut acc = [[_mm256_setzero_ps(); MT]; OCTETS];
        for _ in 0..n_in {
            // SAFETY: k < n_in values of the tile and of MT rows.
            unsafe {
                for o in 0..OCTETS {
                    let w = F::load(w.add(8 * F::BYTES * o));
                    for m in 0..MT {
                        let x = _mm256_set1_ps(*x.add(m * n_in));
                        acc[o][m] = _mm256_fmadd_ps(w, x, acc[o][m]);
                    }
                }
            }
            w = w.wrapping_add(ROWS * F::BYTES);
            x = x.wrapping_add(1);
        }
        for o in 0..OCTETS {
            for m in 0..MT {
                // SAFETY: the caller's promise.
                unsafe { store(args, t + m, tile, first + o, acc[o][m]) };
            }
        }
    }
}
