//! `tokenizer.json` and the files beside it.

mod common;

use common::{cached, fnv};
use paceline_model::file::GgufFile;
use paceline_model::{ChatOptions, ChatTemplate, Special, Tokenizer};
use serde_json::{Value, json};
use std::path::Path;
use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior};

fn write(folder: &Path, name: &str, value: &Value) {
    std::fs::write(folder.join(name), serde_json::to_vec(value).unwrap()).unwrap();
}

/// A byte-pair vocabulary as Llama 2 and Gemma have it: U+2581 for a space, byte fallback.
fn spaced() -> Value {
    let pieces = ["<unk>", "<s>", "</s>", "<|im_end|>", "▁", "h", "i", "▁h", "▁hi", "é", "<think>"];
    let mut vocab: Vec<String> = pieces.map(String::from).to_vec();
    vocab.extend((0..=255).map(|b| format!("<0x{b:02X}>")));
    let vocab: serde_json::Map<String, Value> =
        vocab.into_iter().enumerate().map(|(i, piece)| (piece, i.into())).collect();
    let added = |id: usize, special: bool| {
        json!({"id": id, "content": pieces[id], "special": special, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false})
    };
    json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": null,
        "added_tokens": [added(0, true), added(1, true), added(2, true), added(3, true), added(10, false)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "NFC"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]},
        "pre_tokenizer": null,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
        ]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": vocab, "merges": [["▁", "h"], ["▁h", "i"]]},
    })
}

#[test]
fn a_directory_tells_ids_bytes_and_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    write(path, "tokenizer.json", &spaced());
    write(
        path,
        "tokenizer_config.json",
        &json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}}),
    );
    write(path, "generation_config.json", &json!({"eos_token_id": [2, 6]}));
    let tokenizer = Tokenizer::from_directory(path).unwrap();
    assert_eq!(tokenizer.vocab_len(), 267);
    assert_eq!(
        (tokenizer.bos_id(), tokenizer.add_bos(), tokenizer.add_eos()),
        (Some(1), true, false)
    );
    assert_eq!(tokenizer.eos_ids(), [2, 6, 3]);
    assert_eq!([0, 3, 10, 8].map(|id| tokenizer.is_control(id)), [true, true, false, false]);
    assert_eq!(tokenizer.token_bytes(8), b" hi");
    assert_eq!(tokenizer.token_bytes(11 + 0xf0), b"\xf0");
    assert_eq!(tokenizer.token_bytes(3), b"<|im_end|>");
    assert_eq!(tokenizer.token_bytes(999), b"");

    // The file's truncation to two tokens does not count.
    assert_eq!(tokenizer.encode(" hi<|im_end|>", Special::Parse, true), [1, 8, 3]);
    assert_eq!(tokenizer.encode("hihihi", Special::Parse, false), [5, 6, 5, 6, 5, 6]);
    let plain = tokenizer.encode(" hi<|im_end|>", Special::Plain, false);
    assert!(plain.starts_with(&[8]) && !plain.contains(&3));
    assert_eq!(tokenizer.decode(&plain), " hi<|im_end|>");
    assert!(tokenizer.encode("<think>", Special::Plain, false).contains(&10));
    // The file asks for NFC: e and an accent are one character. From a GGUF file they stay two.
    assert_eq!(tokenizer.encode("e\u{301}", Special::Parse, false), [9]);
}

#[test]
fn a_million_spaces_do_not_stop_a_backtracking_pattern() {
    let folder = tempfile::tempdir().unwrap();
    let mut description = spaced();
    description["normalizer"] = Value::Null;
    description["pre_tokenizer"] = json!({"type": "Split", "invert": false, "behavior": "Isolated",
        "pattern": {"Regex": "\\s+(?!\\S)|\\s+|(?:[a-z]+)+(?=!)|."}});
    write(folder.path(), "tokenizer.json", &description);
    let tokenizer = Tokenizer::from_directory(folder.path()).unwrap();
    for text in [" ".repeat(1_000_000), "x".repeat(3_000)] {
        let ids = tokenizer.encode(&text, Special::Parse, false);
        assert_eq!(tokenizer.decode(&ids), text);
    }
}

#[test]
fn templates_come_from_any_of_their_places() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    write(path, "tokenizer.json", &spaced());
    let tokenizer = Tokenizer::from_directory(path).unwrap();
    let hi = [json!({"role": "user", "content": "hi<|im_end|>"})];
    let with_tools = ChatOptions { tools: vec![json!({})], ..ChatOptions::default() };
    let texts = || {
        let template = ChatTemplate::from_directory(path, &tokenizer).unwrap()?;
        let text = |options| template.render(&hi, options).unwrap().text().into_owned();
        Some([text(&ChatOptions::default()), text(&with_tools)])
    };
    assert_eq!(texts(), None);
    write(path, "tokenizer_config.json", &json!({"chat_template": "one {{ bos_token }}"}));
    assert_eq!(texts().unwrap(), ["one <s>", "one <s>"]);
    write(
        path,
        "tokenizer_config.json",
        &json!({"chat_template": [
        {"name": "default", "template": "two"}, {"name": "tool_use", "template": "two with tools"}]}),
    );
    assert_eq!(texts().unwrap(), ["two", "two with tools"]);
    std::fs::write(path.join("chat_template.jinja"), "{{ messages[0].content }}<|im_end|>\n")
        .unwrap();
    assert_eq!(texts().unwrap()[0], "hi<|im_end|><|im_end|>");

    let template = ChatTemplate::from_directory(path, &tokenizer).unwrap().unwrap();
    let ids = tokenizer.encode_chat(&template.render(&hi, &ChatOptions::default()).unwrap());
    assert_eq!((ids[0], ids[ids.len() - 1]), (1, 3));
    assert_eq!(ids.iter().filter(|&&id| id == 3).count(), 1);
}

