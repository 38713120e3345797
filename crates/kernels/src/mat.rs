//! Activations: rows of f32, and the forms in which weights read them.

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
#[derive(Clone, Debug, Default)]
pub struct Acts {
    /// The forms that are filled.
    pub(crate) forms: Forms,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// `[T, D]`, if `forms.float`.
    pub(crate) float: Vec<f32>,
    /// `[T, D]`, if `forms.int8`.
    pub(crate) codes: Vec<i8>,
    /// `[T, D / 32]`: scale of each block.
    pub(crate) scales: Vec<f32>,
    /// `[T, D / 32, 2]`: sum of the codes of each half block.
    pub(crate) sums: Vec<[i32; 2]>,
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
            grow(&mut self.float, rows * self.cols);
        }
        if self.forms.int8 {
            grow(&mut self.codes, rows * self.cols);
            grow(&mut self.scales, rows * self.cols / ACT_BLOCK);
            grow(&mut self.sums, rows * self.cols / ACT_BLOCK);
        }
    }
}

fn grow<T: Clone + Default>(buffer: &mut Vec<T>, len: usize) {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
}
