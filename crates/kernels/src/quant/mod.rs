//! Block formats: how the bytes of a tensor stand for numbers. One file per format, each with the
//! block as the file has it, its values, its reference encoder where that is a plain rounding, and
//! its place in the tiles of [`crate::weight`].
//!
//! A row is a sequence of blocks of 32 or 256 values. Values come in *groups* of 32:
//! `value = d q` or `value = d q + m` with a small integer q, the scale d and the minimum m shared by
//! the group (by each half of it in Q2_K, Q3_K and Q6_K). The integer is a code less a zero point, or
//! what a codebook of 16 has for it. Layouts after ggml (`gguf-py/gguf/quants.py`).

mod float;
mod iq4_nl;
mod iq4_xs;
mod mxfp4;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;

pub(crate) use float::{Bf16, F16, F32, Float, decode as decode_floats};
pub(crate) use iq4_nl::{IQ4_NL, VALUES as IQ4_VALUES};
pub(crate) use iq4_xs::IQ4_XS;
pub(crate) use mxfp4::{MXFP4, VALUES as MXFP4_VALUES};
pub(crate) use q2_k::Q2_K;
pub(crate) use q3_k::Q3_K;
pub(crate) use q4_0::Q4_0;
pub(crate) use q4_1::Q4_1;
pub(crate) use q4_k::Q4_K;
pub(crate) use q5_0::Q5_0;
pub(crate) use q5_1::Q5_1;
pub(crate) use q5_k::Q5_K;
pub(crate) use q6_k::Q6_K;
pub(crate) use q8_0::Q8_0;

use crate::dtype::DType;

/// Values of a group.
pub(crate) const GROUP: usize = 32;

/// 32 consecutive values of a row: value k is `d[k / 16] * q[k] + m[k / 16]`.
#[derive(Clone, Copy)]
pub(crate) struct Group {
    /// The integers: codes, the zero point taken off or looked up.
    pub(crate) q: [i8; GROUP],
    /// Scales of the two halves.
    pub(crate) d: [f32; 2],
    /// Minima of the two halves, if the format has any.
    pub(crate) m: [f32; 2],
}

/// A block of an integer format as the file has it.
///
/// # Safety
/// An implementor is `repr(C)` with nothing but bytes in it: every bit pattern is valid, there is no
/// padding, and it is aligned to 1.
pub(crate) unsafe trait Block: Copy + Sync + 'static {
    /// The format.
    const DTYPE: DType;
    /// Whether the groups have a minimum.
    const HAS_MIN: bool = false;
    /// Whether the halves of a group have scales (and minima) of their own.
    const HAS_HALVES: bool = false;
    /// A block of zeros.
    const ZERO: Self;
    /// Groups in a block.
    const N_GROUPS: usize = size_in_groups::<Self>(Self::DTYPE);
    /// Bytes of one block of a row tile: this block for 32 rows.
    const TILE_BYTES: usize;

    /// Whether all scales and minima are finite.
    fn is_finite(&self) -> bool;

    /// The values of group `g`.
    fn group(&self, g: usize) -> Group;

    /// Writes the block as row `row` of a zeroed block of a row tile.
    fn pack(&self, row: usize, tile: &mut [u8]);

    /// The values of group `g` of row `row` of a block of a row tile.
    fn unpack(tile: &[u8], row: usize, g: usize) -> Group;
}

/// The number of groups in a block; the size of the struct is checked against the type table.
const fn size_in_groups<B>(dtype: DType) -> usize {
    let info = dtype.info();
    assert!(size_of::<B>() == info.block_bytes && align_of::<B>() == 1);
    assert!(info.block_len.is_multiple_of(GROUP));
    info.block_len / GROUP
}

