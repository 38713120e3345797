//! Which model the blocks are of.

use super::DiskError;
use crate::units::hex;
use paceline_model::ModelSpec;
use sha2::{Digest, Sha256};
use std::env::consts::{ARCH, OS};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// A hash of all that K and V depend on besides the tokens. `model` says it but for the version of the
/// numerics and the shape of a block. Instruction set and threads are not in it: they change no bit. The
/// system is, since sines and cosines are its own.
pub fn key(model: &str, numerics: u32, spec: &ModelSpec) -> [u8; 32] {
    let ModelSpec { block_len, kv_block_bytes, .. } = spec;
    let text = format!(
        "{model}\nnumerics {numerics} on {OS}, {ARCH}\nblocks of {block_len} tokens, \
         {kv_block_bytes} bytes"
    );
    Sha256::digest(text).into()
}

/// A hash of the model's file, or of the configuration and the weights in its folder.
pub(crate) fn hash_of(path: &Path) -> Result<String, DiskError> {
    let hash = || -> io::Result<String> {
        let mut hash = Sha256::new();
        if !path.is_dir() {
            add(&mut hash, &mut File::open(path)?)?;
            return Ok(hex(&hash.finalize()));
        }
        for file in files(path)? {
            let name = file.file_name().unwrap_or_default().as_encoded_bytes();
            let mut file = File::open(&file)?;
            // With lengths, so that nothing can pass for the end of one and the start of another.
            hash.update((name.len() as u64).to_le_bytes());
            hash.update(name);
            hash.update(file.metadata()?.len().to_le_bytes());
            add(&mut hash, &mut file)?;
        }
        Ok(hex(&hash.finalize()))
    };
    hash().map_err(|error| DiskError::Model { path: path.to_owned(), error })
}

fn add(hash: &mut Sha256, file: &mut File) -> io::Result<()> {
    let mut bytes = vec![0; 1 << 20];
    loop {
        match file.read(&mut bytes)? {
            0 => return Ok(()),
            n => hash.update(&bytes[..n]),
        }
    }
}

/// The configuration and the weights in a folder.
fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let of_model = path.extension().is_some_and(|end| end == "json" || end == "safetensors");
        if of_model && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
