//! Tensor types: one table, in the terms of GGUF (ggml), whose names and numbers the field shares.

use std::fmt;

/// One row of the type table.
#[derive(Debug)]
pub struct DTypeInfo {
    /// The type.
    pub dtype: DType,
    /// Name as ggml spells it, e.g. `Q4_K`.
    pub name: &'static str,
    /// Number of the type in a GGUF file.
    pub ggml_id: u32,
    /// Values in one block.
    pub block_len: usize,
    /// Bytes of one block.
    pub block_bytes: usize,
}

macro_rules! dtypes {
    ($($name:ident = $id:literal: $block_len:literal values in $block_bytes:literal bytes,)*) => {
        /// A tensor type of the GGUF format. All are known by name; those that compute are listed in
        /// [`crate::quant`].
        #[allow(non_camel_case_types, missing_docs)] // The names are ggml's.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum DType { $($name,)* }

        static TABLE: &[DTypeInfo] = &[$(DTypeInfo {
            dtype: DType::$name,
            name: stringify!($name),
            ggml_id: $id,
            block_len: $block_len,
            block_bytes: $block_bytes,
        },)*];

        impl DType {
            /// Every type, in the order of the table.
            pub const ALL: &[DType] = &[$(DType::$name,)*];
        }
    };
}

dtypes! {
    F32 = 0: 1 values in 4 bytes,
    F16 = 1: 1 values in 2 bytes,
    Q4_0 = 2: 32 values in 18 bytes,
    Q4_1 = 3: 32 values in 20 bytes,
    Q5_0 = 6: 32 values in 22 bytes,
    Q5_1 = 7: 32 values in 24 bytes,
    Q8_0 = 8: 32 values in 34 bytes,
    Q8_1 = 9: 32 values in 36 bytes,
    Q2_K = 10: 256 values in 84 bytes,
    Q3_K = 11: 256 values in 110 bytes,
    Q4_K = 12: 256 values in 144 bytes,
    Q5_K = 13: 256 values in 176 bytes,
    Q6_K = 14: 256 values in 210 bytes,
    Q8_K = 15: 256 values in 292 bytes,
    IQ2_XXS = 16: 256 values in 66 bytes,
    IQ2_XS = 17: 256 values in 74 bytes,
    IQ3_XXS = 18: 256 values in 98 bytes,
    IQ1_S = 19: 256 values in 50 bytes,
    IQ4_NL = 20: 32 values in 18 bytes,
    IQ3_S = 21: 256 values in 110 bytes,
    IQ2_S = 22: 256 values in 82 bytes,
    IQ4_XS = 23: 256 values in 136 bytes,
    I8 = 24: 1 values in 1 bytes,
    I16 = 25: 1 values in 2 bytes,
    I32 = 26: 1 values in 4 bytes,
    I64 = 27: 1 values in 8 bytes,
    F64 = 28: 1 values in 8 bytes,
    IQ1_M = 29: 256 values in 56 bytes,
    BF16 = 30: 1 values in 2 bytes,
    TQ1_0 = 34: 256 values in 54 bytes,
    TQ2_0 = 35: 256 values in 66 bytes,
    MXFP4 = 39: 32 values in 17 bytes,
    NVFP4 = 40: 64 values in 36 bytes,
    Q1_0 = 41: 128 values in 18 bytes,
}

impl DType {
    /// The type's row of the table.
    pub const fn info(self) -> &'static DTypeInfo {
        &TABLE[self as usize]
    }

    /// The type with this number in a GGUF file.
    pub fn from_ggml_id(id: u32) -> Option<DType> {
        TABLE.iter().find(|info| info.ggml_id == id).map(|info| info.dtype)
    }

    /// Bytes of `n_values` values, or `None` if they are no whole number of blocks or overflow.
    pub fn n_bytes(self, n_values: usize) -> Option<usize> {
        let info = self.info();
        if !n_values.is_multiple_of(info.block_len) {
            return None;
        }
        (n_values / info.block_len).checked_mul(info.block_bytes)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.info().name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_indexed_by_the_enum() {
        for &dtype in DType::ALL {
            assert_eq!(dtype.info().dtype, dtype);
            assert_eq!(DType::from_ggml_id(dtype.info().ggml_id), Some(dtype));
        }
        assert_eq!(DType::from_ggml_id(4), None);
    }

    #[test]
    fn bytes_are_counted_in_whole_blocks() {
        assert_eq!(DType::Q4_K.n_bytes(512), Some(288));
        assert_eq!(DType::Q4_K.n_bytes(511), None);
        assert_eq!(DType::I64.n_bytes(usize::MAX), None);
    }
}
