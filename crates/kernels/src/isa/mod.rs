//! Instruction sets, chosen at run time. The baseline of the binary is plain x86-64 (or any other
//! processor, in scalar code); nothing here looks at `cfg(target_feature)`.

mod scalar;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use std::fmt;
use std::str::FromStr;

use crate::dtype::DType;
use crate::linear::LinearKernel;

/// An instruction set that has its own kernels.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Isa {
    /// Portable Rust, the oracle of all others.
    Scalar,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 with F, BW, DQ, VL and VNNI.
    Avx512,
}

impl Isa {
    /// Every instruction set, plainest first.
    pub const ALL: [Isa; 3] = [Isa::Scalar, Isa::Avx2, Isa::Avx512];

    /// Whether this processor can run it.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// The instruction sets that this processor can run, plainest first.
    pub fn available() -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_available())
    }

    /// The best instruction set that this processor can run.
    pub fn best() -> Isa {
        Isa::available().last().unwrap_or(Isa::Scalar)
    }

    /// The kernel of the linear op for weights of `dtype`; the scalar one where there is no better.
    ///
    /// # Panics
    /// If the type does not compute.
    pub(crate) fn linear(self, dtype: DType) -> LinearKernel {
        let own = match self {
            Isa::Scalar => None,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => x86_64::avx2::linear(dtype),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => x86_64::avx512::linear(dtype),
            #[cfg(not(target_arch = "x86_64"))]
            _ => None,
        };
        own.unwrap_or_else(|| scalar::linear(dtype))
    }

    /// The name that `PACELINE_ISA` and the reports use.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The name is none of [`Isa::ALL`].
#[derive(Debug, thiserror::Error)]
#[error("unknown instruction set '{0}': one of scalar, avx2, avx512")]
pub struct UnknownIsa(String);

impl FromStr for Isa {
    type Err = UnknownIsa;

    fn from_str(name: &str) -> Result<Isa, UnknownIsa> {
        Isa::ALL.into_iter().find(|isa| isa.name() == name).ok_or_else(|| UnknownIsa(name.into()))
    }
}
