//! Activations: rows of f32, and the forms in which weights read them.

use std::ops::Range;

/// A row-major matrix of f32: `rows` tokens of `cols` values.
#[derive(Clone, Debug, Default)]
pub struct Mat {
    rows: usize,
    cols: usize,
    data: Vec<f32>,
}

impl Mat {
    /// A matrix of zeros.
    pub fn zeros(rows: usize, cols: usize) -> Mat {
        Mat { rows, cols, data: vec![0.0; rows * cols] }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values in a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Changes the number of rows; the contents are unspecified afterwards. Allocates only to grow.
    pub fn set_rows(&mut self, rows: usize) {
        self.rows = rows;
        if self.data.len() < rows * self.cols {
            self.data.resize(rows * self.cols, 0.0);
        }
    }

    /// Keeps only the given rows, in ascending order.
    ///
    /// # Panics
    /// If there is no such row, or the order is another.
    pub fn keep_rows(&mut self, rows: &[usize]) {
        assert!(rows.is_sorted_by(|a, b| a < b), "rows are kept in their order");
        for (to, &row) in rows.iter().enumerate() {
            assert!(row < self.rows, "row {row} of {}", self.rows);
            self.data.copy_within(row * self.cols..(row + 1) * self.cols, to * self.cols);
        }
        self.rows = rows.len();
    }

    /// Row `t`.
    pub fn row(&self, t: usize) -> &[f32] {
        assert!(t < self.rows);
        &self.data[t * self.cols..(t + 1) * self.cols]
    }

    /// Row `t`, to be written.
    pub fn row_mut(&mut self, t: usize) -> &mut [f32] {
        assert!(t < self.rows);
        &mut self.data[t * self.cols..(t + 1) * self.cols]
    }

    /// All values, row after row.
    pub fn as_slice(&self) -> &[f32] {
        &self.data[..self.rows * self.cols]
    }

    /// All values, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        &mut self.data[..self.rows * self.cols]
    }
}

/// Values that share one scale in an int8 activation row.
pub const ACT_BLOCK: usize = 32;

/// The forms in which a weight reads its activations; a norm or an activation writes all that the
/// weights behind it ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Forms {
    /// f32, for float weights.
    pub float: bool,
    /// int8 in blocks of [`ACT_BLOCK`] with an f32 scale, for integer weights.
    pub int8: bool,
}

impl Forms {
    /// The forms that either asks for.
    pub fn or(self, other: Forms) -> Forms {
        Forms { float: self.float || other.float, int8: self.int8 || other.int8 }
    }
}

/// Rows of activations, ready to be multiplied by weights.
///
/// The int8 form of a block `x` of 32 values is `d = amax / 127`, `q = round_ties_even(x * (1 / d))`,
/// with `amax` the largest magnitude; a block of zeros has `d = 0`.
///
/// # Layout
///
/// Rows go through a kernel in *panels* of up to 8, as equal as can be. A panel of H rows holds, for
/// each block in ascending order, 48 H bytes, so that whatever a kernel reads of a block lies at a
/// constant distance from one pointer:
///
/// | bytes | contents |
/// |---|---|
/// | H x 32 | i8 codes `q` |
/// | H x 4 | f32 scale `d` |
/// | H x 4 | f32 offset `d S`, with `S` the sum of the codes |
/// | H x 4 | i32 start `-128 S` |
/// | H x 4 | i32 start of the first 16 values, `-128` times the sum of their codes |
#[derive(Clone, Debug, Default)]
pub struct Acts {
    /// The forms that are filled.
    pub(crate) forms: Forms,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// `[T, D]`, if `forms.float`.
    pub(crate) float: Vec<f32>,
    /// The panels, if `forms.int8`.
    panels: Vec<Line>,
}

/// What memory moves at once.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Most rows of a panel.
pub(crate) const PANEL: usize = 8;

/// Bytes of a block of a row in a panel.
pub(crate) const BLOCK_BYTES: usize = ACT_BLOCK + 4 * N_TERMS;

/// Words of a block beside its codes.
const N_TERMS: usize = 4;

/// The code of a zero to which the starts belong: an unsigned code `c` of a weight means `c - 128`.
pub(crate) const START_ZERO: i32 = 128;

/// Consecutive rows whose blocks lie together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Panel {
    /// The first row.
    pub(crate) first: usize,
    /// Rows.
    pub(crate) height: usize,
}

impl Panel {
    /// The number of panels of `rows` rows.
    pub(crate) fn count(rows: usize) -> usize {
        rows.div_ceil(PANEL)
    }

