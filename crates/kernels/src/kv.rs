//! The KV cache: pages of K and V, and the op that stores into them.
//!
//! A block holds the K and V of `B` consecutive tokens of one sequence, for all layers:
//!
//! ```text
//! block  | layer 0                                       | layer 1 ...
//!        | head 0: K page, V page | head 1: K page, V page |
//!
//! K page, I16:   i16 [E / 2][B][2]   then f32 scales [B]: one token per 32-bit lane, two of its values
//! K page, Q8_0:  i8  [E][B]          then f16 scales [E / 32][B]
//! V page, I16:   i16 [B / 2][E][2]   then f32 scales [B]: one value per 32-bit lane, of two tokens
//! V page, Q8_0:  i8  [B][E]          then f16 scales [E / 32][B]
//! ```
//!
//! Lanes are such that no sum goes across them; two i16 products a lane are one instruction.

use crate::arena::{AllocError, Arena};
use crate::attention::AttentionSpan;
use crate::cpu::Cpu;
use crate::mat::Mat;
use crate::profile::Op;
use crate::quantize::{largest_abs, load_block, quantize_block, wide_scale};
use crate::simd::{Kernel, LANES, Simd};
use crate::split::Split;
use half::f16;

/// Values of a head that share one scale in [`KvType::Q8_0`].
pub(crate) const KV_BLOCK: usize = 32;

/// The largest codes of K and V in [`KvType::I16`]. What is left of 31 bits is that of a query or of
/// probabilities (see [`crate::attention`]).
const K_MAX: f32 = 16383.0;
const V_MAX: f32 = 8191.0;

/// The largest f16.
const F16_MAX: f32 = 65504.0;

/// Tokens of a segment of attention; block lengths divide it.
pub(crate) const SEGMENT: usize = 256;

/// How K or V are kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KvType {
    /// i16 codes with an f32 scale for all values of a token's head: `d = amax / max`,
    /// `q = round_ties_even(x * (1 / d))`, where `max` is 16383 for K and 8191 for V.
    I16,
    /// int8 codes with an f16 scale for every 32 values of a token's head: `d = amax / 127` rounded
    /// to f16, `q = round_ties_even(x * (1 / (amax / 127)))`. 34 bytes for 32 values.
    Q8_0,
}

impl KvType {
    /// Bytes of a page.
    #[inline]
    fn page_bytes(self, head_size: usize, block_len: usize) -> usize {
        let n_values = head_size * block_len;
        match self {
            KvType::I16 => n_values * 2 + block_len * size_of::<f32>(),
            KvType::Q8_0 => n_values + n_values / KV_BLOCK * 2,
        }
    }
}

/// Shape and types of a KV cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KvLayout {
    /// L: number of layers.
    pub n_layers: usize,
    /// K: key/value heads of a layer.
    pub n_kv_heads: usize,
    /// E: values of a head, a multiple of 16 (of 32 for [`KvType::Q8_0`]).
    pub head_size: usize,
    /// B: tokens of a block: 16, 32, 64, 128 or 256.
    pub block_len: usize,
    /// How K is kept.
    pub k_type: KvType,
    /// How V is kept.
    pub v_type: KvType,
}

/// A KV cache cannot have this shape, or not this much memory.
#[derive(Debug, thiserror::Error)]
pub enum KvError {
    /// The head size does not suit the type.
    #[error(
        "KV cache of type {kv_type:?}: head size {head_size} is no multiple of {unit}; use I16"
    )]
    HeadSize {
        /// The type that asks for it.
        kv_type: KvType,
        /// E.
        head_size: usize,
        /// What E must be a multiple of.
        unit: usize,
    },
    /// The head size suits no type.
    #[error("head size {0} is no multiple of 16: the KV cache cannot hold this model")]
    OddHeadSize(usize),
    /// The block length is none of those allowed.
    #[error("KV block length {0}: use 16, 32, 64, 128 or 256")]
    BlockLen(usize),
    /// More bytes than can be addressed.
    #[error("a KV cache of {n_blocks} blocks exceeds the address space")]
    TooLarge {
        /// Blocks asked for.
        n_blocks: usize,
    },
    /// The system refused.
    #[error(transparent)]
    Memory(#[from] AllocError),
}

