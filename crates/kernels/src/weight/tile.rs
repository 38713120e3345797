//! Where things lie in a block of a row tile, in bytes. The drawing is in the documentation of
//! [`crate::weight`].

/// Output rows of a row tile.
pub(crate) const ROWS: usize = 32;

/// Output rows of a strip, one per 32-bit lane of a 64-byte vector.
pub(crate) const STRIP_ROWS: usize = 16;

/// `d (code - 8)`.
pub(crate) mod q4_0 {
    pub(crate) const D: usize = 512;
    pub(crate) const BYTES: usize = 576;
}

/// `d code + m`.
pub(crate) mod q4_1 {
    pub(crate) const D: usize = 512;
    pub(crate) const M: usize = 576;
    pub(crate) const BYTES: usize = 640;
}

/// `d (code - 16)`.
pub(crate) mod q5_0 {
    pub(crate) const FIFTH: usize = 512;
    pub(crate) const D: usize = 640;
    pub(crate) const BYTES: usize = 704;
}

/// `d code + m`.
pub(crate) mod q5_1 {
    pub(crate) const FIFTH: usize = 512;
    pub(crate) const D: usize = 640;
    pub(crate) const M: usize = 704;
    pub(crate) const BYTES: usize = 768;
}

/// `d (code - 128)`.
pub(crate) mod q8_0 {
    pub(crate) const D: usize = 1024;
    pub(crate) const BYTES: usize = 1088;
}

/// `d v[code]`.
pub(crate) mod iq4_nl {
    pub(crate) const D: usize = 512;
    pub(crate) const BYTES: usize = 576;
}

/// `2^(e - 128) v[code]`.
pub(crate) mod mxfp4 {
    pub(crate) const E: usize = 512;
    pub(crate) const BYTES: usize = 544;
}

/// `(d sc) code - (dmin m)`; `SC_M` counts from the start of a sub-block, the bytes of the second
/// 16 k lie 32 behind those of the first.
pub(crate) mod q2_k {
    pub(crate) const D: usize = 0;
    pub(crate) const DMIN: usize = 64;
    pub(crate) const SUBS: usize = 128;
    pub(crate) const SC_M: usize = 256;
    pub(crate) const SUB_BYTES: usize = 320;
    pub(crate) const BYTES: usize = SUBS + 8 * SUB_BYTES;
}

/// `(d sc) (code - 4)`; `THIRD` and `SC` count from the start of a sub-block, the scales of the
/// second 16 k lie 32 bytes behind those of the first.
pub(crate) mod q3_k {
    pub(crate) const D: usize = 0;
    pub(crate) const SUBS: usize = 64;
    pub(crate) const THIRD: usize = 256;
    pub(crate) const SC: usize = 384;
    pub(crate) const SUB_BYTES: usize = 448;
    pub(crate) const BYTES: usize = SUBS + 8 * SUB_BYTES;
}

/// `(d sc) code - (dmin m)`; `SC` and `M` count from the start of a sub-block.
pub(crate) mod q4_k {
    pub(crate) const D: usize = 0;
    pub(crate) const DMIN: usize = 64;
    pub(crate) const SUBS: usize = 128;
    pub(crate) const SC: usize = 512;
    pub(crate) const M: usize = 544;
    pub(crate) const SUB_BYTES: usize = 576;
    pub(crate) const BYTES: usize = SUBS + 8 * SUB_BYTES;
}

/// `(d sc) code - (dmin m)`; `FIFTH`, `SC` and `M` count from the start of a sub-block.
pub(crate) mod q5_k {
    pub(crate) const D: usize = 0;
    pub(crate) const DMIN: usize = 64;
    pub(crate) const SUBS: usize = 128;
    pub(crate) const FIFTH: usize = 512;
    pub(crate) const SC: usize = 640;
    pub(crate) const M: usize = 672;
    pub(crate) const SUB_BYTES: usize = 704;
    pub(crate) const BYTES: usize = SUBS + 8 * SUB_BYTES;
}

/// `(d sc) (code - 32)`; `HIGH` and `SC` count from the start of a sub-block, the scales of the
/// second 16 k lie 32 bytes behind those of the first.
pub(crate) mod q6_k {
    pub(crate) const D: usize = 0;
    pub(crate) const SUBS: usize = 64;
    pub(crate) const HIGH: usize = 512;
    pub(crate) const SC: usize = 768;
    pub(crate) const SUB_BYTES: usize = 832;
    pub(crate) const BYTES: usize = SUBS + 8 * SUB_BYTES;
}

/// `(d sc) v[code]`; `SC` counts from the start of a sub-block.
pub(crate) mod iq4_xs {
    pub(crate) const D: usize = 0;
    pub(crate) const SUBS: usize = 64;
    pub(crate) const SC: usize = 512;
    pub(crate) const SUB_BYTES: usize = 544;
    pub(crate) const BYTES: usize = SUBS + 8 * SUB_BYTES;
}

/// Writes a row of 4-bit codes: byte b of `bytes` holds k = b in its low and k = 16 + b in its high
/// nibble, just as the bytes of the tile do.
pub(crate) fn put_nibbles(bytes: &[u8; 16], row: usize, section: &mut [u8]) {
    put_quads(bytes, row, &mut section[..512]);
}

/// Reads what [`put_nibbles`] wrote.
pub(crate) fn nibbles(row: usize, section: &[u8]) -> [u8; 16] {
    quads(row, &section[..512])
}

