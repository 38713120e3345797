//! x86-64: what the instruction sets share, the packed integer formats as data.
//!
//! A kernel is one generic body over a [`Format`] and a number of rows, inlined into a shell with
//! `#[target_feature]`. Intrinsics are functions of their feature: code between them and the shell
//! must be `#[inline(always)]`, and no closure.

pub(crate) mod avx2;
pub(crate) mod avx512;
#[cfg(test)]
mod tests;

use crate::mat::{ACT_BLOCK, Acts};
use crate::weight::tile::{q4_0, q4_1, q4_k, q5_0, q5_1, q5_k, q6_k, q8_0};

/// A packed integer format, see [`crate::weight`]: units of `blocks` blocks of 32 k, `head` bytes
/// before the first.
trait Format {
    /// Blocks of 32 k in a unit.
    const BLOCKS: usize = 1;
    /// Bytes of a unit before its first block.
    const HEAD: usize = 0;
    /// Bytes of a block.
    const BLOCK: usize;
    /// The code that means 0.
    const ZERO: i32;
    /// The codes, at the start of a block.
    const CODES: Codes;
    /// The scales.
    const SCALES: Scales;
    /// Steps of the chain in a block.
    const STEPS: usize = if let Scales::Sixteens { .. } = Self::SCALES { 2 } else { 1 };
    /// Whether there is a minimum.
    const HAS_MIN: bool = matches!(Self::SCALES, Scales::Min { .. } | Scales::Super { .. });
}

/// Sections that hold the codes of a block; offsets count from the block.
#[derive(Clone, Copy)]
enum Codes {
    /// 4-bit codes.
    Four,
    /// 4-bit codes, fifth bits.
    Five { fifth: usize },
    /// 4-bit codes, high pairs.
    Six { high: usize },
    /// 8-bit codes.
    Eight,
}

/// Sections that hold the scales.
#[derive(Clone, Copy)]
enum Scales {
    /// f16 `d` in the block.
    Plain { d: usize },
    /// f16 `d` and `m` in the block.
    Min { d: usize, m: usize },
    /// f16 `d` and `dmin` in the head, u8 `sc` and `m` in the block.
    Super { d: usize, dmin: usize, sc: usize, m: usize },
    /// f16 `d` in the head, i8 `sc` in the block: 32 of the first 16 k, 32 of the second.
    Sixteens { d: usize, sc: usize },
}

struct Q4_0;
struct Q4_1;
struct Q5_0;
struct Q5_1;
struct Q8_0;
struct Q4K;
struct Q5K;
struct Q6K;

impl Format for Q4_0 {
    const BLOCK: usize = q4_0::BYTES;
    const ZERO: i32 = 8;
    const CODES: Codes = Codes::Four;
    const SCALES: Scales = Scales::Plain { d: q4_0::D };
}

impl Format for Q4_1 {
    const BLOCK: usize = q4_1::BYTES;
    const ZERO: i32 = 0;
    const CODES: Codes = Codes::Four;
    const SCALES: Scales = Scales::Min { d: q4_1::D, m: q4_1::M };
}

impl Format for Q5_0 {
    const BLOCK: usize = q5_0::BYTES;
    const ZERO: i32 = 16;
    const CODES: Codes = Codes::Five { fifth: q5_0::FIFTH };
    const SCALES: Scales = Scales::Plain { d: q5_0::D };
}

impl Format for Q5_1 {
    const BLOCK: usize = q5_1::BYTES;
    const ZERO: i32 = 0;
    const CODES: Codes = Codes::Five { fifth: q5_1::FIFTH };
    const SCALES: Scales = Scales::Min { d: q5_1::D, m: q5_1::M };
}

impl Format for Q8_0 {
    const BLOCK: usize = q8_0::BYTES;
    const ZERO: i32 = 128;
    const CODES: Codes = Codes::Eight;
    const SCALES: Scales = Scales::Plain { d: q8_0::D };
}

