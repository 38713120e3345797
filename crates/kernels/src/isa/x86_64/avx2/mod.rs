//! AVX2 with FMA and F16C: a vector is an octet, 8 output rows; a row tile has four.

mod float;
mod format;
mod linear;

use std::arch::x86_64::*;

use super::format::{Expanded, Format, Iq4Nl, Iq4Xs, Mxfp4, Q2K, Q3K};
use super::format::{Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
use super::share::{self, Piece};
use crate::dtype::DType;
use crate::linear::{LinearKernel, TileArgs};
use crate::weight::tile::ROWS;
use float::{BF16, F16, F32, Float};

/// Output rows of an octet.
const OCTET_ROWS: usize = 8;

/// The kernel of the linear op for weights of `dtype`.
pub(crate) fn linear(dtype: DType) -> Option<LinearKernel> {
    type Zero<const ZERO: i32, const LARGEST: u8> = Expanded<ZERO, false, 1, LARGEST>;
    type Min<const LARGEST: u8> = Expanded<0, true, 1, LARGEST>;
    Some(match dtype {
        DType::F32 => floats::<F32>,
        DType::F16 => floats::<F16>,
        DType::BF16 => floats::<BF16>,
        DType::Q4_0 => blocks::<Q4_0, Zero<8, 15>>,
        DType::Q4_1 => blocks::<Q4_1, Min<15>>,
        DType::Q5_0 => blocks::<Q5_0, Zero<16, 31>>,
        DType::Q5_1 => blocks::<Q5_1, Min<31>>,
        DType::Q8_0 => blocks::<Q8_0, Q8_0>,
        DType::IQ4_NL => blocks::<Iq4Nl, Zero<128, 241>>,
        DType::MXFP4 => blocks::<Mxfp4, Zero<16, 28>>,
        DType::Q2_K => blocks::<Q2K, Expanded<0, true, 2, 3>>,
        DType::Q3_K => blocks::<Q3K, Expanded<4, false, 2, 7>>,
        DType::Q4_K => blocks::<Q4K, Min<15>>,
        DType::Q5_K => blocks::<Q5K, Min<31>>,
        DType::Q6_K => blocks::<Q6K, Expanded<32, false, 2, 63>>,
        DType::IQ4_XS => blocks::<Iq4Xs, Zero<128, 241>>,
        _ => return None,
    })
}

/// # Safety
/// As [`LinearKernel`].
unsafe fn floats<F: Float>(args: &TileArgs<'_>) {
    // SAFETY: the caller's promise.
    unsafe { share::linear(args, &const { float::kernels::<F>() }) }
}

/// # Safety
/// As [`LinearKernel`].
unsafe fn blocks<F: Format, E: Format>(args: &TileArgs<'_>) {
    // SAFETY: the caller's promise.
    unsafe { share::linear(args, &const { linear::kernels::<F, E>() }) }
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
            let y = args.y.wrapping_add((piece.group.t() + m) * args.y_stride + first);
            let mut value = acc;
            if let Some(bias) = args.bias {
                let bias = _mm256_maskload_ps(bias.as_ptr().wrapping_add(first), mask);
                value = _mm256_add_ps(value, bias);
            }
            if args.add {
                value = _mm256_add_ps(value, _mm256_maskload_ps(y, mask));
            }
            // Some processors take twenty times as long for a masked store.
            match n_out == OCTET_ROWS {
                true => _mm256_storeu_ps(y, value),
                false => _mm256_maskstore_ps(y, mask, value),
            }
        }
    }
}
