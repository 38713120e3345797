//! The packed integer formats as data: one kernel body reads them all.

use crate::mat::{ACT_BLOCK, START_ZERO};
use crate::quant::{IQ4_VALUES, MXFP4_VALUES};
use crate::weight::tile::{ROWS, iq4_nl, iq4_xs, mxfp4, q2_k, q3_k};
use crate::weight::tile::{q4_0, q4_1, q4_k, q5_0, q5_1, q5_k, q6_k, q8_0};

/// Most blocks of a chunk of expanded weights.
const CHUNK: usize = 18;

/// A packed integer format, see [`crate::weight`]. Along k it is units of [`Format::BLOCKS`] blocks of
/// 32 k, which follow the unit's head.
pub(super) trait Format {
    /// Blocks of 32 k in a unit.
    const BLOCKS: usize = 1;
    /// Bytes of a unit before its first block.
    const HEAD: usize = 0;
    /// Bytes of a block.
    const BLOCK: usize;
    /// The code that means 0.
    const ZERO: i32;
    /// The codes, at the start of a block.
    const CODES: Codes;
    /// The scales.
    const SCALES: Scales;
    /// Steps of the chain in a block.
    const STEPS: usize = match Self::SCALES {
        Scales::Plain { .. } | Scales::Min { .. } | Scales::Exponent { .. } => 1,
        Scales::Super { .. } => 1,
        Scales::Joined { .. } => 2,
        Scales::Signed { steps, .. } | Scales::Expanded { steps, .. } => steps,
    };
    /// Whether there is a minimum.
    const MIN: bool = match Self::SCALES {
        Scales::Min { .. } | Scales::Super { .. } | Scales::Joined { .. } => true,
        Scales::Plain { .. } | Scales::Signed { .. } | Scales::Exponent { .. } => false,
        Scales::Expanded { min, .. } => min,
    };
    /// Bytes of a unit.
    const UNIT: usize = Self::HEAD + Self::BLOCKS * Self::BLOCK;
    /// Most k in a chunk of expanded weights: whole units.
    const CHUNK: usize = CHUNK / Self::BLOCKS * Self::BLOCKS * ACT_BLOCK;
    /// What a start of the activations is shifted right by, being made for [`START_ZERO`].
    const START_SHIFT: i32 =
        (START_ZERO / if Self::ZERO == 0 { 1 } else { Self::ZERO }).ilog2() as i32;
    /// Cache lines to fetch ahead in a block, if any.
    const LINES: usize = Self::UNIT.div_ceil(64 * Self::BLOCKS);
}

/// Sections that hold the codes of a block; offsets count from the block.
#[derive(Clone, Copy)]
pub(super) enum Codes {
    /// 2-bit codes.
    Two,
    /// 2-bit codes, third bits.
    Three { third: usize },
    /// 4-bit codes.
    Four,
    /// 4-bit codes, fifth bits.
    Five { fifth: usize },
    /// 4-bit codes, high pairs.
    Six { high: usize },
    /// 8-bit codes.
    Eight,
    /// 8-bit codes up to `largest`.
    Bytes { largest: u8 },
    /// 4-bit codes of 8-bit codes.
    Book { codes: [u8; 16] },
}

impl Codes {
    /// The largest code.
    pub(super) const fn largest(self) -> u8 {
        match self {
            Codes::Two => 3,
            Codes::Three { .. } => 7,
            Codes::Four => 15,
            Codes::Five { .. } => 31,
            Codes::Six { .. } => 63,
            Codes::Eight => 255,
            Codes::Bytes { largest } => largest,
            Codes::Book { codes } => {
                let (mut largest, mut i) = (0, 0);
                while i < codes.len() {
                    if codes[i] > largest {
                        largest = codes[i];
                    }
                    i += 1;
                }
                largest
            }
        }
    }

    /// A codebook, as codes of which `zero` means 0.
    const fn book(values: [i8; 16], zero: i32) -> Codes {
        let (mut codes, mut i) = ([0; 16], 0);
        while i < codes.len() {
            codes[i] = (values[i] as i32 + zero) as u8;
            i += 1;
        }
        Codes::Book { codes }
    }
}

/// Sections that hold the scales.
#[derive(Clone, Copy)]
pub(super) enum Scales {
    /// f16 `d` in the block.
    Plain { d: usize },
    /// f16 `d` and `m` in the block.
    Min { d: usize, m: usize },
    /// f16 `d` and `dmin` in the head, u8 `sc` and `m` in the block.
    Super { d: usize, dmin: usize, sc: usize, m: usize },
    /// f16 `d` in the head, i8 `sc` of each step in the block.
    Signed { d: usize, sc: usize, steps: usize },
    /// f16 `d` and `dmin` in the head, u8 `sc + 16 m` of each of two steps in the block.
    Joined { d: usize, dmin: usize, sc_m: usize },
    /// u8 `e` in the block: the scale is `2^(e - 128)`.
    Exponent { e: usize },
    /// f32 `dw` of each step and then, if there is a minimum, f32 `m` of each in the block.
    Expanded { dw: usize, steps: usize, min: bool },
}

pub(super) struct Q4_0;
pub(super) struct Q4_1;
pub(super) struct Q5_0;
pub(super) struct Q5_1;
pub(super) struct Q8_0;
pub(super) struct Iq4Nl;
pub(super) struct Mxfp4;
pub(super) struct Q2K;
pub(super) struct Q3K;
pub(super) struct Q4K;
pub(super) struct Q5K;
pub(super) struct Q6K;
pub(super) struct Iq4Xs;