    /// Panel `i` of `rows` rows.
    pub(crate) fn nth(rows: usize, i: usize) -> Panel {
        let n = Panel::count(rows);
        let first = rows * i / n;
        Panel { first, height: rows * (i + 1) / n - first }
    }

    /// The panel of row `t` of `rows`.
    pub(crate) fn of_row(rows: usize, t: usize) -> Panel {
        // The last i with rows * i / n <= t.
        Panel::nth(rows, ((t + 1) * Panel::count(rows) - 1) / rows)
    }

    /// The rows of some panels of `rows` rows.
    pub(crate) fn rows(rows: usize, panels: Range<usize>) -> Range<usize> {
        let first = |i: usize| rows * i / Panel::count(rows);
        first(panels.start)..first(panels.end)
    }

    /// Where the panel starts among all panels, in bytes.
    pub(crate) fn start(self, cols: usize) -> usize {
        self.first * (cols / ACT_BLOCK) * BLOCK_BYTES
    }
}

/// The int8 form of a block.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct ActBlock {
    pub(crate) codes: [i8; ACT_BLOCK],
    pub(crate) scale: f32,
    pub(crate) offset: f32,
    pub(crate) start: i32,
    pub(crate) half_start: i32,
}

impl Acts {
    /// No rows of `cols` values in the given forms.
    ///
    /// # Panics
    /// If int8 is asked for and `cols` is no multiple of [`ACT_BLOCK`].
    pub fn new(cols: usize, forms: Forms) -> Acts {
        assert!(!forms.int8 || cols.is_multiple_of(ACT_BLOCK), "int8 rows come in whole blocks");
        Acts { forms, cols, ..Acts::default() }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values in a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Changes the number of rows; the contents are unspecified afterwards. Allocates only to grow.
    pub fn set_rows(&mut self, rows: usize) {
        self.rows = rows;
        if self.forms.float {
            grow(&mut self.float, rows * self.cols, 0.0);
        }
        if self.forms.int8 {
            let n_bytes = rows * self.cols / ACT_BLOCK * BLOCK_BYTES;
            grow(&mut self.panels, n_bytes.div_ceil(size_of::<Line>()), Line([0; 64]));
        }
    }

    /// All panels, nothing if there is no int8 form.
    pub(crate) fn panels(&self) -> &[u8] {
        // SAFETY: lines are bytes.
        unsafe {
            let n_bytes = size_of_val(&self.panels[..]);
            std::slice::from_raw_parts(self.panels.as_ptr().cast(), n_bytes)
        }
    }

    /// The float form and the panels, to be written.
    pub(crate) fn parts_mut(&mut self) -> (&mut [f32], &mut [u8]) {
        // SAFETY: as above.
        let panels = unsafe {
            let n_bytes = size_of_val(&self.panels[..]);
            std::slice::from_raw_parts_mut(self.panels.as_mut_ptr().cast(), n_bytes)
        };
        (&mut self.float, panels)
    }

    /// Block `b` of row `t`, plainly.
    pub(crate) fn block(&self, t: usize, b: usize) -> ActBlock {
        assert!(t < self.rows && b < self.cols / ACT_BLOCK);
        let panel = Panel::of_row(self.rows, t);
        let (height, row) = (panel.height, t - panel.first);
        let block = &self.panels()[panel.start(self.cols) + b * height * BLOCK_BYTES..];
        let term = |i: usize| {
            let at = height * ACT_BLOCK + 4 * (i * height + row);
            *block[at..].first_chunk().expect("a word")
        };
        let codes: [u8; ACT_BLOCK] = *block[row * ACT_BLOCK..].first_chunk().expect("a block");
        ActBlock {
            codes: codes.map(|code| code as i8),
            scale: f32::from_le_bytes(term(0)),
            offset: f32::from_le_bytes(term(1)),
            start: i32::from_le_bytes(term(2)),
            half_start: i32::from_le_bytes(term(3)),
        }
    }
}

fn grow<T: Clone>(buffer: &mut Vec<T>, len: usize, value: T) {
    if buffer.len() < len {
        buffer.resize(len, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_are_as_equal_as_can_be() {
        for rows in 1..100 {
            let panels: Vec<Panel> = (0..Panel::count(rows)).map(|i| Panel::nth(rows, i)).collect();
            let heights = panels.iter().map(|panel| panel.height);
            assert_eq!(heights.clone().sum::<usize>(), rows);
            assert!(heights.clone().max().unwrap() <= PANEL);
            assert!(heights.clone().max().unwrap() - heights.min().unwrap() <= 1);
            for panel in panels {
                for t in panel.first..panel.first + panel.height {
                    assert_eq!(Panel::of_row(rows, t).first, panel.first);
                }
            }
        }
    }
}
