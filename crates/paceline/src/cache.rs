//! The cache folder, where fetched models live: `FOLDER/models/NAME.gguf`.
//!
//! A file has its final name only when it is whole. On its way it is `models/.NAME.part`, and while
//! it is, `models/.NAME.lock` keeps two processes from fetching the same model at once.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Why the cache could not be used.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// No variable says where the cache is.
    #[error("no cache folder: set PACELINE_CACHE (or HOME)")]
    NoFolder,
    /// The name cannot be a file's.
    #[error("{0:?} cannot be a model's name: use letters, digits, '.', '_' and '-'")]
    Name(String),
    /// The model is not in the cache.
    #[error("{name} is not in the cache {}: `paceline list` shows what is", folder.display())]
    Absent {
        /// The model's name.
        name: String,
        /// The folder of models.
        folder: PathBuf,
    },
    /// Another process is fetching the model.
    #[error("{0} is being pulled by another process: wait for it or stop it")]
    Busy(String),
    /// The system said no.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's answer.
        error: io::Error,
    },
}

/// The cache folder.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
    models: PathBuf,
}

impl Cache {
    /// The cache in `folder`, which need not exist yet.
    pub fn new(folder: impl AsRef<Path>) -> Cache {
        let folder = folder.as_ref().to_owned();
        Cache { models: folder.join("models"), folder }
    }

    /// The user's cache: `$PACELINE_CACHE`, else `$XDG_CACHE_HOME/paceline`, else
    /// `~/.cache/paceline`.
    ///
    /// # Errors
    /// If none of the variables is set.
    pub fn of_user() -> Result<Cache, CacheError> {
        folder_from(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
            .map(Cache::new)
            .ok_or(CacheError::NoFolder)
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder that the models are in.
    pub fn models(&self) -> &Path {
        &self.models
    }

    /// Where the model of that name is, or would be.
    ///
    /// # Errors
    /// If the name cannot be a file's.
    pub fn path(&self, name: &str) -> Result<PathBuf, CacheError> {
        check_name(name)?;
        Ok(self.models.join(format!("{name}.gguf")))
    }

    /// The file of that name, if it is there.
    pub fn find(&self, name: &str) -> Option<PathBuf> {
        self.path(name).ok().filter(|path| path.is_file())
    }

    /// The models that are there, by name, with their sizes in bytes.
    ///
    /// # Errors
    /// If the folder is there and cannot be read.
    pub fn list(&self) -> Result<Vec<(String, u64)>, CacheError> {
        let io = |error| CacheError::Io { path: self.models.clone(), error };
        let folder = match fs::read_dir(&self.models) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            folder => folder.map_err(io)?,
        };
        let mut models = Vec::new();
        for file in folder {
            let file = file.map_err(io)?;
            let name = file.file_name();
            let Some(name) = name.to_str().and_then(|name| name.strip_suffix(".gguf")) else {
                continue;
            };
            // Gone or a broken link: not there.
            let Ok(metadata) = fs::metadata(file.path()) else { continue };
            if check_name(name).is_ok() && metadata.is_file() {
                models.push((name.to_owned(), metadata.len()));
            }
        }
        models.sort();
        Ok(models)
    }

    /// Deletes a model and what an interrupted pull of it left. Returns the bytes that it freed.
    ///
    /// # Errors
    /// If it is not there, is being pulled, or the system refuses.
    pub fn remove(&self, name: &str) -> Result<u64, CacheError> {
        let path = self.path(name)?;
        let absent = || CacheError::Absent { name: name.to_owned(), folder: self.models.clone() };
        if !self.models.is_dir() {
            return Err(absent());
        }
        let _lock = match self.acquire(name, &mut || Err(CacheError::Busy(name.to_owned()))) {
            Err(error @ CacheError::Busy(_)) => return Err(error),
            // A folder that we may not write: the deletion below says what is wrong.
            lock => lock.ok(),
        };
        let mut freed = None;
        for file in [path, self.partial_path(name)] {
            let Ok(bytes) = fs::metadata(&file).map(|metadata| metadata.len()) else { continue };
            fs::remove_file(&file).map_err(|error| CacheError::Io { path: file, error })?;
            freed = Some(freed.unwrap_or(0) + bytes);
        }
        // What a pull that was killed had downloaded; there is none, mostly.
        let _ = fs::remove_dir_all(self.scratch_path(name));
        freed.ok_or_else(absent)
    }

    /// The file that a model is while it is being fetched.
    pub(crate) fn partial_path(&self, name: &str) -> PathBuf {
        self.models.join(format!(".{name}.part"))
    }

    /// The folder for what is downloaded on the way to a model.
    pub(crate) fn scratch_path(&self, name: &str) -> PathBuf {
        self.models.join(format!(".{name}.wheels"))
    }

    /// The right to fetch a model: while it is held, no other process fetches it. `wait` is called
    /// before waiting for another's.
    ///
    /// # Errors
    /// If the folder or the lock file cannot be made.
    pub(crate) fn lock(&self, name: &str, wait: impl FnOnce()) -> Result<Lock, CacheError> {
        check_name(name)?;
        fs::create_dir_all(&self.models)
            .map_err(|error| CacheError::Io { path: self.models.clone(), error })?;
        let mut wait = Some(wait);
        self.acquire(name, &mut || {
            if let Some(wait) = wait.take() {
                wait();
            }
            Ok(())
        })
    }

    /// Takes the lock of a model. Where another process has it, `wait` is asked whether to wait.
    fn acquire(
        &self,
        name: &str,
        wait: &mut dyn FnMut() -> Result<(), CacheError>,
    ) -> Result<Lock, CacheError> {
        let path = self.models.join(format!(".{name}.lock"));
        let io = |error| CacheError::Io { path: path.clone(), error };
        loop {
            let file = File::create(&path).map_err(io)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    wait()?;
                    file.lock().map_err(io)?;
                }
                // A file system without locks: go on, as the rename at the end is atomic anyway.
                Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
                Err(TryLockError::Error(error)) => return Err(io(error)),
            }
            // Who had the lock before has deleted its file. Then this is a lock on nothing that
            // others find, and the race is for the file that has the name now.
            let inode = |data: fs::Metadata| (data.dev(), data.ino());
            let ours = file.metadata().map(inode).map_err(io)?;
            if fs::metadata(&path).is_ok_and(|now| inode(now) == ours) {
                return Ok(Lock { path, _file: file });
            }
        }
    }
}

