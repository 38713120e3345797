//! A segment of the cache as the tiles read it: pairs of i16 and a scale a token, whatever it is kept in.

use super::ahead::{AHEAD_BYTES, Ahead, Fetch};
use crate::cpu::Cpu;
use crate::kv::{KV_BLOCK, KvLayout, KvType, SEGMENT, as_f16, as_f32, as_i8, as_i16};
use crate::simd::{Kernel, LANES, Simd};

/// Pages of a segment, at most: the shortest block holds 16 tokens.
pub(super) const MAX_PAGES: usize = SEGMENT / LANES;

/// The pages of one segment and one key/value head; those past the block table's end are empty.
#[derive(Default)]
pub(super) struct Pages<'a> {
    pub(super) k: [&'a [u8]; MAX_PAGES],
    pub(super) v: [&'a [u8]; MAX_PAGES],
}

/// K or V of a segment.
pub(super) struct Codes<'a> {
    /// K: `[E / 2][B][2]`, V: `[B / 2][E][2]`.
    pub(super) pages: [&'a [i16]; MAX_PAGES],
    /// `[B]`.
    scales: [&'a [f32]; MAX_PAGES],
    /// B is 2 to the power of this.
    log_block_len: u32,
}

impl Codes<'_> {
    /// The scales of the sixteen tokens from `token` on.
    #[inline(always)]
    pub(super) fn scales<S: Simd>(&self, s: S, token: usize) -> S::F {
        let page = token >> self.log_block_len;
        let (scales, _) = self.scales[page].as_chunks();
        s.load(&scales[(token - (page << self.log_block_len)) / LANES])
    }
}

/// A thread's memory for K or V in [`KvType::Q8_0`], turned to pairs.
#[derive(Default)]
struct Memory {
    codes: Vec<i16>,
    scales: Vec<f32>,
}

/// A thread's memory for a [`Segment`].
#[derive(Default)]
pub(super) struct Expanded {
    k: Memory,
    v: Memory,
}

pub(super) struct Segment<'a> {
    pub(super) layout: &'a KvLayout,
    pages: Pages<'a>,
    pub(super) k: Codes<'a>,
    pub(super) v: Codes<'a>,
}

impl<'a> Segment<'a> {
    /// Turns what is not kept in pairs into such.
    pub(super) fn new(
        cpu: &Cpu,
        layout: &'a KvLayout,
        pages: Pages<'a>,
        memory: &'a mut Expanded,
    ) -> Segment<'a> {
        let k = codes(cpu, layout, &pages.k, layout.k_type, false, &mut memory.k);
        let v = codes(cpu, layout, &pages.v, layout.v_type, true, &mut memory.v);
        Segment { layout, pages, k, v }
    }

    /// What to ask memory for while tiles of few rows read the segment: its own pages, those of K first,
    /// from [`AHEAD_BYTES`] on, then `next`. What was turned into pairs has been read.
    pub(super) fn ahead(&self, next: &Pages<'_>) -> Ahead {
        let [k, v] = [self.layout.k_type, self.layout.v_type].map(|kv_type| match kv_type {
            KvType::I16 => MAX_PAGES,
            KvType::Q8_0 => 0,
        });
        let mut ahead = Ahead::default();
        let own = [&self.pages.k[self.n_ahead().min(k)..k], &self.pages.v[..v]];
        for pages in own.into_iter().chain([&next.v[v..], &next.k, &next.v[..v]]) {
            pages.iter().for_each(|page| ahead.add(page));
        }
        ahead
    }

    /// Asks for the scales of V, which are needed before the codes.
    pub(super) fn fetch_scales(&self, cpu: &Cpu) {
        if self.layout.v_type == KvType::I16 {
            let from = self.layout.head_size * self.layout.block_len * size_of::<i16>();
            cpu.compute(Fetch { pages: &self.pages.v, from });
        }
    }

    /// Asks for what [`Segment::ahead`] leaves out, for who comes without notice.
    pub(super) fn fetch_start(&self, cpu: &Cpu) {
        let pages = &self.pages.k[..self.n_ahead().min(MAX_PAGES)];
        cpu.compute(Fetch { pages, from: 0 });
    }

    /// Pages in [`AHEAD_BYTES`].
    fn n_ahead(&self) -> usize {
        AHEAD_BYTES.div_ceil(self.pages.k[0].len().max(1))
    }
}

