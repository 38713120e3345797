//! [`QMat`]: a weight matrix `[out, in]`, packed once at load into tiles that every instruction set
//! reads, in as many bytes as the file's format has.
//!
//! # Layout
//!
//! Output rows are cut into *row tiles* of 32, the last one filled up with zero rows (codes of value
//! 0, or scales of 0 where no code has this value). A row tile is contiguous and holds its blocks along `in`
//! (k) in ascending order; a weight is aligned to 64 bytes, sections are to 64, or to 32 where one
//! has no more. Inside a tile a SIMD lane of 32 bits belongs to one output
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
//! | single bits | 128 | s, u64 j = 0..8 | bit 4r+i: one bit of the code of k = 4j+i |
//! | pairs of bits | 256 | s, vector v = 0..2 | byte 4r+i: bits 2t, 2t+1 (t = 0..4) are two bits of the code of k = 4(4v+t)+i |
//! | f16 scales | 64 | row 0..32 | one little-endian f16 per row |
//! | u8, i8 scales | 32 | row 0..32 | one byte per row |
//!
//! Third bits and fifth bits are single bits, bit 2 and bit 4 of the codes. 2-bit codes are pairs of
//! bits, and so are high pairs, bits 4 and 5 of the codes.
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
//! | IQ4_NL | 32 | 576 | 4-bit codes, d | d v\[code\] |
//! | MXFP4 | 32 | 544 | 4-bit codes, u8 e | 2^(e - 128) v\[code\] |
//! | Q2_K | 256 | 2688 | d, dmin, then 8 of (2-bit codes, u8 sc + 16 m of the first 16 k, the same of the second 16 k) | (d sc) code - (dmin m) |
//! | Q3_K | 256 | 3648 | d, then 8 of (2-bit codes, third bits, i8 sc of the first 16 k, i8 sc of the second 16 k) | (d sc) (code - 4) |
//! | Q4_K | 256 | 4736 | d, dmin, then 8 of (4-bit codes, u8 sc, u8 m) | (d sc) code - (dmin m) |
//! | Q5_K | 256 | 5760 | d, dmin, then 8 of (4-bit codes, fifth bits, u8 sc, u8 m) | (d sc) code - (dmin m) |
//! | Q6_K | 256 | 6720 | d, then 8 of (4-bit codes, high pairs, i8 sc of the first 16 k, i8 sc of the second 16 k) | (d sc) (code - 32) |
//! | IQ4_XS | 256 | 4416 | d, then 8 of (4-bit codes, i8 sc) | (d sc) v\[code\] |
//! | F32 | 1 | 128 | 32 f32 | |
//! | F16, BF16 | 1 | 64 | 32 f16 or bf16 | |

pub(crate) mod tile;

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::arena::{AllocError, Arena};
use crate::cpu::Cpu;
use crate::dtype::DType;
use crate::mat::Forms;
use crate::quant::{self, Block, Float, GROUP, QuantError, match_format};
use crate::split::Split;
use tile::ROWS;

/// A packed weight `[out, in]`; the module documentation draws its layout.
#[derive(Debug)]
pub struct QMat {
    dtype: DType,
    n_out: usize,
    n_in: usize,
    data: Arena,
}

/// A tensor is no weight that can be computed with.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// The type is known by name only.
    #[error(transparent)]
    Unsupported(#[from] QuantError),
    /// One of the dimensions is 0.
    #[error("a weight of {n_out} x {n_in} values has none")]
    Empty {
        /// Output rows.
        n_out: usize,
        /// Values in a row.
        n_in: usize,
    },
    /// Blocks would straddle rows.
    #[error(
        "rows of {n_in} values are no whole blocks of {dtype}, which has {block_len} values a block"
    )]
    Ragged {
        /// The type.
        dtype: DType,
        /// Values in a row.
        n_in: usize,
        /// Values in a block.
        block_len: usize,
    },
    /// The number of bytes is not that of the shape.
    #[error("{n_out} x {n_in} values of {dtype} do not fill {n_bytes} bytes")]
    WrongSize {
        /// The type.
        dtype: DType,
        /// Output rows.
        n_out: usize,
        /// Values in a row.
        n_in: usize,
        /// Bytes given.
        n_bytes: usize,
    },
    /// A scale or a weight is infinite or NaN.
    #[error("row {row} holds a number that is not finite: the file is damaged")]
    NotFinite {
        /// The first such row.
        row: usize,
    },
    /// No memory for the tiles.
    #[error(transparent)]
    Alloc(#[from] AllocError),
}

