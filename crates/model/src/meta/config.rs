//! [`ModelMeta`] of a Hugging Face directory. Keys and defaults are those of the configuration
//! classes of transformers.

use super::*;
use crate::file::{SafetensorsDir, shorten};
use serde_json::{Map, Value};

pub(super) fn read(dir: &SafetensorsDir) -> Result<ModelMeta, FileError> {
    let config_path = dir.path().join("config.json");
    let mut meta = read_config(&Keys(dir.config())).map_err(|error| error.at(&config_path))?;
    let generation = Keys(dir.generation_config());
    read_generation_config(&mut meta, &generation)
        .map_err(|error| error.at(&dir.path().join("generation_config.json")))?;
    let full_path = dir.path().canonicalize().unwrap_or_else(|_| dir.path().to_owned());
    meta.name = full_path.file_name().map(|name| name.to_string_lossy().into_owned());
    Ok(meta)
}

fn find_family(keys: &Keys) -> Result<&'static Family, KeyError> {
    let class = match keys.get("architectures") {
        Some(Value::Array(classes)) => classes.first().and_then(Value::as_str),
        _ => None,
    };
    match class {
        Some(class) => (FAMILIES.iter().find(|family| family.classes.contains(&class)))
            .ok_or_else(|| unknown_architecture("architectures", class)),
        None => {
            let model_type = keys.str("model_type")?.ok_or_else(|| missing("model_type"))?;
            (FAMILIES.iter().find(|family| family.model_types.contains(&model_type)))
                .ok_or_else(|| unknown_architecture("model_type", model_type))
        }
    }
}

fn read_config(keys: &Keys) -> Result<ModelMeta, KeyError> {
    let family = find_family(keys)?;
    let is_gemma = family.name == GEMMA3;

    let (activation_key, activations): (&str, &[&str]) = match is_gemma {
        true => ("hidden_activation", &["gelu_pytorch_tanh"]),
        false => ("hidden_act", &["silu", "swish"]),
    };
    if let Some(activation) = keys.str(activation_key)?
        && !activations.contains(&activation)
    {
        let problem = format!("supported is {}", activations[0]);
        return Err(wrong(activation_key, shown(activation), problem));
    }
    if keys.bool("use_bidirectional_attention")? == Some(true) {
        return Err(wrong("use_bidirectional_attention", true, "only causal models are supported"));
    }

    let d_model = keys.require_size("hidden_size", MAX_WIDTH)?;
    let n_layers = keys.require_size("num_hidden_layers", MAX_LAYERS)?;
    let n_heads = keys.require_size("num_attention_heads", MAX_HEADS)?;
    let n_kv_heads = keys.usize("num_key_value_heads")?.unwrap_or(n_heads);
    let head_size = match (keys.usize("head_dim")?, family.name) {
        (Some(head_size), _) => head_size,
        (None, QWEN3) => 128,
        (None, GEMMA3) => 256,
        (None, _) => default_head_size("num_attention_heads", d_model, n_heads)?,
    };
    let head_keys = ["num_attention_heads", "num_key_value_heads", "head_dim"];
    check_heads(head_keys, n_heads, n_kv_heads, head_size)?;

    let vocab_len = keys.require_size("vocab_size", MAX_VOCAB_LEN)?;
    let trained_len = keys.require_size("max_position_embeddings", MAX_CONTEXT_LEN)?;
    let rope = read_rope(keys, family, head_size, trained_len)?;
    // As vLLM derives it: these scalings stretch the context that the configuration names.
    let context_len = match rope.scaling {
        RopeScaling::Linear { factor } if !is_gemma => (trained_len as f32 * factor) as usize,
        RopeScaling::Yarn { factor, original_context_len, .. } => {
            trained_len.max((original_context_len as f32 * factor) as usize)
        }
        _ => trained_len,
    };

    let attn_scale_of = match keys.positive("query_pre_attn_scalar")? {
        Some(scalar) if is_gemma => scalar,
        _ if is_gemma => 256.0,
        _ => head_size as f32,
    };
    let mut meta = ModelMeta {
        architecture: family.name.to_owned(),
        name: None,
        n_layers,
        d_model,
        n_heads,
        n_kv_heads,
        head_size,
        ffn_len: keys.require_size("intermediate_size", MAX_WIDTH)?,
        vocab_len,
        context_len: context_len.clamp(1, MAX_CONTEXT_LEN),
        rms_eps: keys.positive("rms_norm_eps")?.unwrap_or(1e-6),
        activation: family.activation,
        tensors: family.tensors,
        norm_offset: if is_gemma { 1.0 } else { 0.0 },
        embedding_scale: if is_gemma { (d_model as f32).sqrt() } else { 1.0 },
        attn_scale: attn_scale_of.sqrt().recip(),
        attn_softcap: keys.positive("attn_logit_softcapping")?,
        logit_softcap: keys.positive("final_logit_softcapping")?,
        rope,
        sliding_window: read_sliding_window(keys, family, n_layers)?,
        tie_word_embeddings: keys.bool("tie_word_embeddings")?.unwrap_or(is_gemma),
        bos_id: None,
        eos_ids: Vec::new(),
        sampling: SamplingDefaults::default(),
    };
    read_ids(&mut meta, keys)?;
    Ok(meta)
}

