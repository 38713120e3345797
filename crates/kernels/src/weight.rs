//! [`QMat`]: a weight matrix `[out, in]`, packed once at load into tiles that every instruction set
//! reads, in as many bytes as the file's format has.
//!
//! # Layout
//!
//! Output rows are cut into *row tiles* of 32, the last one filled up with zero rows (codes of value
//! 0, scales of 0). A row tile is contiguous and holds its blocks along `in` (k) in ascending order;
//! everything is aligned to 64 bytes. Inside a tile a SIMD lane of 32 bits belongs to one output
//! row, so that a dot product never needs a sum across lanes. The 32 rows form two *strips* of 16,
//! one 64-byte vector wide: strip s holds the rows 16s..16s+15.
//!
//! ```text
//!            in (k) ->
//!       +---------+---------+-- --+---------+
//!  out  | block 0 | block 1 | ... | block n | row tile 0: 32 rows, contiguous
//!   |   +---------+---------+-- --+---------+
//!   v   | block 0 | block 1 | ... | block n | row tile 1
//!
//!  one vector (64 bytes):  | row 16s        | row 16s+1      | ... | row 16s+15     |
//!                          | k k+1 k+2 k+3  | k k+1 k+2 k+3  | ... | k k+1 k+2 k+3  |
//!                  byte      0 1   2   3      4 5   6   7            60 ...      63
//! ```
//!
//! Sections of a block of 32 k, with row r = 0..16 inside strip s = 0..2 and i = 0..4:
//!
//! | section | bytes | order | contents |
//! |---|---|---|---|
//! | 4-bit codes | 512 | s, vector j = 0..4 | byte 4r+i: low nibble is k = 4j+i, high nibble k = 16+4j+i |
//! | 8-bit codes | 1024 | s, vector j = 0..8 | byte 4r+i: q + 128 of k = 4j+i |
//! | fifth bits | 128 | s, u64 j = 0..8 | bit 4r+i: bit 4 of the code of k = 4j+i |
//! | high pairs | 256 | s, vector v = 0..2 | byte 4r+i: bits 2t, 2t+1 (t = 0..4) are bits 4, 5 of the code of k = 4(4v+t)+i |
//! | f16 scales | 64 | row 0..32 | one little-endian f16 per row |
//! | u8, i8 scales | 32 | row 0..32 | one byte per row |
//!
//! Blocks (offsets are constants of the module `tile`):
//!
//! | format | k | bytes | sections | value |
//! |---|---|---|---|---|
//! | Q4_0 | 32 | 576 | 4-bit codes, d | d (code - 8) |
//! | Q4_1 | 32 | 640 | 4-bit codes, d, m | d code + m |
//! | Q5_0 | 32 | 704 | 4-bit codes, fifth bits, d | d (code - 16) |
//! | Q5_1 | 32 | 768 | 4-bit codes, fifth bits, d, m | d code + m |
//! | Q8_0 | 32 | 1088 | 8-bit codes, d | d (code - 128) |
//! | Q4_K | 256 | 4736 | d, dmin, then 8 of (4-bit codes, u8 sc, u8 m) | (d sc) code - (dmin m) |
//! | Q5_K | 256 | 5760 | d, dmin, then 8 of (4-bit codes, fifth bits, u8 sc, u8 m) | (d sc) code - (dmin m) |
//! | Q6_K | 256 | 6720 | d, then 8 of (4-bit codes, high pairs, i8 sc of the first 16 k, i8 sc of the second 16 k) | (d sc) (code - 32) |
//! | F32 | 1 | 128 | 32 f32 | |
//! | F16, BF16 | 1 | 64 | 32 f16 or bf16 | |

pub(crate) mod tile;

use crate::arena::Arena;
use crate::dtype::DType;

/// A packed weight `[out, in]`; the module documentation draws its layout.
#[derive(Debug)]
pub struct QMat {
    dtype: DType,
    n_out: usize,
    n_in: usize,
    data: Arena,
}

impl QMat {
    /// Format of the tiles.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Output rows.
    pub fn n_out(&self) -> usize {
        self.n_out
    }

    /// Values in a row.
    pub fn n_in(&self) -> usize {
        self.n_in
    }

    /// Bytes of the tiles, padding rows included.
    pub fn n_bytes(&self) -> usize {
        self.data.n_bytes()
    }

    /// The row tiles, one after the other.
    #[allow(dead_code)] // Until the op lands.
    pub(crate) fn tiles(&self) -> &[u8] {
        self.data.as_slice()
    }
}