/// Bytes that a [`Packer`] asks of the system at once.
const CHUNK_BYTES: usize = 64 << 20;

/// What a weight is aligned to.
const LINE: usize = 64;

/// Packs the weights of a model one after the other into shared huge pages. Most weights are
/// smaller than such a page, and would get none for themselves.
pub struct Packer<'a> {
    cpu: Option<&'a Cpu>,
    float: bool,
    chunk_bytes: usize,
    chunk: Option<Arena>,
}

impl<'a> Packer<'a> {
    /// A packer that works on all threads of `cpu`, if any, or on the calling one.
    pub fn new(cpu: Option<&'a Cpu>) -> Packer<'a> {
        Packer { cpu, float: false, chunk_bytes: CHUNK_BYTES, chunk: None }
    }

    /// Float mode, for tests: every format is decoded to F32 tiles.
    pub fn float(mut self, float: bool) -> Packer<'a> {
        self.float = float;
        self
    }

    /// A packer of one weight, in memory of its own.
    fn alone(float: bool) -> Packer<'a> {
        Packer { cpu: None, float, chunk_bytes: 0, chunk: None }
    }

    /// Packs `bytes`, row-major as in a file.
    ///
    /// # Errors
    /// If the type does not compute, the bytes are not those of `[n_out, n_in]`, a scale or a weight
    /// is not finite, or there is no memory.
    pub fn pack(
        &mut self,
        dtype: DType,
        n_out: usize,
        n_in: usize,
        bytes: &[u8],
    ) -> Result<QMat, PackError> {
        let row_bytes = check(dtype, n_out, n_in, bytes)?;
        let packed = if self.float { DType::F32 } else { dtype };
        let tile_bytes = tile_bytes(packed, n_in);
        let n_bytes = tile_bytes.saturating_mul(n_out.div_ceil(ROWS));
        let mut data = self.take(n_bytes)?;

        // Each item is a row tile; a ragged last one has rows without bytes.
        let fill = |item: usize, tile: &mut [u8]| -> Result<(), usize> {
            let rows = &bytes[item * ROWS * row_bytes..];
            let row = |r: usize| rows.get(r * row_bytes..(r + 1) * row_bytes);
            let filled = match_format!(dtype,
                B => if self.float {
                    fill_float(tile, dtype, row, |row, values| {
                        quant::decode_blocks::<B>(quant::blocks(row), values);
                    })
                } else {
                    fill_blocks::<B>(tile, row)
                },
                F => if self.float {
                    fill_float(tile, dtype, row, quant::decode_floats::<F>)
                } else {
                    fill_floats::<F>(tile, row)
                },
                _ => unreachable!("checked above"),
            );
            filled.map_err(|r| item * ROWS + r)
        };
        let bad_row = AtomicUsize::new(usize::MAX);
        let tiles = Split::new(data.as_mut_slice());
        let work = |item: usize| {
            // SAFETY: each item has its own tile.
            let tile = unsafe { tiles.part(item * tile_bytes..(item + 1) * tile_bytes) };
            if let Err(row) = fill(item, tile) {
                bad_row.fetch_min(row, Ordering::Relaxed);
            }
        };
        match self.cpu {
            Some(cpu) => cpu.team.for_each(n_out.div_ceil(ROWS), work),
            None => (0..n_out.div_ceil(ROWS)).for_each(work),
        }
        match bad_row.into_inner() {
            usize::MAX => Ok(QMat { dtype: packed, n_out, n_in, data }),
            row => Err(PackError::NotFinite { row }),
        }
    }

    /// Zeroed memory out of the current chunk, or out of a new one.
    fn take(&mut self, n_bytes: usize) -> Result<Arena, AllocError> {
        if n_bytes > self.chunk_bytes / 2 {
            return Arena::zeroed(n_bytes);
        }
        let chunk = match self.chunk.take() {
            Some(chunk) if chunk.n_bytes() >= n_bytes => chunk,
            _ => Arena::zeroed(self.chunk_bytes)?,
        };
        let chunk = self.chunk.insert(chunk);
        let data = chunk.split_to(n_bytes);
        // The next one starts on a line; a chunk is whole lines.
        chunk.split_to(n_bytes.next_multiple_of(LINE) - n_bytes);
        Ok(data)
    }
}