fn read_rope(
    keys: &Keys,
    family: &Family,
    head_size: usize,
    trained_len: usize,
) -> Result<RopeMeta, KeyError> {
    // `rope_parameters` (transformers 5) may hold one object for each kind of layer.
    let parameters = match keys.object("rope_parameters")? {
        Some(parameters) => Some(parameters),
        None => keys.object("rope_scaling")?,
    };
    let empty = Map::new();
    let parameters = Keys(parameters.unwrap_or(&empty));
    let local = parameters.object("sliding_attention")?.map(Keys);
    let global = Keys(parameters.object("full_attention")?.unwrap_or(parameters.0));

    let default_base = if family.name == GEMMA3 { 1_000_000.0 } else { 10_000.0 };
    let base = match global.rope_base("rope_theta")? {
        Some(base) => base,
        None => keys.rope_base("rope_theta")?.unwrap_or(default_base),
    };
    let local_base = match (family.name, &local) {
        (GEMMA3, Some(local)) => local.rope_base("rope_theta")?,
        (GEMMA3, None) => keys.rope_base("rope_local_base_freq")?,
        _ => None,
    };
    if let Some(local) = &local
        && let Some(kind) = local.str("rope_type")?.filter(|&kind| kind != "default")
    {
        return Err(wrong("sliding_attention.rope_type", shown(kind), "supported is default"));
    }

    let partial = match global.f32("partial_rotary_factor")? {
        Some(partial) => partial,
        None => keys.f32("partial_rotary_factor")?.unwrap_or(1.0),
    };
    if !(0.0..=1.0).contains(&partial) {
        return Err(wrong("partial_rotary_factor", number(partial), "expected over 0 and up to 1"));
    }
    let dim = rope_dim("partial_rotary_factor", (head_size as f32 * partial) as usize, head_size)?;
    Ok(RopeMeta {
        base,
        local_base: local_base.or((family.name == GEMMA3).then_some(10_000.0)),
        dim,
        style: RopeStyle::Neox,
        scaling: read_scaling(&global, trained_len)?,
        divisors: None,
    })
}

