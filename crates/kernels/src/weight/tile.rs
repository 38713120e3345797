//! Where things lie in a block of a row tile, in bytes. The drawing is in the documentation of
//! [`crate::weight`].
#![allow(dead_code)] // Until every format has its kernels.

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
