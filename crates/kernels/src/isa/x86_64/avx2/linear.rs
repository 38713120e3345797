//! The linear op with integer weights.
//!
//! `vpmaddubsw` multiplies unsigned codes by signed activations and adds pairs in i16, where it
//! saturates. A pair is at most 2 * 127 * code, so it and a few more fit exactly:
//!
//! | codes | up to | pair | pairs in an i16 |
//! |---|---|---|---|
//! | 2-bit | 3 | 762 | 4, all of a step |
//! | 3-bit | 7 | 1778 | 4, all of a step |
//! | 4-bit | 15 | 3810 | 8 |
//! | MXFP4 | 28 | 7112 | 4 |
//! | 5-bit | 31 | 7874 | 4 |
//! | 6-bit | 63 | 16002 | 2 |
//! | IQ4_NL, IQ4_XS | 241 | 61214 | none: taken as two nibbles, 8 each |
//! | 8-bit | 255 | 64770 | none: taken as two nibbles, 8 each |
//!
//! One `vpmaddwd` then widens them to i32 (and multiplies the high nibbles by 16).

use std::arch::asm;
use std::arch::x86_64::*;

use super::format::{codes, min, scale};
use super::store;
use crate::isa::x86_64::format::{Codes, Format};
use crate::isa::x86_64::share::{Kernels, Piece, SCRATCH, by_rows};
use crate::mat::{ACT_BLOCK, BLOCK_BYTES, START_ZERO};

/// The kernels of packed format F; many rows read it as E.
pub(super) const fn kernels<F: Format, E: Format>() -> Kernels {
    assert!(F::CHUNK / ACT_BLOCK * E::BLOCK <= SCRATCH);
    assert!(F::CODES.largest() <= E::CODES.largest() && F::STEPS == E::STEPS);
    Kernels {
        float: false,
        unit: F::BLOCKS * ACT_BLOCK,
        unit_bytes: F::UNIT,
        chunk: F::CHUNK,
        // 4 sums in i16 and in i32, or of low and high nibbles.
        max_rows: 4,
        expand_from: match F::CODES {
            Codes::Four | Codes::Eight | Codes::Bytes { .. } => 16,
            _ => 5,
        },
        expand: expand::<F, E>,
        few: compute::<F>,
        many: compute::<E>,
    }
}

/// # Safety
/// As [`Compute`](crate::isa::x86_64::share::Compute).
unsafe fn compute<F: Format>(piece: &Piece<'_>) {
    // SAFETY: the caller's promise.
    unsafe { by_rows!(piece.group.n_rows, 1 2 3 4: chains::<F, _>(piece)) }
}

/// # Safety
/// As [`Expand`](crate::isa::x86_64::share::Expand).
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn expand<F: Format, E: Format>(w: *const u8, n: usize, to: *mut u8) -> *const u8 {
    if let Codes::Eight = F::CODES {
        return w; // As good as expanded.
    }
    let (mut unit, mut block, mut next) = (w, w, to);
    for b in 0..n / ACT_BLOCK {
        // SAFETY: block `b` of whole units, and room for an expanded one.
        unsafe {
            if b % F::BLOCKS == 0 {
                unit = block;
                block = block.add(F::HEAD);
            }
            for octet in 0..4 {
                let to_codes = next.add(512 * (octet / 2) + 32 * (octet % 2)).cast::<__m256i>();
                _mm256_store_si256(to_codes, codes::<F, 0>(block, octet));
                _mm256_store_si256(to_codes.add(2), codes::<F, 1>(block, octet));
                _mm256_store_si256(to_codes.add(4), codes::<F, 2>(block, octet));
                _mm256_store_si256(to_codes.add(6), codes::<F, 3>(block, octet));
                _mm256_store_si256(to_codes.add(8), codes::<F, 4>(block, octet));
                _mm256_store_si256(to_codes.add(10), codes::<F, 5>(block, octet));
                _mm256_store_si256(to_codes.add(12), codes::<F, 6>(block, octet));
                _mm256_store_si256(to_codes.add(14), codes::<F, 7>(block, octet));
                let to_scales = next.add(1024 + 32 * octet);
                for step in 0..F::STEPS {
                    let dw = scale::<F>(unit, block, octet, step);
                    _mm256_store_ps(to_scales.add(128 * step).cast(), dw);
                    if let Some(mw) = min::<F>(unit, block, octet, step) {
                        _mm256_store_ps(to_scales.add(128 * (F::STEPS + step)).cast(), mw);
                    }
                }
            }
            block = block.add(F::BLOCK);
            next = next.add(E::BLOCK);
        }
    }
    to
}

