//! Q6_K: 256 values in 16 half groups, `(d sc) (code - 32)`, code in 0..=63, sc an i8.

use super::{Block, GROUP, Group, Half, join_nibbles, minus, nibbles, or_high, shift_and};
use crate::dtype::DType;
use crate::weight::tile::{self, q6_k as at};

/// A block as the file has it. Of value k of group g, with h = g / 4 and p = g % 4, the low four
/// bits are in byte `64h + 32 (p % 2) + k` of `ql`, in the low nibble for p < 2, and the high two
/// in byte `32h + k` of `qh` at bit 2p.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Q6_K {
    ql: [u8; 128],
    qh: [u8; 64],
    scales: [i8; 16],
    d: Half,
}

impl Q6_K {
    fn codes(&self, g: usize) -> [u8; GROUP] {
        let (h, p) = (g / 4, g % 4);
        let low = shift_and(&self.ql.as_chunks::<GROUP>().0[2 * h + p % 2], 4 * (p / 2), 15);
        let high = shift_and(&self.qh.as_chunks::<GROUP>().0[h], 2 * p, 3);
        or_high(low, &high)
    }
}

// SAFETY: bytes only.
unsafe impl Block for Q6_K {
    const DTYPE: DType = DType::Q6_K;
    const HAS_HALVES: bool = true;
    const ZERO: Q6_K = Q6_K { ql: [0; 128], qh: [0xaa; 64], scales: [0; 16], d: Half::ZERO };
    const TILE_BYTES: usize = at::BYTES;

    fn is_finite(&self) -> bool {
        self.d.is_finite()
    }

    fn group(&self, g: usize) -> Group {
        let d = self.d.to_f32();
        let scale = |half: usize| d * f32::from(self.scales[2 * g + half]);
        Group { q: minus(self.codes(g), 32), d: [scale(0), scale(1)], m: [0.0; 2] }
    }

    fn pack(&self, row: usize, tile: &mut [u8]) {
        self.d.put(row, &mut tile[at::D..]);
        for (g, sub) in tile[at::SUBS..].chunks_exact_mut(at::SUB_BYTES).enumerate() {
            let codes = self.codes(g);
            tile::put_nibbles(&join_nibbles(&codes), row, sub);
            tile::put_pairs(&shift_and(&codes, 4, 3), row, &mut sub[at::HIGH..]);
            sub[at::SC + row] = self.scales[2 * g] as u8;
            sub[at::SC + tile::ROWS + row] = self.scales[2 * g + 1] as u8;
        }
    }

    fn unpack(tile: &[u8], row: usize, g: usize) -> Group {
        let sub = &tile[at::SUBS + g * at::SUB_BYTES..][..at::SUB_BYTES];
        let low = nibbles(&tile::nibbles(row, sub));
        let high = tile::pairs(row, &sub[at::HIGH..]);
        let d = Half::get(row, &tile[at::D..]);
        let scale = |half: usize| d * f32::from(sub[at::SC + half * tile::ROWS + row] as i8);
        Group { q: minus(or_high(low, &high), 32), d: [scale(0), scale(1)], m: [0.0; 2] }
    }
}
