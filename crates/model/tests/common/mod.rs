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

/// A byte-level vocabulary: ids 0..=255 are the bytes, then come `special` with their types. There
/// are no merges to speak of.
pub fn byte_vocab(special: &[(&str, i32)]) -> Tokenizer {
    let printable = |b: &u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut others = (0x100..).filter_map(char::from_u32);
    let mut tokens: Vec<String> = (0..=255u8)
        .map(|b| if printable(&b) { char::from(b) } else { others.next().unwrap() }.to_string())
        .collect();
    let mut types = vec![1; 256];
    for (text, of_type) in special {
        tokens.push((*text).to_owned());
        types.push(*of_type);
    }
    let mut metadata = Metadata::default();
    let mut put = |key: &str, value| metadata.insert(format!("tokenizer.ggml.{key}"), value);
    put("model", Value::String(b"gpt2".to_vec()));
    put("pre", Value::String(b"gpt-2".to_vec()));
    put("tokens", Value::Array(Array::Strings(tokens.iter().collect())));
    put("token_type", Value::Array(Array::I32(types)));
    put("merges", Value::Array(Array::Strings(["a a a"].iter().collect())));
    put("bos_token_id", Value::U32(256));
    put("eos_token_id", Value::U32(257));
    Tokenizer::from_gguf(&metadata).unwrap()
}

/// FNV-1a of 64 bits, for references that would be too long.
pub fn fnv(text: &str) -> String {
    let step = |h: u64, byte: u8| (h ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", text.bytes().fold(0xcbf2_9ce4_8422_2325, step))
}
