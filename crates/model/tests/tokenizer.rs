//! The tokenizers of the catalogue's models against the golden ids.

mod common;

use common::{cached, cached_data, fnv};
use paceline_model::file::{GgufFile, Metadata, Value as Bytes};
use paceline_model::{Special, Tokenizer};
use serde_json::Value;
use std::collections::BTreeMap;

fn golden(name: &str) -> Vec<(String, Vec<u32>)> {
    let path = format!("{}/tests/golden/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let cases: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let cases = match cases {
        Value::Array(cases) => cases,
        case => vec![case],
    };
    let read = |case: Value| {
        let ids = serde_json::from_value(case["ids"].clone()).unwrap();
        (case["prompt"].as_str().unwrap().to_owned(), ids)
    };
    cases.into_iter().map(read).collect()
}

fn golden_ids_hold(name: &str, eos: &[u32], bos: Option<u32>, add_bos: bool) {
    let Some(path) = cached(name) else { return };
    let file = GgufFile::open(&path).unwrap();
    let tokenizer = Tokenizer::from_gguf(file.metadata()).unwrap();
    for case in [name.to_owned(), format!("{name}-long")] {
        for (prompt, ids) in golden(&case) {
            assert_eq!(tokenizer.encode(&prompt, Special::Parse, tokenizer.add_bos()), ids);
            let text = &ids[usize::from(add_bos)..];
            assert_eq!(tokenizer.decode(text), prompt);
        }
    }
    assert_eq!(tokenizer.eos_ids(), eos);
    assert_eq!((tokenizer.bos_id(), tokenizer.add_bos()), (bos, add_bos));
}

#[test]
fn smollm2_ids_are_golden() {
    golden_ids_hold("smollm2-135m", &[2, 0], Some(1), false);
}

#[test]
fn gemma3_ids_are_golden() {
    golden_ids_hold("gemma3-270m", &[1, 106], Some(2), true);
}

#[test]
fn qwen_ids_are_golden() {
    golden_ids_hold("qwen2.5-coder-0.5b", &[151645, 151643], Some(151643), false);
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/tests/tokenizer/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// A line of `tests/tokenizer/NAME.ids`: a hash, and sometimes the ids themselves.
fn reference(name: &str) -> Vec<(String, Option<String>)> {
    let text = String::from_utf8(read(&format!("{name}.ids"))).unwrap();
    let split = |line: &str| match line.split_once(' ') {
        Some((hash, ids)) => (hash.to_owned(), Some(ids.to_owned())),
        None => (line.to_owned(), None),
    };
    text.lines().map(split).collect()
}

/// The corpus has llama.cpp's ids (`tools/make_tokenizer_corpus.py`).
fn corpus_ids_hold(name: &str) {
    let Some(path) = cached(name) else { return };
    let file = GgufFile::open(&path).unwrap();
    let tokenizer = Tokenizer::from_gguf(file.metadata()).unwrap();
    let corpus: Vec<String> = serde_json::from_slice(&read("corpus.json")).unwrap();
    let reference = reference(name);
    assert!(corpus.len() == reference.len() && corpus.len() >= 2000);
    let mut differing = Vec::new();
    for (text, (hash, full)) in corpus.iter().zip(reference) {
        let ids = [Special::Parse, Special::Plain].map(|special| {
            let ids = tokenizer.encode(text, special, false);
            let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
            ids.join(" ")
        });
        let ids = ids.join("|");
        if fnv(&ids) != hash {
            differing.push(format!("{text:?}: {ids} not {full:?}"));
        }
    }
    assert_eq!(differing, [""; 0], "{} of {} differ", differing.len(), corpus.len());
}

#[test]
fn smollm2_ids_are_llama_cpp_s() {
    corpus_ids_hold("smollm2-135m");
}

#[test]
fn gemma3_ids_are_llama_cpp_s() {
    corpus_ids_hold("gemma3-270m");
}

#[test]
fn qwen_ids_are_llama_cpp_s() {
    corpus_ids_hold("qwen2.5-coder-0.5b");
}

/// Every vocabulary of llama.cpp's own tests, with the ids that it publishes.
#[test]
fn llama_cpp_s_vocabularies_hold() {
    let Some(folder) = cached_data("llama.cpp-vocabs") else { return };
    let mut files: Vec<_> =
        std::fs::read_dir(&folder).unwrap().map(|f| f.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|ending| ending == "gguf"));
    files.sort();
    let mut n_held = 0;
    for path in files {
        let name = path.file_name().unwrap().to_str().unwrap();
        let file = GgufFile::open(&path).unwrap();
        let tokenizer = match Tokenizer::from_gguf(file.metadata()) {
            Ok(tokenizer) => tokenizer,
            Err(error) => {
                eprintln!("not supported: {name}: {}", &error.to_string()[..60]);
                continue;
            }
        };
        let beside = |ending: &str| std::fs::read_to_string(path.with_added_extension(ending));
        let (Ok(texts), Ok(ids)) = (beside("inp"), beside("out")) else {
            eprintln!("no reference ids: {name}");
            continue;
        };
        let texts = texts.split("\n__ggml_vocab_test__\n");
        for (text, ids) in texts.zip(ids.lines()) {
            let ids: Vec<u32> = ids.split_whitespace().map(|id| id.parse().unwrap()).collect();
            assert_eq!(tokenizer.encode(text, Special::Plain, false), ids, "{name}: {text:?}");
        }
        n_held += 1;
    }
    eprintln!("{n_held} vocabularies hold");
    assert!(n_held >= 14, "{n_held}");
}

