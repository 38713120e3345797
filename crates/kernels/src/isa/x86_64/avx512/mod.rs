//! AVX-512 with F, BW, DQ, VL and VNNI: a vector is one strip, 16 output rows.

mod float;
mod format;
mod linear;

use std::arch::x86_64::*;

use crate::dtype::DType;
use crate::isa::x86_64::{Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
use crate::linear::{LinearKernel, TileArgs};
use crate::weight::tile::{ROWS, STRIP_ROWS};

/// The kernel of the linear op for weights of `dtype`.
pub(crate) fn linear(dtype: DType) -> Option<LinearKernel> {
    Some(match dtype {
        DType::F32 => float::linear::<float::F32>,
        DType::F16 => float::linear::<float::F16>,
        DType::BF16 => float::linear::<float::BF16>,
        DType::Q4_0 => linear::linear::<Q4_0>,
        DType::Q4_1 => linear::linear::<Q4_1>,
        DType::Q5_0 => linear::linear::<Q5_0>,
        DType::Q5_1 => linear::linear::<Q5_1>,
        DType::Q8_0 => linear::linear::<Q8_0>,
        DType::Q4_K => linear::linear::<Q4K>,
        DType::Q5_K => linear::linear::<Q5K>,
        DType::Q6_K => linear::linear::<Q6K>,
        _ => return None,
    })
}

/// Ends the chains of some rows from row `t` with tile `tile`: bias, sum with `y`, store. `acc`
/// has the rows of strip 0, then those of strip 1.
///
/// # Safety
/// As [`LinearKernel`]; the rows and the tile exist.
#[target_feature(enable = "avx512f")]
unsafe fn store(args: &TileArgs<'_>, tile: usize, t: usize, acc: &[__m512]) {
    let n_rows = acc.len() / 2;
    for (s, acc) in acc.chunks_exact(n_rows).enumerate() {
        let first = ROWS * tile + STRIP_ROWS * s;
        let n_out = args.n_out.saturating_sub(first).min(STRIP_ROWS);
        let mask = ((1u32 << n_out) - 1) as u16;
        for (m, &acc) in acc.iter().enumerate() {
            // SAFETY: the mask keeps to outputs below `n_out`, for which the caller promises `y`.
            unsafe {
                let y = args.y.wrapping_add((t + m) * args.y_stride + first);
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
