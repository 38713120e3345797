//! [`Bytes`]: the contents of a file, mapped read-only.
#![allow(unsafe_code)] // The unsafe calls of this crate; see the SAFETY comments.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

/// The contents of a file: mapped, so that only what is read occupies memory, or owned.
///
/// A mapped file must not be truncated while it is in use: reading a page that is gone ends the
/// process with SIGBUS. Replace model files by renaming, never by writing into them.
#[derive(Debug)]
pub struct Bytes(Source);

#[derive(Debug)]
enum Source {
    Mapped(memmap2::Mmap),
    Owned(Vec<u8>),
}

impl Bytes {
    /// Maps a regular file.
    ///
    /// # Errors
    /// If the file cannot be opened or mapped, or is no regular file.
    pub fn map(path: &Path) -> io::Result<Bytes> {
        // A pipe or a device would block or never end: ask before opening.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        // SAFETY: the map is private to this value and read-only. That no one else changes the file
        // meanwhile cannot be enforced on a POSIX system; every reader of model files assumes it,
        // and `Bytes` documents it.
        let map = unsafe { memmap2::Mmap::map(&file)? };
        Ok(Bytes(Source::Mapped(map)))
    }
}

impl Bytes {
    /// Gives the memory of `part` of a mapped file back to the system.
    pub(super) fn release(&self, part: &[u8]) {
        #[cfg(unix)]
        if let Source::Mapped(map) = &self.0
            && map.as_ptr_range().contains(&part.as_ptr())
        {
            let offset = part.as_ptr().addr() - map.as_ptr().addr();
            let len = part.len().min(map.len() - offset);
            // SAFETY: the map is private and read-only, so its pages are read from the file again with
            // the contents that they had.
            // That the system may decline is no loss.
            let _ = unsafe {
                map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, len)
            };
        }
        #[cfg(not(unix))]
        let _ = part;
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Bytes {
        Bytes(Source::Owned(bytes))
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Source::Mapped(map) => map,
            Source::Owned(bytes) => bytes,
        }
    }
}