impl Format for Q4_0 {
    const BLOCK: usize = q4_0::BYTES;
    const ZERO: i32 = 8;
    const CODES: Codes = Codes::Four;
    const SCALES: Scales = Scales::Plain { d: q4_0::D };
}

impl Format for Q4_1 {
    const BLOCK: usize = q4_1::BYTES;
    const ZERO: i32 = 0;
    const CODES: Codes = Codes::Four;
    const SCALES: Scales = Scales::Min { d: q4_1::D, m: q4_1::M };
}

impl Format for Q5_0 {
    const BLOCK: usize = q5_0::BYTES;
    const ZERO: i32 = 16;
    const CODES: Codes = Codes::Five { fifth: q5_0::FIFTH };
    const SCALES: Scales = Scales::Plain { d: q5_0::D };
}

impl Format for Q5_1 {
    const BLOCK: usize = q5_1::BYTES;
    const ZERO: i32 = 0;
    const CODES: Codes = Codes::Five { fifth: q5_1::FIFTH };
    const SCALES: Scales = Scales::Min { d: q5_1::D, m: q5_1::M };
}

impl Format for Q8_0 {
    const BLOCK: usize = q8_0::BYTES;
    const ZERO: i32 = 128;
    const CODES: Codes = Codes::Eight;
    const SCALES: Scales = Scales::Plain { d: q8_0::D };
}

impl Format for Iq4Nl {
    const BLOCK: usize = iq4_nl::BYTES;
    const ZERO: i32 = 128;
    const CODES: Codes = Codes::book(IQ4_VALUES, 128);
    const SCALES: Scales = Scales::Plain { d: iq4_nl::D };
}

impl Format for Mxfp4 {
    const BLOCK: usize = mxfp4::BYTES;
    const ZERO: i32 = 16;
    const CODES: Codes = Codes::book(MXFP4_VALUES, 16);
    const SCALES: Scales = Scales::Exponent { e: mxfp4::E };
}

impl Format for Q2K {
    const BLOCKS: usize = 8;
    const HEAD: usize = q2_k::SUBS;
    const BLOCK: usize = q2_k::SUB_BYTES;
    const ZERO: i32 = 0;
    const CODES: Codes = Codes::Two;
    const SCALES: Scales = Scales::Joined { d: q2_k::D, dmin: q2_k::DMIN, sc_m: q2_k::SC_M };
    const CHUNK: usize = 8 * ACT_BLOCK; // With four f32 a block, no more units fit.
}

impl Format for Q3K {
    const BLOCKS: usize = 8;
    const HEAD: usize = q3_k::SUBS;
    const BLOCK: usize = q3_k::SUB_BYTES;
    const ZERO: i32 = 4;
    const CODES: Codes = Codes::Three { third: q3_k::THIRD };
    const SCALES: Scales = Scales::Signed { d: q3_k::D, sc: q3_k::SC, steps: 2 };
}

impl Format for Q4K {
    const BLOCKS: usize = 8;
    const HEAD: usize = q4_k::SUBS;
    const BLOCK: usize = q4_k::SUB_BYTES;
    const ZERO: i32 = 0;
    const CODES: Codes = Codes::Four;
    const SCALES: Scales = Scales::Super { d: q4_k::D, dmin: q4_k::DMIN, sc: q4_k::SC, m: q4_k::M };
}

impl Format for Q5K {
    const BLOCKS: usize = 8;
    const HEAD: usize = q5_k::SUBS;
    const BLOCK: usize = q5_k::SUB_BYTES;
    const ZERO: i32 = 0;
    const CODES: Codes = Codes::Five { fifth: q5_k::FIFTH };
    const SCALES: Scales = Scales::Super { d: q5_k::D, dmin: q5_k::DMIN, sc: q5_k::SC, m: q5_k::M };
}

impl Format for Q6K {
    const BLOCKS: usize = 8;
    const HEAD: usize = q6_k::SUBS;
    const BLOCK: usize = q6_k::SUB_BYTES;
    const ZERO: i32 = 32;
    const CODES: Codes = Codes::Six { high: q6_k::HIGH };
    const SCALES: Scales = Scales::Signed { d: q6_k::D, sc: q6_k::SC, steps: 2 };
}

impl Format for Iq4Xs {
    const BLOCKS: usize = 8;
    const HEAD: usize = iq4_xs::SUBS;
    const BLOCK: usize = iq4_xs::SUB_BYTES;
    const ZERO: i32 = 128;
    const CODES: Codes = Codes::book(IQ4_VALUES, 128);
    const SCALES: Scales = Scales::Signed { d: iq4_xs::D, sc: iq4_xs::SC, steps: 1 };
}

/// Blocks unpacked to bytes and f32, for many rows; codes are shifted to ZERO if there is one.
pub(super) struct Expanded<const ZERO: i32, const MIN: bool, const STEPS: usize, const LARGEST: u8>;

impl<const ZERO: i32, const MIN: bool, const STEPS: usize, const LARGEST: u8> Format
    for Expanded<ZERO, MIN, STEPS, LARGEST>
{
    const BLOCK: usize = 1024 + ROWS * size_of::<f32>() * STEPS * (1 + MIN as usize);
    const ZERO: i32 = ZERO;
    const CODES: Codes = Codes::Bytes { largest: LARGEST };
    const SCALES: Scales = Scales::Expanded { dw: 1024, steps: STEPS, min: MIN };
    const LINES: usize = 8; // Whatever the packed format was.
}
