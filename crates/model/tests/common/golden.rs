//! The reference cases of `tests/golden`, whose README has the format.

use super::cached;
use paceline_model::{LoadOptions, Loaded, Model, Precision, TokenId};
use std::collections::HashMap;

/// A prompt and what the reference says of it.
#[derive(serde::Deserialize)]
pub struct Case {
    pub ids: Vec<TokenId>,
    pub nll: Vec<f64>,
    #[serde(default)]
    pub positions: Vec<usize>,
    pub top_ids: Vec<Vec<TokenId>>,
    pub top_logprobs: Vec<Vec<f64>>,
    #[serde(default)]
    pub greedy: Vec<TokenId>,
    #[serde(default)]
    pub greedy_margin: Vec<f64>,
}

/// The cases of one file; that of a long case holds the case alone.
pub fn cases(name: &str) -> Vec<Case> {
    let path = format!("{}/tests/golden/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_json::from_str(&text)
        .or_else(|_| serde_json::from_str(&text).map(|case| vec![case]))
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Greedy text after a prompt, and by how much each token led the next likeliest, in nats.
#[derive(serde::Deserialize)]
pub struct Text {
    pub greedy: Vec<TokenId>,
    pub greedy_margin: Vec<f64>,
}

/// What llama.cpp says after each prompt of `cases(name)` (`tools/make_greedy_fixture.py`).
pub fn greedy_of_llama_cpp(name: &str) -> Vec<Text> {
    let path = format!("{}/tests/llama_cpp/greedy.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut models: HashMap<String, Vec<Text>> = serde_json::from_str(&text).unwrap();
    models.remove(name).unwrap_or_else(|| panic!("{path}: no {name}"))
}

/// A catalogue model with room for 2,048 tokens in its KV cache, if it is in the cache folder.
pub fn load(name: &str, precision: Precision) -> Option<Loaded> {
    let path = cached(name)?;
    let options = LoadOptions { precision, ..LoadOptions::default() };
    let mut loaded = paceline_model::load(&path, &options).expect("the catalogue's models load");
    let n_blocks = 2048 / loaded.model.spec().block_len;
    loaded.model.reserve_kv(n_blocks).expect("memory for 2,048 tokens");
    Some(loaded)
}
