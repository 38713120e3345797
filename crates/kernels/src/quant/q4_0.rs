//! Q4_0: 32 values `d (code - 8)`, code in 0..=15.

use super::{Block, GROUP, Group, Half, extreme, inverse, join_nibbles, minus, nibbles};
use crate::dtype::DType;
use crate::weight::tile::{self, q4_0 as at};

/// A block as the file has it: byte i holds the codes of k = i (low nibble) and k = 16 + i.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Q4_0 {
    d: Half,
    qs: [u8; 16],
}

impl Q4_0 {
    /// The value of largest magnitude becomes code 0, the others are rounded to nearest.
    pub(super) fn encode(values: &[f32; GROUP]) -> Q4_0 {
        let d = extreme(values) / -8.0;
        let id = inverse(d);
        let codes = values.map(|value| ((value * id + 8.5) as u8).min(15));
        Q4_0 { d: Half::from_f32(d), qs: join_nibbles(&codes) }
    }
}

// SAFETY: bytes only.
unsafe impl Block for Q4_0 {
    const DTYPE: DType = DType::Q4_0;
    const ZERO: Q4_0 = Q4_0 { d: Half::ZERO, qs: [0x88; 16] };
    const TILE_BYTES: usize = at::BYTES;

    fn is_finite(&self) -> bool {
        self.d.is_finite()
    }

    fn group(&self, _g: usize) -> Group {
        Group { q: minus(nibbles(&self.qs), 8), d: [self.d.to_f32(); 2], m: [0.0; 2] }
    }

    fn pack(&self, row: usize, tile: &mut [u8]) {
        tile::put_nibbles(&self.qs, row, tile);
        self.d.put(row, &mut tile[at::D..]);
    }

    fn unpack(tile: &[u8], row: usize, _g: usize) -> Group {
        let q = minus(nibbles(&tile::nibbles(row, tile)), 8);
        Group { q, d: [Half::get(row, &tile[at::D..]); 2], m: [0.0; 2] }
    }
}
