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
#[derive(Clone, Copy, Debug)]
pub struct Noise {
    key: [u32; 2],
    position: u32,
    choice: u32,
}

impl Noise {
    /// The noise for the token at `position` of its sequence.
    pub fn new(seed: u64, choice: usize, position: usize) -> Noise {
        let key = [seed as u32, (seed >> 32) as u32];
        Noise { key, position: position as u32, choice: choice as u32 }
    }

    /// The random bits of the tokens `4 * block..4 * block + 4`.
    #[inline]
    pub fn bits(&self, block: u32) -> [u32; 4] {
        philox4x32([block, self.position, self.choice, 0], self.key)
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

/// Steps of the table of [`exp`] in a factor of 2.
const STEPS: usize = 128;

/// `2^(i / STEPS)`.
const POWERS: [f64; STEPS] = {
    let mut powers = [1.0; STEPS];
    let mut i = 1;
    while i < STEPS {
        let x = std::f64::consts::LN_2 * i as f64 / STEPS as f64;
        let mut k = 20;
        while k > 0 {
            powers[i] = 1.0 + powers[i] * x / k as f64;
            k -= 1;
        }
        i += 1;
    }
    powers
};

/// `e^x` for `x <= 0`, to 3 ulps, in plain arithmetic so that all machines agree; 0 below -700.
///
/// `x = n ln 2 / 128 + r` with `|r| <= ln 2 / 256`; `2^(n / 128)` from a table, `e^r` by its series.
#[inline]
pub fn exp(x: f64) -> f64 {
    const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52: adding it rounds to an integer
    const STEP_HI: f64 = LN2_HI / STEPS as f64;
    const STEP_LO: f64 = LN2_LO / STEPS as f64;
    let in_range = x > -700.0;
    let x = if in_range { x } else { -700.0 };
    let rounded = x * (STEPS as f64 * std::f64::consts::LOG2_E) + ROUND;
    let n = rounded - ROUND;
    let i = rounded.to_bits() as i64 - ROUND.to_bits() as i64;
    let r = (x - n * STEP_HI) - n * STEP_LO;
    let series = r + r * r * (1.0 / 2.0 + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * (1.0 / 120.0))));
    let power = POWERS[i as usize % STEPS];
    let scale = f64::from_bits(((i.div_euclid(STEPS as i64) + 1023) as u64) << 52);
    if in_range { (power + power * series) * scale } else { 0.0 }
}
