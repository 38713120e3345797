//! The file of a block.
//!
//! ```text
//! magic      8 bytes       "PLKVBLK1"
//! model      32 bytes      SHA-256 of all that K and V depend on besides the tokens
//! lengths    3 x u64       bytes of the salt, tokens, bytes of the block; little-endian as all numbers
//! salt       UTF-8
//! tokens     u32 each      from the start of the text to the block's end
//! block                    K and V, as the model's cache holds them
//! checksum   32 bytes      SHA-256 of all before it
//! ```
//!
//! The reader knows what the file must be but for the block, so nothing in it is taken at its word: all up
//! to the block is compared, and the length of the file is known.

use crate::units::hex;
use paceline_model::TokenId;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;
use std::time::SystemTime;

const MAGIC: &[u8; 8] = b"PLKVBLK1";
const HASH_BYTES: usize = 32;

/// All before the block itself.
pub struct Header<'a> {
    pub model: &'a [u8; HASH_BYTES],
    pub salt: &'a str,
    pub tokens: &'a [TokenId],
    pub block_bytes: usize,
}

impl Header<'_> {
    /// Its length.
    pub fn n_bytes(&self) -> usize {
        MAGIC.len() + HASH_BYTES + 3 * size_of::<u64>() + self.salt.len() + 4 * self.tokens.len()
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.n_bytes());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(self.model);
        for len in [self.salt.len(), self.tokens.len(), self.block_bytes] {
            bytes.extend_from_slice(&(len as u64).to_le_bytes());
        }
        bytes.extend_from_slice(self.salt.as_bytes());
        self.tokens.iter().for_each(|token| bytes.extend_from_slice(&token.to_le_bytes()));
        bytes
    }
}

/// Bytes of a file.
pub fn file_bytes(header_bytes: usize, block_bytes: usize) -> u64 {
    (header_bytes + block_bytes + HASH_BYTES) as u64
}

/// Writes a whole file.
pub fn write(file: &mut impl Write, header: &[u8], block: &[u8]) -> io::Result<()> {
    let checksum = Sha256::new().chain_update(header).chain_update(block).finalize();
    file.write_all(header)?;
    file.write_all(block)?;
    file.write_all(&checksum)
}

/// Reads a whole file into `bytes` and notes when it was used.
///
/// # Errors
/// If it cannot be read; [`ErrorKind::InvalidData`] if it is not the block of that header.
pub fn read(
    path: &Path,
    header: &Header<'_>,
    bytes: &mut Vec<u8>,
    used: SystemTime,
) -> io::Result<()> {
    let mut file = File::open(path)?;
    let n_bytes = file_bytes(header.n_bytes(), header.block_bytes);
    if file.metadata()?.len() != n_bytes {
        return Err(ErrorKind::InvalidData.into());
    }
    bytes.resize(n_bytes as usize, 0);
    file.read_exact(bytes).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => ErrorKind::InvalidData.into(),
        _ => error,
    })?;
    let (content, checksum) = bytes.split_at(bytes.len() - HASH_BYTES);
    let is_it = content.starts_with(&header.to_bytes()) && Sha256::digest(content)[..] == *checksum;
    if !is_it {
        return Err(ErrorKind::InvalidData.into());
    }
    // If it cannot be noted, the file only looks older than it is.
    let _ = file.set_modified(used);
    Ok(())
}

/// The hash that names a block, of the salt and of all tokens up to the block's end.
#[derive(Clone)]
pub struct Name(Sha256);

impl Name {
    pub fn new(salt: &str, tokens: &[TokenId]) -> Name {
        let hash = Sha256::new().chain_update((salt.len() as u64).to_le_bytes());
        let mut name = Name(hash.chain_update(salt));
        name.add(tokens);
        name
    }

    /// Goes on to a later block.
    pub fn add(&mut self, tokens: &[TokenId]) {
        tokens.iter().for_each(|token| self.0.update(token.to_le_bytes()));
    }

    /// The block's path, if `model` is its model's folder.
    pub fn path(self, model: &str) -> String {
        let name = hex(&self.0.finalize());
        format!("{model}/{}/{name}", &name[..2])
    }
}