fn read_scaling(keys: &Keys, trained_len: usize) -> Result<RopeScaling, KeyError> {
    let (type_key, kind) = match keys.str("rope_type")? {
        Some(kind) => ("rope_type", kind),
        None => ("type", keys.str("type")?.unwrap_or("default")),
    };
    let factor = || keys.positive("factor")?.ok_or_else(|| missing("factor"));
    let original = "original_max_position_embeddings";
    Ok(match kind {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: factor()? },
        "llama3" => {
            let number = |key| keys.positive(key)?.ok_or_else(|| missing(key));
            let low_freq_factor = number("low_freq_factor")?;
            let high_freq_factor = number("high_freq_factor")?;
            if high_freq_factor <= low_freq_factor {
                let problem = format!("must be over low_freq_factor ({low_freq_factor})");
                return Err(wrong("high_freq_factor", high_freq_factor, problem));
            }
            RopeScaling::Llama3 {
                factor: factor()?,
                low_freq_factor,
                high_freq_factor,
                original_context_len: keys.require_size(original, MAX_CONTEXT_LEN)?,
            }
        }
        "yarn" => {
            for key in ["mscale", "mscale_all_dim"] {
                if let Some(value) = keys.f32(key)? {
                    return Err(wrong(key, value, "this part of yarn is not supported"));
                }
            }
            if keys.bool("truncate")? == Some(false) {
                return Err(wrong("truncate", false, "this part of yarn is not supported"));
            }
            let factor = factor()?;
            RopeScaling::Yarn {
                factor,
                original_context_len: match keys.usize(original)? {
                    Some(len) => size(original, len, MAX_CONTEXT_LEN)?,
                    None => trained_len,
                },
                beta_fast: keys.positive("beta_fast")?.unwrap_or(32.0),
                beta_slow: keys.positive("beta_slow")?.unwrap_or(1.0),
                attention_factor: match keys.positive("attention_factor")? {
                    Some(attention_factor) => attention_factor,
                    None => yarn_attention_factor(factor),
                },
            }
        }
        other => {
            let problem = "supported are default, linear, llama3 and yarn";
            return Err(wrong(type_key, shown(other), problem));
        }
    })
}

fn read_sliding_window(
    keys: &Keys,
    family: &Family,
    n_layers: usize,
) -> Result<Option<SlidingWindow>, KeyError> {
    let is_mistral = keys.str("model_type")? == Some("mistral");
    // Qwen names a window that it does not use.
    let used = match family.name {
        LLAMA => is_mistral,
        QWEN2 | QWEN3 => keys.bool("use_sliding_window")? == Some(true),
        _ => true,
    };
    let key = "sliding_window";
    let len = match keys.get(key) {
        _ if !used => None,
        None => Some(4096), // The default of Mistral, Qwen and Gemma 3 alike.
        Some(Value::Null) => None,
        Some(_) => keys.usize(key)?,
    };
    let Some(len) = len else { return Ok(None) };
    size(key, len, MAX_CONTEXT_LEN)?;

    let layers = match keys.get("layer_types").filter(|value| !value.is_null()) {
        Some(types) => layer_types(types, n_layers)?,
        None if family.name == GEMMA3 => {
            let period = match keys.usize("sliding_window_pattern")? {
                Some(period) => period,
                None => keys.usize("_sliding_window_pattern")?.unwrap_or(6),
            };
            sliding_by_period(n_layers, size("sliding_window_pattern", period, MAX_LAYERS)?)
        }
        None if is_mistral => vec![true; n_layers],
        None => {
            let n_full = keys.usize("max_window_layers")?.unwrap_or(28);
            (0..n_layers).map(|layer| layer >= n_full).collect()
        }
    };
    Ok(Some(SlidingWindow { len, layers }).filter(|window| window.layers.contains(&true)))
}

fn layer_types(types: &Value, n_layers: usize) -> Result<Vec<bool>, KeyError> {
    let types = types.as_array().map_or(&[][..], |types| types);
    let wrong = |value: String| {
        let problem = "expected full_attention or sliding_attention for each layer";
        wrong("layer_types", value, problem)
    };
    if types.len() != n_layers {
        return Err(wrong(format!("a list of {}", types.len())));
    }
    let slides = types.iter().map(|kind| match kind.as_str() {
        Some("full_attention") => Ok(false),
        Some("sliding_attention") => Ok(true),
        _ => Err(wrong(shorten(&kind.to_string()))),
    });
    slides.collect()
}

