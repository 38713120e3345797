//! Chat templates against Jinja2 as transformers sets it up (`tools/make_chat_fixtures.py`), and the
//! line between what a template says and what a message says.

mod common;

use common::{byte_vocab, cached, cached_data, fnv};
use paceline_model::chat::ChatError;
use paceline_model::file::GgufFile;
use paceline_model::{ChatOptions, ChatTemplate, Tokenizer};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

fn here(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/chat").join(name)
}

fn read_json(name: &str) -> Map<String, Value> {
    serde_json::from_slice(&std::fs::read(here(name)).unwrap()).unwrap()
}

fn cases() -> BTreeMap<String, (Vec<Value>, ChatOptions)> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let read = |case: &Value| {
        let options = ChatOptions {
            tools: list(&case["tools"]),
            documents: list(&case["documents"]),
            add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap_or(true),
            variables: case["variables"].as_object().cloned().unwrap_or_default(),
            // 2026-07-04 15:06:09
            now: SystemTime::UNIX_EPOCH + Duration::from_secs(1_783_177_569),
        };
        (list(&case["messages"]), options)
    };
    read_json("cases.json").iter().map(|(name, case)| (name.clone(), read(case))).collect()
}

fn tokenizer() -> Tokenizer {
    byte_vocab(&[("<s>", 3), ("</s>", 3), ("<|stop|>", 3), ("<|turn|>", 3), ("<call>", 4)])
}

#[test]
fn own_templates_render_as_jinja2_does() {
    let cases = cases();
    for (name, expected) in read_json("rendered.json") {
        let source = std::fs::read_to_string(here(&format!("templates/{name}.jinja"))).unwrap();
        let template = ChatTemplate::new(&source, None, &tokenizer()).unwrap();
        for (case, expected) in expected.as_object().unwrap() {
            let (messages, options) = &cases[case];
            let rendered = template.render(messages, options);
            match (expected, rendered) {
                (Value::String(text), Ok(rendered)) => {
                    assert_eq!(&rendered.text(), text, "{name}, {case}");
                }
                (Value::Object(refused), Err(ChatError::Refused(message))) => {
                    assert_eq!(refused["refused"], message, "{name}, {case}");
                }
                (expected, rendered) => panic!("{name}, {case}: {expected} but {rendered:?}"),
            }
        }
    }
}

/// How many published templates and conversations agree, and those that do not.
fn compare(name: &str, source: &str, published: &Value) -> Vec<String> {
    let template = match ChatTemplate::new(source, None, &tokenizer()) {
        Ok(template) => template,
        Err(error) => return vec![format!("{name}: {error}")],
    };
    let mut differing = Vec::new();
    for (case, (messages, options)) in cases() {
        // What Jinja2 fails on is nobody's reference.
        let Some(expected) = published[&case].as_str() else { continue };
        let rendered = template.render(&messages, &options);
        let found = match &rendered {
            Ok(rendered) => fnv(&rendered.text()),
            Err(ChatError::Refused(_)) => "refused".to_owned(),
            Err(error) => error.to_string(),
        };
        if found != expected {
            if std::env::var_os("SHOW").is_some() {
                eprintln!(
                    "=== {name}, {case}\n{}",
                    rendered.map_or_else(|e| e.to_string(), |r| r.text().into_owned())
                );
            }
            differing.push(format!("{name}, {case}: {found}"));
        }
    }
    differing
}

#[test]
fn templates_of_cached_models_render_as_jinja2_does() {
    let published = read_json("published.json");
    for name in ["smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"] {
        let Some(path) = cached(name) else { continue };
        let file = GgufFile::open(&path).unwrap();
        let source = file.metadata().require_str("tokenizer.chat_template").unwrap();
        assert_eq!(compare(name, source, &published[name]), [""; 0]);
    }
}

#[test]
fn published_templates_render_as_jinja2_does() {
    let Some(folder) = cached_data("llama.cpp-templates") else { return };
    let mut differing = Vec::new();
    for (name, published) in read_json("published.json") {
        // It joins strings with `|safe` ones, which makes Jinja2 escape them as HTML, by accident.
        if name == "meetkai-functionary-medium-v3.1" {
            continue;
        }
        let Ok(source) = std::fs::read_to_string(folder.join(format!("{name}.jinja"))) else {
            continue;
        };
        differing.extend(compare(&name, &source, &published));
    }
    assert_eq!(differing, [""; 0]);
}
