//! What the machine could do at best: every speed is told beside these.

use crate::arena::{AllocError, Arena};
use crate::cpu::Cpu;
use crate::isa::Isa;
use crate::simd::{Kernel, LANES, Simd};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Memory to read from, larger than any cache that a share of it could stay in.
pub struct ReadTest {
    data: Arena,
}

impl ReadTest {
    /// A test that reads `n_bytes` at a time.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(n_bytes: usize) -> Result<ReadTest, AllocError> {
        let mut data = Arena::zeroed(n_bytes)?;
        data.as_mut_slice().fill(1);
        Ok(ReadTest { data })
    }

    /// Bytes per second that all threads of `cpu` read together, the median of `n` passes.
    pub fn run(&self, cpu: &Cpu, n: usize) -> f64 {
        let n_threads = cpu.n_threads();
        let data = self.data.as_slice();
        let mut times: Vec<Duration> = (0..n.max(1))
            .map(|_| {
                let start = Instant::now();
                cpu.team.run(&|thread| {
                    let cut = |thread: usize| data.len() / n_threads * thread;
                    let bytes = &data[cut(thread)..cut(thread + 1)];
                    black_box(cpu.compute(Read { bytes }));
                });
                start.elapsed()
            })
            .collect();
        times.sort_unstable();
        (data.len() / n_threads * n_threads) as f64 / times[times.len() / 2].as_secs_f64()
    }
}

struct Read<'a> {
    bytes: &'a [u8],
}

impl Kernel for Read<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        // Four sums keep enough loads under way.
        let mut sums = [s.splat(0.0); 4];
        // SAFETY: any bytes are floats. Ones in every byte are small floats, and normal ones.
        let (_, floats, _) = unsafe { self.bytes.align_to::<[f32; LANES]>() };
        for quad in floats.as_chunks::<4>().0 {
            for (sum, floats) in sums.iter_mut().zip(quad) {
                *sum = s.add(*sum, s.load(floats));
            }
        }
        s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
    }
}

impl Cpu {
    /// int8 multiply-adds per second of all threads together with everything in registers, the best
    /// of some bursts; `None` in scalar code.
    pub fn int8_peak(&self) -> Option<f64> {
        #[cfg(target_arch = "x86_64")]
        {
            /// Rounds of a burst, some hundred microseconds.
            const ROUNDS: u64 = 60_000;
            let macs_per_round = match self.isa {
                Isa::Scalar => return None,
                Isa::Avx2 => 6 * 32,
                Isa::Avx512 => 12 * 64,
            };
            let burst = || {
                let start = Instant::now();
                // SAFETY: `Cpu::new` checked the instruction set.
                self.team.run(&|_| unsafe {
                    match self.isa {
                        Isa::Avx512 => vnni(ROUNDS),
                        _ => maddubs(ROUNDS),
                    }
                });
                start.elapsed().as_secs_f64()
            };
            let best = (0..30).map(|_| burst()).fold(f64::MAX, f64::min);
            Some((self.n_threads() as u64 * ROUNDS * macs_per_round) as f64 / best)
        }
        #[cfg(not(target_arch = "x86_64"))]
        None
    }
}

/// Twelve independent `vpdpbusd` a round.
///
/// # Safety
/// AVX-512 VNNI.
#[cfg(target_arch = "x86_64")]
unsafe fn vnni(rounds: u64) {
    // SAFETY: only registers are touched.
    unsafe {
        std::arch::asm!(
            "2:",
            "vpdpbusd zmm0, zmm30, zmm31",
            "vpdpbusd zmm1, zmm30, zmm31",
            "vpdpbusd zmm2, zmm30, zmm31",
            "vpdpbusd zmm3, zmm30, zmm31",
            "vpdpbusd zmm4, zmm30, zmm31",
            "vpdpbusd zmm5, zmm30, zmm31",
            "vpdpbusd zmm6, zmm30, zmm31",
            "vpdpbusd zmm7, zmm30, zmm31",
            "vpdpbusd zmm8, zmm30, zmm31",
            "vpdpbusd zmm9, zmm30, zmm31",
            "vpdpbusd zmm10, zmm30, zmm31",
            "vpdpbusd zmm11, zmm30, zmm31",
            "dec {rounds}",
            "jnz 2b",
            rounds = inout(reg) rounds => _,
            out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _,
            out("zmm4") _, out("zmm5") _, out("zmm6") _, out("zmm7") _,
            out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _,
            out("zmm30") _, out("zmm31") _,
            options(nomem, nostack),
        );
    }
}

/// Six independent `vpmaddubsw` a round, each added to a sum in i16.
///
/// # Safety
/// AVX2.
#[cfg(target_arch = "x86_64")]
unsafe fn maddubs(rounds: u64) {
    // SAFETY: only registers are touched.
    unsafe {
        std::arch::asm!(
            "2:",
            "vpmaddubsw ymm6, ymm14, ymm15",
            "vpaddw ymm0, ymm0, ymm6",
            "vpmaddubsw ymm7, ymm14, ymm15",
            "vpaddw ymm1, ymm1, ymm7",
            "vpmaddubsw ymm8, ymm14, ymm15",
            "vpaddw ymm2, ymm2, ymm8",
            "vpmaddubsw ymm9, ymm14, ymm15",
            "vpaddw ymm3, ymm3, ymm9",
            "vpmaddubsw ymm10, ymm14, ymm15",
            "vpaddw ymm4, ymm4, ymm10",
            "vpmaddubsw ymm11, ymm14, ymm15",
            "vpaddw ymm5, ymm5, ymm11",
            "dec {rounds}",
            "jnz 2b",
            rounds = inout(reg) rounds => _,
            out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
            out("ymm4") _, out("ymm5") _, out("ymm6") _, out("ymm7") _,
            out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
            out("ymm14") _, out("ymm15") _,
            options(nomem, nostack),
        );
    }
}