/// Writes a row of 8-bit codes.
pub(crate) fn put_bytes(codes: &[u8; 32], row: usize, section: &mut [u8]) {
    put_quads(codes, row, &mut section[..1024]);
}

/// Reads what [`put_bytes`] wrote.
pub(crate) fn bytes(row: usize, section: &[u8]) -> [u8; 32] {
    quads(row, &section[..1024])
}

/// Writes a row of single bits, bit k of `bits` for k, into a zeroed section. The four bits of k =
/// 4j..4j+4 are nibble r of u64 j, so half a byte.
pub(crate) fn put_bits(bits: u32, row: usize, section: &mut [u8]) {
    let (strip, r) = (row / STRIP_ROWS, row % STRIP_ROWS);
    for (j, word) in section[64 * strip..][..64].as_chunks_mut::<8>().0.iter_mut().enumerate() {
        word[r / 2] |= ((bits >> (4 * j) & 15) as u8) << (4 * (r % 2));
    }
}

/// Reads what [`put_bits`] wrote.
pub(crate) fn bits(row: usize, section: &[u8]) -> u32 {
    let (strip, r) = (row / STRIP_ROWS, row % STRIP_ROWS);
    let words = section[64 * strip..][..64].as_chunks::<8>().0.iter().enumerate();
    words.fold(0, |bits, (j, word)| bits | u32::from(word[r / 2] >> (4 * (r % 2)) & 15) << (4 * j))
}

/// Writes a row of pairs of bits, each 0..4.
pub(crate) fn put_pairs(pairs: &[u8; 32], row: usize, section: &mut [u8]) {
    let pairs = pairs.as_chunks::<4>().0;
    let quad = |v: usize, t: usize| u32::from_le_bytes(pairs[4 * v + t]) << (2 * t);
    let quad = |v: usize| (quad(v, 0) | quad(v, 1) | quad(v, 2) | quad(v, 3)).to_le_bytes();
    put_quads([quad(0), quad(1)].as_flattened(), row, &mut section[..256]);
}

/// Reads what [`put_pairs`] wrote.
pub(crate) fn pairs(row: usize, section: &[u8]) -> [u8; 32] {
    let quads: [u8; 8] = quads(row, &section[..256]);
    let mut pairs = [0; 32];
    for (q, pairs) in pairs.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let quad = u32::from_le_bytes(quads.as_chunks::<4>().0[q / 4]);
        *pairs = (quad >> (2 * (q % 4)) & 0x0303_0303).to_le_bytes();
    }
    pairs
}

/// Writes four bytes of row `row` to each vector of its strip, in a section of 32 n bytes.
fn put_quads(bytes: &[u8], row: usize, section: &mut [u8]) {
    let strip = &mut section[row / STRIP_ROWS * STRIP_ROWS * bytes.len()..];
    for (quad, vector) in bytes.as_chunks::<4>().0.iter().zip(strip.as_chunks_mut::<64>().0) {
        vector.as_chunks_mut::<4>().0[row % STRIP_ROWS] = *quad;
    }
}

/// Reads what [`put_quads`] wrote.
fn quads<const N: usize>(row: usize, section: &[u8]) -> [u8; N] {
    let strip = &section[row / STRIP_ROWS * STRIP_ROWS * N..];
    let mut bytes = [0; N];
    for (quad, vector) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(strip.as_chunks::<64>().0) {
        *quad = vector.as_chunks::<4>().0[row % STRIP_ROWS];
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of sections in [`crate::weight`], read byte by byte.
    #[test]
    fn sections_are_laid_out_as_documented() {
        let code = |row: usize, k: usize| (row * 37 + k * 11 + row * k) as u8;
        let row_codes = |row: usize| std::array::from_fn::<u8, 32, _>(|k| code(row, k));
        let (mut low, mut eight) = ([0; 512], [0; 1024]);
        let (mut singles, mut doubles) = ([0; 128], [0; 256]);
        for row in 0..ROWS {
            let codes = row_codes(row);
            put_nibbles(
                &std::array::from_fn(|b| codes[b] & 15 | codes[b + 16] << 4),
                row,
                &mut low,
            );
            put_bytes(&codes, row, &mut eight);
            let fifth = (0..32).fold(0, |bits, k| bits | u32::from(codes[k] >> 4 & 1) << k);
            put_bits(fifth, row, &mut singles);
            put_pairs(&codes.map(|code| code >> 4 & 3), row, &mut doubles);
            assert_eq!(bits(row, &singles), fifth);
        }
        for (s, r, i) in
            (0..2).flat_map(|s| (0..16).flat_map(move |r| (0..4).map(move |i| (s, r, i))))
        {
            let code = |k: usize| code(16 * s + r, k);
            for j in 0..4 {
                let byte = low[256 * s + 64 * j + 4 * r + i];
                assert_eq!(byte, code(4 * j + i) & 15 | code(16 + 4 * j + i) << 4);
            }
            for j in 0..8 {
                assert_eq!(eight[512 * s + 64 * j + 4 * r + i], code(4 * j + i));
                let word = &singles[64 * s + 8 * j..][..8];
                let word = u64::from_le_bytes(word.try_into().unwrap());
                assert_eq!(word >> (4 * r + i) & 1, u64::from(code(4 * j + i) >> 4 & 1));
            }
            for (v, t) in [0, 1].into_iter().flat_map(|v| (0..4).map(move |t| (v, t))) {
                let byte = doubles[128 * s + 64 * v + 4 * r + i];
                assert_eq!(byte >> (2 * t) & 3, code(4 * (4 * v + t) + i) >> 4 & 3);
            }
        }
    }
}
