//! Q8_0: 32 values `d q`, q in -127..=127 (-128 is read as well).

use super::{Block, GROUP, Group, Half, inverse};
use crate::dtype::DType;
use crate::weight::tile::{self, q8_0 as at};

/// A block as the file has it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Q8_0 {
    d: Half,
    qs: [i8; GROUP],
}

impl Q8_0 {
    /// The values rounded to nearest, halves away from zero.
    pub(super) fn encode(values: &[f32; GROUP]) -> Q8_0 {
        let d = values.iter().fold(0.0, |max: f32, value| max.max(value.abs())) / 127.0;
        let id = inverse(d);
        Q8_0 { d: Half::from_f32(d), qs: values.map(|value| (value * id).round() as i8) }
    }
}

// SAFETY: bytes only.
unsafe impl Block for Q8_0 {
    const DTYPE: DType = DType::Q8_0;
    const ZERO: Q8_0 = Q8_0 { d: Half::ZERO, qs: [0; GROUP] };
    const TILE_BYTES: usize = at::BYTES;

    fn is_finite(&self) -> bool {
        self.d.is_finite()
    }

    fn group(&self, _g: usize) -> Group {
        Group { q: self.qs, d: [self.d.to_f32(); 2], m: [0.0; 2] }
    }

    fn pack(&self, row: usize, tile: &mut [u8]) {
        tile::put_bytes(&self.qs.map(|q| q as u8 ^ 0x80), row, tile);
        self.d.put(row, &mut tile[at::D..]);
    }

    fn unpack(tile: &[u8], row: usize, _g: usize) -> Group {
        let q = tile::bytes(row, tile).map(|code| (code ^ 0x80) as i8);
        Group { q, d: [Half::get(row, &tile[at::D..]); 2], m: [0.0; 2] }
    }
}
