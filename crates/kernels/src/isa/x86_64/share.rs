//! How a share of the linear op is walked, on every instruction set.
//!
//! Few rows go through the packed weights together, one row tile after the other. For many rows a
//! chunk of a row tile is first expanded to plain bytes or floats in the first-level cache, where all
//! rows of a band meet it; their chains wait in memory from chunk to chunk. Both compute the same
//! chains.

use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
use std::mem::MaybeUninit;

use crate::linear::TileArgs;
use crate::weight::tile::ROWS;

/// The kernels of a format.
pub(super) trait Weights {
    /// k in a chunk: [`SCRATCH`] bytes hold one, expanded.
    const CHUNK: usize;
    /// Most rows that go through packed weights together.
    const FEW: usize;
    /// Most rows that go through expanded weights together.
    const MANY: usize;
    /// The number of rows from which it pays to expand.
    const EXPAND_FROM: usize;

    /// Bytes of `n` k of a row tile.
    fn n_bytes(n: usize) -> usize;

    /// Expands `n` k from packed weights `w` to `to`, and returns where they are.
    ///
    /// # Safety
    /// The processor has the instruction set, `w` is whole units of the format, `to` has
    /// [`SCRATCH`] bytes on 64.
    unsafe fn expand(w: *const u8, n: usize, to: *mut u8) -> *const u8;

    /// Computes a [`Piece`] of packed weights, of at most FEW rows.
    ///
    /// # Safety
    /// As [`crate::linear::LinearKernel`]; the piece lies in the share.
    unsafe fn few(piece: &Piece<'_>);

    /// Computes a [`Piece`] of what [`Weights::expand`] returned, of at most MANY rows.
    ///
    /// # Safety
    /// As [`Weights::few`].
    unsafe fn many(piece: &Piece<'_>);
}

/// A piece of the chains of a share: some rows times a chunk of a row tile.
#[derive(Clone, Copy)]
pub(super) struct Piece<'a> {
    pub(super) args: &'a TileArgs<'a>,
    /// The row tile.
    pub(super) tile: usize,
    /// The first row.
    pub(super) t: usize,
    /// Rows.
    pub(super) n_rows: usize,
    /// The first k.
    pub(super) first: usize,
    /// k in the chunk.
    pub(super) n: usize,
    /// The weights of the chunk.
    pub(super) w: *const u8,
    /// Where the chains wait: 32 values a row on 64 bytes, in an order of the kernel's own. Unused
    /// if the chunk is all there is.
    pub(super) acc: *mut f32,
    /// What to fetch meanwhile.
    pub(super) ahead: Ahead,
}

impl Piece<'_> {
    /// Whether the chains begin here.
    #[inline(always)]
    pub(super) fn is_first(&self) -> bool {
        self.first == 0
    }

    /// Whether the chains end here.
    #[inline(always)]
    pub(super) fn is_last(&self) -> bool {
        self.first + self.n == self.args.x.cols
    }
}

/// Bytes of a chunk of expanded weights: with the accumulators of a few rows it fits into a
/// first-level cache.
pub(super) const SCRATCH: usize = 20 << 10;

/// Most rows whose chains wait together.
const BAND: usize = 240;

/// Few rows fetch so far ahead. Far enough to hide the memory, near enough to be of use to
/// a small share.
const AHEAD_BYTES: usize = 8 << 10;

/// The kernel for format W.
///
/// # Safety
/// As [`crate::linear::LinearKernel`].
pub(super) unsafe fn linear<W: Weights>(args: &TileArgs<'_>) {
    // SAFETY: the caller's promise.
    unsafe { if args.x.rows < W::EXPAND_FROM { few_rows::<W>(args) } else { many_rows::<W>(args) } }
}

/// # Safety
/// As [`linear`].
unsafe fn few_rows<W: Weights>(args: &TileArgs<'_>) {
    let n_in = args.x.cols;
    let tile_bytes = W::n_bytes(n_in);
    for tile in 0..args.n_out.div_ceil(ROWS) {
        let w = &args.tiles[tile * tile_bytes..(tile + 1) * tile_bytes];
        let n_groups = args.x.rows.div_ceil(W::FEW);
        for (group, (t, n_rows)) in groups(args.x.rows, W::FEW).enumerate() {
            // A single group fetches a little ahead; of several each fetches its part of the next
            // tile, so that memory is as busy in the last as in the first.
            let start = match n_groups {
                1 => tile * tile_bytes + AHEAD_BYTES,
                _ => (tile + 1) * tile_bytes + tile_bytes * group / n_groups,
            };
            let ahead = Ahead::new(args.tiles, start, tile_bytes.div_ceil(n_groups));
            let acc = std::ptr::null_mut();
            let piece =
                Piece { args, tile, t, n_rows, first: 0, n: n_in, w: w.as_ptr(), acc, ahead };
            // SAFETY: the caller's promise.
            unsafe { W::few(&piece) };
        }
    }
}