impl KvLayout {
    /// Bytes of one block: K and V of all layers.
    ///
    /// # Errors
    /// If the shape is none that a cache can have.
    pub fn block_bytes(&self) -> Result<usize, KvError> {
        let head_size = self.head_size;
        if head_size == 0 || !head_size.is_multiple_of(LANES) {
            return Err(KvError::OddHeadSize(head_size));
        }
        for kv_type in [self.k_type, self.v_type] {
            if kv_type == KvType::Q8_0 && !head_size.is_multiple_of(KV_BLOCK) {
                return Err(KvError::HeadSize { kv_type, head_size, unit: KV_BLOCK });
            }
        }
        if self.block_len < LANES || !SEGMENT.is_multiple_of(self.block_len) {
            return Err(KvError::BlockLen(self.block_len));
        }
        // The largest page is I16: if that can be counted, so can the others.
        let too_large = KvError::TooLarge { n_blocks: 1 };
        head_size
            .checked_mul(self.block_len * 2)
            .and_then(|bytes| bytes.checked_add(self.block_len * size_of::<f32>()))
            .and_then(|_| self.head_bytes().checked_mul(self.n_kv_heads))
            .and_then(|bytes| bytes.checked_mul(self.n_layers))
            .ok_or(too_large)
    }

    /// Bytes of the K and V of a token in one layer.
    pub fn token_bytes(&self) -> usize {
        self.head_bytes() / self.block_len * self.n_kv_heads
    }

    /// Bytes of the K and V pages of one head.
    fn head_bytes(&self) -> usize {
        self.k_bytes().saturating_add(self.v_bytes())
    }

    #[inline]
    fn k_bytes(&self) -> usize {
        self.k_type.page_bytes(self.head_size, self.block_len)
    }

    #[inline]
    fn v_bytes(&self) -> usize {
        self.v_type.page_bytes(self.head_size, self.block_len)
    }
}

/// The K and V of all tokens in use, in blocks that sequences are given by number.
#[derive(Debug)]
pub struct KvCache {
    layout: KvLayout,
    n_blocks: usize,
    block_bytes: usize,
    bytes: Arena,
}

impl KvCache {
    /// A cache of `n_blocks` blocks. Takes address space; memory follows as blocks are written.
    ///
    /// # Errors
    /// If the shape is none that a cache can have, or the system refuses.
    pub fn new(layout: KvLayout, n_blocks: usize) -> Result<KvCache, KvError> {
        let block_bytes = layout.block_bytes()?;
        let n_bytes = block_bytes.checked_mul(n_blocks).ok_or(KvError::TooLarge { n_blocks })?;
        Ok(KvCache { layout, n_blocks, block_bytes, bytes: Arena::zeroed(n_bytes)? })
    }

    /// Shape and types.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Number of blocks.
    pub fn n_blocks(&self) -> usize {
        self.n_blocks
    }

    /// The bytes of a block: K and V of its tokens in all layers, in the machine's byte order.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn block(&self, block: u32) -> &[u8] {
        &self.bytes.as_slice()[block as usize * self.block_bytes..][..self.block_bytes]
    }

    /// The same, to put back what [`KvCache::block`] has shown.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn block_mut(&mut self, block: u32) -> &mut [u8] {
        &mut self.bytes.as_mut_slice()[block as usize * self.block_bytes..][..self.block_bytes]
    }

    /// Sets every byte, so that a test sees what is read without having been stored.
    #[cfg(test)]
    pub(crate) fn fill(&mut self, byte: u8) {
        self.bytes.as_mut_slice().fill(byte);
    }

    /// Where the K page of (block, layer, head) starts, in bytes; the V page follows it.
    #[inline]
    fn page_start(&self, block: u32, layer: usize, head: usize) -> usize {
        let layout = &self.layout;
        debug_assert!(layer < layout.n_layers && head < layout.n_kv_heads);
        block as usize * self.block_bytes + (layer * layout.n_kv_heads + head) * layout.head_bytes()
    }

    /// The K page of (block, layer, head).
    #[inline]
    pub(crate) fn k_page(&self, block: u32, layer: usize, head: usize) -> &[u8] {
        &self.bytes.as_slice()[self.page_start(block, layer, head)..][..self.layout.k_bytes()]
    }

    /// The V page of (block, layer, head).
    #[inline]
    pub(crate) fn v_page(&self, block: u32, layer: usize, head: usize) -> &[u8] {
        let start = self.page_start(block, layer, head) + self.layout.k_bytes();
        &self.bytes.as_slice()[start..][..self.layout.v_bytes()]
    }

    /// Panics unless the spans cover rows `0..n_rows` in order, and every row has its place in a
    /// block table of blocks that exist.
    pub(crate) fn check(
        &self,
        layer: usize,
        n_rows: usize,
        spans: &[AttentionSpan],
        blocks: &[u32],
    ) {
        assert!(layer < self.layout.n_layers, "no layer {layer} in the KV cache");
        let mut next_row = 0;
        for span in spans {
            assert_eq!(span.rows.start, next_row, "spans follow one another");
            assert!(span.rows.start <= span.rows.end, "a span's rows ascend");
            next_row = span.rows.end;
            let reach = span.position + span.rows.len();
            let table = &blocks[span.blocks.clone()];
            assert!(reach <= table.len() * self.layout.block_len, "the block table is too short");
            assert!(
                table.iter().all(|&block| (block as usize) < self.n_blocks),
                "a block outside the cache"
            );
        }
        assert_eq!(next_row, n_rows, "spans cover all rows");
    }
}

