//! [`ModelMeta`]: what the architectures need to know of a model, whatever the format of its file.
//!
//! Every number is checked here, once, so that the rest of the crate can multiply them freely:
//! none is zero, heads divide, no product of two sizes overflows.

mod config;
mod gguf;

use crate::TokenId;
use crate::file::{FileError, KeyError, ModelFile, shown};
pub use paceline_kernels::{Activation, RopeScaling, RopeStyle};
use paceline_kernels::{KvLayout, KvType};
use std::ops::RangeInclusive;

/// A model's fixed numbers and facts.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelMeta {
    /// Family, as GGUF spells it: `llama`, `qwen2`, `qwen3` or `gemma3`.
    pub architecture: String,
    /// The model's name, if the file has one.
    pub name: Option<String>,
    /// L: number of layers.
    pub n_layers: usize,
    /// D: hidden size.
    pub d_model: usize,
    /// H: number of query heads.
    pub n_heads: usize,
    /// K: number of key/value heads; divides H.
    pub n_kv_heads: usize,
    /// E: head size, even. `H * E` need not be D.
    pub head_size: usize,
    /// F: width of the feed-forward layer.
    pub ffn_len: usize,
    /// V: number of tokens.
    pub vocab_len: usize,
    /// The longest sequence that the model was made for, in tokens.
    pub context_len: usize,
    /// Added to the mean of squares in RMSNorm.
    pub rms_eps: f32,
    /// Added to every weight of RMSNorm: 1 where the file stores `w - 1` (Gemma's safetensors).
    pub norm_offset: f32,
    /// Activation of the gate of the feed-forward layer.
    pub activation: Activation,
    /// The optional tensors of a layer.
    pub tensors: LayerTensors,
    /// Factor on the embedding of a token, e.g. `sqrt(D)` for Gemma.
    pub embedding_scale: f32,
    /// Factor on `q . k`, usually `1 / sqrt(E)`.
    pub attn_scale: f32,
    /// `c` of `c * tanh(x / c)` on the attention scores.
    pub attn_softcap: Option<f32>,
    /// `c` of `c * tanh(x / c)` on the logits.
    pub logit_softcap: Option<f32>,
    /// Rotary position embedding.
    pub rope: RopeMeta,
    /// The layers that see only the last tokens.
    pub sliding_window: Option<SlidingWindow>,
    /// Whether the logits are computed with the embedding matrix.
    pub tie_word_embeddings: bool,
    /// The token at the start of a text.
    pub bos_id: Option<TokenId>,
    /// The tokens that end an answer by the file's own keys, ascending.
    pub eos_ids: Vec<TokenId>,
    /// The sampling parameters that the model's authors recommend.
    pub sampling: SamplingDefaults,
}

/// Rotary position embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeMeta {
    /// `b` of the angle `position * b^(-2i / dim)` of pair `i`.
    pub base: f32,
    /// The base of the layers with a sliding window where it differs (Gemma 3). These layers have
    /// no scaling.
    pub local_base: Option<f32>,
    /// Values of a head that are rotated: even, at most E.
    pub dim: usize,
    /// Which two values form a pair, in the weights of this file.
    pub style: RopeStyle,
    /// How the angles are stretched for longer contexts.
    pub scaling: RopeScaling,
    /// `[dim / 2]`: what the frequency of each pair is divided by, besides the scaling. GGUF files
    /// of Llama 3.1 and later bring their scaling in this form.
    pub divisors: Option<Vec<f32>>,
}

/// Which optional tensors every layer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerTensors {
    /// Biases of the q, k and v projections (Qwen2).
    pub qkv_bias: bool,
    /// RMS norms of each head of q and k (Qwen3, Gemma 3).
    pub qk_norm: bool,
    /// RMS norms of what attention and feed-forward layer add to the residual (Gemma).
    pub post_norm: bool,
}

/// Layers that see only the last tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlidingWindow {
    /// Tokens seen, the own one included: position `p` sees `p - len + 1 ..= p`.
    pub len: usize,
    /// `[L]`: whether the layer slides.
    pub layers: Vec<bool>,
}