/// Runs `$integer` with `$B` bound to the block of an integer format, `$float` with `$F` bound to
/// that of a float format, or `$other` if the type does not compute. The one list of what computes.
macro_rules! match_format {
    ($dtype:expr, $B:ident => $integer:expr, $F:ident => $float:expr, _ => $other:expr $(,)?) => {
        match $dtype {
            DType::F32 => match_format!(@ $F = F32, $float),
            DType::F16 => match_format!(@ $F = F16, $float),
            DType::BF16 => match_format!(@ $F = Bf16, $float),
            DType::Q8_0 => match_format!(@ $B = Q8_0, $integer),
            DType::Q4_0 => match_format!(@ $B = Q4_0, $integer),
            DType::Q4_1 => match_format!(@ $B = Q4_1, $integer),
            DType::Q5_0 => match_format!(@ $B = Q5_0, $integer),
            DType::Q5_1 => match_format!(@ $B = Q5_1, $integer),
            DType::IQ4_NL => match_format!(@ $B = IQ4_NL, $integer),
            DType::MXFP4 => match_format!(@ $B = MXFP4, $integer),
            DType::Q2_K => match_format!(@ $B = Q2_K, $integer),
            DType::Q3_K => match_format!(@ $B = Q3_K, $integer),
            DType::Q4_K => match_format!(@ $B = Q4_K, $integer),
            DType::Q5_K => match_format!(@ $B = Q5_K, $integer),
            DType::Q6_K => match_format!(@ $B = Q6_K, $integer),
            DType::IQ4_XS => match_format!(@ $B = IQ4_XS, $integer),
            _ => $other,
        }
    };
    (@ $T:ident = $format:ident, $body:expr) => {{
        #[allow(dead_code)] // Some bodies are the same for every format and do not name it.
        type $T = $crate::quant::$format;
        $body
    }};
}
pub(crate) use match_format;

/// Bytes and values do not fit together.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum QuantError {
    /// The type is known by name only.
    #[error("{0} cannot be computed with: use one of {list}", list = computing_names())]
    Unsupported(DType),
    /// No encoder for the type.
    #[error("there is no encoder for {0} yet")]
    NoEncoder(DType),
    /// The number of bytes is not that of the values.
    #[error("{n_values} values of {dtype} do not fill {n_bytes} bytes")]
    WrongSize {
        /// The type.
        dtype: DType,
        /// Values asked for.
        n_values: usize,
        /// Bytes given.
        n_bytes: usize,
    },
    /// A value is infinite, NaN, or too large for the scale's f16.
    #[error("the block of {dtype} at value {index} holds a number that is not finite or too large")]
    NotFinite {
        /// The type.
        dtype: DType,
        /// Index of the block's first value.
        index: usize,
    },
}

/// Whether weights of this type can be computed with.
pub fn computes(dtype: DType) -> bool {
    match_format!(dtype, B => true, F => true, _ => false)
}

/// The names of the types that compute, for messages.
pub(crate) fn computing_names() -> String {
    let names = DType::ALL.iter().filter(|&&dtype| computes(dtype));
    names.map(|dtype| dtype.info().name).collect::<Vec<_>>().join(", ")
}

/// `values[i]` = value i of `bytes`, exactly as the reference implementation has it.
///
/// # Errors
/// If the type does not compute, or the bytes are not those of `values.len()` values.
pub fn decode(dtype: DType, bytes: &[u8], values: &mut [f32]) -> Result<(), QuantError> {
    if !computes(dtype) {
        return Err(QuantError::Unsupported(dtype));
    }
    check_size(dtype, values.len(), bytes.len())?;
    match_format!(dtype,
        B => decode_blocks::<B>(blocks(bytes), values),
        F => decode_floats::<F>(bytes, values),
        _ => unreachable!("checked above"),
    );
    Ok(())
}

/// `bytes` = the values rounded to nearest, byte for byte as the reference implementation has it.
/// F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1 have such an encoder.
///
/// # Errors
/// If the type has no encoder, the bytes are not those of `values.len()` values, or a value is not
/// finite or too large.
pub fn encode(dtype: DType, values: &[f32], bytes: &mut [u8]) -> Result<(), QuantError> {
    check_size(dtype, values.len(), bytes.len())?;
    match dtype {
        DType::F32 => float::encode::<F32>(values, bytes),
        DType::F16 => float::encode::<F16>(values, bytes),
        DType::BF16 => float::encode::<Bf16>(values, bytes),
        DType::Q8_0 => encode_blocks(values, blocks_mut(bytes), Q8_0::encode),
        DType::Q4_0 => encode_blocks(values, blocks_mut(bytes), Q4_0::encode),
        DType::Q4_1 => encode_blocks(values, blocks_mut(bytes), Q4_1::encode),
        DType::Q5_0 => encode_blocks(values, blocks_mut(bytes), Q5_0::encode),
        DType::Q5_1 => encode_blocks(values, blocks_mut(bytes), Q5_1::encode),
        _ => Err(QuantError::NoEncoder(dtype)),
    }
}