/// Rows of a panel at a block.
#[derive(Clone, Copy)]
struct Rows {
    codes: *const u8,
    terms: *const u8,
    height: usize,
}

impl Rows {
    /// The rows of a piece at its first block.
    #[inline(always)]
    fn of(piece: &Piece<'_>) -> Rows {
        let (panel, row, height) = (piece.panel(), piece.group.row, piece.group.panel.height);
        let terms = panel.wrapping_add(ACT_BLOCK * height + 4 * row);
        Rows { codes: panel.wrapping_add(ACT_BLOCK * row), terms, height }
    }

    /// The same, as the compiler cannot tell: it would keep what is broadcast in memory for the next
    /// pair, at a higher price than that of making it again.
    #[inline(always)]
    fn hidden(&self) -> Rows {
        let mut nothing = 0;
        // SAFETY: no instruction.
        unsafe { asm!("/* {0} */", inout(reg) nothing, options(nomem, nostack, preserves_flags)) };
        let codes = self.codes.wrapping_add(nothing);
        Rows { codes, ..*self }
    }

    /// To the next block.
    #[inline(always)]
    fn advance(&mut self) {
        self.codes = self.codes.wrapping_add(BLOCK_BYTES * self.height);
        self.terms = self.terms.wrapping_add(BLOCK_BYTES * self.height);
    }

    /// The codes of row `m` at k = 4 quad..4 quad + 4, in all lanes.
    ///
    /// # Safety
    /// AVX2, shell; there is such a row.
    #[inline(always)]
    unsafe fn quad(&self, m: usize, quad: usize) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe {
            let quad = self.codes.add(ACT_BLOCK * m + 4 * quad).cast::<i32>();
            _mm256_set1_epi32(quad.read_unaligned())
        }
    }

    /// Word `term` of row `m`, in all lanes.
    ///
    /// # Safety
    /// As [`Rows::quad`].
    #[inline(always)]
    unsafe fn term(&self, term: usize, m: usize) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe {
            let term = self.terms.add(4 * (term * self.height + m)).cast::<i32>();
            _mm256_set1_epi32(term.read_unaligned())
        }
    }

    /// The start of row `m` in step `step`: `-128 S`.
    ///
    /// # Safety
    /// As [`Rows::quad`].
    #[inline(always)]
    unsafe fn start<F: Format>(&self, step: usize, m: usize) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe {
            match (F::STEPS, step) {
                (1, _) => self.term(2, m),
                (_, 0) => self.term(3, m),
                _ => _mm256_sub_epi32(self.term(2, m), self.term(3, m)),
            }
        }
    }

    /// The offset of row `m` in step `step`: `d S`.
    ///
    /// # Safety
    /// As [`Rows::quad`].
    #[inline(always)]
    unsafe fn offset<F: Format>(&self, step: usize, m: usize) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe {
            if F::STEPS == 1 {
                return _mm256_castsi256_ps(self.term(1, m));
            }
            // The shift is exact.
            let shift = _mm_cvtsi32_si128(START_ZERO.ilog2() as i32);
            let minus_sum = _mm256_sra_epi32(self.start::<F>(step, m), shift);
            let sum = _mm256_sub_epi32(_mm256_setzero_si256(), minus_sum);
            _mm256_mul_ps(_mm256_castsi256_ps(self.term(0, m)), _mm256_cvtepi32_ps(sum))
        }
    }

    /// What a step reads of MT rows beside codes and scales.
    ///
    /// # Safety
    /// As [`Rows::quad`].
    #[inline(always)]
    unsafe fn terms<F: Format, const MT: usize>(&self, step: usize) -> Terms<MT> {
        // SAFETY: the caller's promise.
        unsafe {
            let mut terms =
                Terms { starts: [_mm256_setzero_si256(); MT], offsets: [_mm256_setzero_ps(); MT] };
            for m in 0..MT {
                if F::ZERO != 0 {
                    // The shift is exact.
                    let shift = _mm_cvtsi32_si128(F::START_SHIFT);
                    terms.starts[m] = _mm256_sra_epi32(self.start::<F>(step, m), shift);
                }
                if F::MIN {
                    terms.offsets[m] = self.offset::<F>(step, m);
                }
            }
            terms
        }
    }
}

