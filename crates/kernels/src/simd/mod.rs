//! Sixteen lanes of f32, or of pairs of i16: what an op needs of an instruction set.
//!
//! An op's body is written once, generic over [`Simd`], and compiled for each instruction set
//! through [`Cpu::compute`]. Every operation is exact IEEE arithmetic in each lane and every
//! instruction set has the same sixteen lanes, so all of them give the same bits.
//!
//! A value of a [`Simd`] type is the proof that the processor has its instructions: only
//! [`Cpu::compute`] makes one. Bodies are `#[inline(always)]` all the way down, since an
//! instruction outside the function that enables it would become a call.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod scalar;

use scalar::Scalar;

use crate::cpu::Cpu;
use crate::isa::Isa;
use half::f16;

/// Lanes of a vector, on every instruction set.
pub(crate) const LANES: usize = 16;

/// An instruction set's sixteen lanes.
pub(crate) trait Simd: Copy {
    /// Sixteen f32.
    type F: Copy;
    /// Sixteen i32, or as many pairs of i16.
    type I: Copy;
    /// Vectors that the registers hold beside a number in all lanes.
    const VECTORS: usize;
    /// Attention tiles of so many rows compute longer than they wait for memory.
    const BUSY_ROWS: usize;

    fn splat(self, x: f32) -> Self::F;
    fn load(self, x: &[f32; LANES]) -> Self::F;
    fn store(self, x: Self::F, to: &mut [f32; LANES]);
    fn load_f16(self, x: &[f16; LANES]) -> Self::F;
    /// Of whole numbers in -128..=127.
    fn store_i8(self, x: Self::F, to: &mut [i8; LANES]);

    /// Rounds numbers in -32768..=32767 to nearest even.
    fn store_i16(self, x: Self::F, to: &mut [i16; LANES]);

    /// Sixteen times 0.
    fn zeros(self) -> Self::I;
    fn load_pairs(self, x: &[i16; 2 * LANES]) -> Self::I;
    fn store_pairs(self, x: Self::I, to: &mut [i16; 2 * LANES]);
    /// The same pair in all lanes.
    fn splat_pair(self, pair: [i16; 2]) -> Self::I;
    /// Pairs of `a[i]` and `b[i]`: `(64 x y + 2^14) >> 15`, `y` being its half of `by`.
    fn widen_pairs(self, a: &[i8; LANES], b: &[i8; LANES], by: Self::I) -> Self::I;
    /// `c + a[0] * b[0] + a[1] * b[1]` of pairs, modulo 2^32.
    fn dot_pairs(self, a: Self::I, b: Self::I, c: Self::I) -> Self::I;
    /// i32, rounded to nearest even.
    fn to_float(self, x: Self::I) -> Self::F;

    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `if a > b { a } else { b }`: with a NaN on either side, `b`.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// The larger magnitude; a NaN is larger than infinity.
    fn max_abs(self, a: Self::F, b: Self::F) -> Self::F;
    /// To the nearest whole number, ties to even.
    fn round(self, x: Self::F) -> Self::F;
    /// `x * 2^n` for the number `n` in the last 9 bits of `by`: adds it to the exponent. `x` is a
    /// normal number and so is the result, else it means nothing.
    fn raise(self, x: Self::F, by: Self::F) -> Self::F;
    /// `if a < b { x } else { y }`.
    fn select_lt(self, a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F;
    /// Sum of the lanes as a fixed tree: lane `i` takes lane `i + 8`, then `+ 4`, `+ 2`, `+ 1`.
    fn sum(self, x: Self::F) -> f32;
    /// The largest lane, by [`Simd::max`] with the higher lane first in the same tree.
    fn largest(self, x: Self::F) -> f32;
    /// The largest magnitude of the lanes; a NaN is larger than infinity.
    fn largest_abs(self, x: Self::F) -> f32;

    /// Lane `i` is the largest magnitude of the lanes of `x[i]`; a NaN is larger than infinity.
    #[inline(always)]
    fn largest_abs_each(self, x: &[Self::F; LANES]) -> Self::F {
        let mut largest = [0.0; LANES];
        for i in 0..LANES {
            largest[i] = self.largest_abs(x[i]);
        }
        self.load(&largest)
    }

    /// Lane `i` is the sum of the lanes of `x[i]`, small whole numbers: no order can be told.
    #[inline(always)]
    fn sum_each(self, x: &[Self::F; LANES]) -> Self::F {
        let mut sums = [0.0; LANES];
        for i in 0..LANES {
            sums[i] = self.sum(x[i]);
        }
        self.load(&sums)
    }

    /// Asks for the cache line at `at`, which may be anywhere.
    #[inline(always)]
    fn fetch(self, at: *const u8) {
        let _ = at;
    }

    /// The lanes.
    #[inline(always)]
    fn to_array(self, x: Self::F) -> [f32; LANES] {
        let mut array = [0.0; LANES];
        self.store(x, &mut array);
        array
    }

    /// Up to 16 values from the start of a slice; lanes behind its end are 0.
    #[inline(always)]
    fn load_start(self, x: &[f32]) -> Self::F {
        match x.first_chunk() {
            Some(x) => self.load(x),
            None => {
                let mut array = [0.0; LANES];
                array[..x.len()].copy_from_slice(x);
                self.load(&array)
            }
        }
    }

    /// Up to 16 values to the start of a slice; lanes behind its end are dropped.
    #[inline(always)]
    fn store_start(self, x: Self::F, to: &mut [f32]) {
        match to.first_chunk_mut() {
            Some(to) => self.store(x, to),
            None => to.copy_from_slice(&self.to_array(x)[..to.len()]),
        }
    }
}

/// A computation written over any [`Simd`]; `run` must be `#[inline(always)]`.
pub(crate) trait Kernel {
    /// What it returns.
    type Output;
    /// Computes.
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

impl Cpu {
    /// Runs a kernel on the processor's instruction set.
    #[inline]
    pub(crate) fn compute<K: Kernel>(&self, kernel: K) -> K::Output {
        match self.isa {
            Isa::Scalar => kernel.run(Scalar),
            // SAFETY: `Cpu::new` made sure that the processor has the instruction set.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { run_avx2(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { run_avx512(kernel) },
            #[cfg(not(target_arch = "x86_64"))]
            _ => unreachable!("`Cpu::new` refuses an instruction set of another processor"),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the features of this function.
    kernel.run(unsafe { avx2::Avx2::new() })
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the features of this function.
    kernel.run(unsafe { avx512::Avx512::new() })
}
