//! The corpus of the fuzz target `request`, replayed.
#![cfg(feature = "server")]

#[path = "support/fuzz_request.rs"]
mod fuzz_request;

use std::path::Path;

#[test]
fn request() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/request");
    let mut n_good = 0;
    let mut n = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes.len() < 10_000, "{} is too large for a seed", path.display());
        n_good += usize::from(fuzz_request::run(&bytes));
        n += 1;
    }
    assert!(n >= 12 && n_good >= 6, "only {n} seeds, {n_good} of them good");
}