#[repr(align(64))]
struct Aligned<T>(T);

/// # Safety
/// As [`linear`].
unsafe fn many_rows<W: Weights>(args: &TileArgs<'_>) {
    let n_in = args.x.cols;
    let tile_bytes = W::n_bytes(n_in);
    let mut scratch = Aligned([MaybeUninit::<u8>::uninit(); SCRATCH]);
    let mut chains = Aligned([MaybeUninit::<[f32; ROWS]>::uninit(); BAND]);
    for (band, n_band) in groups(args.x.rows, BAND) {
        let n_groups = n_band.div_ceil(W::MANY);
        for tile in 0..args.n_out.div_ceil(ROWS) {
            for first in (0..n_in).step_by(W::CHUNK) {
                let n = W::CHUNK.min(n_in - first);
                let start = tile * tile_bytes + W::n_bytes(first);
                let w = &args.tiles[start..start + W::n_bytes(n)];
                // SAFETY: `w` is `n` k of a row tile, in whole units.
                let expanded = unsafe { W::expand(w.as_ptr(), n, scratch.0.as_mut_ptr().cast()) };
                for (group, (t, n_rows)) in groups(n_band, W::MANY).enumerate() {
                    // The next chunk, whether of this tile or of the next, lies behind this one.
                    let next = start + w.len() + w.len() * group / n_groups;
                    let piece = Piece {
                        args,
                        tile,
                        t: band + t,
                        n_rows,
                        first,
                        n,
                        w: expanded,
                        acc: chains.0[t..t + n_rows].as_mut_ptr().cast(),
                        ahead: Ahead::new(args.tiles, next, w.len().div_ceil(n_groups)),
                    };
                    // SAFETY: the caller's promise.
                    unsafe { W::many(&piece) };
                }
            }
        }
    }
}

/// Cuts `n` rows into groups of at most `max`, as equal as can be: (first, rows).
fn groups(n: usize, max: usize) -> impl Iterator<Item = (usize, usize)> {
    let n_groups = n.div_ceil(max);
    (0..n_groups).map(move |i| {
        let first = n * i / n_groups;
        (first, n * (i + 1) / n_groups - first)
    })
}

/// Weights to fetch into the second-level cache. Without, memory and arithmetic take turns, and even
/// a single row is a third slower; the first level would lose its activations to them.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    next: *const u8,
    end: *const u8,
}

/// Bytes of a cache line.
const LINE: usize = 64;

impl Ahead {
    /// Nothing.
    pub(super) const NOTHING: Ahead = Ahead { next: std::ptr::null(), end: std::ptr::null() };

    /// `n_bytes` of `tiles` from byte `start`, or what there is of them.
    fn new(tiles: &[u8], start: usize, n_bytes: usize) -> Ahead {
        let end = tiles.len().min(start + n_bytes);
        let tiles = tiles.as_ptr();
        Ahead { next: tiles.wrapping_add(start.min(end)), end: tiles.wrapping_add(end) }
    }

    /// The lines to fetch in each of `n` steps.
    #[inline(always)]
    pub(super) fn lines_per_step(&self, n: usize) -> usize {
        (self.end.addr() - self.next.addr()).div_ceil(LINE).div_ceil(n)
    }

    /// Fetches `n_lines`, unless all is done.
    #[inline(always)]
    pub(super) fn fetch(&mut self, n_lines: usize) {
        const UNROLLED: usize = 4;
        if self.next < self.end {
            for _ in 0..n_lines / UNROLLED {
                self.fetch_unrolled::<UNROLLED>();
            }
            for _ in 0..n_lines % UNROLLED {
                self.fetch_unrolled::<1>();
            }
        }
    }

    #[inline(always)]
    fn fetch_unrolled<const N: usize>(&mut self) {
        for line in 0..N {
            // SAFETY: fetching is a hint and never faults.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(self.next.wrapping_add(LINE * line).cast()) };
        }
        self.next = self.next.wrapping_add(LINE * N);
    }
}

/// Calls a kernel for as many rows as there are.
macro_rules! by_rows {
    ($n_rows:expr, $($mt:literal)*: $kernel:ident::<$format:ty, _> $arguments:tt) => {
        match $n_rows {
            $($mt => $kernel::<$format, $mt> $arguments,)*
            _ => unreachable!("more rows than a kernel takes"),
        }
    };
}
pub(super) use by_rows;
