//! AVX2 with FMA and F16C: a vector is an octet, 8 output rows; a row tile has four.

mod float;
mod format;
mod linear;

use std::arch::x86_64::*;

use super::format::{Expanded, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
use super::share::{self, Piece};
use crate::dtype::DType;
use crate::linear::LinearKernel;
use crate::weight::tile::ROWS;
use float::{BF16, F16, F32, Floats};
use linear::Blocks;

/// Output rows of an octet.
const OCTET_ROWS: usize = 8;

/// The kernel of the linear op for weights of `dtype`.
pub(crate) fn linear(dtype: DType) -> Option<LinearKernel> {
    type Zero<const EXACT: usize> = Expanded<true, false, 1, EXACT>;
    type Min<const EXACT: usize> = Expanded<false, true, 1, EXACT>;
    type Sixteens<const EXACT: usize> = Expanded<true, false, 2, EXACT>;
    Some(match dtype {
        DType::F32 => share::linear::<Floats<F32>>,
        DType::F16 => share::linear::<Floats<F16>>,
        DType::BF16 => share::linear::<Floats<BF16>>,
        DType::Q4_0 => share::linear::<Blocks<Q4_0, Zero<8>>>,
        DType::Q4_1 => share::linear::<Blocks<Q4_1, Min<8>>>,
        DType::Q5_0 => share::linear::<Blocks<Q5_0, Zero<4>>>,
        DType::Q5_1 => share::linear::<Blocks<Q5_1, Min<4>>>,
        DType::Q8_0 => share::linear::<Blocks<Q8_0, Q8_0>>,
        DType::Q4_K => share::linear::<Blocks<Q4K, Min<8>>>,
        DType::Q5_K => share::linear::<Blocks<Q5K, Min<4>>>,
        DType::Q6_K => share::linear::<Blocks<Q6K, Sixteens<2>>>,
        _ => return None,
    })
}

/// Ends the chains of a piece: bias, sum with `y`, store. `acc` has octet `octet` of all rows.
///
/// # Safety
/// As [`LinearKernel`]; the piece lies in the share.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn store(piece: &Piece<'_>, octet: usize, acc: &[__m256]) {
    let args = piece.args;
    let first = ROWS * piece.tile + OCTET_ROWS * octet;
    let n_out = args.n_out.saturating_sub(first).min(OCTET_ROWS);
    // Lanes that are stored have their top bit set.
    let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    let mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(n_out as i32), lanes);
    for (m, &acc) in acc.iter().enumerate() {
        // SAFETY: the mask keeps to outputs below `n_out`, for which the caller promises `y`.
        unsafe {
            let y = args.y.wrapping_add((piece.t + m) * args.y_stride + first);
            let mut value = acc;
            if let Some(bias) = args.bias {
                let bias = _mm256_maskload_ps(bias.as_ptr().wrapping_add(first), mask);
                value = _mm256_add_ps(value, bias);
            }
            if args.add {
                value = _mm256_add_ps(value, _mm256_maskload_ps(y, mask));
            }
            _mm256_maskstore_ps(y, mask, value);
        }
    }
}