fn check_size(dtype: DType, n_values: usize, n_bytes: usize) -> Result<(), QuantError> {
    if dtype.n_bytes(n_values) == Some(n_bytes) {
        Ok(())
    } else {
        Err(QuantError::WrongSize { dtype, n_values, n_bytes })
    }
}

/// Bytes as blocks; a rest shorter than a block is left off.
pub(crate) fn blocks<B: Block>(bytes: &[u8]) -> &[B] {
    let n_blocks = bytes.len() / size_of::<B>();
    // SAFETY: `Block` promises plain bytes aligned to 1, and the length is no longer than `bytes`.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), n_blocks) }
}

fn blocks_mut<B: Block>(bytes: &mut [u8]) -> &mut [B] {
    let n_blocks = bytes.len() / size_of::<B>();
    // SAFETY: as in `blocks`; the borrow is exclusive.
    unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), n_blocks) }
}

pub(crate) fn decode_blocks<B: Block>(blocks: &[B], values: &mut [f32]) {
    for (block, values) in blocks.iter().zip(values.chunks_exact_mut(B::N_GROUPS * GROUP)) {
        for (g, values) in values.chunks_exact_mut(GROUP).enumerate() {
            write_group::<B>(&block.group(g), values);
        }
    }
}

/// The values of a group.
pub(crate) fn write_group<B: Block>(group: &Group, values: &mut [f32]) {
    for (k, value) in values.iter_mut().enumerate() {
        *value = group.d[k / 16] * f32::from(group.q[k]);
        if B::HAS_MIN {
            *value += group.m[k / 16];
        }
    }
}

fn encode_blocks<B: Block>(
    values: &[f32],
    blocks: &mut [B],
    encode: fn(&[f32; GROUP]) -> B,
) -> Result<(), QuantError> {
    for (i, (values, block)) in values.as_chunks::<GROUP>().0.iter().zip(blocks).enumerate() {
        *block = encode(values);
        if !block.is_finite() || values.iter().any(|value| !value.is_finite()) {
            return Err(QuantError::NotFinite { dtype: B::DTYPE, index: i * GROUP });
        }
    }
    Ok(())
}

/// An f16 as two little-endian bytes.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Half([u8; 2]);

impl Half {
    pub(crate) const ZERO: Half = Half([0; 2]);

    pub(crate) fn from_f32(value: f32) -> Half {
        Half(half::f16::from_f32(value).to_le_bytes())
    }

    pub(crate) fn to_f32(self) -> f32 {
        half::f16::from_le_bytes(self.0).to_f32()
    }

    pub(crate) fn is_finite(self) -> bool {
        half::f16::from_le_bytes(self.0).is_finite()
    }

    /// Writes it as entry `row` of a section of scales.
    pub(crate) fn put(self, row: usize, section: &mut [u8]) {
        section[2 * row..2 * row + 2].copy_from_slice(&self.0);
    }

    /// Entry `row` of a section of scales.
    pub(crate) fn get(row: usize, section: &[u8]) -> f32 {
        Half([section[2 * row], section[2 * row + 1]]).to_f32()
    }
}

/// Low nibbles, then high nibbles: the 4-bit codes of a group in the order of the file.
pub(crate) fn nibbles(bytes: &[u8; 16]) -> [u8; GROUP] {
    let mut codes = [0; GROUP];
    codes[..16].copy_from_slice(&shift_and(bytes, 0, 15));
    codes[16..].copy_from_slice(&shift_and(bytes, 4, 15));
    codes
}

/// The reverse of [`nibbles`], of the low four bits.
fn join_nibbles(codes: &[u8; GROUP]) -> [u8; 16] {
    let codes = shift_and(codes, 0, 15);
    let halves = codes.as_chunks::<16>().0;
    or_high(halves[0], &halves[1])
}

