//! [`Keys`]: who may ask. Only hashes of the keys are kept.

use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use subtle::ConstantTimeEq;

/// API keys, each with the name of the tenant that it stands for. Without any, everybody may ask.
#[derive(Clone, Default)]
pub struct Keys(Arc<[Key]>);

struct Key {
    hash: [u8; 32],
    tenant: Arc<str>,
}

/// A file of keys cannot be used. No message holds a key.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It holds no key, which would let everybody in.
    #[error("{}: no key in it: write one on a line, or leave the flag out", .0.display())]
    Empty(PathBuf),
    /// A line is no key.
    #[error("{}: line {line}: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Its number, from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
}

impl Keys {
    /// Reads a file: on each line a key, or `sha256:` and the hash of one in hexadecimal, and after
    /// a space the tenant's name, if it has one. Empty lines and those that begin with `#` say
    /// nothing.
    ///
    /// # Errors
    /// If it cannot be read, holds no key, or a line is not like this.
    pub fn read(path: &Path) -> Result<Keys, KeysError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| KeysError::Read { path: path.to_owned(), source })?;
        let mut keys: Vec<Key> = Vec::new();
        let mut lines = HashMap::new();
        for (line, text) in (1..).zip(text.lines().map(str::trim)) {
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let wrong = |problem| KeysError::Line { path: path.to_owned(), line, problem };
            let key = Key::parse(text).map_err(|problem| wrong(problem.to_owned()))?;
            if let Some(first) = lines.insert(key.hash, line) {
                return Err(wrong(format!("the key of line {first} again")));
            }
            keys.push(key);
        }
        match keys.is_empty() {
            true => Err(KeysError::Empty(path.to_owned())),
            false => Ok(Keys(keys.into())),
        }
    }

    /// Whether everybody may ask.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The tenant of a key. The time it takes says nothing about the keys: their hashes are
    /// compared, each to the end.
    pub(super) fn tenant(&self, key: &[u8]) -> Option<Arc<str>> {
        let hash: [u8; 32] = Sha256::digest(key).into();
        let mut found = None;
        for key in self.0.iter() {
            if bool::from(key.hash.ct_eq(&hash)) {
                found = Some(&key.tenant);
            }
        }
        found.cloned()
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} keys", self.0.len())
    }
}

impl Key {
    fn parse(line: &str) -> Result<Key, &'static str> {
        let (key, name) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("a key has only visible ASCII characters, as a header does");
        }
        let hash = match key.split_at_checked(7) {
            Some((prefix, hex)) if prefix.eq_ignore_ascii_case("sha256:") => {
                read_hex(hex).ok_or("sha256: is followed by 64 hexadecimal digits")?
            }
            _ => Sha256::digest(key).into(),
        };
        let tenant = match name.trim() {
            "" => {
                hash[..4].iter().fold("key-".to_owned(), |name, byte| format!("{name}{byte:02x}"))
            }
            name => name.to_owned(),
        };
        Ok(Key { hash, tenant: tenant.into() })
    }
}

fn read_hex(text: &str) -> Option<[u8; 32]> {
    let mut hash = [0; 32];
    if text.len() != 2 * hash.len() || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, i) in hash.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&text[i..i + 2], 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Keys, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let name = file.path().display().to_string();
        Keys::read(file.path()).map_err(|error| error.to_string().replace(&name, "FILE"))
    }

    #[test]
    fn a_key_stands_for_its_tenant() {
        let hash = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
        let keys =
            read(&format!("# ours\n\n sk-1  alice smith \nsk-2\nsha256:{hash} bob\n")).unwrap();
        let tenant = |key: &str| keys.tenant(key.as_bytes()).map(|tenant| tenant.to_string());
        assert_eq!(tenant("sk-1").as_deref(), Some("alice smith"));
        assert_eq!(tenant("test").as_deref(), Some("bob"));
        assert!(tenant("sk-2").unwrap().starts_with("key-"));
        for wrong in ["", "sk-", "sk-1 ", "sk-11", "SK-1", "alice smith", hash] {
            assert_eq!(tenant(wrong), None, "{wrong}");
        }
        assert_eq!(format!("{keys:?}"), "3 keys");
    }

    #[test]
    fn a_line_that_is_no_key_is_named_and_not_shown() {
        for (text, says) in [
            ("", "FILE: no key in it"),
            ("# nothing\n\n", "FILE: no key in it"),
            ("a\nschlüssel\n", "FILE: line 2: a key has only visible ASCII"),
            ("sha256:12\n", "FILE: line 1: sha256: is followed by 64"),
            ("SHA256:12\n", "FILE: line 1: sha256: is followed by 64"),
            ("a\nb x\na y\n", "FILE: line 3: the key of line 1 again"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.starts_with(says) && !error.contains("schl"), "{error}");
        }
        assert!(Keys::read(Path::new("/nowhere")).unwrap_err().to_string().contains("/nowhere"));
    }
}