/// Of each row at a block, in all lanes.
struct Terms<const MT: usize> {
    /// Where the sum starts: `-zero S`; 0 without a zero.
    starts: [__m256i; MT],
    /// The offset `d S`; 0 without a minimum.
    offsets: [__m256; MT],
}

/// A piece of MT rows, weights in format F.
///
/// # Safety
/// As [`Compute`](crate::isa::x86_64::share::Compute).
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn chains<F: Format, const MT: usize>(piece: &Piece<'_>) {
    let n = piece.n / ACT_BLOCK;
    let mut fetch = piece.ahead.over(n, F::LINES);
    let (mut unit, mut block, mut x) = (piece.w, piece.w, Rows::of(piece));
    let mut acc = [[_mm256_setzero_ps(); MT]; 4];
    if !piece.is_first() {
        // SAFETY: 32 values a row.
        acc = unsafe { piece.acc.cast::<[[__m256; MT]; 4]>().read() };
    }
    for b in 0..n {
        fetch.step(F::LINES);
        // SAFETY: block `b` of the piece.
        unsafe {
            if b % F::BLOCKS == 0 {
                unit = block;
                block = block.add(F::HEAD);
            }
            for step in 0..F::STEPS {
                let terms = x.terms::<F, MT>(step);
                let at = At { unit, block, step };
                for pair in 0..const { 4 / octets::<F>() } {
                    dot::<F, MT>(at, pair, &x.hidden(), &terms, &mut acc);
                }
            }
            block = block.add(F::BLOCK);
            x.advance();
        }
    }
    // SAFETY: the caller's promise; 32 values a row.
    unsafe {
        if piece.is_last() {
            for octet in 0..4 {
                store(piece, octet, &acc[octet]);
            }
        } else {
            piece.acc.cast::<[[__m256; MT]; 4]>().write(acc);
        }
    }
}

/// A step of a block of a unit.
#[derive(Clone, Copy)]
struct At {
    unit: *const u8,
    block: *const u8,
    step: usize,
}

/// Whether codes are taken apart.
const fn is_apart<F: Format>() -> bool {
    exact::<F>() == 0
}

/// Octets of a pair.
const fn octets<F: Format>() -> usize {
    if is_apart::<F>() { 1 } else { 2 }
}

/// Quads whose products add up in an i16, of those of a step; 0 if codes are taken apart.
const fn exact<F: Format>() -> usize {
    let fit = i16::MAX as usize / (2 * 127 * F::CODES.largest() as usize);
    let n = 8 / F::STEPS;
    match fit {
        0 => 0,
        _ if fit < n => 1 << fit.ilog2(),
        _ => n,
    }
}

