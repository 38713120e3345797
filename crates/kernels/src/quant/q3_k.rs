//! Q3_K: 256 values in 16 half groups, `(d sc) (code - 4)`, code in 0..=7, sc in -32..=31.

use super::q2_k::group_pairs;
use super::{Block, GROUP, Group, Half, add_bit, low_bits, minus, shift_and};
use crate::dtype::DType;
use crate::weight::tile::{self, q3_k as at};

/// A block as the file has it: `qs` as in Q2_K has the low two bits of the codes, and bit g of byte
/// k of `hmask` is the third bit of value k of group g.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Q3_K {
    hmask: [u8; 32],
    qs: [u8; 64],
    scales: [u8; 12],
    d: Half,
}

impl Q3_K {
    /// The third bits of group `g`, bit k for value k.
    fn third(&self, g: usize) -> u32 {
        low_bits(&shift_and(&self.hmask, g, 1))
    }

    /// sc of half group `i`, six bits `hhllll` that mean `sc + 32`:
    ///
    /// ```text
    /// bytes 0..8    l l l l l l l l   of half group 8 + byte, and of half group byte
    /// bytes 8..12   h h h h h h h h   of half groups 12 + j, 8 + j, 4 + j and j, in byte 8 + j
    /// ```
    fn scale(&self, i: usize) -> i8 {
        let low = self.scales[i % 8] >> (4 * (i / 8)) & 15;
        let high = self.scales[8 + i % 4] >> (2 * (i / 4)) & 3;
        (high << 4 | low) as i8 - 32
    }
}

/// Group of the low and the third bits of its codes, and the scales of its halves.
fn group(low: [u8; GROUP], third: u32, scales: [i8; 2], d: f32) -> Group {
    let q = minus(add_bit(low, third, 2), 4);
    Group { q, d: scales.map(|sc| d * f32::from(sc)), m: [0.0; 2] }
}

// SAFETY: bytes only.
unsafe impl Block for Q3_K {
    const DTYPE: DType = DType::Q3_K;
    const HAS_HALVES: bool = true;
    const ZERO: Q3_K = Q3_K { hmask: [0xff; 32], qs: [0; 64], scales: [0; 12], d: Half::ZERO };
    const TILE_BYTES: usize = at::BYTES;

    fn is_finite(&self) -> bool {
        self.d.is_finite()
    }

    fn group(&self, g: usize) -> Group {
        let scales = [self.scale(2 * g), self.scale(2 * g + 1)];
        group(group_pairs(&self.qs, g), self.third(g), scales, self.d.to_f32())
    }

    fn pack(&self, row: usize, tile: &mut [u8]) {
        self.d.put(row, &mut tile[at::D..]);
        for (g, sub) in tile[at::SUBS..].chunks_exact_mut(at::SUB_BYTES).enumerate() {
            tile::put_pairs(&group_pairs(&self.qs, g), row, sub);
            tile::put_bits(self.third(g), row, &mut sub[at::THIRD..]);
            sub[at::SC + row] = self.scale(2 * g) as u8;
            sub[at::SC + tile::ROWS + row] = self.scale(2 * g + 1) as u8;
        }
    }

    fn unpack(tile: &[u8], row: usize, g: usize) -> Group {
        let sub = &tile[at::SUBS + g * at::SUB_BYTES..][..at::SUB_BYTES];
        let scales = [sub[at::SC + row], sub[at::SC + tile::ROWS + row]].map(|sc| sc as i8);
        let third = tile::bits(row, &sub[at::THIRD..]);
        group(tile::pairs(row, sub), third, scales, Half::get(row, &tile[at::D..]))
    }
}
