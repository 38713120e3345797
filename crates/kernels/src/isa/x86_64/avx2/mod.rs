//! AVX2 with FMA and F16C: a vector is an octet, 8 output rows; a row tile has four.

mod float;
mod format;
mod linear;

use std::arch::x86_64::*;

use crate::dtype::DType;
use crate::isa::x86_64::{Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
use crate::linear::{LinearKernel, TileArgs};
use crate::weight::tile::ROWS;

/// Output rows of an octet.
const OCTET_ROWS: usize = 8;

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

/// Ends the chains of row `t` with octet `octet` of tile `tile`: bias, sum with `y`, store.
///
/// # Safety
/// As [`LinearKernel`]; the row and the tile exist.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn store(args: &TileArgs<'_>, t: usize, tile: usize, octet: usize, acc: __m256) {
    let first = ROWS * tile + OCTET_ROWS * octet;
    if first + OCTET_ROWS <= args.n_out {
        // SAFETY: 8 outputs below `n_out`, for which the caller promises `y` and `bias`.
        unsafe {
            let y = args.y.add(t * args.y_stride + first);
            let mut value = acc;
            if let Some(bias) = args.bias {
                value = _mm256_add_ps(value, _mm256_loadu_ps(bias[first..].as_ptr()));
            }
            if args.add {
                value = _mm256_add_ps(value, _mm256_loadu_ps(y));
            }
            _mm256_storeu_ps(y, value);
        }
        return;
    }
    let mut values = [0.0; OCTET_ROWS];
    // SAFETY: room for 8 values.
    unsafe { _mm256_storeu_ps(values.as_mut_ptr(), acc) };
    for o in first..args.n_out {
        let mut value = values[o - first];
        if let Some(bias) = args.bias {
            value += bias[o];
        }
        // SAFETY: `o` < `n_out`, for which the caller promises `y`.
        let y = unsafe { &mut *args.y.add(t * args.y_stride + o) };
        if args.add {
            value += *y;
        }
        *y = value;
    }
}
