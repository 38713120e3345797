//! `paceline inspect`: what a model's file holds, without loading it.

use crate::args::Inspect;
use crate::open;
use anyhow::Context;
use paceline::{KvType, units};
use paceline_model::file::ModelFile;
use paceline_model::meta::ModelMeta;
use paceline_model::{ChatTemplate, load_text};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::io::{Write, stdout};
use std::path::Path;

/// Characters of a metadata value that are shown.
const VALUE_CHARS: usize = 60;
/// Tokens that the need for memory is given for.
const TOKENS: usize = 1000;

pub fn run(args: Inspect) -> anyhow::Result<()> {
    let located = open::locate(args.model.as_deref())?;
    let facts = Facts::read(&located.name, &located.path)?;
    let mut out = stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&facts.to_json())?)?;
    } else {
        out.write_all(facts.to_text().as_bytes())?;
    }
    Ok(())
}

struct Facts<'a> {
    name: &'a str,
    file: ModelFile,
    meta: ModelMeta,
    metadata: Vec<(String, Value)>,
    chat_template: Option<String>,
}

impl<'a> Facts<'a> {
    fn read(name: &'a str, path: &Path) -> anyhow::Result<Facts<'a>> {
        let file = ModelFile::open(path)?;
        let meta = ModelMeta::read(&file)?;
        // Nothing of it is shown, but a file that cannot be used is none to show.
        load_text(&file)?;
        let metadata = metadata(&file);
        let chat_template =
            ChatTemplate::source(&file).with_context(|| path.display().to_string())?;
        Ok(Facts { name, file, meta, metadata, chat_template })
    }

    /// Bytes that the KV cache needs for [`TOKENS`] tokens; `None` if it cannot be of that type.
    fn kv_bytes(&self, kv_type: KvType) -> Option<u64> {
        let block_len = 16;
        let layout = self.meta.kv_layout(block_len, kv_type, kv_type);
        Some(layout.block_bytes().ok()? as u64 * TOKENS as u64 / block_len as u64)
    }

    fn to_text(&self) -> String {
        let Facts { name, file, meta: m, .. } = self;
        let mut text = String::new();
        // Writing to a string cannot fail.
        let mut row = |head: &str, line: String| {
            let _ = writeln!(text, "{head:14}{line}");
        };
        let totals = file.totals();
        let bytes: usize = totals.values().map(|total| total.n_bytes).sum();
        let values: usize = totals.values().map(|total| total.n_values).sum();
        row("model", format!("{name}, {}", file.path().display()));
        if let Some(own) = &m.name {
            row("named", own.clone());
        }
        row(
            "architecture",
            format!(
                "{}: {} layers, hidden {}, {} query and {} key/value heads of {}, feed-forward {}",
                m.architecture,
                m.n_layers,
                m.d_model,
                m.n_heads,
                m.n_kv_heads,
                m.head_size,
                m.ffn_len
            ),
        );
        row("vocabulary", format!("{} tokens", m.vocab_len));
        row("context", format!("{} tokens", m.context_len));
        if let Some(window) = &m.sliding_window {
            let n = window.layers.iter().filter(|slides| **slides).count();
            row("window", format!("{} tokens in {n} of {} layers", window.len, m.n_layers));
        }
        let n_tensors: usize = totals.values().map(|total| total.n_tensors).sum();
        let billions = values as f64 / 1e9;
        row(
            "tensors",
            format!("{n_tensors}, {billions:.3} billion values, {}", units::bytes(bytes as u64)),
        );
        for (dtype, total) in &totals {
            let size = units::bytes(total.n_bytes as u64);
            row("", format!("{:8} {:4} tensors {size:>9}", dtype.to_string(), total.n_tensors));
        }
        for (kv_type, head) in [(KvType::I16, "kv cache"), (KvType::Q8_0, "")] {
            if let Some(bytes) = self.kv_bytes(kv_type) {
                let size = units::bytes(bytes);
                row(head, format!("{size} for {TOKENS} tokens with {kv_type:?}"));
            }
        }
        row("metadata", format!("{} keys", self.metadata.len()));
        for (key, value) in &self.metadata {
            let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            row("", format!("{key} = {shown}"));
        }
        match &self.chat_template {
            Some(template) => {
                row("chat template", String::new());
                text += template.trim_end();
                text.push('\n');
            }
            None => row("chat template", "none: a base model".to_owned()),
        }
        text
    }

    fn to_json(&self) -> Value {
        let Facts { name, file, meta: m, .. } = self;
        let totals = file.totals().into_iter().map(|(dtype, total)| {
            let total = json!({
                "tensors": total.n_tensors, "values": total.n_values, "bytes": total.n_bytes,
            });
            (dtype.to_string(), total)
        });
        let tensors = file.tensors().map(|tensor| {
            json!({
                "name": tensor.name,
                "type": tensor.dtype.to_string(),
                "shape": tensor.shape,
                "bytes": tensor.bytes.len(),
            })
        });
        json!({
            "name": name,
            "path": file.path(),
            "architecture": m.architecture,
            "n_layers": m.n_layers,
            "d_model": m.d_model,
            "n_heads": m.n_heads,
            "n_kv_heads": m.n_kv_heads,
            "head_size": m.head_size,
            "ffn_len": m.ffn_len,
            "vocab_len": m.vocab_len,
            "context_len": m.context_len,
            "sliding_window": m.sliding_window.as_ref().map(|window| window.len),
            "types": totals.collect::<Map<String, Value>>(),
            "tensors": tensors.collect::<Vec<Value>>(),
            "kv_bytes_per_1000_tokens": {
                "i16": self.kv_bytes(KvType::I16), "q8_0": self.kv_bytes(KvType::Q8_0),
            },
            "metadata": self.metadata.iter().cloned().collect::<Map<String, Value>>(),
            "chat_template": self.chat_template,
        })
    }
}

/// The file's metadata in its own order, long values cut.
fn metadata(file: &ModelFile) -> Vec<(String, Value)> {
    match file {
        ModelFile::Gguf(file) => {
            let entries = file.metadata().iter();
            let entries = entries.filter(|(key, _)| !key.starts_with("tokenizer.chat_template"));
            entries.map(|(key, value)| (key.to_owned(), value.brief(VALUE_CHARS).into())).collect()
        }
        ModelFile::Safetensors(dir) => {
            dir.config().iter().map(|(key, value)| (key.clone(), value.clone())).collect()
        }
    }
}