/// The numbers in `bytes`.
///
/// # Safety
/// Every bit pattern is a T.
#[inline]
unsafe fn numbers<T>(bytes: &[u8]) -> &[T] {
    // SAFETY: the caller's promise.
    let (head, numbers, tail) = unsafe { bytes.align_to() };
    assert!(head.is_empty() && tail.is_empty());
    numbers
}

/// The f16 values in `bytes`.
#[inline]
pub(crate) fn as_f16(bytes: &[u8]) -> &[f16] {
    // SAFETY: every bit pattern is an f16.
    unsafe { numbers(bytes) }
}

/// The pairs of codes in `bytes`.
#[inline]
pub(crate) fn as_i16(bytes: &[u8]) -> &[i16] {
    // SAFETY: every bit pattern is an i16.
    unsafe { numbers(bytes) }
}

/// The f32 values in `bytes`.
#[inline]
pub(crate) fn as_f32(bytes: &[u8]) -> &[f32] {
    // SAFETY: every bit pattern is an f32.
    unsafe { numbers(bytes) }
}

/// The codes in `bytes`.
#[inline]
pub(crate) fn as_i8(bytes: &[u8]) -> &[i8] {
    // SAFETY: same size and alignment, and every bit pattern is an i8.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len()) }
}

impl Cpu {
    /// Stores the K and V of a step's rows, both `[T, K * E]`, in `layer` of the cache: row `t` of
    /// a span, at position `p = span.position + t`, goes to slot `p % B` of block `p / B` of the
    /// span's block table.
    ///
    /// # Panics
    /// If the shapes differ from the cache's, or a span is malformed or names a block outside the
    /// cache.
    pub fn store_kv(
        &self,
        kv: &mut KvCache,
        layer: usize,
        k: &Mat,
        v: &Mat,
        spans: &[AttentionSpan],
        blocks: &[u32],
    ) {
        let _timer = self.profile.time(|| (Op::StoreKv, 0, 0));
        let layout = kv.layout.clone();
        let cols = layout.n_kv_heads * layout.head_size;
        assert_eq!((k.cols(), v.cols(), k.rows()), (cols, cols, v.rows()));
        kv.check(layer, k.rows(), spans, blocks);
        let starts: Vec<usize> =
            (0..layout.n_kv_heads).map(|head| kv.page_start(0, layer, head)).collect();
        let (block_bytes, k_bytes) = (kv.block_bytes, layout.k_bytes());
        let pages = Split::new(kv.bytes.as_mut_slice());
        // K and V of a head are pages of their own, whatever slots the rows have.
        let n_items = layout.n_kv_heads * 2;
        let store = |item| {
            let (head, is_v) = (item / 2, item % 2 == 1);
            let values = head * layout.head_size..(head + 1) * layout.head_size;
            for span in spans {
                for (i, t) in span.rows.clone().enumerate() {
                    let position = span.position + i;
                    let block = blocks[span.blocks.start + position / layout.block_len];
                    let start = starts[head] + block as usize * block_bytes;
                    let slot = position % layout.block_len;
                    let (x, page, kv_type) = if is_v {
                        let page = start + k_bytes..start + layout.head_bytes();
                        (&v.row(t)[values.clone()], page, layout.v_type)
                    } else {
                        (&k.row(t)[values.clone()], start..start + k_bytes, layout.k_type)
                    };
                    // SAFETY: pages are disjoint, and only this item has those of its head and kind.
                    let page = unsafe { pages.part(page) };
                    let block_len = layout.block_len;
                    self.compute(Store { x, page, kv_type, is_v, slot, block_len });
                }
            }
        };
        match k.rows() {
            0..4 => (0..n_items).for_each(store), // Less work than waking a thread.
            _ => self.team.for_each(n_items, store),
        }
    }
}