/// Each pre-tokenizer on the corpus, with Qwen's vocabulary: llama.cpp's ids
/// (`tools/make_tokenizer_corpus.py`).
#[test]
fn pre_tokenizers_cut_as_llama_cpp_does() {
    let Some(folder) = cached_data("llama.cpp-vocabs") else { return };
    let file = GgufFile::open(&folder.join("ggml-vocab-qwen2.gguf")).unwrap();
    let corpus: Vec<String> = serde_json::from_slice(&read("corpus.json")).unwrap();
    let hashes: BTreeMap<String, String> = serde_json::from_slice(&read("pre.json")).unwrap();
    assert!(hashes.len() >= 60);
    let mut differing = Vec::new();
    for (pre, hash) in hashes {
        let mut metadata = Metadata::default();
        metadata.insert("tokenizer.ggml.pre".to_owned(), Bytes::String(pre.clone().into()));
        for (key, value) in file.metadata().iter().filter(|(key, _)| key.starts_with("tokenizer."))
        {
            metadata.insert(key.to_owned(), value.clone());
        }
        let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
        let mut lines = Vec::new();
        for text in corpus.iter().filter(|text| text.chars().count() < 300) {
            let ids = tokenizer.encode(text, Special::Plain, false);
            lines.push(ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" "));
        }
        if fnv(&lines.join("\n")) != hash {
            differing.push(pre);
        }
    }
    assert_eq!(differing, [""; 0]);
}

/// Every token's bytes, each followed by 0xff, against llama.cpp's `llama_token_to_piece`.
#[test]
fn token_bytes_are_llama_cpp_s() {
    for (name, hash) in [
        ("smollm2-135m", "d362633062518cff"),
        ("gemma3-270m", "f7bb17ece73de9cc"),
        ("qwen2.5-coder-0.5b", "fda8d5dab73769e6"),
    ] {
        let Some(path) = cached(name) else { continue };
        let file = GgufFile::open(&path).unwrap();
        let tokenizer = Tokenizer::from_gguf(file.metadata()).unwrap();
        let ids = 0..tokenizer.vocab_len() as u32;
        let bytes = ids.flat_map(|id| [tokenizer.token_bytes(id), b"\xff"].concat());
        assert_eq!(common::fnv_bytes(bytes), hash, "{name}");
    }
}

/// Qwen and Gemma have `</s>` as a word: it neither ends a text nor vanishes from it.
#[test]
fn words_that_look_like_control_tokens_are_text() {
    for (name, id) in [("qwen2.5-coder-0.5b", 128247), ("gemma3-270m", 212)] {
        let Some(path) = cached(name) else { continue };
        let file = GgufFile::open(&path).unwrap();
        let tokenizer = Tokenizer::from_gguf(file.metadata()).unwrap();
        assert_eq!(tokenizer.token_bytes(id), b"</s>");
        assert!(!tokenizer.is_control(id) && !tokenizer.eos_ids().contains(&id));
    }
}