/// Sampling parameters, where the file has them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SamplingDefaults {
    /// 0 is greedy.
    pub temperature: Option<f32>,
    /// 0 is off.
    pub top_k: Option<usize>,
    /// In (0, 1].
    pub top_p: Option<f32>,
    /// In [0, 1].
    pub min_p: Option<f32>,
    /// 1 is off.
    pub repetition_penalty: Option<f32>,
}

impl ModelMeta {
    /// A block of the KV cache, for `block_len` tokens of all layers.
    pub fn kv_layout(&self, block_len: usize, k_type: KvType, v_type: KvType) -> KvLayout {
        let ModelMeta { n_layers, n_kv_heads, head_size, .. } = *self;
        KvLayout { n_layers, n_kv_heads, head_size, block_len, k_type, v_type }
    }

    /// Reads the metadata of a file.
    ///
    /// # Errors
    /// If the architecture is unknown, or a key is missing, of the wrong type or out of range.
    pub fn read(file: &ModelFile) -> Result<ModelMeta, FileError> {
        match file {
            ModelFile::Gguf(file) => gguf::read(file).map_err(|fault| fault.at(file.path())),
            ModelFile::Safetensors(dir) => config::read(dir),
        }
    }
}

/// A family of models: its names in both formats, and what no key of a file says.
struct Family {
    name: &'static str,
    /// Entries of `architectures` in config.json.
    classes: &'static [&'static str],
    /// `model_type` in config.json.
    model_types: &'static [&'static str],
    /// How GGUF orders the rows of Q and K. Hugging Face has halves everywhere.
    gguf_style: RopeStyle,
    activation: Activation,
    tensors: LayerTensors,
}

const LLAMA: &str = "llama";
const QWEN2: &str = "qwen2";
const QWEN3: &str = "qwen3";
const GEMMA3: &str = "gemma3";

const PLAIN: LayerTensors = LayerTensors { qkv_bias: false, qk_norm: false, post_norm: false };

const FAMILIES: [Family; 4] = [
    Family {
        name: LLAMA,
        classes: &["LlamaForCausalLM", "MistralForCausalLM"],
        model_types: &["llama", "mistral"],
        gguf_style: RopeStyle::Norm,
        activation: Activation::Silu,
        tensors: PLAIN,
    },
    Family {
        name: QWEN2,
        classes: &["Qwen2ForCausalLM"],
        model_types: &["qwen2"],
        gguf_style: RopeStyle::Neox,
        activation: Activation::Silu,
        tensors: LayerTensors { qkv_bias: true, ..PLAIN },
    },
    Family {
        name: QWEN3,
        classes: &["Qwen3ForCausalLM"],
        model_types: &["qwen3"],
        gguf_style: RopeStyle::Neox,
        activation: Activation::Silu,
        tensors: LayerTensors { qk_norm: true, ..PLAIN },
    },
    Family {
        name: GEMMA3,
        classes: &["Gemma3ForCausalLM"],
        model_types: &["gemma3_text"],
        gguf_style: RopeStyle::Neox,
        activation: Activation::GeluTanh,
        tensors: LayerTensors { qk_norm: true, post_norm: true, ..PLAIN },
    },
];

/// The architectures that can be read, as GGUF spells them.
pub const ARCHITECTURES: [&str; FAMILIES.len()] = {
    let mut names = [""; FAMILIES.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = FAMILIES[i].name;
        i += 1;
    }
    names
};

/// The error for an architecture that is not in the table.
fn unknown_architecture(key: &str, found: &str) -> KeyError {
    let problem = format!("this architecture is not known; known are {}", ARCHITECTURES.join(", "));
    KeyError::Value { key: key.to_owned(), value: shown(found), problem }
}

const MAX_LAYERS: usize = 1000;
const MAX_HEADS: usize = 1024;
const MAX_HEAD_SIZE: usize = 512;
const MAX_WIDTH: usize = 1 << 20;
const MAX_VOCAB_LEN: usize = 1 << 24;
const MAX_CONTEXT_LEN: usize = 1 << 30;

fn wrong(key: &str, value: impl ToString, problem: impl Into<String>) -> KeyError {
    KeyError::Value { key: shown(key), value: value.to_string(), problem: problem.into() }
}

