//! The linear op with integer weights.

use std::arch::x86_64::*;

use super::format::{codes, min, scale};
use super::{spilled, store};
use crate::isa::x86_64::format::{Codes, Expanded, Format};
use crate::isa::x86_64::share::{Kernels, Piece, SCRATCH, by_rows};
use crate::mat::{ACT_BLOCK, BLOCK_BYTES, PANEL, START_ZERO};

/// Expanded weights with a zero and with a minimum, and the same for each 16 k.
pub(super) type Zero = Expanded<START_ZERO, false, 1, 255>;
pub(super) type Min = Expanded<0, true, 1, 255>;
pub(super) type ZeroHalves = Expanded<START_ZERO, false, 2, 255>;
pub(super) type MinHalves = Expanded<0, true, 2, 255>;

/// The kernels of packed format F; many rows read it as E.
pub(super) const fn kernels<F: Format, E: Format>() -> Kernels {
    assert!(F::CHUNK / ACT_BLOCK * E::BLOCK <= SCRATCH);
    assert!(F::STEPS == E::STEPS);
    Kernels {
        float: false,
        unit: F::BLOCKS * ACT_BLOCK,
        unit_bytes: F::UNIT,
        chunk: F::CHUNK,
        // 2 x 8 integer accumulators; those of f32 wait on the stack in the meantime.
        max_rows: PANEL,
        expand_from: match F::CODES {
            Codes::Four | Codes::Eight | Codes::Bytes { .. } => 16,
            _ => 9,
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
    unsafe { by_rows!(piece.group.n_rows, 1 2 3 4 5 6 7 8: chains::<F, _>(piece)) }
}

/// # Safety
/// As [`Expand`](crate::isa::x86_64::share::Expand).
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
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
            for s in 0..2 {
                let to_codes = next.add(512 * s).cast::<__m512i>();
                _mm512_store_si512(to_codes, shifted::<F, E, 0>(block, s));
                _mm512_store_si512(to_codes.add(1), shifted::<F, E, 1>(block, s));
                _mm512_store_si512(to_codes.add(2), shifted::<F, E, 2>(block, s));
                _mm512_store_si512(to_codes.add(3), shifted::<F, E, 3>(block, s));
                _mm512_store_si512(to_codes.add(4), shifted::<F, E, 4>(block, s));
                _mm512_store_si512(to_codes.add(5), shifted::<F, E, 5>(block, s));
                _mm512_store_si512(to_codes.add(6), shifted::<F, E, 6>(block, s));
                _mm512_store_si512(to_codes.add(7), shifted::<F, E, 7>(block, s));
                let to_scales = next.add(1024 + 64 * s);
                for step in 0..F::STEPS {
                    let dw = scale::<F>(unit, block, s, step);
                    _mm512_store_ps(to_scales.add(128 * step).cast(), dw);
                    if let Some(mw) = min::<F>(unit, block, s, step) {
                        _mm512_store_ps(to_scales.add(128 * (F::STEPS + step)).cast(), mw);
                    }
                }
            }
            block = block.add(F::BLOCK);
            next = next.add(E::BLOCK);
        }
    }
    to
}

/// The codes, shifted to the zero of E.
///
/// # Safety
/// As [`codes`].
#[inline(always)]
unsafe fn shifted<F: Format, E: Format, const QUAD: usize>(
    block: *const u8,
    strip: usize,
) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        _mm512_add_epi8(codes::<F, QUAD>(block, strip), _mm512_set1_epi8((E::ZERO - F::ZERO) as i8))
    }
}

/// A piece of a panel of MT rows, weights in format F.
///
/// # Safety
/// As [`Compute`](crate::isa::x86_64::share::Compute).
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn chains<F: Format, const MT: usize>(piece: &Piece<'_>) {
    let n = piece.n / ACT_BLOCK;
    let mut fetch = piece.ahead.over(n, F::LINES);
    let (mut unit, mut block, mut x) = (piece.w, piece.w, piece.panel());
    let mut acc = [[_mm512_setzero_ps(); MT]; 2];
    if !piece.is_first() {
        // SAFETY: 32 values a row.
        acc = unsafe { piece.acc.cast::<[[__m512; MT]; 2]>().read() };
    }
    for b in 0..n {
        fetch.step(F::LINES);
        // SAFETY: block `b` of the piece.
        unsafe {
            if b % F::BLOCKS == 0 {
                unit = block;
                block = block.add(F::HEAD);
            }
            dot::<F, MT>(unit, block, x, &mut acc);
            block = block.add(F::BLOCK);
            x = x.add(MT * BLOCK_BYTES);
        }
    }
    // SAFETY: the caller's promise; 32 values a row.
    unsafe {
        if piece.is_last() {
            store(piece, spilled(&acc).as_flattened());
        } else {
            piece.acc.cast::<[[__m512; MT]; 2]>().write(acc);
        }
    }
}

