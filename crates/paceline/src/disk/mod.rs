//! The KV cache on disk: blocks that the cache in memory gives up, for later and for the next run.
//!
//! ```text
//! DIR/lock                          held by the one process that uses DIR
//! DIR/<model>/<xx>/<name>           a block; `xx` are the first digits of its name
//! DIR/<model>/<xx>/<name>.tmp       one that is being written
//! ```
//!
//! `model` is a hash of all that K and V depend on besides the tokens, `name` one of the salt and of all
//! tokens up to the block's end. The file holds both in full, and a checksum: what is not what it should
//! be is a miss ([`block`]). Files are read by the engine's thread and written by one of their own
//! ([`Writer`]); both share the [`Index`] of what is there. When the disk is full, or fails, nothing is
//! written any more, and the memory's cache goes on alone.

mod block;
mod index;
mod model;
mod writer;

pub(crate) use model::hash_of;

use crate::units::hex;
use block::{Header, Name};
use index::Index;
use paceline_engine::BlockStore;
use paceline_kernels::NUMERICS;
use paceline_model::{ModelSpec, TokenId};
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use writer::{Job, Writer};

/// Where the KV cache goes on on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvDisk {
    /// The folder, of this process alone; made if it is not there, for nobody else to read.
    pub folder: PathBuf,
    /// The most bytes in it. What was used least recently goes first, also that of other models.
    pub bytes: u64,
    /// Says which model this is: all that K and V depend on besides the tokens, the numerics of this
    /// program and the shape of a block. [`crate::Builder`] fills it in.
    pub model: String,
}

/// The KV cache cannot be kept on disk.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The folder cannot be used.
    #[error("--kv-cache-dir {}: {error}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Another process uses it.
    #[error("--kv-cache-dir {}: another process uses it; each needs its own", .0.display())]
    Locked(PathBuf),
    /// It would hold nothing.
    #[error(
        "--kv-cache-disk {bytes} is less than one block of the KV cache: {block_bytes} bytes for \
         {block_len} tokens"
    )]
    Small {
        /// What it was to get.
        bytes: u64,
        /// What one block takes.
        block_bytes: usize,
        /// Tokens in a block.
        block_len: usize,
    },
    /// Nothing would ever come to it.
    #[error("--kv-cache-dir keeps what the prefix cache gives up: it needs the prefix cache")]
    NoPrefixCache,
    /// The model's files cannot be read.
    #[error("{}: {error}", path.display())]
    Model {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// What the engine's thread and the writer's share.
struct Shared {
    folder: PathBuf,
    index: Mutex<Index>,
}

impl Shared {
    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

/// The blocks of one model in a folder.
pub(crate) struct DiskStore {
    shared: Arc<Shared>,
    writer: Writer,
    model: [u8; 32],
    /// Where the model's blocks are, below the folder.
    group: String,
    block_len: usize,
    block_bytes: usize,
    limit: u64,
    /// The file read last.
    file: Vec<u8>,
    spent: Duration,
    /// For as long as the folder is used.
    _lock: File,
}

impl DiskStore {
    /// Takes possession of the folder, and looks at what is there.
    pub fn open(config: &KvDisk, spec: &ModelSpec) -> Result<DiskStore, DiskError> {
        let (block_len, block_bytes) = (spec.block_len, spec.kv_block_bytes);
        let (limit, folder) = (config.bytes, &config.folder);
        if limit < block_bytes as u64 {
            return Err(DiskError::Small { bytes: limit, block_bytes, block_len });
        }
        let of_folder = |error| DiskError::Folder { folder: folder.clone(), error };
        create_folder(folder).map_err(of_folder)?;
        let lock =
            File::options().create(true).truncate(false).write(true).open(folder.join("lock"));
        let lock = lock.map_err(of_folder)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => DiskError::Locked(folder.clone()),
            TryLockError::Error(error) => of_folder(error),
        })?;
        let index = Index::scan(folder, limit).map_err(of_folder)?;
        let shared = Arc::new(Shared { folder: folder.clone(), index: Mutex::new(index) });
        let writer = Writer::start(shared.clone(), block_bytes).map_err(of_folder)?;
        let model = model::key(&config.model, NUMERICS, spec);
        Ok(DiskStore {
            shared,
            writer,
            model,
            group: hex(&model),
            block_len,
            block_bytes,
            limit,
            file: Vec::new(),
            spent: Duration::ZERO,
            _lock: lock,
        })
    }

    /// Bytes of all files there.
    pub fn n_bytes(&self) -> u64 {
        self.shared.index().n_bytes()
    }

    fn header<'a>(&'a self, salt: &'a str, tokens: &'a [TokenId]) -> Header<'a> {
        Header { model: &self.model, salt, tokens, block_bytes: self.block_bytes }
    }

    /// Reads the file of a block; whether it is that block's.
    fn read(&mut self, name: &str, salt: &str, tokens: &[TokenId]) -> bool {
        let Some(used) = self.shared.index().used(name) else { return false };
        let path = self.shared.path(name);
        let mut bytes = std::mem::take(&mut self.file);
        let header = self.header(salt, tokens);
        let read = block::read(&path, &header, &mut bytes, used);
        self.file = bytes;
        if let Err(error) = &read {
            self.shared.index().remove(name);
            if error.kind() == ErrorKind::InvalidData {
                // So that it is written anew. If it cannot be removed, it will be overwritten.
                let _ = fs::remove_file(path);
            }
        }
        read.is_ok()
    }

    /// Adds up the time that the caller waits.
    fn timed<T>(&mut self, work: impl FnOnce(&mut DiskStore) -> T) -> T {
        let start = Instant::now();
        let result = work(self);
        self.spent += start.elapsed();
        result
    }
}

