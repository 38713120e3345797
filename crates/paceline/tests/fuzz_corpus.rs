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
        // And what small changes make of it; a fuzzer goes further.
        for i in 0..300 {
            fuzz_request::run(&changed(&bytes, i * 31 + n as u64));
        }
    }
    assert!(n >= 12 && n_good >= 6, "only {n} seeds, {n_good} of them good");
}

/// The bytes with a few of them changed, taken out or doubled.
fn changed(bytes: &[u8], seed: u64) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let mut state = seed;
    let mut random = |n: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % n.max(1)
    };
    for _ in 0..1 + random(4) {
        let (start, len) = (random(bytes.len()), random(12));
        let part = start..(start + len).min(bytes.len());
        match random(4) {
            0 => drop(bytes.drain(part)),
            1 => {
                let part = bytes[part].to_vec();
                let at = random(bytes.len());
                bytes.splice(at..at, part);
            }
            2 => {
                let signs = b"{}[]\":,-+.eE0123456789\\untf\x00\xff ";
                bytes.splice(part, [signs[random(signs.len())]]);
            }
            _ => {
                let at = random(bytes.len());
                bytes[at] ^= 1 << random(8);
            }
        }
        if bytes.is_empty() {
            bytes.push(b'\n');
        }
    }
    bytes
}
