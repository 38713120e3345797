//! MXFP4: 32 floats of four bits, `2^(e - 128) v[code]`, v twice the values of E2M1 (OCP
//! Microscaling Formats 1.0), e an E8M0 exponent.

use super::{Block, GROUP, Group, nibbles};
use crate::dtype::DType;
use crate::weight::tile::{self, mxfp4 as at};

/// Twice the values of the codes: a sign, two bits of exponent, one of mantissa. Both zeros are 0.
pub(crate) const VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The largest exponent with which all values are finite.
const LARGEST: u8 = 252;

/// A block as the file has it: byte i holds the codes of k = i (low nibble) and k = 16 + i.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MXFP4 {
    e: u8,
    qs: [u8; 16],
}

fn group(qs: &[u8; 16], e: u8) -> Group {
    // An f64 has room for the exponents that an f32 only has as subnormal numbers.
    let d = f64::from_bits((u64::from(e) + 1023 - 128) << 52) as f32;
    let q: [i8; GROUP] = nibbles(qs).map(|code| VALUES[usize::from(code)]);
    Group { q, d: [d; 2], m: [0.0; 2] }
}

// SAFETY: bytes only.
unsafe impl Block for MXFP4 {
    const DTYPE: DType = DType::MXFP4;
    // A scale of 1: products with subnormal ones are slow.
    const ZERO: MXFP4 = MXFP4 { e: 128, qs: [0; 16] };
    const TILE_BYTES: usize = at::BYTES;

    fn is_finite(&self) -> bool {
        self.e <= LARGEST
    }

    fn group(&self, _g: usize) -> Group {
        group(&self.qs, self.e)
    }

    fn pack(&self, row: usize, tile: &mut [u8]) {
        tile::put_nibbles(&self.qs, row, tile);
        tile[at::E + row] = self.e;
    }

    fn unpack(tile: &[u8], row: usize, _g: usize) -> Group {
        group(&tile::nibbles(row, tile), tile[at::E + row])
    }
}