impl BlockStore for DiskStore {
    fn find(&mut self, salt: &str, tokens: &[TokenId], n: usize) -> usize {
        self.timed(|store| {
            let mut index = store.shared.index();
            let now = SystemTime::now();
            let (known, more) = tokens.split_at((n * store.block_len).min(tokens.len()));
            let mut name = Name::new(salt, known);
            let is_there = |(i, block): &(usize, &[TokenId])| {
                name.add(block);
                index.touch(&name.clone().path(&store.group), use_time(now, n + i))
            };
            more.chunks_exact(store.block_len).enumerate().take_while(is_there).count()
        })
    }

    fn get(&mut self, salt: &str, tokens: &[TokenId]) -> Option<&[u8]> {
        let name = Name::new(salt, tokens).path(&self.group);
        let found = self.timed(|store| store.read(&name, salt, tokens));
        let start = self.header(salt, tokens).n_bytes();
        found.then(|| &self.file[start..][..self.block_bytes])
    }

    fn wants(&mut self, salt: &str, tokens: &[TokenId]) -> bool {
        self.timed(|store| {
            let name = Name::new(salt, tokens).path(&store.group);
            let used = use_time(SystemTime::now(), tokens.len() / store.block_len);
            let mut index = store.shared.index();
            !index.touch(&name, used) && index.may_write(&name)
        })
    }

    fn put(&mut self, salt: &str, tokens: &[TokenId], bytes: Vec<u8>, wait: bool) {
        self.timed(|store| {
            let name = Name::new(salt, tokens).path(&store.group);
            let used = use_time(SystemTime::now(), tokens.len() / store.block_len);
            let header = store.header(salt, tokens).to_bytes();
            store.writer.write(Job { name, header, bytes, used }, wait);
        });
    }

    fn capacity(&self) -> usize {
        let n = self.limit / self.block_bytes.max(1) as u64;
        usize::try_from(n).unwrap_or(usize::MAX)
    }

    fn spent(&self) -> Duration {
        self.spent
    }
}

/// When block `i` of a text counts as used if the text is used now: the beginning is worth more than what
/// follows, which is nothing without it.
fn use_time(now: SystemTime, i: usize) -> SystemTime {
    now.checked_sub(Duration::from_micros(i as u64)).unwrap_or(now)
}

/// Makes a folder, and those above it, that nobody else can read: it will hold what people ask.
fn create_folder(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(path)
}

/// Says in one line what goes wrong: in the log, if there is one.
fn warn(message: &str) {
    #[cfg(feature = "server")]
    if tracing::dispatcher::has_been_set() {
        return tracing::warn!("{message}");
    }
    eprintln!("paceline: {message}");
}

#[cfg(test)]
mod tests;