/// `bos_token_id`, and `eos_token_id`, which may be one or several.
fn read_ids(meta: &mut ModelMeta, keys: &Keys) -> Result<(), KeyError> {
    if let Some(id) = keys.usize("bos_token_id")? {
        meta.bos_id = Some(checked_id("bos_token_id", id, meta.vocab_len)?);
    }
    let ids = match keys.get("eos_token_id") {
        Some(Value::Array(ids)) => &ids[..],
        Some(id) if !id.is_null() => std::slice::from_ref(id),
        _ => &[],
    };
    for id in ids {
        let id = integer("eos_token_id", id)?;
        meta.eos_ids.push(checked_id("eos_token_id", id, meta.vocab_len)?);
    }
    meta.eos_ids.sort_unstable();
    meta.eos_ids.dedup();
    Ok(())
}

fn checked_id(key: &str, id: usize, vocab_len: usize) -> Result<TokenId, KeyError> {
    token_id(key, u32::try_from(id).unwrap_or(u32::MAX), vocab_len)
}

fn read_generation_config(meta: &mut ModelMeta, keys: &Keys) -> Result<(), KeyError> {
    read_ids(meta, keys)?;
    meta.sampling = SamplingDefaults {
        temperature: keys.f32("temperature")?,
        top_k: keys.f32("top_k")?.map(|top_k| top_k as usize), // Some write -1 for off.
        top_p: keys.f32("top_p")?,
        min_p: keys.f32("min_p")?,
        repetition_penalty: keys.f32("repetition_penalty")?,
    }
    .check(["temperature", "top_p", "min_p", "repetition_penalty"])?;
    Ok(())
}

/// Typed reading of a JSON object; `null` counts as absent.
struct Keys<'a>(&'a Map<String, Value>);

fn missing(key: &str) -> KeyError {
    KeyError::Missing { key: key.to_owned() }
}

fn mistyped(key: &str, expected: &'static str, value: &Value) -> KeyError {
    KeyError::Type { key: key.to_owned(), expected, found: shorten(&value.to_string()) }
}

fn integer(key: &str, value: &Value) -> Result<usize, KeyError> {
    let integer = value.as_u64().and_then(|value| usize::try_from(value).ok());
    integer.ok_or_else(|| mistyped(key, "a non-negative integer", value))
}

impl<'a> Keys<'a> {
    /// The raw value, `null` included.
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.0.get(key)
    }

    fn get_as<T>(
        &self,
        key: &str,
        expected: &'static str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, KeyError> {
        match self.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => read(value).map(Some).ok_or_else(|| mistyped(key, expected, value)),
        }
    }

    fn usize(&self, key: &str) -> Result<Option<usize>, KeyError> {
        self.get(key).filter(|value| !value.is_null()).map(|value| integer(key, value)).transpose()
    }

    fn require_size(&self, key: &str, max: usize) -> Result<usize, KeyError> {
        size(key, self.usize(key)?.ok_or_else(|| missing(key))?, max)
    }

    fn f32(&self, key: &str) -> Result<Option<f32>, KeyError> {
        self.get_as(key, "a number", |value| value.as_f64().map(|value| value as f32))
    }

    fn positive(&self, key: &str) -> Result<Option<f32>, KeyError> {
        self.f32(key)?.map(|value| positive(key, value)).transpose()
    }

    fn rope_base(&self, key: &str) -> Result<Option<f32>, KeyError> {
        self.f32(key)?.map(|value| rope_base(key, value)).transpose()
    }

    fn bool(&self, key: &str) -> Result<Option<bool>, KeyError> {
        self.get_as(key, "a bool", Value::as_bool)
    }

    fn str(&self, key: &str) -> Result<Option<&'a str>, KeyError> {
        self.get_as(key, "a string", Value::as_str)
    }

    fn object(&self, key: &str) -> Result<Option<&'a Map<String, Value>>, KeyError> {
        self.get_as(key, "an object", Value::as_object)
    }
}
