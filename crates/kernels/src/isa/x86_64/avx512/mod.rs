//! AVX-512 with F, BW, DQ, VL and VNNI: a vector is one strip, 16 output rows.

mod float;
mod format;
mod linear;

use std::arch::x86_64::*;

use super::format::{Format, Iq4Nl, Iq4Xs, Mxfp4, Q2K, Q3K};
use super::format::{Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
use super::share::{self, Piece};
use crate::dtype::DType;
use crate::linear::{LinearKernel, TileArgs};
use crate::weight::tile::{ROWS, STRIP_ROWS};
use float::{BF16, F16, F32, Float};
use linear::{Min, MinHalves, Zero, ZeroHalves};

/// The kernel of the linear op for weights of `dtype`.
pub(crate) fn linear(dtype: DType) -> Option<LinearKernel> {
    Some(match dtype {
        DType::F32 => floats::<F32>,
        DType::F16 => floats::<F16>,
        DType::BF16 => floats::<BF16>,
        DType::Q4_0 => blocks::<Q4_0, Zero>,
        DType::Q4_1 => blocks::<Q4_1, Min>,
        DType::Q5_0 => blocks::<Q5_0, Zero>,
        DType::Q5_1 => blocks::<Q5_1, Min>,
        DType::Q8_0 => blocks::<Q8_0, Q8_0>,
        DType::IQ4_NL => blocks::<Iq4Nl, Zero>,
        DType::MXFP4 => blocks::<Mxfp4, Zero>,
        DType::Q2_K => blocks::<Q2K, MinHalves>,
        DType::Q3_K => blocks::<Q3K, ZeroHalves>,
        DType::Q4_K => blocks::<Q4K, Min>,
        DType::Q5_K => blocks::<Q5K, Min>,
        DType::Q6_K => blocks::<Q6K, ZeroHalves>,
        DType::IQ4_XS => blocks::<Iq4Xs, Zero>,
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

/// A copy, so that what is accumulated in registers need not live in memory to be passed on.
///
/// # Safety
/// AVX-512, shell.
#[inline(always)]
unsafe fn spilled<const MT: usize>(acc: &[[__m512; MT]; 2]) -> [[__m512; MT]; 2] {
    // SAFETY: the caller's promise.
    let mut copy = unsafe { [[_mm512_setzero_ps(); MT]; 2] };
    for s in 0..2 {
        for m in 0..MT {
            copy[s][m] = acc[s][m];
        }
    }
    copy
}

/// Ends the chains of a piece: bias, sum with `y`, store. `acc` has strip 0 of all rows, then
/// strip 1.
///
/// # Safety
/// As [`LinearKernel`]; the piece lies in the share.
#[target_feature(enable = "avx512f")]
unsafe fn store(piece: &Piece<'_>, acc: &[__m512]) {
    let args = piece.args;
    for (s, acc) in acc.chunks_exact(acc.len() / 2).enumerate() {
        let first = ROWS * piece.tile + STRIP_ROWS * s;
        let n_out = args.n_out.saturating_sub(first).min(STRIP_ROWS);
        let mask = ((1u32 << n_out) - 1) as u16;
        for (m, &acc) in acc.iter().enumerate() {
            // SAFETY: the mask keeps to outputs below `n_out`, for which the caller promises `y`.
            unsafe {
                let y = args.y.wrapping_add((piece.group.t() + m) * args.y_stride + first);
                let mut value = acc;
                if let Some(bias) = args.bias {
                    let bias = _mm512_maskz_loadu_ps(mask, bias.as_ptr().wrapping_add(first));
                    value = _mm512_add_ps(value, bias);
                }
                if args.add {
                    value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, y));
                }
                _mm512_mask_storeu_ps(y, mask, value);
            }
        }
    }
}
