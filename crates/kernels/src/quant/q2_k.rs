//! Q2_K: 256 values in 16 half groups, `(d sc) code - (dmin m)`, code in 0..=3, sc and m in 0..=15.

use super::{Block, GROUP, Group, Half, minus, shift_and};
use crate::dtype::DType;
use crate::weight::tile::{self, q2_k as at};

/// A block as the file has it. Byte i of `scales` holds sc (low nibble) and m of half group i. The
/// code of value k of group g, with h = g / 4 and p = g % 4, is in byte `32h + k` of `qs` at bit 2p.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Q2_K {
    scales: [u8; 16],
    qs: [u8; 64],
    d: Half,
    dmin: Half,
}

/// The 2-bit codes of group `g`, as Q3_K has them as well.
pub(super) fn group_pairs(qs: &[u8; 64], g: usize) -> [u8; GROUP] {
    shift_and(&qs.as_chunks().0[g / 4], 2 * (g % 4), 3)
}

/// Group of codes and the scales of its halves.
fn group(codes: [u8; GROUP], scales: [u8; 2], d: f32, dmin: f32) -> Group {
    Group {
        q: minus(codes, 0),
        d: scales.map(|byte| d * f32::from(byte & 15)),
        m: scales.map(|byte| -(dmin * f32::from(byte >> 4))),
    }
}

// SAFETY: bytes only.
unsafe impl Block for Q2_K {
    const DTYPE: DType = DType::Q2_K;
    const HAS_MIN: bool = true;
    const HAS_HALVES: bool = true;
    const ZERO: Q2_K = Q2_K { scales: [0; 16], qs: [0; 64], d: Half::ZERO, dmin: Half::ZERO };
    const TILE_BYTES: usize = at::BYTES;

    fn is_finite(&self) -> bool {
        self.d.is_finite() && self.dmin.is_finite()
    }

    fn group(&self, g: usize) -> Group {
        let scales = [self.scales[2 * g], self.scales[2 * g + 1]];
        group(group_pairs(&self.qs, g), scales, self.d.to_f32(), self.dmin.to_f32())
    }

    fn pack(&self, row: usize, tile: &mut [u8]) {
        self.d.put(row, &mut tile[at::D..]);
        self.dmin.put(row, &mut tile[at::DMIN..]);
        for (g, sub) in tile[at::SUBS..].chunks_exact_mut(at::SUB_BYTES).enumerate() {
            tile::put_pairs(&group_pairs(&self.qs, g), row, sub);
            sub[at::SC_M + row] = self.scales[2 * g];
            sub[at::SC_M + tile::ROWS + row] = self.scales[2 * g + 1];
        }
    }

    fn unpack(tile: &[u8], row: usize, g: usize) -> Group {
        let sub = &tile[at::SUBS + g * at::SUB_BYTES..][..at::SUB_BYTES];
        let scales = [sub[at::SC_M + row], sub[at::SC_M + tile::ROWS + row]];
        let (d, dmin) = (Half::get(row, &tile[at::D..]), Half::get(row, &tile[at::DMIN..]));
        group(tile::pairs(row, sub), scales, d, dmin)
    }
}
