//! [`ModelMeta`] of a GGUF file. Keys and defaults are those of the format's specification and of
//! llama.cpp's converters.

use super::*;
use crate::file::{Array, Fault, GgufFile, Metadata, Strings, Value};
use paceline_kernels::DType;

const ROPE_DIVISORS: &str = "rope_freqs.weight";

pub(super) fn read(file: &GgufFile) -> Result<ModelMeta, Fault> {
    let metadata = file.metadata();
    let architecture = metadata.require_str("general.architecture")?;
    let Some(family) = FAMILIES.iter().find(|family| family.name == architecture) else {
        return Err(unknown_architecture("general.architecture", architecture).into());
    };
    let keys = Keys { metadata, architecture };
    let key = |name: &str| keys.of(name);
    if let Some(n_experts) = metadata.get_u64(&key("expert_count"))?.filter(|&n| n > 0) {
        let problem = "mixtures of experts are not supported";
        return Err(wrong(&key("expert_count"), n_experts, problem).into());
    }

    let d_model = keys.size("embedding_length", MAX_WIDTH)?;
    let n_layers = keys.size("block_count", MAX_LAYERS)?;
    let n_heads = keys.size("attention.head_count", MAX_HEADS)?;
    let n_kv_heads = metadata.get_usize(&key("attention.head_count_kv"))?.unwrap_or(n_heads);
    let head_size = match metadata.get_usize(&key("attention.key_length"))? {
        Some(head_size) => head_size,
        None => default_head_size(&key("attention.head_count"), d_model, n_heads)?,
    };
    let head_keys = ["attention.head_count", "attention.head_count_kv", "attention.key_length"];
    let head_keys = head_keys.map(key);
    check_heads(head_keys.each_ref().map(|key| &key[..]), n_heads, n_kv_heads, head_size)?;
    if let Some(len) = metadata.get_usize(&key("attention.value_length"))?
        && len != head_size
    {
        let problem = format!("heads of another size than attention.key_length ({head_size})");
        return Err(wrong(&key("attention.value_length"), len, problem).into());
    }

    let tokens = "tokenizer.ggml.tokens";
    let vocab_len = match metadata.get_strings(tokens)?.map(Strings::len) {
        Some(n @ 1..=MAX_VOCAB_LEN) => n,
        Some(n) => {
            let value = format!("an array of {n}");
            let problem = format!("expected 1 to {MAX_VOCAB_LEN} tokens");
            return Err(wrong(tokens, value, problem).into());
        }
        None => keys.size("vocab_size", MAX_VOCAB_LEN)?,
    };
    let mut context_len = keys.size("context_length", MAX_CONTEXT_LEN)?;
    let rope = read_rope(file, &keys, family, head_size, context_len)?;
    if let RopeScaling::Yarn { factor, original_context_len, .. } = rope.scaling {
        context_len = context_len.max((original_context_len as f32 * factor) as usize);
        context_len = context_len.min(MAX_CONTEXT_LEN);
    }

    let is_gemma = family.name == GEMMA3;
    let attn_scale = match keys.positive("attention.scale")? {
        Some(scale) => scale,
        // Gemma 3 27B alone scales by D / H; no key says so.
        None if is_gemma && n_layers == 62 => ((d_model / n_heads) as f32).sqrt().recip(),
        None => (head_size as f32).sqrt().recip(),
    };

    let mut eos_ids = Vec::new();
    for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
        let key = format!("tokenizer.ggml.{key}");
        if let Some(id) = metadata.get_u32(&key)? {
            eos_ids.push(token_id(&key, id, vocab_len)?);
        }
    }
    eos_ids.sort_unstable();
    eos_ids.dedup();
    let bos = "tokenizer.ggml.bos_token_id";
    let bos_id = metadata.get_u32(bos)?.map(|id| token_id(bos, id, vocab_len)).transpose()?;

    Ok(ModelMeta {
        architecture: architecture.to_owned(),
        name: metadata.get_str("general.name")?.map(str::to_owned),
        n_layers,
        d_model,
        n_heads,
        n_kv_heads,
        head_size,
        ffn_len: keys.size("feed_forward_length", MAX_WIDTH)?,
        vocab_len,
        context_len,
        rms_eps: {
            let key = key("attention.layer_norm_rms_epsilon");
            positive(&key, metadata.require_f32(&key)?)?
        },
        activation: family.activation,
        tensors: family.tensors,
        norm_offset: 0.0, // Converters add Gemma's 1 to the weights.
        embedding_scale: if is_gemma { (d_model as f32).sqrt() } else { 1.0 },
        attn_scale,
        attn_softcap: keys.positive("attn_logit_softcapping")?,
        logit_softcap: keys.positive("final_logit_softcapping")?,
        rope,
        sliding_window: read_sliding_window(&keys, n_layers, is_gemma)?,
        tie_word_embeddings: file.tensor("output.weight").is_none(),
        bos_id,
        eos_ids,
        sampling: read_sampling(metadata)?,
    })
}

/// The keys that start with the architecture.
struct Keys<'a> {
    metadata: &'a Metadata,
    architecture: &'a str,
}

impl Keys<'_> {
    fn of(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn size(&self, name: &str, max: usize) -> Result<usize, KeyError> {
        let key = self.of(name);
        size(&key, self.metadata.require_usize(&key)?, max)
    }

    /// A number over 0; 0 counts as absent, as for llama.cpp.
    fn positive(&self, name: &str) -> Result<Option<f32>, KeyError> {
        let key = self.of(name);
        let value = self.metadata.get_f32(&key)?.filter(|&value| value != 0.0);
        value.map(|value| positive(&key, value)).transpose()
    }
}

