//! The linear op with integer weights.
//!
//! `vpmaddubsw` multiplies unsigned codes by signed activations and adds pairs in i16, where it
//! saturates. A pair is at most 2 * 127 * code, so it and a few more fit exactly:
//!
//! | codes up to | pair | pairs in an i16 |
//! |---|---|---|
//! | 15 | 3810 | 8 |
//! | 31 | 7874 | 4 |
//! | 63 | 16002 | 2 |
//! | 255 | 64770 | none: taken as two nibbles, 8 each |
//!
//! One `vpmaddwd` then widens them to i32 (and multiplies the high nibbles by 16).

use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::format::{codes, min, scale};
use super::store;
use crate::isa::x86_64::format::{Codes, Format};
use crate::isa::x86_64::share::{Piece, Weights, by_rows};
use crate::isa::x86_64::terms::{CHUNK, Terms};
use crate::mat::{ACT_BLOCK, Acts};

/// Weights of format F; many rows read them as E.
pub(super) struct Blocks<F, E>(PhantomData<(F, E)>);

impl<F: Format, E: Format> Weights for Blocks<F, E> {
    const CHUNK: usize = CHUNK * ACT_BLOCK;
    // 4 sums in i16 and in i32, or of low and high nibbles.
    const FEW: usize = 4;
    const MANY: usize = 4;
    const EXPAND_FROM: usize = match F::CODES {
        Codes::Five { .. } | Codes::Six { .. } => Self::FEW + 1,
        _ => 16,
    };

    fn n_bytes(n: usize) -> usize {
        n / (F::BLOCKS * ACT_BLOCK) * F::UNIT
    }

    unsafe fn expand(w: *const u8, n: usize, to: *mut u8) -> *const u8 {
        if let Codes::Eight = F::CODES {
            return w;
        }
        // SAFETY: the caller's promise.
        unsafe { expand::<F, E>(w, n / ACT_BLOCK, to) };
        to
    }

    unsafe fn few(piece: &Piece<'_>) {
        // SAFETY: the caller's promise.
        unsafe { by_rows!(piece.n_rows, 1 2 3 4: chains::<F, _>(piece, fill::<F>)) }
    }

    unsafe fn many(piece: &Piece<'_>) {
        // SAFETY: the caller's promise.
        unsafe { by_rows!(piece.n_rows, 1 2 3 4: chains::<E, _>(piece, fill::<F>)) }
    }
}

/// Unpacks `n` blocks.
///
/// # Safety
/// As [`Weights::expand`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn expand<F: Format, E: Format>(w: *const u8, n: usize, to: *mut u8) {
    let (mut unit, mut block, mut to) = (w, w, to);
    for b in 0..n {
        // SAFETY: block `b` of whole units, and room for an expanded one.
        unsafe {
            if b % F::BLOCKS == 0 {
                unit = block;
                block = block.add(F::HEAD);
            }
            for octet in 0..4 {
                let to_codes = to.add(512 * (octet / 2) + 32 * (octet % 2)).cast::<__m256i>();
                _mm256_store_si256(to_codes, codes::<F, 0>(block, octet));
                _mm256_store_si256(to_codes.add(2), codes::<F, 1>(block, octet));
                _mm256_store_si256(to_codes.add(4), codes::<F, 2>(block, octet));
                _mm256_store_si256(to_codes.add(6), codes::<F, 3>(block, octet));
                _mm256_store_si256(to_codes.add(8), codes::<F, 4>(block, octet));
                _mm256_store_si256(to_codes.add(10), codes::<F, 5>(block, octet));
                _mm256_store_si256(to_codes.add(12), codes::<F, 6>(block, octet));
                _mm256_store_si256(to_codes.add(14), codes::<F, 7>(block, octet));
                let to_scales = to.add(1024 + 32 * octet);
                for step in 0..F::STEPS {
                    let dw = scale::<F>(unit, block, octet, step);
                    _mm256_store_ps(to_scales.add(128 * step).cast(), dw);
                }
                if let Some(mw) = min::<F>(unit, block, octet) {
                    _mm256_store_ps(to_scales.add(128 * F::STEPS).cast(), mw);
                }
            }
            block = block.add(F::BLOCK);
            to = to.add(E::BLOCK);
        }
    }
}

/// Writes [`Terms::of`].
///
/// # Safety
/// The processor has the instruction set.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn fill<F: Format>(to: &mut MaybeUninit<Terms>, x: &Acts, t: usize, first: usize) {
    to.write(Terms::of::<F>(x, t, first));
}

