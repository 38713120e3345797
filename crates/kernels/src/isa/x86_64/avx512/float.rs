//! The linear op with float weights: one fused multiply-add per k and row.

use std::arch::x86_64::*;

use super::store;
use crate::isa::x86_64::row_groups;
use crate::linear::TileArgs;
use crate::weight::tile::ROWS;

/// Most activation rows that go through a weight tile together: 2 x 12 accumulators.
const MAX_ROWS: usize = 12;

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

/// The kernel for format F.
///
/// # Safety
/// As [`crate::linear::LinearKernel`].
pub(super) unsafe fn linear<F: Float>(args: &TileArgs<'_>) {
    for tile in 0..args.n_out.div_ceil(ROWS) {
        for (t, n_rows) in row_groups(args.x.rows, MAX_ROWS) {
            // SAFETY: the caller's promise.
            unsafe {
                match n_rows {
                    1 => rows::<F, 1>(args, tile, t),
                    2 => rows::<F, 2>(args, tile, t),
                    3 => rows::<F, 3>(args, tile, t),
                    4 => rows::<F, 4>(args, tile, t),
                    5 => rows::<F, 5>(args, tile, t),
                    6 => rows::<F, 6>(args, tile, t),
                    7 => rows::<F, 7>(args, tile, t),
                    8 => rows::<F, 8>(args, tile, t),
                    9 => rows::<F, 9>(args, tile, t),
                    10 => rows::<F, 10>(args, tile, t),
                    11 => rows::<F, 11>(args, tile, t),
                    _ => rows::<F, 12>(args, tile, t),
                }
            }
        }
    }
}

/// Rows `t..t + MT` times weight tile `tile` of the share.
///
/// # Safety
/// As [`crate::linear::LinearKernel`]; the rows and the tile exist.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn rows<F: Float, const MT: usize>(args: &TileArgs<'_>, tile: usize, t: usize) {
    let n_in = args.x.cols;
    let tile_bytes = n_in * ROWS * F::BYTES;
    let mut w = args.tiles[tile * tile_bytes..][..tile_bytes].as_ptr();
    let mut x = args.x.float[t * n_in..(t + MT) * n_in].as_ptr();
    let mut acc = [[_mm512_setzero_ps(); MT]; 2];
    for _ in 0..n_in {
        // SAFETY: k < n_in values of the tile and of MT rows.
        unsafe {
            let strips = [F::load(w), F::load(w.add(16 * F::BYTES))];
            for m in 0..MT {
                let x = _mm512_set1_ps(*x.add(m * n_in));
                acc[0][m] = _mm512_fmadd_ps(strips[0], x, acc[0][m]);
                acc[1][m] = _mm512_fmadd_ps(strips[1], x, acc[1][m]);
            }
            w = w.add(ROWS * F::BYTES);
            x = x.add(1);
        }
    }
    // SAFETY: the caller's promise.
    unsafe { store(args, tile, t, acc.as_flattened()) };
}
