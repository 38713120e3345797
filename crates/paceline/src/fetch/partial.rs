//! [`Partial`]: a file on its way into the cache.

use super::{FetchError, Fetched, Progress, SourceError};
use crate::cache::Cache;
use crate::units::hex;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A model's bytes as they come: written beside the model's final place and hashed. The file is
/// deleted on drop unless [`Partial::publish`] gave it its name.
pub(super) struct Partial {
    file: File,
    path: PathBuf,
    name: String,
    hash: Sha256,
    done: u64,
    total: Option<u64>,
    head: Vec<u8>,
}

impl Partial {
    /// An empty file; what an earlier pull left under its name is deleted. The caller holds the
    /// model's lock.
    pub(super) fn create(cache: &Cache, name: &str) -> Result<Partial, FetchError> {
        let path = cache.partial_path(name);
        let file = File::create(&path).map_err(|error| write_error(&path, name, error))?;
        Ok(Partial {
            file,
            path,
            name: name.to_owned(),
            hash: Sha256::new(),
            done: 0,
            total: None,
            head: Vec::new(),
        })
    }

    /// Sets the size of the whole file: more bytes than that are an error.
    pub(super) fn expect(&mut self, total: u64) {
        self.total = Some(total);
    }

    /// How far the file is.
    pub(super) fn progress(&self) -> Progress {
        Progress::Bytes { done: self.done, total: self.total }
    }

    /// Appends bytes that came from `what`.
    pub(super) fn write(&mut self, bytes: &[u8], what: &str) -> Result<(), SourceError> {
        let done = self.done + bytes.len() as u64;
        if let Some(total) = self.total.filter(|total| done > *total) {
            let reason = format!("{what}: more than the {total} bytes that the model has");
            return Err(SourceError::Source(reason));
        }
        let missing = 4usize.saturating_sub(self.head.len()).min(bytes.len());
        self.head.extend_from_slice(&bytes[..missing]);
        if self.head.len() == 4 && self.head != *b"GGUF" {
            return Err(SourceError::Source(format!("{what}: not a GGUF file")));
        }
        self.hash.update(bytes);
        self.file.write_all(bytes).map_err(|error| self.ours(error))?;
        self.done = done;
        Ok(())
    }

    /// Gives the whole file its final name, if it is whole and has the expected hash.
    pub(super) fn publish(self, path: &Path, sha256: Option<&str>) -> Result<Fetched, SourceError> {
        if let Some(total) = self.total.filter(|total| *total != self.done) {
            let reason = format!("only {} of {total} bytes came", self.done);
            return Err(SourceError::Source(reason));
        }
        if self.head.len() < 4 {
            return Err(SourceError::Source("not a GGUF file: it is empty".to_owned()));
        }
        let got = hex(&self.hash.clone().finalize());
        if let Some(sha256) = sha256.filter(|sha256| *sha256 != got) {
            let reason = format!("other bytes than expected: sha256 {got} instead of {sha256}");
            return Err(SourceError::Source(reason));
        }
        // The bytes must be on the disk before the name is: a power cut would leave a hollow file.
        self.file.sync_all().map_err(|error| self.ours(error))?;
        fs::rename(&self.path, path).map_err(|error| self.ours(error))?;
        Ok(Fetched { path: path.to_owned(), sha256: got, bytes: self.done })
    }

    fn ours(&self, error: io::Error) -> SourceError {
        SourceError::Ours(write_error(&self.path, &self.name, error))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // Gone already if it was published.
        let _ = fs::remove_file(&self.path);
    }
}

/// A failure to write `path`, a file of `name`.
pub(super) fn write_error(path: &Path, name: &str, error: io::Error) -> FetchError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => FetchError::DiskFull {
            folder: path.parent().unwrap_or(path).to_owned(),
            name: name.to_owned(),
        },
        _ => FetchError::Write { path: path.to_owned(), error },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_one_line_that_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path());
        let _lock = cache.lock("tiny", || {}).unwrap();
        let mut partial = Partial::create(&cache, "tiny").unwrap();
        partial.file = File::options().write(true).open("/dev/full").unwrap();
        let Err(SourceError::Ours(error)) = partial.write(b"GGUF", "test") else {
            panic!("written to a full disk")
        };
        let line = error.to_string();
        assert!(line.starts_with("no space left in "), "{line}");
        assert!(line.contains("tiny") && line.contains("PACELINE_CACHE"), "{line}");
        drop(partial);
        assert!(!cache.partial_path("tiny").exists());
    }
}
