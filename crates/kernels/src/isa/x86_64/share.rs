//! How a share of the linear op is walked, on every instruction set.
//!
//! Few rows go through the packed weights together, one row tile after the other. For many rows a
//! chunk of a row tile is first expanded to plain bytes or floats in the first-level cache, where all
//! rows of a band meet it; their chains wait in memory from chunk to chunk. Both compute the same
//! chains.

use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
use std::mem::MaybeUninit;
use std::ops::Range;

use crate::linear::TileArgs;
use crate::mat::{ACT_BLOCK, BLOCK_BYTES, PANEL, Panel};
use crate::weight::tile::ROWS;

/// The kernels of a format.
pub(super) struct Kernels {
    /// Whether activations are read as f32.
    pub(super) float: bool,
    /// k in a unit of the format.
    pub(super) unit: usize,
    /// Bytes of a unit of a row tile.
    pub(super) unit_bytes: usize,
    /// Most k in a chunk: [`SCRATCH`] bytes hold one, expanded.
    pub(super) chunk: usize,
    /// Most rows of a panel that go through together.
    pub(super) max_rows: usize,
    /// The number of rows from which it pays to expand.
    pub(super) expand_from: usize,
    /// Expands packed weights.
    pub(super) expand: Expand,
    /// Computes a piece of packed weights.
    pub(super) few: Compute,
    /// Computes a piece of expanded weights.
    pub(super) many: Compute,
}

impl Kernels {
    /// Bytes of `n_in` values of activations.
    fn x_bytes(&self, n_in: usize) -> usize {
        if self.float { n_in * size_of::<f32>() } else { n_in / ACT_BLOCK * BLOCK_BYTES }
    }
}

/// Expands `n` k from packed weights `w` to `to`, and returns where they are: there, or where they
/// were if the kernel reads them so.
///
/// # Safety
/// The processor has the instruction set, `w` is whole units of the format, and `to` has [`SCRATCH`]
/// bytes on 64.
pub(super) type Expand = unsafe fn(w: *const u8, n: usize, to: *mut u8) -> *const u8;