/// One token's K or V of one head, into its page.
struct Store<'a> {
    /// `[E]`.
    x: &'a [f32],
    page: &'a mut [u8],
    kv_type: KvType,
    is_v: bool,
    slot: usize,
    block_len: usize,
}

impl Kernel for Store<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Store { x, page, kv_type, is_v, slot, block_len } = self;
        let n_values = x.len();
        match kv_type {
            KvType::I16 => {
                let (codes, scales) = page.split_at_mut(n_values * block_len * size_of::<i16>());
                // SAFETY: every bit pattern is a number.
                let (codes, scales) =
                    unsafe { (codes.align_to_mut::<i16>().1, scales.align_to_mut::<f32>().1) };
                let max = if is_v { V_MAX } else { K_MAX };
                let (d, id) = wide_scale(largest_abs(s, x), max);
                scales[slot] = d;
                for (i, x) in x.as_chunks().0.iter().enumerate() {
                    let mut lanes = [0; LANES];
                    // `max` makes a code of a NaN.
                    let x = s.max(s.mul(s.load(x), s.splat(id)), s.splat(-max));
                    s.store_i16(x, &mut lanes);
                    for (lane, code) in lanes.into_iter().enumerate() {
                        let e = i * LANES + lane;
                        let place = match is_v {
                            true => (slot / 2 * n_values + e) * 2 + slot % 2,
                            false => (e / 2 * block_len + slot) * 2 + e % 2,
                        };
                        codes[place] = code;
                    }
                }
            }
            KvType::Q8_0 => {
                let (codes, scales) = page.split_at_mut(n_values * block_len);
                // SAFETY: every bit pattern is an f16.
                let (_, scales, _) = unsafe { scales.align_to_mut::<f16>() };
                // Value `e` lies at `start + e * stride`.
                let (start, stride) = if is_v { (slot * n_values, 1) } else { (slot, block_len) };
                let (x_blocks, _) = x.as_chunks::<KV_BLOCK>();
                for (i, x) in x_blocks.iter().enumerate() {
                    let (d, q) = quantize_block(s, load_block(s, x));
                    scales[i * block_len + slot] =
                        f16::from_f32(if d > F16_MAX { F16_MAX } else { d });
                    let mut bytes = [[0; LANES]; KV_BLOCK / LANES];
                    s.store_i8(q[0], &mut bytes[0]);
                    s.store_i8(q[1], &mut bytes[1]);
                    for (lane, code) in bytes.as_flattened().iter().enumerate() {
                        codes[start + (i * KV_BLOCK + lane) * stride] = *code as u8;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::test_util::{Random, random_mat};

    fn layout(k_type: KvType, v_type: KvType) -> KvLayout {
        KvLayout { n_layers: 3, n_kv_heads: 2, head_size: 64, block_len: 16, k_type, v_type }
    }

    #[test]
    fn bytes_of_a_block() {
        let i16 = layout(KvType::I16, KvType::I16);
        assert_eq!(i16.block_bytes().unwrap(), 3 * 2 * 16 * (64 * 2 + 4) * 2);
        let q8 = layout(KvType::I16, KvType::Q8_0);
        assert_eq!(q8.block_bytes().unwrap(), 3 * 2 * 16 * (64 * 2 + 4 + 2 * 34));
    }

    #[test]
    fn misfits_are_errors() {
        let base = layout(KvType::I16, KvType::Q8_0);
        for (layout, message) in [
            (KvLayout { head_size: 80, ..base.clone() }, "use I16"),
            (KvLayout { head_size: 72, ..base.clone() }, "multiple of 16"),
            (KvLayout { head_size: 0, ..base.clone() }, "multiple of 16"),
            (KvLayout { block_len: 48, ..base.clone() }, "block length"),
            (KvLayout { block_len: 0, ..base.clone() }, "block length"),
            (KvLayout { block_len: 512, ..base.clone() }, "block length"),
            (KvLayout { head_size: usize::MAX - 31, ..base.clone() }, "address space"),
            (KvLayout { n_layers: usize::MAX, ..base.clone() }, "address space"),
        ] {
            let error = KvCache::new(layout, 1).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
        let error = KvCache::new(base.clone(), usize::MAX).unwrap_err().to_string();
        assert!(error.contains("address space"), "{error}");
        assert!(KvCache::new(base, 1 << 40).is_err());
    }

    /// Stores seven rows in a cache of 0xff bytes: four of one sequence over the border of its
    /// blocks 5 and 0, three of another.
    fn stored(isa: Isa, n_threads: usize, k_type: KvType, v_type: KvType) -> (KvCache, Mat, Mat) {
        let mut random = Random::new(5);
        let mut k = random_mat(&mut random, 7, 128);
        let mut v = random_mat(&mut random, 7, 128);
        k.row_mut(0)[0] = 1e6;
        v.row_mut(0)[1] = -65519.0;
        v.row_mut(1)[..32].fill(0.0);
        let mut kv = KvCache::new(layout(k_type, v_type), 6).unwrap();
        kv.fill(0xff);
        let spans = [
            AttentionSpan { rows: 0..4, position: 14, blocks: 0..2 },
            AttentionSpan { rows: 4..7, position: 0, blocks: 2..3 },
        ];
        Cpu::new(isa, n_threads).store_kv(&mut kv, 1, &k, &v, &spans, &[5, 0, 3]);
        (kv, k, v)
    }

    const PLACES: [(u32, usize); 7] = [(5, 14), (5, 15), (0, 0), (0, 1), (3, 0), (3, 1), (3, 2)];

    #[test]
    fn i16_values_are_where_they_belong() {
        let (kv, k, v) = stored(Isa::best(), 2, KvType::I16, KvType::I16);
        for (t, (block, slot)) in PLACES.into_iter().enumerate() {
            for head in 0..2 {
                for (x, page, is_v) in [
                    (k.row(t), kv.k_page(block, 1, head), false),
                    (v.row(t), kv.v_page(block, 1, head), true),
                ] {
                    let x = &x[head * 64..(head + 1) * 64];
                    let max = if is_v { 8191.0 } else { 16383.0 };
                    let d = x.iter().fold(0.0f32, |a, x| a.max(x.abs())) / max;
                    let (codes, scales) = page.split_at(64 * 16 * 2);
                    assert_eq!(as_f32(scales)[slot], d);
                    for (e, x) in x.iter().enumerate() {
                        let place = match is_v {
                            true => slot / 2 * 128 + e * 2 + slot % 2,
                            false => e / 2 * 32 + slot * 2 + e % 2,
                        };
                        let code = as_i16(codes)[place];
                        assert_eq!(code, (x * (1.0 / d)).round_ties_even() as i16);
                        assert!((f32::from(code) * d - x).abs() <= 0.501 * d);
                    }
                }
            }
        }
        // Nothing else was written.
        let n_written = kv.bytes.as_slice().chunks(2).filter(|x| *x != [0xff, 0xff]).count();
        // A code that is -1 looks as if it were not.
        let n_all = 7 * (128 * 2 + 2 * 4);
        assert!(n_written <= n_all && n_written > n_all - 60, "{n_written} of {n_all}");
    }

    #[test]
    fn q8_0_values_are_where_they_belong() {
        let (kv, k, v) = stored(Isa::best(), 2, KvType::Q8_0, KvType::Q8_0);
        for (t, (block, slot)) in PLACES.into_iter().enumerate() {
            for (head, b) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let first = head * 64 + b * 32;
                for (x, page, start, stride) in [
                    (k.row(t), kv.k_page(block, 1, head), b * 32 * 16 + slot, 16),
                    (v.row(t), kv.v_page(block, 1, head), slot * 64 + b * 32, 1),
                ] {
                    let x = &x[first..first + 32];
                    let amax = x.iter().fold(0.0f32, |a, x| a.max(x.abs()));
                    let id = if amax == 0.0 { 0.0 } else { 1.0 / (amax / 127.0) };
                    let scale = as_f16(&page[64 * 16..])[b * 16 + slot];
                    assert_eq!(scale, f16::from_f32((amax / 127.0).min(F16_MAX)));
                    for (i, x) in x.iter().enumerate() {
                        let code = as_i8(page)[start + i * stride];
                        assert_eq!(code, (x * id).round_ties_even() as i8);
                    }
                }
            }
        }
    }

    #[test]
    fn every_instruction_set_stores_the_same_bytes() {
        for (k_type, v_type) in [(KvType::I16, KvType::I16), (KvType::Q8_0, KvType::Q8_0)] {
            let (expected, ..) = stored(Isa::Scalar, 1, k_type, v_type);
            for isa in Isa::available() {
                for n_threads in 1..=3 {
                    let (kv, ..) = stored(isa, n_threads, k_type, v_type);
                    assert!(kv.bytes.as_slice() == expected.bytes.as_slice(), "{isa}");
                }
            }
        }
    }
}
