//! What the tests of this crate share.
#![allow(dead_code)] // No test uses all of it.

pub mod gguf;
pub mod golden;

use paceline_model::Tokenizer;
use paceline_model::file::{Array, Metadata, Value};
use std::path::PathBuf;

fn cache() -> Option<PathBuf> {
    let home = |under: &str| Some(PathBuf::from(std::env::var_os("HOME")?).join(under));
    (std::env::var_os("PACELINE_CACHE").map(PathBuf::from))
        .or_else(|| Some(PathBuf::from(std::env::var_os("XDG_CACHE_HOME")?).join("paceline")))
        .or_else(|| home(".cache/paceline"))
}

/// The file of a catalogue model, if it is in the cache; says so on stderr if not.
pub fn cached(name: &str) -> Option<PathBuf> {
    let path = cache()?.join("models").join(format!("{name}.gguf"));
    if !path.is_file() {
        eprintln!("skipped: {name} is not in the cache");
        return None;
    }
    Some(path)
}

/// A folder of test data in the cache, which `tools/fetch_test_data.py` puts there; says so if not.
pub fn cached_data(name: &str) -> Option<PathBuf> {
    let path = cache()?.join("test-data").join(name);
    if !path.is_dir() {
        eprintln!("skipped: {name} is not in the cache (tools/fetch_test_data.py)");
        return None;
    }
    Some(path)
}

/// Metadata of a tokenizer: tokens with their types and scores, and merges.
pub fn vocab(model: &str, tokens: &[(String, i32, f32)], merges: &[String]) -> Metadata {
    let mut metadata = Metadata::default();
    let mut put = |key: &str, value| metadata.insert(format!("tokenizer.ggml.{key}"), value);
    put("model", Value::String(model.into()));
    put("pre", Value::String("gpt-2".into()));
    put("tokens", Value::Array(Array::Strings(tokens.iter().map(|t| &t.0).collect())));
    put("token_type", Value::Array(Array::I32(tokens.iter().map(|t| t.1).collect())));
    put("scores", Value::Array(Array::F32(tokens.iter().map(|t| t.2).collect())));
    put("merges", Value::Array(Array::Strings(merges.iter().collect())));
    metadata
}

/// The character that GPT-2 writes a byte as.
pub fn char_of(byte: u8) -> char {
    let printable = |b: &u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let n_before = (0..byte).filter(|b| !printable(b)).count() as u32;
    if printable(&byte) { char::from(byte) } else { char::from_u32(0x100 + n_before).unwrap() }
}

/// The bytes as tokens 0..=255, as GPT-2 writes them.
pub fn byte_tokens() -> Vec<(String, i32, f32)> {
    (0..=255).map(|byte| (char_of(byte).to_string(), 1, 0.0)).collect()
}

/// A byte-level tokenizer without merges: 0..=255 are the bytes, then come `special` with their
/// types; the first of them is BOS, the second EOS.
pub fn byte_tokenizer(special: &[(&str, i32)]) -> Tokenizer {
    let mut tokens = byte_tokens();
    tokens.extend(special.iter().map(|&(text, of_type)| (text.to_owned(), of_type, 0.0)));
    let mut metadata = vocab("gpt2", &tokens, &[]);
    metadata.insert("tokenizer.ggml.bos_token_id".to_owned(), Value::U32(256));
    metadata.insert("tokenizer.ggml.eos_token_id".to_owned(), Value::U32(257));
    Tokenizer::from_gguf(&metadata).unwrap()
}

/// FNV-1a of 64 bits, for references that would be too long.
pub fn fnv(text: &str) -> String {
    fnv_bytes(text.bytes())
}

/// As [`fnv`].
pub fn fnv_bytes(bytes: impl Iterator<Item = u8>) -> String {
    let step = |h: u64, byte: u8| (h ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", bytes.fold(0xcbf2_9ce4_8422_2325, step))
}