/// A model's lock: its file is there as long as it is held.
#[derive(Debug)]
pub(crate) struct Lock {
    path: PathBuf,
    _file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Before the lock goes with the file: nobody else's is deleted.
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether `name` can be a model's name: it becomes a file's name, so it holds no separator and
/// does not begin with a dot or a dash.
pub(crate) fn check_name(name: &str) -> Result<(), CacheError> {
    let good = !name.is_empty()
        && name.len() <= 200
        && !name.starts_with(['.', '-'])
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    if good { Ok(()) } else { Err(CacheError::Name(name.to_owned())) }
}

fn folder_from(var: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    var("PACELINE_CACHE")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(var("XDG_CACHE_HOME")?).join("paceline")))
        .or_else(|| Some(PathBuf::from(var("HOME")?).join(".cache/paceline")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    #[test]
    fn the_folder_comes_from_the_first_variable_that_is_set() {
        let folder = |set: &[(&str, &str)]| {
            folder_from(|name| {
                set.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
            })
        };
        let all = [("HOME", "/h"), ("XDG_CACHE_HOME", "/x"), ("PACELINE_CACHE", "/p")];
        assert_eq!(folder(&all), Some("/p".into()));
        assert_eq!(folder(&all[..2]), Some("/x/paceline".into()));
        assert_eq!(folder(&all[..1]), Some("/h/.cache/paceline".into()));
        assert_eq!(folder(&[]), None);
    }

    #[test]
    fn one_at_a_time_has_the_lock_and_nothing_is_left_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path());
        let (held, waited) = (AtomicUsize::new(0), AtomicUsize::new(0));
        // Each lock is a file description of its own, so that threads exclude each other as
        // processes do.
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let wait = || {
                            waited.fetch_add(1, SeqCst);
                        };
                        let lock = cache.lock("tiny", wait).unwrap();
                        assert_eq!(held.fetch_add(1, SeqCst), 0);
                        std::thread::yield_now();
                        held.fetch_sub(1, SeqCst);
                        drop(lock);
                    }
                });
            }
        });
        let lock = cache.lock("tiny", || {}).unwrap();
        assert!(matches!(cache.remove("tiny"), Err(CacheError::Busy(_))));
        drop(lock);
        assert!(matches!(cache.remove("tiny"), Err(CacheError::Absent { .. })));
        assert!(waited.into_inner() > 0, "nobody met another");
        assert_eq!(fs::read_dir(cache.models()).unwrap().count(), 0);
    }

    #[test]
    fn a_name_cannot_leave_the_folder() {
        for bad in ["", ".", "..", "../x", "a/b", "-rf", ".hidden", "a b", "é", "a\0"] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
        for good in ["smollm2-135m", "Qwen2.5-0.5B_q4", "7"] {
            assert!(check_name(good).is_ok(), "{good:?}");
        }
    }
}
