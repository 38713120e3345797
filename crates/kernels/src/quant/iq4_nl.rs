//! IQ4_NL: 32 values `d v[code]`, code in 0..=15 of a fixed codebook v.

use super::{Block, GROUP, Group, Half, nibbles};
use crate::dtype::DType;
use crate::weight::tile::{self, iq4_nl as at};

/// The codebook, which is that of IQ4_XS as well: steps grow with the distance from zero.
pub(crate) const VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// A block as the file has it: byte i holds the codes of k = i (low nibble) and k = 16 + i.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IQ4_NL {
    d: Half,
    qs: [u8; 16],
}

/// Group of the codes in `qs`, as IQ4_XS has them as well.
pub(super) fn group(qs: &[u8; 16], d: f32) -> Group {
    let q: [i8; GROUP] = nibbles(qs).map(|code| VALUES[usize::from(code)]);
    Group { q, d: [d; 2], m: [0.0; 2] }
}

// SAFETY: bytes only.
unsafe impl Block for IQ4_NL {
    const DTYPE: DType = DType::IQ4_NL;
    const ZERO: IQ4_NL = IQ4_NL { d: Half::ZERO, qs: [0; 16] };
    const TILE_BYTES: usize = at::BYTES;

    fn is_finite(&self) -> bool {
        self.d.is_finite()
    }

    fn group(&self, _g: usize) -> Group {
        group(&self.qs, self.d.to_f32())
    }

    fn pack(&self, row: usize, tile: &mut [u8]) {
        tile::put_nibbles(&self.qs, row, tile);
        self.d.put(row, &mut tile[at::D..]);
    }

    fn unpack(tile: &[u8], row: usize, _g: usize) -> Group {
        group(&tile::nibbles(row, tile), Half::get(row, &tile[at::D..]))
    }
}