/// A piece of MT rows, weights in format F. `fill` is that of the packed format.
///
/// # Safety
/// As [`Weights::few`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn chains<F: Format, const MT: usize>(
    piece: &Piece<'_>,
    fill: unsafe fn(&mut MaybeUninit<Terms>, &Acts, usize, usize),
) {
    let x = piece.args.x;
    let (first, n) = (piece.first / ACT_BLOCK, piece.n / ACT_BLOCK);
    let mut ahead = piece.ahead;
    let n_lines = ahead.lines_per_step(n);
    let mut terms = [const { MaybeUninit::uninit() }; MT];
    let (mut unit, mut block) = (piece.w, piece.w);
    let mut acc = [[_mm256_setzero_ps(); MT]; 4];
    if !piece.is_first() {
        // SAFETY: 32 values a row.
        acc = unsafe { piece.acc.cast::<[[__m256; MT]; 4]>().read() };
    }
    for from in (0..n).step_by(CHUNK) {
        for (m, terms) in terms.iter_mut().enumerate() {
            // SAFETY: the same instruction set.
            unsafe { fill(terms, x, piece.t + m, first + from) };
        }
        let mut q = x.codes[piece.t * x.cols + (first + from) * ACT_BLOCK..].as_ptr();
        for b in 0..CHUNK.min(n - from) {
            ahead.fetch(n_lines);
            // SAFETY: block `from + b` of the piece; all terms are filled.
            unsafe {
                if b % F::BLOCKS == 0 {
                    unit = block;
                    block = block.add(F::HEAD);
                }
                let terms = &*(&raw const terms).cast();
                for octet in 0..4 {
                    let acc = &mut acc[octet];
                    dot::<F, MT>(unit, block, octet, q, x.cols, terms, b, acc);
                }
                block = block.add(F::BLOCK);
                q = q.add(ACT_BLOCK);
            }
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

/// One block of an octet's chains.
///
/// # Safety
/// AVX2, shell; a unit, a block, and MT rows of 32 codes, `stride` apart.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // The state of one loop.
unsafe fn dot<F: Format, const MT: usize>(
    unit: *const u8,
    block: *const u8,
    octet: usize,
    q: *const i8,
    stride: usize,
    terms: &[Terms; MT],
    b: usize,
    acc: &mut [__m256; MT],
) {
    // SAFETY: the caller's promise.
    unsafe {
        for step in 0..F::STEPS {
            let mut sum = Sum {
                narrow: [[_mm256_setzero_si256(); MT]; 2],
                wide: [_mm256_setzero_si256(); MT],
            };
            if step == 0 {
                quad::<F, MT, 0>(block, octet, q, stride, &mut sum);
                quad::<F, MT, 1>(block, octet, q, stride, &mut sum);
                quad::<F, MT, 2>(block, octet, q, stride, &mut sum);
                quad::<F, MT, 3>(block, octet, q, stride, &mut sum);
            }
            if step + 1 == F::STEPS {
                quad::<F, MT, 4>(block, octet, q, stride, &mut sum);
                quad::<F, MT, 5>(block, octet, q, stride, &mut sum);
                quad::<F, MT, 6>(block, octet, q, stride, &mut sum);
                quad::<F, MT, 7>(block, octet, q, stride, &mut sum);
            }
            let dw = scale::<F>(unit, block, octet, step);
            let mw = min::<F>(unit, block, octet);
            for m in 0..MT {
                let mut total = sum.wide[m];
                if F::ZERO != 0 {
                    total = _mm256_add_epi32(total, _mm256_set1_epi32(terms[m].starts[step][b]));
                }
                let d = _mm256_mul_ps(dw, _mm256_set1_ps(terms[m].scales[b]));
                acc[m] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total), d, acc[m]);
                if let Some(mw) = mw {
                    acc[m] = _mm256_fmadd_ps(mw, _mm256_set1_ps(terms[m].offsets[b]), acc[m]);
                }
            }
        }
    }
}

/// Sums of products: in i16 (of low and high nibbles, if the codes are taken apart) and i32.
struct Sum<const MT: usize> {
    narrow: [[__m256i; MT]; 2],
    wide: [__m256i; MT],
}

/// Adds the products of k = 4 QUAD..4 QUAD + 4.
///
/// # Safety
/// As [`dot`].
#[inline(always)]
unsafe fn quad<F: Format, const MT: usize, const QUAD: usize>(
    block: *const u8,
    octet: usize,
    q: *const i8,
    stride: usize,
    sum: &mut Sum<MT>,
) {
    let exact = match F::CODES {
        Codes::Four | Codes::Eight => 8,
        Codes::Five { .. } => 4,
        Codes::Six { .. } => 2,
        Codes::Small { exact } => exact,
    };
    // SAFETY: the caller's promise.
    unsafe {
        let low = _mm256_set1_epi8(15);
        let w = codes::<F, QUAD>(block, octet);
        for m in 0..MT {
            let q = q.add(m * stride + 4 * QUAD).cast::<i32>().read_unaligned();
            let q = _mm256_set1_epi32(q);
            let [narrow, high] = &mut sum.narrow;
            if let Codes::Eight = F::CODES {
                let (w, w_high) =
                    (_mm256_and_si256(w, low), _mm256_and_si256(_mm256_srli_epi16::<4>(w), low));
                narrow[m] = _mm256_add_epi16(narrow[m], _mm256_maddubs_epi16(w, q));
                high[m] = _mm256_add_epi16(high[m], _mm256_maddubs_epi16(w_high, q));
            } else {
                narrow[m] = _mm256_add_epi16(narrow[m], _mm256_maddubs_epi16(w, q));
            }
            if (QUAD + 1).is_multiple_of(exact) {
                let ones = _mm256_set1_epi16(1);
                sum.wide[m] = _mm256_add_epi32(sum.wide[m], _mm256_madd_epi16(narrow[m], ones));
                narrow[m] = _mm256_setzero_si256();
                if let Codes::Eight = F::CODES {
                    let high = _mm256_madd_epi16(high[m], _mm256_set1_epi16(16));
                    sum.wide[m] = _mm256_add_epi32(sum.wide[m], high);
                }
            }
        }
    }
}
