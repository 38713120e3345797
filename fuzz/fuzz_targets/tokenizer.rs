//! Any vocabulary, merges and text: an error or ids of the vocabulary.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/model/tests/common/fuzz_tokenizer.rs"]
mod fuzz_tokenizer;

fuzz_target!(|bytes: &[u8]| fuzz_tokenizer::run(bytes));
