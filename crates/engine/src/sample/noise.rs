//! Noise without state, and the two functions that it needs in the same bits on every machine.

/// Philox4x32-10: the 128-bit block that belongs to a counter and a key.
///
/// Ten rounds of `(c0, c1, c2, c3) -> (hi(M1 c2) ^ c1 ^ k0, lo(M1 c2), hi(M0 c0) ^ c3 ^ k1, lo(M0 c0))`,
/// with the key raised by `(W0, W1)` between them. Salmon et al., "Parallel random numbers: as easy
/// as 1, 2, 3" (SC 2011).
#[inline(always)]
pub fn philox4x32(
    [mut c0, mut c1, mut c2, mut c3]: [u32; 4],
    [mut k0, mut k1]: [u32; 2],
) -> [u32; 4] {
    const M0: u64 = 0xD251_1F53;
    const M1: u64 = 0xCD9E_8D57;
    const W0: u32 = 0x9E37_79B9;
    const W1: u32 = 0xBB67_AE85;
    for _ in 0..10 {
        let a = M0 * c0 as u64;
        let b = M1 * c2 as u64;
        (c0, c1, c2, c3) =
            ((b >> 32) as u32 ^ c1 ^ k0, b as u32, (a >> 32) as u32 ^ c3 ^ k1, a as u32);
        k0 = k0.wrapping_add(W0);
        k1 = k1.wrapping_add(W1);
    }
    [c0, c1, c2, c3]
}

/// The noise of one position of one choice: a Gumbel variable for each token id.
///
/// The key is the seed; the counter is `(id / 4, position, choice, 0)` and word `id % 4` of the
/// block is the token's. The last counter word is left for other uses of the same seed.
pub struct Noise {
    key: [u32; 2],
    position: u32,
    choice: u32,
    block: Option<u32>,
    words: [u32; 4],
}

impl Noise {
    /// The noise for the token at `position` of its sequence.
    pub fn new(seed: u64, choice: usize, position: usize) -> Noise {
        let key = [seed as u32, (seed >> 32) as u32];
        let (position, choice) = (position as u32, choice as u32);
        Noise { key, position, choice, block: None, words: [0; 4] }
    }

    /// The token's 32 random bits. Fast for ids in ascending order.
    #[inline]
    pub fn bits(&mut self, id: u32) -> u32 {
        if self.block != Some(id / 4) {
            self.block = Some(id / 4);
            self.words = philox4x32([id / 4, self.position, self.choice, 0], self.key);
        }
        self.words[(id % 4) as usize]
    }
}

/// The Gumbel variable `-ln(-ln u)` of 32 random bits, with `u = (bits + 1/2) / 2^32`, never 0 or 1.
pub fn gumbel(bits: u32) -> f64 {
    let u = (bits as f64 + 0.5) * (1.0 / 4_294_967_296.0);
    -ln(-ln(u))
}

/// An upper bound of [`gumbel`] without a logarithm, at most 0.7 above it where it is large.
///
/// Since `-ln u >= 1 - u`, `gumbel <= -ln(1 - u)`; and `1 - u >= 2^(-1 - z)` where `z` counts the
/// leading ones of the bits.
#[inline]
pub fn gumbel_bound(bits: u32) -> f64 {
    (bits.leading_ones() + 1) as f64 * LN2_ABOVE
}

/// Above every [`gumbel`].
pub const GUMBEL_MAX: f64 = 33.0 * LN2_ABOVE;

/// A hair over ln 2, more than the rounding errors of [`gumbel`].
const LN2_ABOVE: f64 = std::f64::consts::LN_2 * (1.0 + 1e-9);

const LN2_HI: f64 = 0.693_147_180_369_123_8;
const LN2_LO: f64 = 1.908_214_929_270_587_7e-10;

/// The natural logarithm of a positive normal number, to 3 ulps, in plain arithmetic so that
/// all machines agree (`libm`s do not).
///
/// `x = 2^e m` with `m` in `[1/sqrt 2, sqrt 2)`; `ln m = 2 atanh s`, `s = (m - 1) / (m + 1)`.
pub fn ln(x: f64) -> f64 {
    const MANTISSA: u64 = (1 << 52) - 1;
    let bits = x.to_bits();
    let mut e = (bits >> 52) as i32 - 1023;
    let mut m = f64::from_bits((bits & MANTISSA) | (1023 << 52));
    if m >= std::f64::consts::SQRT_2 {
        m *= 0.5;
        e += 1;
    }
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let mut sum = 0.0;
    for k in (0..12).rev() {
        sum = sum * z + 1.0 / (2 * k + 1) as f64;
    }
    let e = e as f64;
    e * LN2_HI + (e * LN2_LO + 2.0 * s * sum)
}

/// `e^x` for `x <= 0`, to 3 ulps, in plain arithmetic so that all machines agree; 0 below
/// -700.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`; `e^r` by its series.
#[inline]
pub fn exp(x: f64) -> f64 {
    const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52: adding it rounds to an integer
    const SERIES: [f64; 14] = {
        let mut series = [1.0; 14];
        let mut k = 1;
        while k < 14 {
            series[k] = series[k - 1] / k as f64;
            k += 1;
        }
        series
    };
    let x = if x > -700.0 { x } else { -700.0 };
    let n = (x * std::f64::consts::LOG2_E + ROUND) - ROUND;
    let r = (x - n * LN2_HI) - n * LN2_LO;
    let mut sum = SERIES[13];
    for k in (0..13).rev() {
        sum = sum * r + SERIES[k];
    }
    let scaled = sum * f64::from_bits(((n as i64 + 1023) as u64) << 52);
    if x > -700.0 { scaled } else { 0.0 }
}