impl QMat {
    /// Packs one weight by itself on the calling thread; a model's weights go through a [`Packer`].
    ///
    /// # Errors
    /// As [`Packer::pack`].
    pub fn pack(dtype: DType, n_out: usize, n_in: usize, bytes: &[u8]) -> Result<QMat, PackError> {
        Packer::alone(false).pack(dtype, n_out, n_in, bytes)
    }

    /// As [`QMat::pack`], decoded to F32 tiles.
    ///
    /// # Errors
    /// As [`Packer::pack`].
    pub fn pack_float(
        dtype: DType,
        n_out: usize,
        n_in: usize,
        bytes: &[u8],
    ) -> Result<QMat, PackError> {
        Packer::alone(true).pack(dtype, n_out, n_in, bytes)
    }

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

    /// The form in which the weight reads its activations.
    pub fn forms(&self) -> Forms {
        let float = is_float(self.dtype);
        Forms { float, int8: !float }
    }

    /// `values` = row `i`, exactly as [`quant::decode`] has it.
    ///
    /// # Panics
    /// If there is no row `i`, or `values` is not as long as a row.
    pub fn row(&self, i: usize, values: &mut [f32]) {
        assert!(i < self.n_out, "row {i} of {}", self.n_out);
        assert_eq!(values.len(), self.n_in, "values of a row");
        let (tile, row) = (&self.tiles()[i / ROWS * self.tile_bytes()..], i % ROWS);
        match_format!(self.dtype,
            B => {
                let blocks = values.chunks_exact_mut(B::N_GROUPS * GROUP);
                for (values, block) in blocks.zip(tile.chunks_exact(B::TILE_BYTES)) {
                    for (g, values) in values.chunks_exact_mut(GROUP).enumerate() {
                        quant::write_group::<B>(&B::unpack(block, row, g), values);
                    }
                }
            },
            F => for (k, value) in values.iter_mut().enumerate() {
                *value = F::read(&tile[(k * ROWS + row) * F::BYTES..]);
            },
            _ => unreachable!("only what computes is packed"),
        );
    }

    /// The row tiles, one after the other.
    pub(crate) fn tiles(&self) -> &[u8] {
        self.data.as_slice()
    }

    /// Number of row tiles.
    pub(crate) fn n_tiles(&self) -> usize {
        self.n_out.div_ceil(ROWS)
    }

    /// Bytes of a row tile.
    pub(crate) fn tile_bytes(&self) -> usize {
        tile_bytes(self.dtype, self.n_in)
    }
}

/// Bytes of a row of the tensor, if the whole of it makes sense.
fn check(dtype: DType, n_out: usize, n_in: usize, bytes: &[u8]) -> Result<usize, PackError> {
    if !quant::computes(dtype) {
        return Err(QuantError::Unsupported(dtype).into());
    }
    if n_out == 0 || n_in == 0 {
        return Err(PackError::Empty { n_out, n_in });
    }
    let block_len = dtype.info().block_len;
    if !n_in.is_multiple_of(block_len) {
        return Err(PackError::Ragged { dtype, n_in, block_len });
    }
    let row_bytes = dtype.n_bytes(n_in);
    if row_bytes.and_then(|row_bytes| row_bytes.checked_mul(n_out)) != Some(bytes.len()) {
        return Err(PackError::WrongSize { dtype, n_out, n_in, n_bytes: bytes.len() });
    }
    Ok(bytes.len() / n_out)
}