/// A size in `1..=max`.
fn size(key: &str, value: usize, max: usize) -> Result<usize, KeyError> {
    match value {
        1.. if value <= max => Ok(value),
        _ => Err(wrong(key, value, format!("expected 1 to {max}"))),
    }
}

/// The numbers that make sense as a scale, a base or an addend: all that is computed with them is
/// finite.
const SENSIBLE: RangeInclusive<f32> = 1e-12..=1e12;

/// A number over 0, neither tiny nor huge.
fn positive(key: &str, value: f32) -> Result<f32, KeyError> {
    match SENSIBLE.contains(&value) {
        true => Ok(value),
        false => Err(wrong(key, number(value), "expected a positive number, 1e-12 to 1e12")),
    }
}

/// The base of the rotary embedding: below 1 the angles would grow with the pair.
fn rope_base(key: &str, value: f32) -> Result<f32, KeyError> {
    match (1.0..=*SENSIBLE.end()).contains(&value) {
        true => Ok(value),
        false => Err(wrong(key, number(value), "expected 1 to 1e12")),
    }
}

/// A number as one would write it.
fn number(value: f32) -> String {
    match value.abs() {
        0.0 | 1e-4..1e7 => value.to_string(),
        _ => format!("{value:e}"),
    }
}

/// Checks the heads against each other. `keys` are those of H, K and E.
fn check_heads(
    keys: [&str; 3],
    n_heads: usize,
    n_kv_heads: usize,
    head_size: usize,
) -> Result<(), KeyError> {
    size(keys[0], n_heads, MAX_HEADS)?;
    size(keys[1], n_kv_heads, MAX_HEADS)?;
    size(keys[2], head_size, MAX_HEAD_SIZE)?;
    if !n_heads.is_multiple_of(n_kv_heads) {
        return Err(wrong(keys[1], n_kv_heads, format!("does not divide {n_heads} heads")));
    }
    if !head_size.is_multiple_of(2) {
        return Err(wrong(keys[2], head_size, "a head size must be even"));
    }
    Ok(())
}

/// A head size that the file does not give: D / H.
fn default_head_size(key: &str, d_model: usize, n_heads: usize) -> Result<usize, KeyError> {
    match n_heads != 0 && d_model.is_multiple_of(n_heads) {
        true => Ok(d_model / n_heads),
        false => Err(wrong(key, n_heads, format!("does not divide the hidden size {d_model}"))),
    }
}

fn rope_dim(key: &str, dim: usize, head_size: usize) -> Result<usize, KeyError> {
    size(key, dim, head_size)?;
    match dim.is_multiple_of(2) {
        true => Ok(dim),
        false => Err(wrong(key, dim, "the rotated part of a head must be even")),
    }
}

/// Checks that a token is one of the vocabulary.
pub(crate) fn token_id(key: &str, id: u32, vocab_len: usize) -> Result<TokenId, KeyError> {
    match (id as usize) < vocab_len {
        true => Ok(id),
        false => Err(wrong(key, id, format!("the vocabulary has {vocab_len} tokens"))),
    }
}

/// The layers that slide when every `period`-th does not: Gemma 3 has 6.
fn sliding_by_period(n_layers: usize, period: usize) -> Vec<bool> {
    (1..=n_layers).map(|n| period == 0 || !n.is_multiple_of(period)).collect()
}

/// `0.1 ln(factor) + 1`, YaRN's factor on the attention.
fn yarn_attention_factor(factor: f32) -> f32 {
    if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 }
}

impl SamplingDefaults {
    /// Checks the parameters under the keys of temperature, top-p, min-p and repetition penalty.
    fn check(self, keys: [&str; 4]) -> Result<SamplingDefaults, KeyError> {
        let ranges = [
            (self.temperature, 0.0, 100.0),
            (self.top_p, f32::MIN_POSITIVE, 1.0),
            (self.min_p, 0.0, 1.0),
            (self.repetition_penalty, f32::MIN_POSITIVE, 100.0),
        ];
        for (key, (value, least, most)) in keys.into_iter().zip(ranges) {
            if let Some(value) = value.filter(|value| !(least..=most).contains(value)) {
                let from = if least > 0.0 { "over 0 and up to" } else { "0 to" };
                return Err(wrong(key, number(value), format!("expected {from} {most}")));
            }
        }
        Ok(self)
    }
}
