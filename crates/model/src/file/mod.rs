//! Model files: the only place that opens them.
//!
//! [`ModelFile::open`] takes a GGUF file or a directory as Hugging Face ships them and shows both
//! as named tensors. Files are untrusted: no bytes make this module panic or allocate more than in
//! proportion to the file.

mod error;
mod gguf;
mod mmap;
mod safetensors;
mod value;

pub use error::{Fault, FileError, KeyError};
pub use gguf::GgufFile;
pub use mmap::Bytes;
pub use safetensors::SafetensorsDir;
pub use value::{Array, Metadata, Strings, Value};

pub(crate) use error::{shorten, shown};

use paceline_kernels::DType;
use std::collections::BTreeMap;
use std::ops::Range;
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
    /// Its bytes, row after row, little-endian, a whole number of blocks, without a guaranteed
    /// alignment.
    pub bytes: &'a [u8],
    file: &'a Bytes,
}

impl TensorView<'_> {
    /// Gives the memory of the bytes back to the system, for who has read them for the last time; they
    /// come from the file again if need be.
    pub fn release(&self) {
        self.file.release(self.bytes);
    }

    /// Number of values.
    pub fn n_values(&self) -> usize {
        self.shape.iter().product() // Checked for overflow when the file was opened.
    }
}

/// Where a tensor lies and how to read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name, e.g. `blk.0.attn_q.weight`.
    pub name: String,
    /// Type of its values.
    pub dtype: DType,
    /// Dimensions, outermost first: a matrix is `[out, in]`, row-major. (GGUF stores them the other
    /// way round.)
    pub shape: Vec<usize>,
    /// Its bytes in the file.
    pub range: Range<usize>,
}

impl TensorInfo {
    fn view<'a>(&'a self, file: &'a Bytes) -> TensorView<'a> {
        TensorView {
            name: &self.name,
            dtype: self.dtype,
            shape: &self.shape,
            bytes: &file[self.range.clone()],
            file,
        }
    }
}

/// Refuses tensors, ordered by the start of their ranges, of which two share a byte.
fn check_overlap<'a>(mut tensors: impl Iterator<Item = &'a TensorInfo>) -> Result<(), Fault> {
    let Some(mut before) = tensors.next() else { return Ok(()) };
    for tensor in tensors {
        if tensor.range.start < before.range.end {
            let place = format!("tensor {}", shown(&tensor.name));
            let problem = format!("overlaps tensor {}", shown(&before.name));
            return Err(Fault::Corrupt { place, problem });
        }
        before = tensor;
    }
    Ok(())
}

/// A model on disk, whatever the format.
#[derive(Debug)]
pub enum ModelFile {
    /// One GGUF file.
    Gguf(GgufFile),
    /// A directory with `config.json` and safetensors.
    Safetensors(SafetensorsDir),
}

/// What the tensors of one type take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TensorTotal {
    /// Number of tensors.
    pub n_tensors: usize,
    /// Number of values.
    pub n_values: usize,
    /// Bytes in the file.
    pub n_bytes: usize,
}

impl ModelFile {
    /// Opens a GGUF file or a directory with safetensors.
    ///
    /// # Errors
    /// If it is neither, naming what it is when that can be told, or if it is damaged.
    pub fn open(path: &Path) -> Result<ModelFile, FileError> {
        if path.is_dir() {
            return SafetensorsDir::open(path).map(ModelFile::Safetensors);
        }
        let bytes = Bytes::map(path).map_err(|error| Fault::Io(error).at(path))?;
        if !bytes.starts_with(gguf::MAGIC) {
            return Err(recognise(&bytes).at(path));
        }
        let file = GgufFile::parse(path.to_owned(), bytes)?;
        let n_parts = file.metadata().get_u64("split.count").map_err(|error| error.at(path))?;
        if n_parts.is_some_and(|n_parts| n_parts > 1) {
            let what = "one part of a split model";
            let way_out = "join the parts first (llama-gguf-split --merge)";
            return Err(Fault::Recognised { what, way_out }.at(path));
        }
        Ok(ModelFile::Gguf(file))
    }

    /// The file or directory.
    pub fn path(&self) -> &Path {
        match self {
            ModelFile::Gguf(file) => file.path(),
            ModelFile::Safetensors(dir) => dir.path(),
        }
    }

    /// A tensor by name. Names are the format's own.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        match self {
            ModelFile::Gguf(file) => file.tensor(name),
            ModelFile::Safetensors(dir) => dir.tensor(name),
        }
    }

    /// All tensors in file order.
    pub fn tensors(&self) -> impl Iterator<Item = TensorView<'_>> {
        let (gguf, safetensors) = match self {
            ModelFile::Gguf(file) => (Some(file.views()), None),
            ModelFile::Safetensors(dir) => (None, Some(dir.tensors())),
        };
        gguf.into_iter().flatten().chain(safetensors.into_iter().flatten())
    }

    /// What the tensors take, by type.
    pub fn totals(&self) -> BTreeMap<DType, TensorTotal> {
        let mut totals = BTreeMap::<DType, TensorTotal>::new();
        for tensor in self.tensors() {
            let total = totals.entry(tensor.dtype).or_default();
            total.n_tensors += 1;
            total.n_values += tensor.n_values();
            total.n_bytes += tensor.bytes.len();
        }
        totals
    }
}

/// What a file without the GGUF magic is, if it can be told.
fn recognise(bytes: &[u8]) -> Fault {
    const OTHER_FORMAT: &str = "use a .gguf file, or a directory with safetensors";
    let text = bytes[..bytes.len().min(256)].trim_ascii_start().to_ascii_lowercase();
    let (what, way_out) = if bytes.is_empty() {
        ("an empty file", "download it again")
    } else if text.starts_with(b"version https://git-lfs") {
        ("a git-lfs pointer, not the file itself", "fetch it with git lfs pull")
    } else if text.starts_with(b"<!doctype html") || text.starts_with(b"<html") {
        ("a web page, not the file itself", "use the address of the file, not of its page")
    } else if is_safetensors(bytes) {
        ("a safetensors file alone", "give its directory, with config.json")
    } else if bytes.starts_with(b"PK\x03\x04") || bytes.starts_with(b"\x80\x02") {
        ("a PyTorch checkpoint or a zip archive", OTHER_FORMAT)
    } else if [b"lmgg", b"fmgg", b"tjgg", b"algg"].iter().any(|magic| bytes.starts_with(*magic)) {
        ("a ggml file from before GGUF", "convert the model again")
    } else if bytes.starts_with(b"\x1f\x8b") || bytes.starts_with(b"(\xb5/\xfd") {
        ("a compressed file", "unpack it first")
    } else if text.starts_with(b"{") {
        ("a JSON file", "give the directory that holds config.json and model.safetensors")
    } else {
        return Fault::NotAModel;
    };
    Fault::Recognised { what, way_out }
}

/// Whether the bytes start like a safetensors file: a length that fits, then a JSON object.
fn is_safetensors(bytes: &[u8]) -> bool {
    let Some((length, rest)) = bytes.split_first_chunk() else { return false };
    u64::from_le_bytes(*length) <= rest.len() as u64 && rest.starts_with(b"{\"")
}
