//! Activations as a chain reads them.

use super::format::Format;
use crate::mat::{ACT_BLOCK, Acts};

/// Blocks whose terms are computed together; a multiple of every [`Format::BLOCKS`].
pub(super) const CHUNK: usize = 16;

/// What the chain needs of [`CHUNK`] blocks of a row of activations beside the codes.
#[repr(C, align(64))]
pub(super) struct Terms {
    /// `dx`.
    pub(super) scales: [f32; CHUNK],
    /// `dx S`, if there is a minimum.
    pub(super) offsets: [f32; CHUNK],
    /// `-zero S` of each step, if there is a zero.
    pub(super) starts: [[i32; CHUNK]; 2],
}

impl Terms {
    /// The terms of the blocks from block `first` of row `t`, in plain code for the compiler to
    /// vectorise in a shell. Past the end of the row they are of no use and no harm.
    #[inline(always)]
    pub(super) fn of<F: Format>(x: &Acts, t: usize, first: usize) -> Terms {
        let start = t * (x.cols / ACT_BLOCK) + first;
        let scales = chunk(&x.scales[start..], 0.0);
        let sums = chunk(&x.sums[start..], [0; 2]);
        let mut terms = Terms { scales, offsets: [0.0; CHUNK], starts: [[0; CHUNK]; 2] };
        for b in 0..CHUNK {
            let [low, high] = sums[b];
            if F::HAS_MIN {
                terms.offsets[b] = scales[b] * (low + high) as f32;
            }
            if F::STEPS == 2 {
                terms.starts[0][b] = -F::ZERO * low;
                terms.starts[1][b] = -F::ZERO * high;
            } else {
                terms.starts[0][b] = -F::ZERO * (low + high);
            }
        }
        terms
    }
}

/// The first values, filled up with `padding` if there are fewer.
#[inline(always)]
fn chunk<T: Copy>(values: &[T], padding: T) -> [T; CHUNK] {
    match values.first_chunk() {
        Some(chunk) => *chunk,
        None => padded(values, padding),
    }
}

#[cold]
fn padded<T: Copy>(values: &[T], padding: T) -> [T; CHUNK] {
    let mut chunk = [padding; CHUNK];
    chunk[..values.len()].copy_from_slice(values);
    chunk
}
