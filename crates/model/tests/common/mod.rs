//! What the tests of this crate share.
#![allow(dead_code)] // No test uses all of it.

pub mod gguf;

use std::path::PathBuf;

/// The file of a catalogue model, if it is in the cache; says so on stderr if not.
pub fn cached(name: &str) -> Option<PathBuf> {
    let home = |under: &str| Some(PathBuf::from(std::env::var_os("HOME")?).join(under));
    let cache = (std::env::var_os("PACELINE_CACHE").map(PathBuf::from))
        .or_else(|| Some(PathBuf::from(std::env::var_os("XDG_CACHE_HOME")?).join("paceline")))
        .or_else(|| home(".cache/paceline"))?;
    let path = cache.join("models").join(format!("{name}.gguf"));
    if !path.is_file() {
        eprintln!("skipped: {name} is not in the cache");
        return None;
    }
    Some(path)
}
