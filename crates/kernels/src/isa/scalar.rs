//! Portable kernels of the linear op: the oracle of all others, so plain before quick.

use crate::dtype::DType;
use crate::linear::{LinearKernel, TileArgs};
use crate::mat::ActBlock;
use crate::quant::{Block, Float, GROUP, Group, match_format};
use crate::weight::tile::ROWS;

/// Rows of activations that share one unpacking of the weights.
const HEIGHT: usize = 8;

/// The kernel for weights of `dtype`.
///
/// # Panics
/// If the type does not compute.
pub(crate) fn linear(dtype: DType) -> LinearKernel {
    match_format!(dtype,
        B => linear_blocks::<B>,
        F => linear_floats::<F>,
        _ => unreachable!("only what computes is packed"),
    )
}

/// # Safety
/// As [`LinearKernel`].
unsafe fn linear_blocks<B: Block>(args: &TileArgs<'_>) {
    let x = args.x;
    let tile_bytes = x.cols / (B::N_GROUPS * GROUP) * B::TILE_BYTES;
    let tiles = args.tiles.chunks_exact(tile_bytes).take(args.n_out.div_ceil(ROWS));
    for (i, tile) in tiles.enumerate() {
        for first in args.rows().step_by(HEIGHT) {
            let height = HEIGHT.min(args.rows().end - first);
            let mut acc = [[0.0; ROWS]; HEIGHT];
            for (b, block) in tile.chunks_exact(B::TILE_BYTES).enumerate() {
                let blocks: Vec<[ActBlock; HEIGHT]> = (0..B::N_GROUPS)
                    .map(|g| {
                        let block = |t| x.block(first + t, b * B::N_GROUPS + g);
                        std::array::from_fn(|t| block(t.min(height - 1)))
                    })
                    .collect();
                for (row, g) in (0..ROWS).flat_map(|row| (0..B::N_GROUPS).map(move |g| (row, g))) {
                    let group = B::unpack(block, row, g);
                    for (t, acc) in acc[..height].iter_mut().enumerate() {
                        step::<B>(&group, &blocks[g][t], &mut acc[row]);
                    }
                }
            }
            for (t, acc) in acc[..height].iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe { args.store(first + t, i, acc) };
            }
        }
    }
}

/// One group of the chain.
fn step<B: Block>(w: &Group, x: &ActBlock, acc: &mut f32) {
    let (q, dx) = (&x.codes, x.scale);
    if B::HAS_HALVES {
        let halves = w.q.as_chunks::<16>().0.iter().zip(q.as_chunks::<16>().0);
        for (half, (w_half, q_half)) in halves.enumerate() {
            *acc = (dot(w_half, q_half) as f32).mul_add(w.d[half] * dx, *acc);
            if B::HAS_MIN {
                let sum: i32 = q_half.iter().map(|&q| i32::from(q)).sum();
                *acc = w.m[half].mul_add(dx * sum as f32, *acc);
            }
        }
    } else {
        *acc = (dot(&w.q, q) as f32).mul_add(w.d[0] * dx, *acc);
        if B::HAS_MIN {
            *acc = w.m[0].mul_add(x.offset, *acc);
        }
    }
}

fn dot<const N: usize>(a: &[i8; N], b: &[i8; N]) -> i32 {
    a.iter().zip(b).map(|(&a, &b)| i32::from(a) * i32::from(b)).sum()
}

/// # Safety
/// As [`LinearKernel`].
unsafe fn linear_floats<F: Float>(args: &TileArgs<'_>) {
    let x = args.x;
    let tiles = args.tiles.chunks_exact(x.cols * ROWS * F::BYTES);
    for (i, tile) in tiles.take(args.n_out.div_ceil(ROWS)).enumerate() {
        for first in args.rows().step_by(HEIGHT) {
            let height = HEIGHT.min(args.rows().end - first);
            let mut acc = [[0.0f32; ROWS]; HEIGHT];
            for (k, lanes) in tile.chunks_exact(ROWS * F::BYTES).enumerate() {
                for (row, w) in lanes.chunks_exact(F::BYTES).enumerate() {
                    let w = F::read(w);
                    for (t, acc) in acc[..height].iter_mut().enumerate() {
                        acc[row] = w.mul_add(x.float[(first + t) * x.cols + k], acc[row]);
                    }
                }
            }
            for (t, acc) in acc[..height].iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe { args.store(first + t, i, acc) };
            }
        }
    }
}
