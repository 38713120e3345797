//! Q4_K: 256 values in 8 groups, `(d sc) code - (dmin m)`, code in 0..=15, sc and m in 0..=63.

use super::{Block, GROUP, Group, Half, join_nibbles, minus, nibbles, shift_and};
use crate::dtype::DType;
use crate::weight::tile::{self, q4_k as at};

/// A block as the file has it. Group 2p has the low nibbles and group 2p + 1 the high nibbles of
/// the bytes 32p..32p+32 of `qs`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Q4_K {
    d: Half,
    dmin: Half,
    scales: [u8; 12],
    qs: [u8; 128],
}

/// sc and m of group `g`, six bits each:
///
/// ```text
/// bytes   0..4   h h s s s s s s   sc of the groups 0..4; hh: high bits of sc of the groups 4..8
/// bytes   4..8   h h m m m m m m   the same of m
/// bytes   8..12  m m m m s s s s   low bits of both of the groups 4..8
/// ```
pub(super) fn scale_min(scales: &[u8; 12], g: usize) -> (u8, u8) {
    if g < 4 {
        (scales[g] & 63, scales[g + 4] & 63)
    } else {
        let low = scales[g + 4];
        (low & 15 | scales[g - 4] >> 6 << 4, low >> 4 | scales[g] >> 6 << 4)
    }
}

/// The low four bits of the codes of group `g`.
pub(super) fn group_nibbles(qs: &[u8; 128], g: usize) -> [u8; GROUP] {
    shift_and(&qs.as_chunks().0[g / 2], 4 * (g % 2), 15)
}

// SAFETY: bytes only.
unsafe impl Block for Q4_K {
    const DTYPE: DType = DType::Q4_K;
    const HAS_MIN: bool = true;
    const ZERO: Q4_K = Q4_K { d: Half::ZERO, dmin: Half::ZERO, scales: [0; 12], qs: [0; 128] };
    const TILE_BYTES: usize = at::BYTES;

    fn is_finite(&self) -> bool {
        self.d.is_finite() && self.dmin.is_finite()
    }

    fn group(&self, g: usize) -> Group {
        let (sc, m) = scale_min(&self.scales, g);
        let d = self.d.to_f32() * f32::from(sc);
        let q = minus(group_nibbles(&self.qs, g), 0);
        Group { q, d: [d; 2], m: [-(self.dmin.to_f32() * f32::from(m)); 2] }
    }

    fn pack(&self, row: usize, tile: &mut [u8]) {
        self.d.put(row, &mut tile[at::D..]);
        self.dmin.put(row, &mut tile[at::DMIN..]);
        for (g, sub) in tile[at::SUBS..].chunks_exact_mut(at::SUB_BYTES).enumerate() {
            tile::put_nibbles(&join_nibbles(&group_nibbles(&self.qs, g)), row, sub);
            (sub[at::SC + row], sub[at::M + row]) = scale_min(&self.scales, g);
        }
    }

    fn unpack(tile: &[u8], row: usize, g: usize) -> Group {
        let sub = &tile[at::SUBS + g * at::SUB_BYTES..][..at::SUB_BYTES];
        let d = Half::get(row, &tile[at::D..]) * f32::from(sub[at::SC + row]);
        let m = -(Half::get(row, &tile[at::DMIN..]) * f32::from(sub[at::M + row]));
        Group { q: minus(nibbles(&tile::nibbles(row, sub)), 0), d: [d; 2], m: [m; 2] }
    }
}