fn codes<'a>(
    cpu: &Cpu,
    layout: &KvLayout,
    pages: &[&'a [u8]; MAX_PAGES],
    kv_type: KvType,
    is_v: bool,
    memory: &'a mut Memory,
) -> Codes<'a> {
    let KvLayout { head_size, block_len, .. } = *layout;
    let n = head_size * block_len;
    let log_block_len = block_len.ilog2();
    let mut all = Codes { pages: [&[]; MAX_PAGES], scales: [&[]; MAX_PAGES], log_block_len };
    let pages = pages.iter().take_while(|page| !page.is_empty());
    match kv_type {
        KvType::I16 => {
            for (i, page) in pages.enumerate() {
                let (codes, scales) = page.split_at(n * size_of::<i16>());
                (all.pages[i], all.scales[i]) = (as_i16(codes), as_f32(scales));
            }
        }
        KvType::Q8_0 => {
            memory.codes.resize(MAX_PAGES * n, 0);
            memory.scales.resize(MAX_PAGES * block_len, 0.0);
            let to = memory.codes.chunks_exact_mut(n);
            let to = to.zip(memory.scales.chunks_exact_mut(block_len));
            for (i, (page, (codes, scales))) in pages.zip(to).enumerate() {
                let (to_codes, to_scales) = (&mut *codes, &mut *scales);
                cpu.compute(Expand { page, head_size, block_len, is_v, to_codes, to_scales });
                (all.pages[i], all.scales[i]) = (codes, scales);
            }
        }
    }
    all
}

/// A page of codes in 8 bits, with a scale d for each 32, as pairs with one scale D for all:
/// `D = max d / 64`, `q' = round(64 q r / 2^15)`, `r = min(round(2^15 d / max d), 2^15 - 1)`, ties of q' up:
/// exact where d is the largest, else to 2^-15.
struct Expand<'a> {
    page: &'a [u8],
    head_size: usize,
    block_len: usize,
    is_v: bool,
    to_codes: &'a mut [i16],
    to_scales: &'a mut [f32],
}

impl Kernel for Expand<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Expand { page, head_size, block_len, is_v, to_codes, to_scales } = self;
        let (from, d) = page.split_at(head_size * block_len);
        let (from, _) = as_i8(from).as_chunks::<LANES>();
        let (d, _) = as_f16(d).as_chunks::<LANES>();
        let (to, _) = to_codes.as_chunks_mut::<{ 2 * LANES }>();
        let (to_scales, _) = to_scales.as_chunks_mut::<LANES>();
        // Sixteen tokens; vectors of a row of K, and of a token of V.
        let (n_parts, n_vectors) = (block_len / LANES, head_size / LANES);
        for part in 0..n_parts {
            let mut largest = s.splat(0.0);
            for block in 0..head_size / KV_BLOCK {
                largest = s.max_abs(largest, s.load_f16(&d[block * n_parts + part]));
            }
            s.store(s.mul(largest, s.splat(1.0 / 64.0)), &mut to_scales[part]);
            // f16 has nothing smaller than 6e-8.
            let inverse = s.div(s.splat(32768.0), largest);
            let inverse = s.select_lt(largest, s.splat(1e-12), s.splat(0.0), inverse);
            for block in 0..head_size / KV_BLOCK {
                let ratio = s.mul(s.load_f16(&d[block * n_parts + part]), inverse);
                let ratio = s.select_lt(ratio, s.splat(32767.0), ratio, s.splat(32767.0));
                let mut ratios = [0; LANES];
                s.store_i16(ratio, &mut ratios);
                if is_v {
                    for pair in 0..LANES / 2 {
                        let by = s.splat_pair([ratios[2 * pair], ratios[2 * pair + 1]]);
                        let token = part * LANES + 2 * pair;
                        for vector in [2 * block, 2 * block + 1] {
                            let a = &from[token * n_vectors + vector];
                            let b = &from[(token + 1) * n_vectors + vector];
                            let to = &mut to[token / 2 * n_vectors + vector];
                            s.store_pairs(s.widen_pairs(a, b, by), to);
                        }
                    }
                } else {
                    let mut twice = [0; 2 * LANES];
                    for lane in 0..LANES {
                        (twice[2 * lane], twice[2 * lane + 1]) = (ratios[lane], ratios[lane]);
                    }
                    let by = s.load_pairs(&twice);
                    for pair in block * KV_BLOCK / 2..(block + 1) * KV_BLOCK / 2 {
                        let a = &from[2 * pair * n_parts + part];
                        let b = &from[(2 * pair + 1) * n_parts + part];
                        s.store_pairs(s.widen_pairs(a, b, by), &mut to[pair * n_parts + part]);
                    }
                }
            }
        }
    }
}
