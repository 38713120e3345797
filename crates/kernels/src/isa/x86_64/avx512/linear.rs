//! The linear op with integer weights.

use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::format::{codes, min, scale};
use super::{spilled, store};
use crate::isa::x86_64::format::{Codes, Expanded, Format};
use crate::isa::x86_64::share::{Piece, Weights, by_rows};
use crate::isa::x86_64::terms::{CHUNK, Terms};
use crate::mat::{ACT_BLOCK, Acts};

/// Weights of format F; many rows read them as E.
pub(super) struct Blocks<F, E>(PhantomData<(F, E)>);

/// Expanded weights with a zero, with a minimum, and with a scale for each 16 k.
pub(super) type Zero = Expanded<true, false, 1, 8>;
pub(super) type Min = Expanded<false, true, 1, 8>;
pub(super) type Sixteens = Expanded<true, false, 2, 8>;

impl<F: Format, E: Format> Weights for Blocks<F, E> {
    const CHUNK: usize = CHUNK * ACT_BLOCK;
    // 2 x 8 integer accumulators leave registers for the codes.
    const FEW: usize = 8;
    // 2 x 6 integer and float accumulators fill the registers.
    const MANY: usize = 6;
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
        unsafe {
            by_rows!(piece.n_rows, 1 2 3 4 5 6 7 8: chains::<F, _>(piece, fill::<F>));
        }
    }

    unsafe fn many(piece: &Piece<'_>) {
        // SAFETY: the caller's promise.
        unsafe {
            by_rows!(piece.n_rows, 1 2 3 4 5 6: chains::<E, _>(piece, fill::<F>));
        }
    }
}

/// Unpacks `n` blocks.
///
/// # Safety
/// As [`Weights::expand`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn expand<F: Format, E: Format>(w: *const u8, n: usize, to: *mut u8) {
    let (mut unit, mut block, mut to) = (w, w, to);
    for b in 0..n {
        // SAFETY: block `b` of whole units, and room for an expanded one.
        unsafe {
            if b % F::BLOCKS == 0 {
                unit = block;
                block = block.add(F::HEAD);
            }
            for s in 0..2 {
                let to_codes = to.add(512 * s).cast::<__m512i>();
                _mm512_store_si512(to_codes, codes::<F, 0>(block, s));
                _mm512_store_si512(to_codes.add(1), codes::<F, 1>(block, s));
                _mm512_store_si512(to_codes.add(2), codes::<F, 2>(block, s));
                _mm512_store_si512(to_codes.add(3), codes::<F, 3>(block, s));
                _mm512_store_si512(to_codes.add(4), codes::<F, 4>(block, s));
                _mm512_store_si512(to_codes.add(5), codes::<F, 5>(block, s));
                _mm512_store_si512(to_codes.add(6), codes::<F, 6>(block, s));
                _mm512_store_si512(to_codes.add(7), codes::<F, 7>(block, s));
                let to_scales = to.add(1024 + 64 * s);
                for step in 0..F::STEPS {
                    let dw = scale::<F>(unit, block, s, step);
                    _mm512_store_ps(to_scales.add(128 * step).cast(), dw);
                }
                if let Some(mw) = min::<F>(unit, block, s) {
                    _mm512_store_ps(to_scales.add(128 * F::STEPS).cast(), mw);
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
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn fill<F: Format>(to: &mut MaybeUninit<Terms>, x: &Acts, t: usize, first: usize) {
    to.write(Terms::of::<F>(x, t, first));
}

/// A piece of MT rows, weights in format F. `fill` is that of the packed format.
///
/// # Safety
/// As [`Weights::few`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
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
    let mut acc = [[_mm512_setzero_ps(); MT]; 2];
    if !piece.is_first() {
        // SAFETY: 32 values a row.
        acc = unsafe { piece.acc.cast::<[[__m512; MT]; 2]>().read() };
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
                dot::<F, MT>(unit, block, q, x.cols, &*(&raw const terms).cast(), b, &mut acc);
                block = block.add(F::BLOCK);
                q = q.add(ACT_BLOCK);
            }
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

/// One block of the chains.
///
/// # Safety
/// AVX-512, shell; a unit, a block, and MT rows of 32 codes, `stride` apart.
#[inline(always)]
unsafe fn dot<F: Format, const MT: usize>(
    unit: *const u8,
    block: *const u8,
    q: *const i8,
    stride: usize,
    terms: &[Terms; MT],
    b: usize,
    acc: &mut [[__m512; MT]; 2],
) {
    // SAFETY: the caller's promise.
    unsafe {
        for step in 0..F::STEPS {
            let mut sum = [[_mm512_setzero_si512(); MT]; 2];
            if F::ZERO != 0 {
                for m in 0..MT {
                    let start = _mm512_set1_epi32(terms[m].starts[step][b]);
                    sum[0][m] = start;
                    sum[1][m] = start;
                }
            }
            if step == 0 {
                quad::<F, MT, 0>(block, q, stride, &mut sum);
                quad::<F, MT, 1>(block, q, stride, &mut sum);
                quad::<F, MT, 2>(block, q, stride, &mut sum);
                quad::<F, MT, 3>(block, q, stride, &mut sum);
            }
            if step + 1 == F::STEPS {
                quad::<F, MT, 4>(block, q, stride, &mut sum);
                quad::<F, MT, 5>(block, q, stride, &mut sum);
                quad::<F, MT, 6>(block, q, stride, &mut sum);
                quad::<F, MT, 7>(block, q, stride, &mut sum);
            }
            for s in 0..2 {
                let dw = scale::<F>(unit, block, s, step);
                let mw = min::<F>(unit, block, s);
                for m in 0..MT {
                    let d = _mm512_mul_ps(dw, _mm512_set1_ps(terms[m].scales[b]));
                    acc[s][m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[s][m]), d, acc[s][m]);
                    if let Some(mw) = mw {
                        let offset = _mm512_set1_ps(terms[m].offsets[b]);
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
    q: *const i8,
    stride: usize,
    sum: &mut [[__m512i; MT]; 2],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let w = [codes::<F, QUAD>(block, 0), codes::<F, QUAD>(block, 1)];
        for m in 0..MT {
            let q = q.add(m * stride + 4 * QUAD).cast::<i32>().read_unaligned();
            let q = _mm512_set1_epi32(q);
            sum[0][m] = _mm512_dpbusd_epi32(sum[0][m], w[0], q);
            sum[1][m] = _mm512_dpbusd_epi32(sum[1][m], w[1], q);
        }
    }
}
