//! Q5_1: 32 values `d code + m`, code in 0..=31.

use super::q4_1::codes_over_min;
use super::{Block, GROUP, Group, Half, add_bit, fifth_bits, join_nibbles, minus, nibbles};
use crate::dtype::DType;
use crate::weight::tile::{self, q5_1 as at};

/// A block as the file has it: as in Q5_0, with a minimum.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Q5_1 {
    d: Half,
    m: Half,
    qh: [u8; 4],
    qs: [u8; 16],
}

impl Q5_1 {
    /// The values rounded to nearest between their minimum and maximum.
    pub(super) fn encode(values: &[f32; GROUP]) -> Q5_1 {
        let (d, m, codes) = codes_over_min(values, 31);
        Q5_1 { d, m, qh: fifth_bits(&codes).to_le_bytes(), qs: join_nibbles(&codes) }
    }
}

// SAFETY: bytes only.
unsafe impl Block for Q5_1 {
    const DTYPE: DType = DType::Q5_1;
    const HAS_MIN: bool = true;
    const ZERO: Q5_1 = Q5_1 { d: Half::ZERO, m: Half::ZERO, qh: [0; 4], qs: [0; 16] };
    const TILE_BYTES: usize = at::BYTES;

    fn is_finite(&self) -> bool {
        self.d.is_finite() && self.m.is_finite()
    }

    fn group(&self, _g: usize) -> Group {
        let codes = add_bit(nibbles(&self.qs), u32::from_le_bytes(self.qh), 4);
        Group { q: minus(codes, 0), d: [self.d.to_f32(); 2], m: [self.m.to_f32(); 2] }
    }

    fn pack(&self, row: usize, tile: &mut [u8]) {
        tile::put_nibbles(&self.qs, row, tile);
        tile::put_bits(u32::from_le_bytes(self.qh), row, &mut tile[at::FIFTH..]);
        self.d.put(row, &mut tile[at::D..]);
        self.m.put(row, &mut tile[at::M..]);
    }

    fn unpack(tile: &[u8], row: usize, _g: usize) -> Group {
        let low = nibbles(&tile::nibbles(row, tile));
        let codes = add_bit(low, tile::bits(row, &tile[at::FIFTH..]), 4);
        let d = Half::get(row, &tile[at::D..]);
        Group { q: minus(codes, 0), d: [d; 2], m: [Half::get(row, &tile[at::M..]); 2] }
    }
}
