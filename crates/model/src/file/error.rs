//! What can be wrong with a model file. Every message is one line.

use std::io;
use std::path::{Path, PathBuf};

/// A model file that cannot be used: which, and why.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", path.display())]
pub struct FileError {
    /// The file or directory.
    pub path: PathBuf,
    /// What is wrong with it.
    #[source]
    pub fault: Fault,
}

/// What is wrong with a model file.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The operating system refuses.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file is something else than a model.
    #[error(
        "not a model: a .gguf file or a directory with config.json and safetensors is accepted"
    )]
    NotAModel,
    /// A directory that no model can be read from.
    #[error("a directory without config.json is not a model{hint}")]
    NoConfig {
        /// A file in it that might be meant, as the rest of the sentence; or empty.
        hint: String,
    },
    /// JSON that cannot be read.
    #[error("{0}: the file is corrupt")]
    Json(String),
    /// The file is recognisably something else, and there is a way out.
    #[error("{what}: {way_out}")]
    Recognised {
        /// What the file is.
        what: &'static str,
        /// What to do.
        way_out: &'static str,
    },
    /// A GGUF version that is not read.
    #[error("GGUF version {0} is not supported (2 and 3 are): convert the model again")]
    GgufVersion(u32),
    /// A GGUF file for big-endian machines.
    #[error("a big-endian GGUF file: convert the model for little-endian machines")]
    BigEndian,
    /// The file ends too early.
    #[error("{place} needs {need} bytes and only {left} remain: the file is cut off or corrupt")]
    CutOff {
        /// The part that is incomplete.
        place: String,
        /// Bytes that it takes at least.
        need: u64,
        /// Bytes that the file still has.
        left: u64,
    },
    /// Bytes that mean nothing.
    #[error("{place} {problem}: the file is corrupt")]
    Corrupt {
        /// The part that is wrong.
        place: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A tensor of a type that is not read.
    #[error("tensor {name} has type {dtype}, which is not supported")]
    TensorType {
        /// The tensor.
        name: String,
        /// The type's name or number in the file.
        dtype: String,
    },
    /// A metadata or configuration key.
    #[error(transparent)]
    Key(#[from] KeyError),
}

impl Fault {
    /// The error of the file at `path`.
    pub fn at(self, path: &Path) -> FileError {
        FileError { path: path.to_owned(), fault: self }
    }
}

/// A metadata or configuration key that is missing or unusable.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum KeyError {
    /// The key is required.
    #[error("key {key} is missing")]
    Missing {
        /// The key.
        key: String,
    },
    /// The value has another type.
    #[error("key {key} is {found}, expected {expected}")]
    Type {
        /// The key.
        key: String,
        /// The type that was asked for.
        expected: &'static str,
        /// The type or value in the file.
        found: String,
    },
    /// The value has the right type and is not possible.
    #[error("key {key} is {value}: {problem}")]
    Value {
        /// The key.
        key: String,
        /// The value in the file.
        value: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl KeyError {
    /// The error of the file at `path`.
    pub fn at(self, path: &Path) -> FileError {
        Fault::Key(self).at(path)
    }
}

/// A name out of a file, fit for a one-line message: escaped and shortened.
pub(crate) fn shown(name: &str) -> String {
    shorten(&name.escape_debug().take(1000).collect::<String>())
}

/// At most 120 characters of a message.
pub(crate) fn shorten(message: &str) -> String {
    const LIMIT: usize = 120;
    let mut out: String = message.chars().take(LIMIT).collect();
    if message.chars().nth(LIMIT).is_some() {
        out.push('…');
    }
    out
}
