//! Q5_0: 32 values `d (code - 16)`, code in 0..=31.

use super::{Block, GROUP, Group, Half, add_bit, extreme, fifth_bits};
use super::{inverse, join_nibbles, minus, nibbles};
use crate::dtype::DType;
use crate::weight::tile::{self, q5_0 as at};

/// A block as the file has it: byte i holds the low bits of k = i (low nibble) and k = 16 + i; bit
/// k of the little-endian `qh` is the fifth bit of k.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Q5_0 {
    d: Half,
    qh: [u8; 4],
    qs: [u8; 16],
}

impl Q5_0 {
    /// The value of largest magnitude becomes code 0, the others are rounded to nearest.
    pub(super) fn encode(values: &[f32; GROUP]) -> Q5_0 {
        let d = extreme(values) / -16.0;
        let id = inverse(d);
        let codes = values.map(|value| ((value * id + 16.5) as u8).min(31));
        let qh = fifth_bits(&codes).to_le_bytes();
        Q5_0 { d: Half::from_f32(d), qh, qs: join_nibbles(&codes) }
    }
}

// SAFETY: bytes only.
unsafe impl Block for Q5_0 {
    const DTYPE: DType = DType::Q5_0;
    const ZERO: Q5_0 = Q5_0 { d: Half::ZERO, qh: [0xff; 4], qs: [0; 16] };
    const TILE_BYTES: usize = at::BYTES;

    fn is_finite(&self) -> bool {
        self.d.is_finite()
    }

    fn group(&self, _g: usize) -> Group {
        let codes = add_bit(nibbles(&self.qs), u32::from_le_bytes(self.qh), 4);
        Group { q: minus(codes, 16), d: [self.d.to_f32(); 2], m: [0.0; 2] }
    }

    fn pack(&self, row: usize, tile: &mut [u8]) {
        tile::put_nibbles(&self.qs, row, tile);
        tile::put_bits(u32::from_le_bytes(self.qh), row, &mut tile[at::FIFTH..]);
        self.d.put(row, &mut tile[at::D..]);
    }

    fn unpack(tile: &[u8], row: usize, _g: usize) -> Group {
        let low = nibbles(&tile::nibbles(row, tile));
        let codes = add_bit(low, tile::bits(row, &tile[at::FIFTH..]), 4);
        Group { q: minus(codes, 16), d: [Half::get(row, &tile[at::D..]); 2], m: [0.0; 2] }
    }
}