/// Computes a piece.
///
/// # Safety
/// As [`LinearKernel`](crate::linear::LinearKernel); the piece lies in the share and has no more rows
/// than the kernel takes.
pub(super) type Compute = unsafe fn(piece: &Piece<'_>);

/// A piece of the chains of a share: some rows times a chunk of a row tile.
#[derive(Clone, Copy)]
pub(super) struct Piece<'a> {
    pub(super) args: &'a TileArgs<'a>,
    /// The row tile.
    pub(super) tile: usize,
    /// The rows.
    pub(super) group: Group,
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
    /// The panel of int8 activations at the first block of the piece.
    #[inline(always)]
    pub(super) fn panel(&self) -> *const u8 {
        let (x, panel) = (self.args.x, self.group.panel);
        let first = panel.start(x.cols) + self.first / ACT_BLOCK * panel.height * BLOCK_BYTES;
        x.panels()[first..first + self.n / ACT_BLOCK * panel.height * BLOCK_BYTES].as_ptr()
    }

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

/// Bytes of a chunk of expanded weights: with the activations of a panel it fits into a first-level
/// cache.
pub(super) const SCRATCH: usize = 23 << 10;

/// Bytes of activations that stay in a second-level cache while weights pass.
const BAND_BYTES: usize = 640 << 10;

/// Most panels in a band: their chains wait together.
const BAND: usize = 64;

/// Few rows fetch so far ahead. Far enough to hide the memory, near enough to be of use to
/// a small share.
const AHEAD_BYTES: usize = 8 << 10;

/// Computes a share with the kernels of its format.
///
/// # Safety
/// As [`LinearKernel`](crate::linear::LinearKernel).
pub(super) unsafe fn linear(args: &TileArgs<'_>, kernels: &Kernels) {
    // SAFETY: the caller's promise.
    unsafe {
        if args.rows().len() < kernels.expand_from {
            few_rows(args, kernels);
        } else {
            many_rows(args, kernels);
        }
    }
}

/// # Safety
/// As [`linear`].
unsafe fn few_rows(args: &TileArgs<'_>, kernels: &Kernels) {
    let (x, n_in) = (args.x, args.x.cols);
    let tile_bytes = n_in / kernels.unit * kernels.unit_bytes;
    for tile in 0..args.n_out.div_ceil(ROWS) {
        let start = tile * tile_bytes;
        let w = args.tiles[start..start + tile_bytes].as_ptr();
        for group in Group::cut(x.rows, args.panels.clone(), kernels.max_rows) {
            // One group fetches a little ahead; of several each fetches its part of the next tile,
            // so that memory is as busy in the last as in the first.
            let next = start + if group.n == 1 { AHEAD_BYTES } else { tile_bytes };
            let piece = Piece {
                args,
                tile,
                group,
                first: 0,
                n: n_in,
                w,
                acc: std::ptr::null_mut(),
                ahead: Ahead::new(args.tiles, next, tile_bytes, &group),
            };
            // SAFETY: the caller's promise.
            unsafe { (kernels.few)(&piece) };
        }
    }
}

#[repr(align(64))]
struct Aligned<T>(T);

/// # Safety
/// As [`linear`].
#[inline(never)] // Its arrays would burden the stack of few rows.
unsafe fn many_rows(args: &TileArgs<'_>, kernels: &Kernels) {
    let (x, n_in) = (args.x, args.x.cols);
    let bytes = |n: usize| n / kernels.unit * kernels.unit_bytes;
    let mut scratch = Aligned([MaybeUninit::<u8>::uninit(); SCRATCH]);
    let mut chains = Aligned([MaybeUninit::<[f32; ROWS]>::uninit(); BAND * PANEL]);
    let n_panels = args.panels.len();
    let panel_bytes = kernels.x_bytes(n_in) * PANEL;
    let n_bands = n_panels.div_ceil((BAND_BYTES / panel_bytes).clamp(1, BAND));
    // Chunks are as equal as can be: a short one spends its time on moving chains.
    let n_chunks = n_in.div_ceil(kernels.chunk);
    let cut = |chunk: usize| n_in / kernels.unit * chunk / n_chunks * kernels.unit;
    for band in 0..n_bands {
        let first = |band: usize| args.panels.start + n_panels * band / n_bands;
        let panels = first(band)..first(band + 1);
        let top = Panel::rows(x.rows, panels.clone()).start;
        for tile in 0..args.n_out.div_ceil(ROWS) {
            for chunk in 0..n_chunks {
                let (first, n) = (cut(chunk), cut(chunk + 1) - cut(chunk));
                let start = tile * bytes(n_in) + bytes(first);
                let w = &args.tiles[start..start + bytes(n)];
                let to = scratch.0.as_mut_ptr().cast();
                // SAFETY: `w` is `n` k of a row tile, in whole units.
                let expanded = unsafe { (kernels.expand)(w.as_ptr(), n, to) };
                for group in Group::cut(x.rows, panels.clone(), kernels.max_rows) {
                    let piece = Piece {
                        args,
                        tile,
                        group,
                        first,
                        n,
                        w: expanded,
                        acc: chains.0[group.t() - top..][..group.n_rows].as_mut_ptr().cast(),
                        // The next chunk, whether of this tile or of the next, lies behind this one.
                        ahead: Ahead::new(args.tiles, start + w.len(), w.len(), &group),
                    };
                    // SAFETY: the caller's promise.
                    unsafe { (kernels.many)(&piece) };
                }
            }
        }
    }
}

/// Rows that are computed together: all of a panel, or some.
#[derive(Clone, Copy)]
pub(super) struct Group {
    pub(super) panel: Panel,
    /// The first row, counted from the panel's.
    pub(super) row: usize,
    pub(super) n_rows: usize,
    /// Which of the groups it is.
    i: usize,
    /// The number of groups.
    n: usize,
}

impl Group {
    /// The first row.
    #[inline(always)]
    pub(super) fn t(&self) -> usize {
        self.panel.first + self.row
    }

    /// Cuts each of `panels`, of `n_rows` rows in all, into groups of at most `max` rows.
    fn cut(n_rows: usize, panels: Range<usize>, max: usize) -> impl Iterator<Item = Group> {
        let (first, n_panels) = (panels.start, panels.len());
        let n_cuts = n_rows.div_ceil(Panel::count(n_rows)).div_ceil(max);
        (0..n_panels * n_cuts).map(move |i| {
            let panel = Panel::nth(n_rows, first + i / n_cuts);
            let (cut, height) = (i % n_cuts, panel.height);
            let row = height * cut / n_cuts;
            let n_rows = height * (cut + 1) / n_cuts - row;
            Group { panel, row, n_rows, i, n: n_panels * n_cuts }
        })
    }
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

    /// A group's part of `n_bytes` of `tiles` from byte `start`, or what there is of them.
    fn new(tiles: &[u8], start: usize, n_bytes: usize, group: &Group) -> Ahead {
        // Parts are whole bursts, most of them none if there are many groups.
        const BURST: usize = 8 * LINE;
        let n_bursts = n_bytes.div_ceil(BURST);
        let cut = |i: usize| tiles.len().min(start + n_bursts * i / group.n * BURST);
        let tiles = tiles.as_ptr();
        Ahead { next: tiles.wrapping_add(cut(group.i)), end: tiles.wrapping_add(cut(group.i + 1)) }
    }

    /// Spreads the fetching over `n_steps` steps of `n_lines` or nothing.
    #[inline(always)]
    pub(super) fn over(self, n_steps: usize, n_lines: usize) -> Fetch {
        let n_bytes = self.end.addr() - self.next.addr();
        let every = n_steps / n_bytes.div_ceil(LINE * n_lines).max(1);
        Fetch { ahead: self, every: every.max(1), wait: 0 }
    }
}

/// An [`Ahead`] on its way.
pub(super) struct Fetch {
    ahead: Ahead,
    /// Steps from one fetch to the next, and to the next one.
    every: usize,
    wait: usize,
}

impl Fetch {
    /// Makes a step; `n_lines` is a constant, as in [`Ahead::over`].
    #[inline(always)]
    pub(super) fn step(&mut self, n_lines: usize) {
        if self.wait > 0 {
            self.wait -= 1;
            return;
        }
        self.wait = self.every - 1;
        if self.ahead.next < self.ahead.end {
            for line in 0..n_lines {
                let next = self.ahead.next.wrapping_add(LINE * line);
                // SAFETY: fetching is a hint and never faults.
                unsafe { _mm_prefetch::<_MM_HINT_T1>(next.cast()) };
            }
            self.ahead.next = self.ahead.next.wrapping_add(LINE * n_lines);
        }
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
