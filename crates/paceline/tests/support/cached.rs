//! Models of the user's cache.

use std::path::PathBuf;

/// The file of a model in the user's cache, or a word on stderr that the test is skipped.
pub fn cached(name: &str) -> Option<PathBuf> {
    let path = paceline::cache::Cache::of_user().ok().and_then(|cache| cache.find(name));
    if path.is_none() {
        eprintln!("skipped: {name} is not in the cache");
    }
    path
}