/// Word `term` of row `m` in a panel of MT rows, in all lanes.
///
/// # Safety
/// AVX-512, shell; a block of such a panel.
#[inline(always)]
unsafe fn term<const MT: usize>(x: *const u8, term: usize, m: usize) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let words = x.add(ACT_BLOCK * MT).cast::<i32>();
        _mm512_set1_epi32(words.add(term * MT + m).read_unaligned())
    }
}

/// The start of row `m` in step `step`: `-128 S`.
///
/// # Safety
/// As [`term`].
#[inline(always)]
unsafe fn start<F: Format, const MT: usize>(x: *const u8, step: usize, m: usize) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        match (F::STEPS, step) {
            (1, _) => term::<MT>(x, 2, m),
            (_, 0) => term::<MT>(x, 3, m),
            _ => _mm512_sub_epi32(term::<MT>(x, 2, m), term::<MT>(x, 3, m)),
        }
    }
}

/// The offset of row `m` in step `step`: `d S`.
///
/// # Safety
/// As [`term`].
#[inline(always)]
unsafe fn offset<F: Format, const MT: usize>(x: *const u8, step: usize, m: usize) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe {
        if F::STEPS == 1 {
            return _mm512_castsi512_ps(term::<MT>(x, 1, m));
        }
        // The shift is exact.
        let shift = _mm_cvtsi32_si128(START_ZERO.ilog2() as i32);
        let minus_sum = _mm512_sra_epi32(start::<F, MT>(x, step, m), shift);
        let sum = _mm512_sub_epi32(_mm512_setzero_si512(), minus_sum);
        _mm512_mul_ps(_mm512_castsi512_ps(term::<MT>(x, 0, m)), _mm512_cvtepi32_ps(sum))
    }
}

/// One block of the chains.
///
/// # Safety
/// AVX-512, shell; a unit, a block of it, and a block of a panel of MT rows.
#[inline(always)]
unsafe fn dot<F: Format, const MT: usize>(
    unit: *const u8,
    block: *const u8,
    x: *const u8,
    acc: &mut [[__m512; MT]; 2],
) {
    // SAFETY: the caller's promise.
    unsafe {
        for step in 0..F::STEPS {
            let mut sum = [[_mm512_setzero_si512(); MT]; 2];
            if F::ZERO != 0 {
                for m in 0..MT {
                    // The shift is exact.
                    let shift = _mm_cvtsi32_si128(F::START_SHIFT);
                    let start = _mm512_sra_epi32(start::<F, MT>(x, step, m), shift);
                    sum[0][m] = start;
                    sum[1][m] = start;
                }
            }
            if step == 0 {
                quad::<F, MT, 0>(block, x, &mut sum);
                quad::<F, MT, 1>(block, x, &mut sum);
                quad::<F, MT, 2>(block, x, &mut sum);
                quad::<F, MT, 3>(block, x, &mut sum);
            }
            if step + 1 == F::STEPS {
                quad::<F, MT, 4>(block, x, &mut sum);
                quad::<F, MT, 5>(block, x, &mut sum);
                quad::<F, MT, 6>(block, x, &mut sum);
                quad::<F, MT, 7>(block, x, &mut sum);
            }
            for s in 0..2 {
                let dw = scale::<F>(unit, block, s, step);
                let mw = min::<F>(unit, block, s, step);
                for m in 0..MT {
                    let d = _mm512_mul_ps(dw, _mm512_castsi512_ps(term::<MT>(x, 0, m)));
                    acc[s][m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[s][m]), d, acc[s][m]);
                    if let Some(mw) = mw {
                        let offset = offset::<F, MT>(x, step, m);
                        acc[s][m] = _mm512_fmadd_ps(mw, offset, acc[s][m]);
                    }
                }
            }
        }
    }
}

/// Adds the products of k = 4 QUAD..4 QUAD + 4. One broadcast serves both strips: with one each,
/// the load ports would be the limit.
///
/// # Safety
/// As [`dot`].
#[inline(always)]
unsafe fn quad<F: Format, const MT: usize, const QUAD: usize>(
    block: *const u8,
    x: *const u8,
    sum: &mut [[__m512i; MT]; 2],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let w = [codes::<F, QUAD>(block, 0), codes::<F, QUAD>(block, 1)];
        for m in 0..MT {
            let q = x.add(ACT_BLOCK * m + 4 * QUAD).cast::<i32>().read_unaligned();
            let q = _mm512_set1_epi32(q);
            sum[0][m] = _mm512_dpbusd_epi32(sum[0][m], w[0], q);
            sum[1][m] = _mm512_dpbusd_epi32(sum[1][m], w[1], q);
        }
    }
}
