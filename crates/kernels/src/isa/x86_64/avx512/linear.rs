//! The linear op with integer weights.

use std::arch::x86_64::*;

use super::format::{codes, min, scale};
use super::store;
use crate::isa::x86_64::{CHUNK, Format, Terms, row_groups};
use crate::linear::TileArgs;
use crate::mat::{ACT_BLOCK, Acts};
use crate::weight::tile::ROWS;

/// Most activation rows that go through a weight tile together: 2 x 8 integer accumulators leave
/// registers for the codes.
const MAX_ROWS: usize = 8;

/// The kernel for format F.
///
/// # Safety
/// As [`crate::linear::LinearKernel`].
pub(super) unsafe fn linear<F: Format>(args: &TileArgs<'_>) {
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
                    _ => rows::<F, 8>(args, tile, t),
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
unsafe fn rows<F: Format, const MT: usize>(args: &TileArgs<'_>, tile: usize, t: usize) {
    let x = args.x;
    let n_blocks = x.cols / ACT_BLOCK;
    let tile_bytes = n_blocks / F::BLOCKS * (F::HEAD + F::BLOCKS * F::BLOCK);
    let mut block = args.tiles[tile * tile_bytes..][..tile_bytes].as_ptr();
    let mut unit = block;
    let mut terms = [Terms::ZERO; MT];
    let mut acc = [[_mm512_setzero_ps(); MT]; 2];
    for first in (0..n_blocks).step_by(CHUNK) {
        let n = CHUNK.min(n_blocks - first);
        for (m, terms) in terms.iter_mut().enumerate() {
            // SAFETY: the same instruction set.
            unsafe { fill::<F>(terms, x, t + m, first, n) };
        }
        let mut q = x.codes[t * x.cols + first * ACT_BLOCK..].as_ptr();
        for b in 0..n {
            // SAFETY: block `first + b` of the tile and of the rows.
            unsafe {
                if b % F::BLOCKS == 0 {
                    unit = block;
                    block = block.add(F::HEAD);
                }
                dot::<F, MT>(unit, block, q, x.cols, &terms, b, &mut acc);
                block = block.add(F::BLOCK);
                q = q.add(ACT_BLOCK);
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe { store(args, tile, t, acc.as_flattened()) };
}

/// [`Terms::fill`] for the instruction set.
///
/// # Safety
/// The processor has it.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn fill<F: Format>(terms: &mut Terms, x: &Acts, t: usize, first: usize, n: usize) {
    terms.fill::<F>(x, t, first, n);
}

/// One block of the chains.
///
/// # Safety
/// AVX-512, shell; a unit, a block, and MT rows of 32 codes, `stride` apart.
#[inline(always)]
unsafe fn dot<F: Format, const MT: usize>(
    unit: *const u8,
    block: *const u8,
    q: *const i8,
    stride: usize,
    terms: &[Terms; MT],
    b: usize,
    acc: &mut [[__m512; MT]; 2],
) {
    // SAFETY: the caller's promise.
    unsafe {
        for step in 0..F::STEPS {
            let mut sum = [[_mm512_setzero_si512(); MT]; 2];
            if F::ZERO != 0 {
                for m in 0..MT {
                    let start = _mm512_set1_epi32(terms[m].starts[step][b]);
                    sum[0][m] = start;
                    sum[1][m] = start;
                }
            }
            if step == 0 {
                quad::<F, MT, 0>(block, q, stride, &mut sum);
                quad::<F, MT, 1>(block, q, stride, &mut sum);
                quad::<F, MT, 2>(block, q, stride, &mut sum);
                quad::<F, MT, 3>(block, q, stride, &mut sum);
            }
            if step + 1 == F::STEPS {
                quad::<F, MT, 4>(block, q, stride, &mut sum);
                quad::<F, MT, 5>(block, q, stride, &mut sum);
                quad::<F, MT, 6>(block, q, stride, &mut sum);
                quad::<F, MT, 7>(block, q, stride, &mut sum);
            }
            for s in 0..2 {
                let dw = scale::<F>(unit, block, s, step);
                let mw = min::<F>(unit, block, s);
                for m in 0..MT {
                    let d = _mm512_mul_ps(dw, _mm512_set1_ps(terms[m].scales[b]));
                    acc[s][m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[s][m]), d, acc[s][m]);
                    if let Some(mw) = mw {
                        let offset = _mm512_set1_ps(terms[m].offsets[b]);
                        acc[s][m] = _mm512_fmadd_ps(mw, offset, acc[s][m]);
                    }
                }
            }
        }
    }
}

/// Adds the products of k = 4 QUAD..4 QUAD + 4. One broadcast serves both strips: with one each,
/// the load ports would be the limit.
///
/// # Safety
/// As [`dot`].
#[inline(always)]
unsafe fn quad<F: Format, const MT: usize, const QUAD: usize>(
    block: *const u8,
    q: *const i8,
    stride: usize,
    sum: &mut [[__m512i; MT]; 2],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let w = [codes::<F, QUAD>(block, 0), codes::<F, QUAD>(block, 1)];
        for m in 0..MT {
            let q = q.add(m * stride + 4 * QUAD).cast::<i32>().read_unaligned();
            let q = _mm512_set1_epi32(q);
            sum[0][m] = _mm512_dpbusd_epi32(sum[0][m], w[0], q);
            sum[1][m] = _mm512_dpbusd_epi32(sum[1][m], w[1], q);
        }
    }
}
