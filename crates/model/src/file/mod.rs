//! Model files: the only place that opens them.
//!
//! [`ModelFile::open`] takes a GGUF file or a directory as Hugging Face ships them and shows both
//! as named tensors. Files are untrusted: no bytes make this module panic or allocate more than in
//! proportion to the file.

mod error;
mod gguf;
mod mmap;
mod value;

pub use error::{Fault, FileError, KeyError};
pub use gguf::{GgufFile, MAGIC, TensorInfo};
pub use mmap::Bytes;
pub use value::{Array, Metadata, Strings, Value};

use paceline_kernels::DType;
use std::path::Path;

/// A tensor in a file.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// Its name in the file.
    pub name: &'a str,
    /// Type of its values.
    pub dtype: DType,
    /// Dimensions, outermost first: a matrix is `[out, in]`, row-major, for every kind of file.
    pub shape: &'a [usize],
    /// Its bytes, row after row, little-endian, without a guaranteed alignment.
    pub bytes: &'a [u8],
}

/// A model on disk, whatever the format.
#[derive(Debug)]
pub enum ModelFile {
    /// One GGUF file.
    Gguf(GgufFile),
}

impl ModelFile {
    /// Opens a GGUF file or a directory with safetensors.
    ///
    /// # Errors
    /// If it is neither, naming what it is when that can be told, or if it is damaged.
    pub fn open(path: &Path) -> Result<ModelFile, FileError> {
        GgufFile::open(path).map(ModelFile::Gguf)
    }

    /// The file or directory.
    pub fn path(&self) -> &Path {
        match self {
            ModelFile::Gguf(file) => file.path(),
        }
    }

    /// A tensor by name. Names are the format's own.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        match self {
            ModelFile::Gguf(file) => file.tensor(name),
        }
    }

    /// All tensors.
    pub fn tensors(&self) -> impl Iterator<Item = TensorView<'_>> {
        match self {
            ModelFile::Gguf(file) => file.tensors().iter().map(|info| file.view(info)),
        }
    }
}