/// Byte k of the result is `low[k] | high[k] << 4`; the high bytes are less than 16.
fn or_high<const N: usize>(mut low: [u8; N], high: &[u8; N]) -> [u8; N] {
    for (low, high) in low.as_chunks_mut::<8>().0.iter_mut().zip(high.as_chunks::<8>().0) {
        *low = (u64::from_le_bytes(*low) | u64::from_le_bytes(*high) << 4).to_le_bytes();
    }
    low
}

/// Byte k of the result is byte k of `bytes` shifted right by `shift`, and masked.
pub(crate) fn shift_and<const N: usize>(bytes: &[u8; N], shift: usize, mask: u8) -> [u8; N] {
    let mask = u64::from_le_bytes([mask; 8]);
    let mut shifted = *bytes;
    for word in shifted.as_chunks_mut::<8>().0 {
        *word = (u64::from_le_bytes(*word) >> shift & mask).to_le_bytes();
    }
    shifted
}

/// Adds bit k of `bits` to code k as its bit `at`.
fn add_bit(mut codes: [u8; GROUP], bits: u32, at: usize) -> [u8; GROUP] {
    for (j, quad) in codes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        // Four bits, spread to bit 0 of four bytes: no carries, since the copies lie apart.
        let spread = ((bits >> (4 * j) & 15) * 0x0020_4081) & 0x0101_0101;
        *quad = (u32::from_le_bytes(*quad) | spread << at).to_le_bytes();
    }
    codes
}

/// The fifth bits of the codes.
fn fifth_bits(codes: &[u8; GROUP]) -> u32 {
    low_bits(&shift_and(codes, 4, 1))
}

/// Bit k of the result is byte k, which is 0 or 1.
fn low_bits(bytes: &[u8; GROUP]) -> u32 {
    bytes.as_chunks::<8>().0.iter().rev().fold(0, |bits, word| {
        // The product moves the lowest bit of byte k to bit 56 + k.
        let byte = u64::from_le_bytes(*word).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        bits << 8 | byte as u32
    })
}

/// Codes less their zero point.
pub(crate) fn minus(codes: [u8; GROUP], zero: u8) -> [i8; GROUP] {
    let mut q = [0; GROUP];
    for (q, code) in q.iter_mut().zip(codes) {
        *q = code.wrapping_sub(zero) as i8;
    }
    q
}

/// The value of largest magnitude, the first of equals, with its sign.
fn extreme(values: &[f32; GROUP]) -> f32 {
    values.iter().fold(values[0], |max, &value| if value.abs() > max.abs() { value } else { max })
}

/// `1 / d`, or 0 for a block of zeros.
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_computes() {
        let expected = "F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, \
                        IQ4_NL, IQ4_XS, BF16, MXFP4";
        assert_eq!(computing_names(), expected);
    }

    #[test]
    fn misfits_are_errors() {
        let mut values = [0.0; 32];
        let wrong_size =
            |n_bytes| Err(QuantError::WrongSize { dtype: DType::Q4_0, n_values: 32, n_bytes });
        assert_eq!(decode(DType::Q4_0, &[0; 17], &mut values), wrong_size(17));
        assert_eq!(decode(DType::Q4_0, &[0; 36], &mut values), wrong_size(36));
        assert_eq!(
            decode(DType::Q8_1, &[0; 36], &mut values),
            Err(QuantError::Unsupported(DType::Q8_1))
        );
        assert!(decode(DType::Q4_K, &[0; 18], &mut values).is_err());
        assert_eq!(
            encode(DType::Q6_K, &[0.0; 256], &mut [0; 210]),
            Err(QuantError::NoEncoder(DType::Q6_K))
        );
        assert_eq!(encode(DType::Q4_0, &values, &mut [0; 17]), wrong_size(17));
        for (value, dtype) in [(f32::NAN, DType::Q8_0), (3e38, DType::Q4_1), (1e9, DType::F16)] {
            let mut bytes = vec![0; dtype.n_bytes(64).unwrap()];
            let mut values = [0.0; 64];
            values[40] = value;
            let error = encode(dtype, &values, &mut bytes).unwrap_err();
            assert!(matches!(error, QuantError::NotFinite { index: 32 | 40, .. }), "{error}");
        }
    }
}
