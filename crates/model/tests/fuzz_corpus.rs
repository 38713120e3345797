//! The corpora of the fuzz targets, replayed.

#[path = "common/fuzz_tokenizer.rs"]
mod fuzz_tokenizer;

use paceline_model::file::{GgufFile, ModelFile};
use paceline_model::meta::ModelMeta;
use std::path::{Path, PathBuf};

fn seeds(target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    files
}

/// The target `gguf` does the same.
#[test]
fn gguf() {
    let mut n_valid = 0;
    for path in seeds("gguf") {
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes.len() < 10_000, "{} is too large for a seed", path.display());
        if let Ok(file) = GgufFile::from_bytes(bytes) {
            n_valid += 1;
            let _ = ModelMeta::read(&ModelFile::Gguf(file));
        }
    }
    assert!(n_valid >= 4, "only {n_valid} seeds are valid");
}

/// The target `tokenizer` does the same.
#[test]
fn tokenizer() {
    let seeds = seeds("tokenizer");
    assert!(seeds.len() >= 16, "only {} seeds", seeds.len());
    for path in seeds {
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes.len() < 10_000, "{} is too large for a seed", path.display());
        fuzz_tokenizer::run(&bytes);
    }
}