impl Format for Q4K {
    const BLOCKS: usize = 8;
    const HEAD: usize = q4_k::SUBS;
    const BLOCK: usize = q4_k::SUB_BYTES;
    const ZERO: i32 = 0;
    const CODES: Codes = Codes::Four;
    const SCALES: Scales = Scales::Super { d: q4_k::D, dmin: q4_k::DMIN, sc: q4_k::SC, m: q4_k::M };
}

impl Format for Q5K {
    const BLOCKS: usize = 8;
    const HEAD: usize = q5_k::SUBS;
    const BLOCK: usize = q5_k::SUB_BYTES;
    const ZERO: i32 = 0;
    const CODES: Codes = Codes::Five { fifth: q5_k::FIFTH };
    const SCALES: Scales = Scales::Super { d: q5_k::D, dmin: q5_k::DMIN, sc: q5_k::SC, m: q5_k::M };
}

impl Format for Q6K {
    const BLOCKS: usize = 8;
    const HEAD: usize = q6_k::SUBS;
    const BLOCK: usize = q6_k::SUB_BYTES;
    const ZERO: i32 = 32;
    const CODES: Codes = Codes::Six { high: q6_k::HIGH };
    const SCALES: Scales = Scales::Sixteens { d: q6_k::D, sc: q6_k::SC };
}

/// Blocks of activations whose terms are computed together; a multiple of every
/// [`Format::BLOCKS`].
const CHUNK: usize = 16;

/// What the chain needs of up to [`CHUNK`] blocks of a row of activations beside the codes.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Terms {
    /// `dx`.
    scales: [f32; CHUNK],
    /// `dx S`, if there is a minimum.
    offsets: [f32; CHUNK],
    /// `-zero S` of the step, if there is a zero.
    starts: [[i32; CHUNK]; 2],
}

impl Terms {
    const ZERO: Terms =
        Terms { scales: [0.0; CHUNK], offsets: [0.0; CHUNK], starts: [[0; CHUNK]; 2] };

    /// The terms of blocks `first..first + n` of row `t`, in plain code for the compiler to
    /// vectorise in a shell.
    #[inline(always)]
    fn fill<F: Format>(&mut self, x: &Acts, t: usize, first: usize, n: usize) {
        let start = t * (x.cols / ACT_BLOCK) + first;
        self.scales = padded(&x.scales[start..start + n]);
        let sums = padded(&x.sums[start..start + n]);
        if F::HAS_MIN {
            for b in 0..CHUNK {
                self.offsets[b] = self.scales[b] * sums[b] as f32;
            }
        }
        if F::ZERO != 0 {
            for b in 0..CHUNK {
                self.starts[0][b] = -F::ZERO * sums[b];
            }
        }
        if F::STEPS == 2 {
            let codes = &x.codes[start * ACT_BLOCK..(start + n) * ACT_BLOCK];
            for (b, codes) in codes.chunks_exact(ACT_BLOCK).enumerate() {
                let second: i32 = codes[ACT_BLOCK / 2..].iter().map(|&code| i32::from(code)).sum();
                self.starts[0][b] += F::ZERO * second;
                self.starts[1][b] = -F::ZERO * second;
            }
        }
    }
}

/// `values`, filled up with zeros.
#[inline(always)]
fn padded<T: Copy + Default>(values: &[T]) -> [T; CHUNK] {
    match values.first_chunk() {
        Some(values) => *values,
        None => std::array::from_fn(|i| values.get(i).copied().unwrap_or_default()),
    }
}

/// Cuts `n` rows into groups of at most `max`, as equal as can be: `f(first, rows)`.
#[inline(always)]
fn row_groups(n: usize, max: usize) -> impl Iterator<Item = (usize, usize)> {
    let n_groups = n.div_ceil(max);
    (0..n_groups).map(move |i| {
        let first = n * i / n_groups;
        (first, n * (i + 1) / n_groups - first)
    })
}
