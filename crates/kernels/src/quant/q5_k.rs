//! Q5_K: 256 values in 8 groups, `(d sc) code - (dmin m)`, code in 0..=31, sc and m in 0..=63.

use super::q4_k::{group_nibbles, scale_min};
use super::{Block, Group, Half, add_bit, join_nibbles, low_bits, minus, nibbles, shift_and};
use crate::dtype::DType;
use crate::weight::tile::{self, q5_k as at};

/// A block as the file has it: as in Q4_K; bit g of byte k of `qh` is the fifth bit of value k of
/// group g.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Q5_K {
    d: Half,
    dmin: Half,
    scales: [u8; 12],
    qh: [u8; 32],
    qs: [u8; 128],
}

impl Q5_K {
    /// The fifth bits of group `g`, bit k for value k.
    fn fifth(&self, g: usize) -> u32 {
        low_bits(&shift_and(&self.qh, g, 1))
    }
}

// SAFETY: bytes only.
unsafe impl Block for Q5_K {
    const DTYPE: DType = DType::Q5_K;
    const HAS_MIN: bool = true;
    const ZERO: Q5_K =
        Q5_K { d: Half::ZERO, dmin: Half::ZERO, scales: [0; 12], qh: [0; 32], qs: [0; 128] };
    const TILE_BYTES: usize = at::BYTES;

    fn is_finite(&self) -> bool {
        self.d.is_finite() && self.dmin.is_finite()
    }

    fn group(&self, g: usize) -> Group {
        let (sc, m) = scale_min(&self.scales, g);
        let d = self.d.to_f32() * f32::from(sc);
        let codes = add_bit(group_nibbles(&self.qs, g), self.fifth(g), 4);
        Group { q: minus(codes, 0), d: [d; 2], m: [-(self.dmin.to_f32() * f32::from(m)); 2] }
    }

    fn pack(&self, row: usize, tile: &mut [u8]) {
        self.d.put(row, &mut tile[at::D..]);
        self.dmin.put(row, &mut tile[at::DMIN..]);
        for (g, sub) in tile[at::SUBS..].chunks_exact_mut(at::SUB_BYTES).enumerate() {
            tile::put_nibbles(&join_nibbles(&group_nibbles(&self.qs, g)), row, sub);
            tile::put_bits(self.fifth(g), row, &mut sub[at::FIFTH..]);
            (sub[at::SC + row], sub[at::M + row]) = scale_min(&self.scales, g);
        }
    }

    fn unpack(tile: &[u8], row: usize, g: usize) -> Group {
        let sub = &tile[at::SUBS + g * at::SUB_BYTES..][..at::SUB_BYTES];
        let d = Half::get(row, &tile[at::D..]) * f32::from(sub[at::SC + row]);
        let m = -(Half::get(row, &tile[at::DMIN..]) * f32::from(sub[at::M + row]));
        let low = nibbles(&tile::nibbles(row, sub));
        let codes = add_bit(low, tile::bits(row, &sub[at::FIFTH..]), 4);
        Group { q: minus(codes, 0), d: [d; 2], m: [m; 2] }
    }
}
