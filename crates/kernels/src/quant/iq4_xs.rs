//! IQ4_XS: 256 values in 8 groups, `(d sc) v[code]`, v the codebook of IQ4_NL, sc in -32..=31.

use super::iq4_nl::group;
use super::{Block, Group, Half};
use crate::dtype::DType;
use crate::weight::tile::{self, iq4_xs as at};

/// A block as the file has it: group g has the 16 bytes 16g..16g + 16 of `qs`, laid out as in
/// IQ4_NL. Of `sc + 32` the low four bits are nibble g of `scales_l` and the high two are bits 2g,
/// 2g + 1 of the little-endian `scales_h`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IQ4_XS {
    d: Half,
    scales_h: [u8; 2],
    scales_l: [u8; 4],
    qs: [u8; 128],
}

impl IQ4_XS {
    /// sc of group `g`.
    fn scale(&self, g: usize) -> i8 {
        let low = self.scales_l[g / 2] >> (4 * (g % 2)) & 15;
        let high = self.scales_h[g / 4] >> (2 * (g % 4)) & 3;
        (high << 4 | low) as i8 - 32
    }
}

// SAFETY: bytes only.
unsafe impl Block for IQ4_XS {
    const DTYPE: DType = DType::IQ4_XS;
    const ZERO: IQ4_XS = IQ4_XS { d: Half::ZERO, scales_h: [0; 2], scales_l: [0; 4], qs: [0; 128] };
    const TILE_BYTES: usize = at::BYTES;

    fn is_finite(&self) -> bool {
        self.d.is_finite()
    }

    fn group(&self, g: usize) -> Group {
        group(&self.qs.as_chunks().0[g], self.d.to_f32() * f32::from(self.scale(g)))
    }

    fn pack(&self, row: usize, tile: &mut [u8]) {
        self.d.put(row, &mut tile[at::D..]);
        for (g, sub) in tile[at::SUBS..].chunks_exact_mut(at::SUB_BYTES).enumerate() {
            tile::put_nibbles(&self.qs.as_chunks().0[g], row, sub);
            sub[at::SC + row] = self.scale(g) as u8;
        }
    }

    fn unpack(tile: &[u8], row: usize, g: usize) -> Group {
        let sub = &tile[at::SUBS + g * at::SUB_BYTES..][..at::SUB_BYTES];
        let sc = f32::from(sub[at::SC + row] as i8);
        group(&tile::nibbles(row, sub), Half::get(row, &tile[at::D..]) * sc)
    }
}
