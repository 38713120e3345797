//! [`Index`]: which blocks are there, and which of them was used least recently.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

/// A file of a block.
#[derive(Clone, Copy)]
struct Entry {
    n_bytes: u64,
    used: SystemTime,
}

/// The files of all models in the folder, by their paths below it.
pub struct Index {
    limit: u64,
    n_bytes: u64,
    entries: HashMap<Arc<str>, Entry>,
    by_use: BTreeSet<(SystemTime, Arc<str>)>,
    /// On their way to the disk.
    coming: HashSet<Arc<str>>,
    /// Nothing is written any more.
    pub is_off: bool,
}

impl Index {
    /// What is in a folder, which it gets below the limit. Leftovers of a process that ended while it was
    /// writing are removed, and what has another name than ours is left alone.
    pub fn scan(folder: &Path, limit: u64) -> io::Result<Index> {
        let mut index = Index {
            limit,
            n_bytes: 0,
            entries: HashMap::new(),
            by_use: BTreeSet::new(),
            coming: HashSet::new(),
            is_off: false,
        };
        for model in names(folder, 64)? {
            for group in names(&folder.join(&model), 2)? {
                for file in fs::read_dir(folder.join(&model).join(&group))? {
                    let file = file?;
                    let Ok(name) = file.file_name().into_string() else { continue };
                    if name.strip_suffix(".tmp").is_some_and(|name| is_hex(name, 64)) {
                        fs::remove_file(file.path())?;
                    } else if is_hex(&name, 64) && name.starts_with(&group) {
                        let metadata = file.metadata()?;
                        let used = metadata.modified()?;
                        index.insert(&format!("{model}/{group}/{name}"), metadata.len(), used);
                    }
                }
            }
        }
        while let Some(name) = index.oldest_for(0) {
            fs::remove_file(folder.join(&*name))?;
            index.remove(&name);
        }
        Ok(index)
    }

    /// Bytes of all files.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// When a block was used last, if it is there.
    pub fn used(&self, name: &str) -> Option<SystemTime> {
        Some(self.entries.get(name)?.used)
    }

    /// Notes the use of a block; whether it is there.
    pub fn touch(&mut self, name: &str, used: SystemTime) -> bool {
        let Some((name, entry)) = self.entries.get_key_value(name) else { return false };
        let (name, n_bytes) = (name.clone(), entry.n_bytes);
        self.insert(&name, n_bytes, used);
        true
    }

    /// A block is there.
    pub fn insert(&mut self, name: &str, n_bytes: u64, used: SystemTime) {
        self.remove(name);
        let name: Arc<str> = name.into();
        self.n_bytes += n_bytes;
        self.by_use.insert((used, name.clone()));
        self.entries.insert(name, Entry { n_bytes, used });
    }

    /// A block is not there.
    pub fn remove(&mut self, name: &str) {
        if let Some((name, entry)) = self.entries.remove_entry(name) {
            self.n_bytes -= entry.n_bytes;
            self.by_use.remove(&(entry.used, name));
        }
    }

    /// Whether there is room for so many bytes more.
    pub fn has_room(&self, more: u64) -> bool {
        self.n_bytes.saturating_add(more) <= self.limit
    }

    /// The block used least recently, unless there is room for so many bytes more.
    pub fn oldest_for(&self, more: u64) -> Option<Arc<str>> {
        self.by_use.first().filter(|_| !self.has_room(more)).map(|(_, name)| name.clone())
    }

    /// Whether a block that is not there could be written.
    pub fn may_write(&self, name: &str) -> bool {
        !self.is_off && !self.coming.contains(name)
    }

    /// Whether nothing is on its way.
    #[cfg(test)]
    pub fn is_settled(&self) -> bool {
        self.coming.is_empty()
    }

    /// All blocks there.
    #[cfg(test)]
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.entries.keys().map(ToString::to_string)
    }

    /// A block is on its way.
    pub fn begin(&mut self, name: &str) {
        self.coming.insert(name.into());
    }

    /// It has come, or will not.
    pub fn end(&mut self, name: &str) {
        self.coming.remove(name);
    }
}

/// The folders in a folder whose names are so many hexadecimal digits.
fn names(folder: &Path, n_digits: usize) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().into_string();
        names.extend(name.ok().filter(|name| is_hex(name, n_digits) && entry.path().is_dir()));
    }
    Ok(names)
}

fn is_hex(text: &str, n_digits: usize) -> bool {
    let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.len() == n_digits && text.bytes().all(is_digit)
}
