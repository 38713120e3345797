//! F32, F16 and BF16: one value per block.

use super::QuantError;
use crate::dtype::DType;

/// A float format. In a row tile, 32 values (one per row) follow each other for each k.
pub(crate) trait Float: 'static {
    /// The format.
    const DTYPE: DType;
    /// Bytes of a value.
    const BYTES: usize;

    /// The value in the first bytes.
    fn read(bytes: &[u8]) -> f32;

    /// Whether the value in the first bytes is finite.
    fn is_finite(bytes: &[u8]) -> bool;

    /// Writes `value`, rounded to nearest even, to the first bytes.
    fn write(value: f32, bytes: &mut [u8]);
}

/// Implements [`Float`] for `$F`, written to a file as the little-endian `$word`.
macro_rules! float {
    ($F:ident, $DTYPE:ident, $word:ty, $read:expr, $write:expr) => {
        #[doc = concat!("Little-endian ", stringify!($DTYPE), ".")]
        pub(crate) struct $F;

        impl Float for $F {
            const DTYPE: DType = DType::$DTYPE;
            const BYTES: usize = size_of::<$word>();

            fn read(bytes: &[u8]) -> f32 {
                $read(<$word>::from_le_bytes(*bytes.first_chunk().expect("a whole value")))
            }

            fn is_finite(bytes: &[u8]) -> bool {
                <$word>::from_le_bytes(*bytes.first_chunk().expect("a whole value")).is_finite()
            }

            fn write(value: f32, bytes: &mut [u8]) {
                let word: $word = $write(value);
                bytes[..Self::BYTES].copy_from_slice(&word.to_le_bytes());
            }
        }

        const _: () = assert!($F::BYTES == DType::$DTYPE.info().block_bytes);
    };
}

float!(F32, F32, f32, std::convert::identity, std::convert::identity);
float!(F16, F16, half::f16, half::f16::to_f32, half::f16::from_f32);
float!(Bf16, BF16, half::bf16, half::bf16::to_f32, half::bf16::from_f32);

pub(crate) fn decode<F: Float>(bytes: &[u8], values: &mut [f32]) {
    for (value, bytes) in values.iter_mut().zip(bytes.chunks_exact(F::BYTES)) {
        *value = F::read(bytes);
    }
}

pub(super) fn encode<F: Float>(values: &[f32], bytes: &mut [u8]) -> Result<(), QuantError> {
    for (index, (&value, bytes)) in values.iter().zip(bytes.chunks_exact_mut(F::BYTES)).enumerate()
    {
        F::write(value, bytes);
        if !F::is_finite(bytes) {
            return Err(QuantError::NotFinite { dtype: F::DTYPE, index });
        }
    }
    Ok(())
}
