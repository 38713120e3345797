//! Q4_1: 32 values `d code + m`, code in 0..=15.

use super::{Block, GROUP, Group, Half, inverse, join_nibbles, minus, nibbles};
use crate::dtype::DType;
use crate::weight::tile::{self, q4_1 as at};

/// A block as the file has it: byte i holds the codes of k = i (low nibble) and k = 16 + i.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Q4_1 {
    d: Half,
    m: Half,
    qs: [u8; 16],
}

impl Q4_1 {
    /// The values rounded to nearest between their minimum and maximum.
    pub(super) fn encode(values: &[f32; GROUP]) -> Q4_1 {
        let (d, m, codes) = codes_over_min(values, 15);
        Q4_1 { d, m, qs: join_nibbles(&codes) }
    }
}

/// Scale, minimum and codes `0..=n` of values spread evenly over their range.
pub(super) fn codes_over_min(values: &[f32; GROUP], n: u8) -> (Half, Half, [u8; GROUP]) {
    let min = values.iter().copied().fold(f32::INFINITY, f32::min);
    let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let d = (max - min) / f32::from(n);
    let id = inverse(d);
    let codes = values.map(|value| (((value - min) * id + 0.5) as u8).min(n));
    (Half::from_f32(d), Half::from_f32(min), codes)
}

// SAFETY: bytes only.
unsafe impl Block for Q4_1 {
    const DTYPE: DType = DType::Q4_1;
    const HAS_MIN: bool = true;
    const ZERO: Q4_1 = Q4_1 { d: Half::ZERO, m: Half::ZERO, qs: [0; 16] };
    const TILE_BYTES: usize = at::BYTES;

    fn is_finite(&self) -> bool {
        self.d.is_finite() && self.m.is_finite()
    }

    fn group(&self, _g: usize) -> Group {
        Group { q: minus(nibbles(&self.qs), 0), d: [self.d.to_f32(); 2], m: [self.m.to_f32(); 2] }
    }

    fn pack(&self, row: usize, tile: &mut [u8]) {
        tile::put_nibbles(&self.qs, row, tile);
        self.d.put(row, &mut tile[at::D..]);
        self.m.put(row, &mut tile[at::M..]);
    }

    fn unpack(tile: &[u8], row: usize, _g: usize) -> Group {
        let q = minus(nibbles(&tile::nibbles(row, tile)), 0);
        let d = Half::get(row, &tile[at::D..]);
        Group { q, d: [d; 2], m: [Half::get(row, &tile[at::M..]); 2] }
    }
}
