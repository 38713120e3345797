//! The tokenizers of the catalogue's models against the golden ids.

mod common;

use common::cached;
use paceline_model::file::GgufFile;
use paceline_model::{Special, Tokenizer};
use serde_json::Value;

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