fn is_float(dtype: DType) -> bool {
    match_format!(dtype, B => false, F => true, _ => false)
}

/// Bytes of a row tile; saturates, so that what overflows is refused as an allocation.
fn tile_bytes(dtype: DType, n_in: usize) -> usize {
    match_format!(dtype,
        B => (n_in / (B::N_GROUPS * GROUP)).saturating_mul(B::TILE_BYTES),
        F => n_in.saturating_mul(ROWS * F::BYTES),
        _ => unreachable!("only what computes is packed"),
    )
}

/// Fills a row tile from its rows, `None` past the last; a row with a bad scale is the error.
fn fill_blocks<'a, B: Block>(
    tile: &mut [u8],
    row: impl Fn(usize) -> Option<&'a [u8]>,
) -> Result<(), usize> {
    let zero = B::ZERO;
    for r in 0..ROWS {
        let row: Option<&[B]> = row(r).map(quant::blocks);
        for (b, tile) in tile.chunks_exact_mut(B::TILE_BYTES).enumerate() {
            let block = row.map_or(&zero, |row| &row[b]);
            if !block.is_finite() {
                return Err(r);
            }
            block.pack(r, tile);
        }
    }
    Ok(())
}

/// As [`fill_blocks`], for float formats.
fn fill_floats<'a, F: Float>(
    tile: &mut [u8],
    row: impl Fn(usize) -> Option<&'a [u8]>,
) -> Result<(), usize> {
    for (r, row) in (0..ROWS).map_while(|r| row(r).map(|row| (r, row))) {
        let lanes = tile.chunks_exact_mut(ROWS * F::BYTES);
        for (lanes, value) in lanes.zip(row.chunks_exact(F::BYTES)) {
            if !F::is_finite(value) {
                return Err(r);
            }
            lanes[r * F::BYTES..(r + 1) * F::BYTES].copy_from_slice(value);
        }
    }
    Ok(())
}

/// As [`fill_blocks`], through `decode` into F32 tiles.
fn fill_float<'a>(
    tile: &mut [u8],
    dtype: DType,
    row: impl Fn(usize) -> Option<&'a [u8]>,
    decode: impl Fn(&[u8], &mut [f32]),
) -> Result<(), usize> {
    /// Values decoded at once, a multiple of every block; with all rows they fit the L1 cache.
    const LEN: usize = 256;
    let mut values = [[0.0; LEN]; ROWS];
    for (i, lanes) in tile.chunks_mut(LEN * ROWS * size_of::<f32>()).enumerate() {
        let lanes = lanes.as_chunks_mut::<{ ROWS * size_of::<f32>() }>().0;
        let bytes = |len: usize| dtype.n_bytes(len).expect("whole blocks");
        for (r, row) in (0..ROWS).map_while(|r| row(r).map(|row| (r, row))) {
            let values = &mut values[r][..lanes.len()];
            decode(&row[bytes(i * LEN)..][..bytes(lanes.len())], values);
            if values.iter().any(|value| !value.is_finite()) {
                return Err(r);
            }
        }
        for (k, lanes) in lanes.iter_mut().enumerate() {
            for (value, lane) in values.iter().zip(lanes.as_chunks_mut().0) {
                *lane = value[k].to_le_bytes();
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_a_packer_are_aligned() {
        let mut packer = Packer::new(None);
        for n_in in [32, 96, 64, 32] {
            let bytes = vec![0; DType::MXFP4.n_bytes(n_in).unwrap()];
            let weight = packer.pack(DType::MXFP4, 1, n_in, &bytes).unwrap();
            assert_eq!(weight.tiles().as_ptr().align_offset(LINE), 0);
            assert_eq!(weight.n_bytes(), weight.tile_bytes());
        }
    }
}
