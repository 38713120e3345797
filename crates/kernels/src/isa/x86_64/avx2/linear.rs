//! The linear op with integer weights.
//!
//! `vpmaddubsw` multiplies unsigned codes by signed activations and adds pairs in i16, where it
//! saturates. A pair is at most 2 * 127 * code, so it and a few more fit exactly:
//!
//! | codes up to | pair | pairs in an i16 |
//! |---|---|---|
//! | 15 | 3810 | 8 |
//! | 31 | 7874 | 4 |
//! | 63 | 16002 | 2 |
//! | 255 | 64770 | none: taken as two nibbles, 8 each |
//!
//! One `vpmaddwd` then widens them to i32 (and multiplies the high nibbles by 16).

use std::arch::x86_64::*;

use super::format::{codes, min, scale};
use super::store;
use crate::isa::x86_64::{CHUNK, Codes, Format, Terms, row_groups};
use crate::linear::TileArgs;
use crate::mat::{ACT_BLOCK, Acts};
use crate::weight::tile::ROWS;

/// Most activation rows that go through a weight tile together: 4 sums in i16 and in i32, or two
/// planes of i16.
const MAX_ROWS: usize = 4;

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
                    _ => rows::<F, 4>(args, tile, t),
                }
            }
        }
    }
}

/// Rows `t..t + MT` times weight tile `tile` of the share.
///
/// # Safety
/// As [`crate::linear::LinearKernel`]; the rows and the tile exist.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows<F: Format, const MT: usize>(args: &TileArgs<'_>, tile: usize, t: usize) {
    let x = args.x;
    let n_blocks = x.cols / ACT_BLOCK;
    let tile_bytes = n_blocks / F::BLOCKS * (F::HEAD + F::BLOCKS * F::BLOCK);
    let mut block = args.tiles[tile * tile_bytes..][..tile_bytes].as_ptr();
    let mut unit = block;
    let mut terms = [Terms::ZERO; MT];
    let mut acc = [[_mm256_setzero_ps(); MT]; 4];
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
                for octet in 0..4 {
                    dot::<F, MT>(unit, block, octet, q, x.cols, &terms, b, &mut acc[octet]);
                }
                block = block.add(F::BLOCK);
                q = q.add(ACT_BLOCK);
            }
        }
    }
    for octet in 0..4 {
        for m in 0..MT {
            // SAFETY: the caller's promise.
            unsafe { store(args, t + m, tile, octet, acc[octet][m]) };
        }
    }
}

/// [`Terms::fill`] for the instruction set.
///
/// # Safety
/// The processor has it.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn fill<F: Format>(terms: &mut Terms, x: &Acts, t: usize, first: usize, n: usize) {
    terms.fill::<F>(x, t, first, n);
}

/// One block of an octet's chains.
///
/// # Safety
/// AVX2, shell; a unit, a block, and MT rows of 32 codes, `stride` apart.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // The state of one loop.
unsafe fn dot<F: Format, const MT: usize>(
    unit: *const u8,
    block: *const u8,
    octet: usize,
    q: *const i8,
    stride: usize,
    terms: &[Terms; MT],
    b: usize,
    acc: &mut [__m256; MT],
) {
    // SAFETY: the caller's promise.
    unsafe {
        for step in 0..F::STEPS {
            let mut sum = Sum {
                narrow: [[_mm256_setzero_si256(); MT]; 2],
                wide: [_mm256_setzero_si256(); MT],
            };
            if step == 0 {
                quad::<F, MT, 0>(block, octet, q, stride, &mut sum);
                quad::<F, MT, 1>(block, octet, q, stride, &mut sum);
                quad::<F, MT, 2>(block, octet, q, stride, &mut sum);
                quad::<F, MT, 3>(block, octet, q, stride, &mut sum);
            }
            if step + 1 == F::STEPS {
                quad::<F, MT, 4>(block, octet, q, stride, &mut sum);
                quad::<F, MT, 5>(block, octet, q, stride, &mut sum);
                quad::<F, MT, 6>(block, octet, q, stride, &mut sum);
                quad::<F, MT, 7>(block, octet, q, stride, &mut sum);
            }
            let dw = scale::<F>(unit, block, octet, step);
            let mw = min::<F>(unit, block, octet);
            for m in 0..MT {
                let mut total = sum.wide[m];
                if F::ZERO != 0 {
                    total = _mm256_add_epi32(total, _mm256_set1_epi32(terms[m].starts[step][b]));
                }
                let d = _mm256_mul_ps(dw, _mm256_set1_ps(terms[m].scales[b]));
                acc[m] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total), d, acc[m]);
                if let Some(mw) = mw {
                    acc[m] = _mm256_fmadd_ps(mw, _mm256_set1_ps(terms[m].offsets[b]), acc[m]);
                }
            }
        }
    }
}

/// Sums of products: in i16 (of low and high nibbles, if the codes are taken apart) and i32.
struct Sum<const MT: usize> {
    narrow: [[__m256i; MT]; 2],
    wide: [__m256i; MT],
}

/// Adds the products of k = 4 QUAD..4 QUAD + 4.
///
/// # Safety
/// As [`dot`].
#[inline(always)]
unsafe fn quad<F: Format, const MT: usize, const QUAD: usize>(
    block: *const u8,
    octet: usize,
    q: *const i8,
    stride: usize,
    sum: &mut Sum<MT>,
) {
    let exact_quads = match F::CODES {
        Codes::Four | Codes::Eight => 8,
        Codes::Five { .. } => 4,
        Codes::Six { .. } => 2,
    };
    // SAFETY: the caller's promise.
    unsafe {
        let low = _mm256_set1_epi8(15);
        let w = codes::<F, QUAD>(block, octet);
        for m in 0..MT {
            let q = q.add(m * stride + 4 * QUAD).cast::<i32>().read_unaligned();
            let q = _mm256_set1_epi32(q);
            let [narrow, high] = &mut sum.narrow;
            if let Codes::Eight = F::CODES {
                let (w, w_high) =
                    (_mm256_and_si256(w, low), _mm256_and_si256(_mm256_srli_epi16::<4>(w), low));
                narrow[m] = _mm256_add_epi16(narrow[m], _mm256_maddubs_epi16(w, q));
                high[m] = _mm256_add_epi16(high[m], _mm256_maddubs_epi16(w_high, q));
            } else {
                narrow[m] = _mm256_add_epi16(narrow[m], _mm256_maddubs_epi16(w, q));
            }
            if (QUAD + 1).is_multiple_of(exact_quads) {
                let ones = _mm256_set1_epi16(1);
                sum.wide[m] = _mm256_add_epi32(sum.wide[m], _mm256_madd_epi16(narrow[m], ones));
                narrow[m] = _mm256_setzero_si256();
                if let Codes::Eight = F::CODES {
                    let high = _mm256_madd_epi16(high[m], _mm256_set1_epi16(16));
                    sum.wide[m] = _mm256_add_epi32(sum.wide[m], high);
                }
            }
        }
    }
}
