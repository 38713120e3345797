//! x86-64.
//!
//! A kernel is one generic body over a format and a number of rows, inlined into a shell with
//! `#[target_feature]`. Intrinsics are functions of their feature: code between them and the shell
//! must be `#[inline(always)]`, and no closure.

pub(crate) mod avx2;
pub(crate) mod avx512;
mod format;
mod share;
#[cfg(test)]
mod tests;