#[test]
fn damaged_files_are_errors_that_name_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let error = || Tokenizer::from_directory(path).unwrap_err().to_string();
    let whole = serde_json::to_vec(&spaced()).unwrap();
    for end in [0, 1, whole.len() / 2, whole.len() - 1] {
        std::fs::write(path.join("tokenizer.json"), &whole[..end]).unwrap();
        assert!(error().contains("tokenizer.json: ") && !error().contains('\n'), "{}", error());
    }
    let mut far = spaced();
    far["model"]["vocab"]["far"] = json!(4_000_000_000u32);
    write(path, "tokenizer.json", &far);
    assert!(error().starts_with("the vocabulary has 4000000001 tokens"), "{}", error());
    write(path, "tokenizer.json", &spaced());
    std::fs::write(path.join("tokenizer_config.json"), "{").unwrap();
    assert!(error().contains("tokenizer_config.json: "), "{}", error());
}

/// Qwen's vocabulary in a `tokenizer.json` gives the ids that it gives in a GGUF file: two
/// implementations, the same text.
#[test]
fn tokenizers_agree_with_gguf_where_nothing_is_normalized() {
    let Some(path) = cached("qwen2.5-coder-0.5b") else { return };
    let file = GgufFile::open(&path).unwrap();
    let metadata = file.metadata();
    let strings = |key: &str| -> Vec<String> {
        let strings = metadata.require_strings(&format!("tokenizer.ggml.{key}")).unwrap();
        strings.iter().map(|s| String::from_utf8(s.to_vec()).unwrap()).collect()
    };
    let tokens = strings("tokens");
    let merges = strings("merges");
    let merges = merges.iter().map(|merge| {
        let (left, right) = merge.split_once(' ').unwrap();
        (left.to_owned(), right.to_owned())
    });
    let vocab: Vocab = tokens.iter().zip(0..).map(|(token, id)| (token.clone(), id)).collect();
    let bpe = BPE::builder().vocab_and_merges(vocab, merges.collect());
    let mut hf = tokenizers::Tokenizer::new(bpe.build().unwrap());
    let pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let split =
        Split::new(SplitPattern::Regex(pattern.into()), SplitDelimiterBehavior::Isolated, false);
    hf.with_pre_tokenizer(Some(Sequence::new(vec![
        PreTokenizerWrapper::Split(split.unwrap()),
        PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, false, false)),
    ])));
    hf.with_decoder(Some(ByteLevel::new(false, false, false)));
    let gguf = Tokenizer::from_gguf(metadata).unwrap();
    let types = metadata.require_i32s("tokenizer.ggml.token_type").unwrap();
    for (token, of_type) in tokens.iter().zip(types) {
        if *of_type == 3 || *of_type == 4 {
            let added = AddedToken::from(token.clone(), *of_type == 3).normalized(false);
            hf.add_tokens([added]).unwrap();
        }
    }
    let folder = tempfile::tempdir().unwrap();
    hf.save(folder.path().join("tokenizer.json"), false).unwrap();
    let json = Tokenizer::from_directory(folder.path()).unwrap();

    // A GGUF file marks the words that only fill up the vocabulary, a tokenizer.json cannot.
    const UNUSED: i32 = 5;
    for (id, _) in (0u32..).zip(types).filter(|&(_, &of_type)| of_type != UNUSED) {
        assert_eq!(json.token_bytes(id), gguf.token_bytes(id), "{id}");
    }
    let corpus = format!("{}/tests/tokenizer/corpus.json", env!("CARGO_MANIFEST_DIR"));
    let corpus: Vec<String> = serde_json::from_slice(&std::fs::read(corpus).unwrap()).unwrap();
    let mut n_differing = 0;
    for text in corpus.iter().step_by(3) {
        for special in [Special::Parse, Special::Plain] {
            // The long s is an s to `(?i)`, and llama.cpp takes `</s>` for a control token.
            if text.contains("'\u{17f}") || text.contains("</s>") {
                continue;
            }
            if json.encode(text, special, false) != gguf.encode(text, special, false) {
                eprintln!("{text:?} {} {special:?}", fnv(text));
                n_differing += 1;
            }
        }
    }
    assert_eq!(n_differing, 0);
}