/// One step of the chains of a pair: of two octets, or of one whose codes are taken apart.
///
/// # Safety
/// AVX2, shell; a unit, a block of it, and MT rows at a block.
#[inline(always)]
unsafe fn dot<F: Format, const MT: usize>(
    at: At,
    pair: usize,
    x: &Rows,
    terms: &Terms<MT>,
    acc: &mut [[__m256; MT]; 4],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let zero = _mm256_setzero_si256();
        let mut sum = Sum { narrow: [[zero; 2]; MT], wide: [terms.starts; 2] };
        if at.step == 0 {
            quad::<F, MT, 0>(at.block, pair, x, &mut sum);
            quad::<F, MT, 1>(at.block, pair, x, &mut sum);
            quad::<F, MT, 2>(at.block, pair, x, &mut sum);
            quad::<F, MT, 3>(at.block, pair, x, &mut sum);
        }
        if at.step + 1 == F::STEPS {
            quad::<F, MT, 4>(at.block, pair, x, &mut sum);
            quad::<F, MT, 5>(at.block, pair, x, &mut sum);
            quad::<F, MT, 6>(at.block, pair, x, &mut sum);
            quad::<F, MT, 7>(at.block, pair, x, &mut sum);
        }
        for i in 0..const { octets::<F>() } {
            let octet = pair * octets::<F>() + i;
            let dw = scale::<F>(at.unit, at.block, octet, at.step);
            let mw = min::<F>(at.unit, at.block, octet, at.step);
            for m in 0..MT {
                let acc = &mut acc[octet][m];
                let d = _mm256_mul_ps(dw, _mm256_castsi256_ps(x.term(0, m)));
                *acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum.wide[i][m]), d, *acc);
                if let Some(mw) = mw {
                    *acc = _mm256_fmadd_ps(mw, terms.offsets[m], *acc);
                }
            }
        }
    }
}

/// Sums of products: of each row in i16, of both vectors of a pair, and of each octet in i32.
struct Sum<const MT: usize> {
    narrow: [[__m256i; 2]; MT],
    wide: [[__m256i; MT]; 2],
}

/// Adds the products of k = 4 QUAD..4 QUAD + 4.
///
/// # Safety
/// As [`dot`].
#[inline(always)]
unsafe fn quad<F: Format, const MT: usize, const QUAD: usize>(
    block: *const u8,
    pair: usize,
    x: &Rows,
    sum: &mut Sum<MT>,
) {
    let exact = if is_apart::<F>() { 8 / F::STEPS } else { exact::<F>() };
    // SAFETY: the caller's promise.
    unsafe {
        let w = if is_apart::<F>() {
            let (w, low) = (codes::<F, QUAD>(block, pair), _mm256_set1_epi8(15));
            [_mm256_and_si256(w, low), _mm256_and_si256(_mm256_srli_epi16::<4>(w), low)]
        } else {
            [codes::<F, QUAD>(block, 2 * pair), codes::<F, QUAD>(block, 2 * pair + 1)]
        };
        for m in 0..MT {
            let q = x.quad(m, QUAD);
            for i in 0..2 {
                // The first products of a sum are it.
                sum.narrow[m][i] = match QUAD.is_multiple_of(exact) {
                    true => _mm256_maddubs_epi16(w[i], q),
                    false => add_products(sum.narrow[m][i], w[i], q),
                };
            }
            if (QUAD + 1).is_multiple_of(exact) {
                let by = [1, if is_apart::<F>() { 16 } else { 1 }];
                for i in 0..2 {
                    let wide = &mut sum.wide[if is_apart::<F>() { 0 } else { i }][m];
                    let products = _mm256_madd_epi16(sum.narrow[m][i], _mm256_set1_epi16(by[i]));
                    *wide = _mm256_add_epi32(*wide, products);
                }
            }
        }
    }
}

/// `sum` and the products of codes with a quad of a row.
///
/// In assembler, since the compiler, given the choice, regroups the sums, runs out of registers and
/// takes twice the time.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_products(mut sum: __m256i, w: __m256i, q: __m256i) -> __m256i {
    // SAFETY: only registers are touched.
    unsafe {
        asm!(
            "vpmaddubsw {product}, {w}, {q}",
            "vpaddw {sum}, {sum}, {product}",
            w = in(ymm_reg) w,
            q = in(ymm_reg) q,
            product = out(ymm_reg) _,
            sum = inout(ymm_reg) sum,
            options(nomem, nostack, preserves_flags),
        );
    }
    sum
}