fn read_rope(
    file: &GgufFile,
    keys: &Keys,
    family: &Family,
    head_size: usize,
    context_len: usize,
) -> Result<RopeMeta, Fault> {
    let metadata = keys.metadata;
    let dim_key = keys.of("rope.dimension_count");
    let dim = metadata.get_usize(&dim_key)?.unwrap_or(head_size);
    let dim = rope_dim(&dim_key, dim, head_size)?;

    let factor = match keys.positive("rope.scaling.factor")? {
        Some(factor) => Some(factor),
        None => keys.positive("rope.scale_linear")?,
    };
    let type_key = keys.of("rope.scaling.type");
    let scaling = match metadata.get_str(&type_key)?.unwrap_or("linear") {
        "none" => RopeScaling::None,
        "linear" => match factor {
            None | Some(1.0) => RopeScaling::None,
            Some(factor) => RopeScaling::Linear { factor },
        },
        "yarn" => {
            let key = keys.of("rope.scaling.factor");
            let factor = factor.ok_or(KeyError::Missing { key })?;
            for (name, usual) in [("yarn_ext_factor", 1.0), ("yarn_log_multiplier", 0.0)] {
                let key = keys.of(&format!("rope.scaling.{name}"));
                if let Some(value) = metadata.get_f32(&key)?.filter(|&value| value != usual) {
                    return Err(wrong(&key, value, format!("only {usual} is supported")).into());
                }
            }
            let original_key = keys.of("rope.scaling.original_context_length");
            let original = metadata.get_usize(&original_key)?.unwrap_or(context_len);
            RopeScaling::Yarn {
                factor,
                original_context_len: size(&original_key, original, MAX_CONTEXT_LEN)?,
                beta_fast: keys.positive("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: keys.positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                attention_factor: keys.positive("rope.scaling.attn_factor")?.unwrap_or(1.0)
                    * yarn_attention_factor(factor),
            }
        }
        other => {
            let problem = "supported are none, linear and yarn";
            return Err(wrong(&type_key, shown(other), problem).into());
        }
    };

    let base = |name: &str| {
        let key = keys.of(name);
        metadata.get_f32(&key)?.map_or(Ok(10_000.0), |value| rope_base(&key, value))
    };
    let local_base = match family.name {
        GEMMA3 => Some(base("rope.freq_base_swa")?),
        _ => None,
    };
    Ok(RopeMeta {
        base: base("rope.freq_base")?,
        local_base,
        dim,
        style: family.gguf_style,
        scaling,
        divisors: read_divisors(file, dim)?,
    })
}

fn read_divisors(file: &GgufFile, dim: usize) -> Result<Option<Vec<f32>>, Fault> {
    let Some(tensor) = file.tensor(ROPE_DIVISORS) else { return Ok(None) };
    let corrupt =
        |problem: String| Fault::Corrupt { place: format!("tensor {ROPE_DIVISORS}"), problem };
    if tensor.dtype != DType::F32 || tensor.shape != [dim / 2] {
        let (dtype, shape) = (tensor.dtype, tensor.shape);
        return Err(corrupt(format!("is {dtype} {shape:?}, expected F32 [{}]", dim / 2)));
    }
    let (values, _) = tensor.bytes.as_chunks();
    let divisors: Vec<f32> = values.iter().map(|&value| f32::from_le_bytes(value)).collect();
    match divisors.iter().find(|value| !SENSIBLE.contains(value)) {
        Some(value) => Err(corrupt(format!("has the value {value}"))),
        None => Ok(Some(divisors)),
    }
}

fn read_sliding_window(
    keys: &Keys,
    n_layers: usize,
    is_gemma: bool,
) -> Result<Option<SlidingWindow>, KeyError> {
    let key = keys.of("attention.sliding_window");
    let Some(len) = keys.metadata.get_usize(&key)?.filter(|&len| len != 0) else {
        return Ok(None);
    };
    size(&key, len, MAX_CONTEXT_LEN)?;
    let key = keys.of("attention.sliding_window_pattern");
    let layers = match keys.metadata.get(&key) {
        Some(Value::Array(Array::Bool(layers))) if layers.len() == n_layers => layers.clone(),
        Some(Value::Array(array)) => {
            let found = format!("an array of {} {}", array.len(), array.item_type_name());
            return Err(KeyError::Type { key, expected: "one bool a layer", found });
        }
        _ => {
            // Files of Gemma 3 do not say that every sixth layer sees everything.
            let period = keys.metadata.get_usize(&key)?.unwrap_or(if is_gemma { 6 } else { 0 });
            sliding_by_period(n_layers, period)
        }
    };
    Ok(Some(SlidingWindow { len, layers }).filter(|window| window.layers.contains(&true)))
}

fn read_sampling(metadata: &Metadata) -> Result<SamplingDefaults, KeyError> {
    const TEMPERATURE: &str = "general.sampling.temp";
    const TOP_P: &str = "general.sampling.top_p";
    const MIN_P: &str = "general.sampling.min_p";
    const PENALTY: &str = "general.sampling.penalty_repeat";
    let top_k = metadata.get_i64("general.sampling.top_k")?;
    SamplingDefaults {
        temperature: metadata.get_f32(TEMPERATURE)?,
        top_k: top_k.map(|top_k| top_k.max(0) as usize),
        top_p: metadata.get_f32(TOP_P)?,
        min_p: metadata.get_f32(MIN_P)?,
        repetition_penalty: metadata.get_f32(PENALTY)?,
    }
    .check([TEMPERATURE, TOP_P, MIN_P, PENALTY])
}
