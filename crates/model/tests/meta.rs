//! `ModelMeta` of GGUF metadata and of Hugging Face configurations.

mod common;

use common::gguf::Gguf;
use paceline_kernels::DType;
use paceline_model::file::{Array, GgufFile, ModelFile, Strings, Value};
use paceline_model::meta::{
    ARCHITECTURES, ModelMeta, RopeScaling, RopeStyle, SamplingDefaults, SlidingWindow,
};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;
use std::fs;
use tempfile::TempDir;

fn text(text: &str) -> Value {
    Value::String(text.into())
}

/// The metadata of a small model of a family.
fn gguf(architecture: &str) -> Gguf {
    let key = |name: &str| format!("{architecture}.{name}");
    let tokens: Strings = (0..100).map(|i: u32| i.to_string()).collect();
    Gguf::default()
        .with("general.architecture", text(architecture))
        .with(&key("block_count"), Value::U32(12))
        .with(&key("context_length"), Value::U32(4096))
        .with(&key("embedding_length"), Value::U32(256))
        .with(&key("feed_forward_length"), Value::U32(512))
        .with(&key("attention.head_count"), Value::U32(8))
        .with(&key("attention.head_count_kv"), Value::U32(2))
        .with(&key("attention.layer_norm_rms_epsilon"), Value::F32(1e-5))
        .with("tokenizer.ggml.tokens", Value::Array(Array::Strings(tokens)))
}

fn read_gguf(file: &Gguf) -> Result<ModelMeta, String> {
    let file = ModelFile::Gguf(GgufFile::from_bytes(file.bytes()).unwrap());
    ModelMeta::read(&file).map_err(|error| error.to_string().replace("<memory>: ", ""))
}

#[test]
fn defaults_are_those_of_the_format() {
    let meta = read_gguf(&gguf("llama")).unwrap();
    assert_eq!((meta.head_size, meta.rope.dim, meta.vocab_len), (32, 32, 100));
    assert_eq!((meta.rope.base, meta.rope.scaling), (10_000.0, RopeScaling::None));
    assert_eq!((meta.name, meta.bos_id, meta.eos_ids), (None, None, vec![]));
    assert_eq!(meta.attn_scale, 1.0 / 32_f32.sqrt());
    let file = gguf("qwen3").without("qwen3.attention.head_count_kv");
    assert_eq!(read_gguf(&file).unwrap().n_kv_heads, 8);
    let file = gguf("qwen3").without("tokenizer.ggml.tokens");
    assert_eq!(read_gguf(&file).unwrap_err(), "key qwen3.vocab_size is missing");
    let file = file.with("qwen3.vocab_size", Value::U32(77));
    assert_eq!(read_gguf(&file).unwrap().vocab_len, 77);
}

#[test]
fn gguf_pairs_are_adjacent_in_llama_alone() {
    for name in ARCHITECTURES {
        let pairing = read_gguf(&gguf(name)).unwrap().rope.style;
        assert_eq!(pairing == RopeStyle::Norm, name == "llama", "{name}");
    }
}

#[test]
fn an_unknown_architecture_lists_the_known_ones() {
    assert_eq!(
        read_gguf(&gguf("mamba")).unwrap_err(),
        "key general.architecture is mamba: this architecture is not known; \
         known are llama, qwen2, qwen3, gemma3"
    );
    let without = gguf("llama").without("general.architecture");
    assert_eq!(read_gguf(&without).unwrap_err(), "key general.architecture is missing");
}

#[test]
fn gguf_numbers_are_checked() {
    let message = |name: &str, value| {
        let key = format!("llama.{name}");
        let message = read_gguf(&gguf("llama").set(&key, value)).unwrap_err();
        message.strip_prefix("key llama.").unwrap_or(&message).to_owned()
    };
    for (name, max) in [
        ("block_count", 1000),
        ("embedding_length", 1 << 20),
        ("feed_forward_length", 1 << 20),
        ("attention.head_count", 1024),
        ("attention.head_count_kv", 1024),
        ("attention.key_length", 512),
        ("context_length", 1 << 30),
        ("rope.dimension_count", 32),
    ] {
        let expected = format!("{name} is 0: expected 1 to {max}");
        assert_eq!(message(name, Value::U32(0)), expected);
        let huge = message(name, Value::U64(1 << 60));
        assert_eq!(huge, format!("{name} is {}: expected 1 to {max}", 1_u64 << 60));
        let negative = message(name, Value::I32(-1));
        assert_eq!(negative, format!("{name} is the int32 -1, expected a non-negative integer"));
    }
    let cases = [
        (
            "attention.head_count",
            Value::U32(7),
            "attention.head_count is 7: does not divide the hidden size 256",
        ),
        (
            "attention.head_count_kv",
            Value::U32(3),
            "attention.head_count_kv is 3: does not divide 8 heads",
        ),
        (
            "attention.key_length",
            Value::U32(33),
            "attention.key_length is 33: a head size must be even",
        ),
        (
            "attention.value_length",
            Value::U32(64),
            "attention.value_length is 64: heads of another size than attention.key_length (32)",
        ),
        (
            "rope.dimension_count",
            Value::U32(7),
            "rope.dimension_count is 7: the rotated part of a head must be even",
        ),
        ("expert_count", Value::U32(8), "expert_count is 8: mixtures of experts are not supported"),
        ("rope.freq_base", text("x"), "rope.freq_base is the string \"x\", expected a number"),
        (
            "rope.scaling.type",
            text("longrope"),
            "rope.scaling.type is longrope: supported are none, linear and yarn",
        ),
        ("rope.scaling.type", text("yarn"), "rope.scaling.factor is missing"),
        (
            "attention.head_count",
            Value::Array(Array::U32(vec![8; 12])),
            "attention.head_count is an array of 12 uint32, expected a non-negative integer",
        ),
        (
            "block_count",
            Value::F32(12.0),
            "block_count is the float32 12, expected a non-negative integer",
        ),
    ];
    for (name, value, expected) in cases {
        assert_eq!(message(name, value), expected);
    }
    let shown = |value: f32| match value {
        0.0 | -1.0 => value.to_string(),
        value => format!("{value:e}"),
    };
    for (name, range) in [
        ("attention.layer_norm_rms_epsilon", "a positive number, 1e-12 to 1e12"),
        ("attention.scale", "a positive number, 1e-12 to 1e12"),
        ("attn_logit_softcapping", "a positive number, 1e-12 to 1e12"),
        ("final_logit_softcapping", "a positive number, 1e-12 to 1e12"),
        ("rope.scaling.factor", "a positive number, 1e-12 to 1e12"),
        ("rope.scale_linear", "a positive number, 1e-12 to 1e12"),
        ("rope.freq_base", "1 to 1e12"),
    ] {
        for bad in [-1.0, 1e-40, 1e30, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let expected = format!("{name} is {}: expected {range}", shown(bad));
            assert_eq!(message(name, Value::F32(bad)), expected);
        }
    }
    let huge = message("rope.freq_base", Value::F64(1e300));
    assert_eq!(huge, "rope.freq_base is inf: expected 1 to 1e12");
    // Without any effect a number may be 0, as llama.cpp has it; others may not.
    for name in ["attn_logit_softcapping", "rope.scaling.factor", "attention.scale"] {
        let file = gguf("llama").set(&format!("llama.{name}"), Value::F32(0.0));
        read_gguf(&file).unwrap();
    }
    for name in ["rope.freq_base", "attention.layer_norm_rms_epsilon"] {
        let message = message(name, Value::F32(0.0));
        assert!(message.starts_with(&format!("{name} is 0: expected ")), "{message}");
    }
    let swa = "gemma3.rope.freq_base_swa";
    let error = read_gguf(&gguf("gemma3").with(swa, Value::F32(0.0))).unwrap_err();
    assert_eq!(error, format!("key {swa} is 0: expected 1 to 1e12"));
    let tokens = "tokenizer.ggml.tokens";
    let none = Value::Array(Array::Strings(Strings::default()));
    for (value, problem) in [
        (none, "an array of 0: expected 1 to 16777216 tokens"),
        (Value::Array(Array::U32(vec![7])), "an array of 1 uint32, expected an array of string"),
        (Value::U32(3), "the uint32 3, expected an array of string"),
    ] {
        let error = read_gguf(&gguf("llama").set(tokens, value)).unwrap_err();
        assert_eq!(error, format!("key {tokens} is {problem}"));
    }
    for key in ["bos_token_id", "eos_token_id", "eot_token_id"] {
        let key = format!("tokenizer.ggml.{key}");
        let message = read_gguf(&gguf("llama").with(&key, Value::U32(100))).unwrap_err();
        assert_eq!(message, format!("key {key} is 100: the vocabulary has 100 tokens"));
    }
}

#[test]
fn gguf_rope_scaling() {
    let scaling = |kind: &str, more: &[(&str, Value)]| {
        let mut file = gguf("qwen2")
            .with("qwen2.rope.scaling.type", text(kind))
            .with("qwen2.rope.scaling.factor", Value::F32(4.0));
        for (name, value) in more {
            file = file.with(&format!("qwen2.rope.scaling.{name}"), value.clone());
        }
        read_gguf(&file).map(|meta| (meta.rope.scaling, meta.context_len))
    };
    assert_eq!(scaling("none", &[]), Ok((RopeScaling::None, 4096)));
    assert_eq!(scaling("linear", &[]), Ok((RopeScaling::Linear { factor: 4.0 }, 4096)));
    let original = ("original_context_length", Value::U32(2048));
    let yarn = RopeScaling::Yarn {
        factor: 4.0,
        original_context_len: 2048,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: 0.1 * 4_f32.ln() + 1.0,
    };
    assert_eq!(scaling("yarn", std::slice::from_ref(&original)), Ok((yarn, 8192)));
    let error = scaling("yarn", &[original, ("yarn_ext_factor", Value::F32(0.5))]).unwrap_err();
    assert_eq!(error, "key qwen2.rope.scaling.yarn_ext_factor is 0.5: only 1 is supported");
}

#[test]
fn gguf_divisors_are_the_tensor_of_llama_3() {
    let tensor = |values: &[f32]| {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        gguf("llama").with_tensor("rope_freqs.weight", DType::F32, &[values.len()], &bytes)
    };
    let mut divisors = vec![1.0; 16];
    divisors[15] = 32.0;
    assert_eq!(read_gguf(&tensor(&divisors)).unwrap().rope.divisors, Some(divisors.clone()));
    let place = "tensor rope_freqs.weight";
    assert_eq!(
        read_gguf(&tensor(&divisors[..8])).unwrap_err(),
        format!("{place} is F32 [8], expected F32 [16]: the file is corrupt")
    );
    for bad in [0.0, f32::NAN, -1.0, f32::INFINITY, 1e30] {
        divisors[3] = bad;
        let message = read_gguf(&tensor(&divisors)).unwrap_err();
        assert_eq!(message, format!("{place} has the value {bad}: the file is corrupt"));
    }
}

#[test]
fn gguf_gemma_fills_in_what_its_files_do_not_say() {
    let file = gguf("gemma3")
        .set("gemma3.attention.key_length", Value::U32(64))
        .with("gemma3.attention.sliding_window", Value::U32(512))
        .with("gemma3.rope.scaling.type", text("linear"))
        .with("gemma3.rope.scaling.factor", Value::F32(8.0));
    let meta = read_gguf(&file).unwrap();
    let layers: Vec<bool> = (0..12).map(|i| i != 5 && i != 11).collect();
    assert_eq!(meta.sliding_window, Some(SlidingWindow { len: 512, layers }));
    assert_eq!((meta.embedding_scale, meta.attn_scale), (16.0, 0.125));
    assert_eq!((meta.rope.local_base, meta.norm_offset), (Some(10_000.0), 0.0));
    assert_eq!(meta.rope.scaling, RopeScaling::Linear { factor: 8.0 });

    let pattern = "gemma3.attention.sliding_window_pattern";
    let window =
        |value| read_gguf(&file.clone().with(pattern, value)).map(|meta| meta.sliding_window);
    let fourth = (0..12).map(|i| i % 4 != 3).collect();
    assert_eq!(window(Value::U32(4)), Ok(Some(SlidingWindow { len: 512, layers: fourth })));
    assert_eq!(window(Value::U32(1)), Ok(None));
    let mut layers = vec![false; 12];
    layers[7] = true;
    let array = Value::Array(Array::Bool(layers.clone()));
    assert_eq!(window(array), Ok(Some(SlidingWindow { len: 512, layers })));
    assert_eq!(
        window(Value::Array(Array::Bool(vec![true]))).unwrap_err(),
        format!("key {pattern} is an array of 1 bool, expected one bool a layer")
    );
    let base = file.clone().with("gemma3.rope.freq_base_swa", Value::F32(5000.0));
    assert_eq!(read_gguf(&base).unwrap().rope.local_base, Some(5000.0));

    // The 27B model, by its number of layers: 5376 / 32 = 168 and not the head size 128.
    let large = gguf("gemma3")
        .set("gemma3.block_count", Value::U32(62))
        .set("gemma3.embedding_length", Value::U32(5376))
        .set("gemma3.attention.head_count", Value::U32(32))
        .set("gemma3.attention.head_count_kv", Value::U32(16))
        .set("gemma3.attention.key_length", Value::U32(128));
    assert_eq!(read_gguf(&large).unwrap().attn_scale, 1.0 / 168_f32.sqrt());
}

#[test]
fn gguf_sampling_and_ids() {
    let file = gguf("qwen2")
        .with("tokenizer.ggml.bos_token_id", Value::U32(1))
        .with("tokenizer.ggml.eos_token_id", Value::U32(9))
        .with("tokenizer.ggml.eot_token_id", Value::U32(5))
        .with("tokenizer.ggml.eom_token_id", Value::U32(9))
        .with("general.sampling.temp", Value::F32(0.7))
        .with("general.sampling.top_k", Value::I32(-1))
        .with("general.sampling.top_p", Value::F32(0.8))
        .with("general.sampling.penalty_repeat", Value::F32(1.1));
    let meta = read_gguf(&file).unwrap();
    assert_eq!((meta.bos_id, meta.eos_ids), (Some(1), vec![5, 9]));
    let expected = SamplingDefaults {
        temperature: Some(0.7),
        top_k: Some(0),
        top_p: Some(0.8),
        min_p: None,
        repetition_penalty: Some(1.1),
    };
    assert_eq!(meta.sampling, expected);
    for (key, bad, expected) in [
        ("temp", -1.0, "is -1: expected 0 to 100"),
        ("temp", f32::NAN, "is NaN: expected 0 to 100"),
        ("top_p", 0.0, "is 0: expected over 0 and up to 1"),
        ("top_p", 1.5, "is 1.5: expected over 0 and up to 1"),
        ("penalty_repeat", 0.0, "is 0: expected over 0 and up to 100"),
    ] {
        let key = format!("general.sampling.{key}");
        let message = read_gguf(&gguf("qwen2").with(&key, Value::F32(bad))).unwrap_err();
        assert_eq!(message, format!("key {key} {expected}"));
    }
}

/// A directory named `model` with these configurations and one tensor.
fn read_config(
    config: &serde_json::Value,
    generation: Option<&serde_json::Value>,
) -> Result<ModelMeta, String> {
    let folder = TempDir::new().unwrap();
    let dir = folder.path().join("model");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
    if let Some(generation) = generation {
        fs::write(dir.join("generation_config.json"), generation.to_string()).unwrap();
    }
    let tensor = TensorView::new(Dtype::F32, vec![1], &[0; 4]).unwrap();
    let path = dir.join("model.safetensors");
    safetensors::serialize_to_file([("t", tensor)], None, &path).unwrap();
    let meta = ModelMeta::read(&ModelFile::open(&dir).unwrap());
    meta.map_err(|error| error.to_string().replace(&format!("{}/", dir.display()), ""))
}

/// As published with Llama 3.2 1B Instruct.
fn llama_3_2() -> serde_json::Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "attention_bias": false, "mlp_bias": false, "pretraining_tp": 1,
        "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009],
        "head_dim": 64, "hidden_size": 2048, "intermediate_size": 8192,
        "max_position_embeddings": 131072, "num_attention_heads": 32, "num_hidden_layers": 16,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3"
        },
        "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_cache": true,
        "vocab_size": 128256
    })
}

/// As published with Gemma 3 270M.
fn gemma_3_270m() -> serde_json::Value {
    json!({
        "_sliding_window_pattern": 6, "architectures": ["Gemma3ForCausalLM"],
        "attention_bias": false, "attention_dropout": 0.0, "attn_logit_softcapping": null,
        "bos_token_id": 2, "eos_token_id": 1, "final_logit_softcapping": null, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 640, "intermediate_size": 2048,
        "layer_types": (0..18).map(|i| if i % 6 == 5 { "full_attention" } else { "sliding_attention" })
            .collect::<Vec<_>>(),
        "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4,
        "num_hidden_layers": 18, "num_key_value_heads": 1, "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-6, "rope_local_base_freq": 10000.0, "rope_scaling": null,
        "rope_theta": 1000000.0, "sliding_window": 512, "use_bidirectional_attention": false,
        "vocab_size": 262144
    })
}

/// As published with Qwen2.5-Coder 0.5B Instruct.
fn qwen_2_5() -> serde_json::Value {
    json!({
        "architectures": ["Qwen2ForCausalLM"], "bos_token_id": 151643, "eos_token_id": 151645,
        "hidden_act": "silu", "hidden_size": 896, "intermediate_size": 4864,
        "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2",
        "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "sliding_window": 32768,
        "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151936
    })
}

#[test]
fn llama_config() {
    let generation = json!({
        "bos_token_id": 128000, "do_sample": true, "eos_token_id": [128001, 128008, 128009],
        "temperature": 0.6, "top_p": 0.9
    });
    let meta = read_config(&llama_3_2(), Some(&generation)).unwrap();
    assert_eq!((meta.architecture.as_str(), meta.name.as_deref()), ("llama", Some("model")));
    assert_eq!([meta.n_layers, meta.d_model, meta.n_heads, meta.n_kv_heads], [16, 2048, 32, 8]);
    assert_eq!([meta.head_size, meta.ffn_len, meta.vocab_len], [64, 8192, 128_256]);
    assert_eq!((meta.context_len, meta.rms_eps), (131_072, 1e-5));
    assert_eq!((meta.rope.base, meta.rope.dim), (500_000.0, 64));
    assert_eq!((meta.rope.style, meta.rope.local_base), (RopeStyle::Neox, None));
    let scaling = RopeScaling::Llama3 {
        factor: 32.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context_len: 8192,
    };
    assert_eq!(meta.rope.scaling, scaling);
    assert_eq!((meta.bos_id, meta.eos_ids), (Some(128_000), vec![128_001, 128_008, 128_009]));
    assert!(meta.tie_word_embeddings && meta.sliding_window.is_none());
    assert_eq!((meta.sampling.temperature, meta.sampling.top_p), (Some(0.6), Some(0.9)));
    assert_eq!((meta.embedding_scale, meta.attn_scale, meta.norm_offset), (1.0, 0.125, 0.0));

    // transformers 5 writes the base among the parameters.
    let mut config = llama_3_2();
    let mut parameters = config["rope_scaling"].take();
    parameters["rope_theta"] = json!(500000.0);
    config["rope_parameters"] = parameters;
    config.as_object_mut().unwrap().remove("rope_theta");
    let newer = read_config(&config, None).unwrap();
    assert_eq!((newer.rope.base, newer.rope.scaling), (500_000.0, scaling));
}

#[test]
fn mistral_config() {
    let mut config = json!({
        "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
        "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
        "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": false,
        "vocab_size": 32000
    });
    let meta = read_config(&config, None).unwrap();
    let window = SlidingWindow { len: 4096, layers: vec![true; 32] };
    assert_eq!((meta.architecture.as_str(), &meta.sliding_window), ("llama", &Some(window)));
    assert_eq!((meta.head_size, meta.tie_word_embeddings), (128, false));
    config["sliding_window"] = json!(null); // From version 0.2 on.
    assert_eq!(read_config(&config, None).unwrap().sliding_window, None);
}

/// The configuration says what the converted file of the same model says.
#[test]
fn configs_agree_with_gguf_files() {
    let generation = json!({
        "pad_token_id": 151643, "do_sample": true, "eos_token_id": [151645, 151643],
        "repetition_penalty": 1.1, "temperature": 0.7, "top_p": 0.8, "top_k": 20
    });
    let qwen = read_config(&qwen_2_5(), Some(&generation)).unwrap();
    let sampling = SamplingDefaults {
        temperature: Some(0.7),
        top_k: Some(20),
        top_p: Some(0.8),
        min_p: None,
        repetition_penalty: Some(1.1),
    };
    assert_eq!((qwen.sampling, &qwen.eos_ids[..]), (sampling, &[151_643, 151_645][..]));
    assert_eq!(qwen.sliding_window, None);
    if let Some(path) = common::cached("qwen2.5-coder-0.5b") {
        let file = ModelMeta::read(&ModelFile::open(&path).unwrap()).unwrap();
        let expected = ModelMeta {
            name: file.name.clone(),
            // This file brings a copy of the embedding, has one end token and no sampling.
            tie_word_embeddings: false,
            eos_ids: vec![151_645],
            sampling: SamplingDefaults::default(),
            ..qwen
        };
        assert_eq!(file, expected);
    }

    let gemma = read_config(&gemma_3_270m(), None).unwrap();
    assert_eq!((gemma.norm_offset, gemma.rope.local_base), (1.0, Some(10_000.0)));
    if let Some(path) = common::cached("gemma3-270m") {
        let file = ModelMeta::read(&ModelFile::open(&path).unwrap()).unwrap();
        assert_eq!(file, ModelMeta { name: file.name.clone(), norm_offset: 0.0, ..gemma });
    }
}

#[test]
fn gemma_config() {
    // Before layer_types, and with the scaling of the larger models.
    let mut config = gemma_3_270m();
    let object = config.as_object_mut().unwrap();
    object.remove("layer_types");
    object.remove("_sliding_window_pattern");
    object.insert("sliding_window_pattern".to_owned(), json!(3));
    object.insert("query_pre_attn_scalar".to_owned(), json!(168));
    object.insert("rope_scaling".to_owned(), json!({"factor": 8.0, "rope_type": "linear"}));
    let meta = read_config(&config, None).unwrap();
    let layers = (0..18).map(|i| i % 3 != 2).collect();
    assert_eq!(meta.sliding_window, Some(SlidingWindow { len: 512, layers }));
    assert_eq!(meta.attn_scale, 1.0 / 168_f32.sqrt());
    assert_eq!(meta.rope.scaling, RopeScaling::Linear { factor: 8.0 });
    assert_eq!(meta.context_len, 32768);

    // transformers 5.
    let mut config = gemma_3_270m();
    let object = config.as_object_mut().unwrap();
    object.remove("rope_theta");
    object.remove("rope_local_base_freq");
    object.insert(
        "rope_parameters".to_owned(),
        json!({
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 20000.0}
        }),
    );
    let rope = read_config(&config, None).unwrap().rope;
    assert_eq!((rope.base, rope.local_base), (2_000_000.0, Some(20_000.0)));
    assert_eq!(rope.scaling, RopeScaling::Linear { factor: 8.0 });
}

#[test]
fn qwen3_config() {
    let config = json!({
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "bos_token_id": 151643,
        "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
        "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
        "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-6, "rope_scaling": null,
        "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true,
        "use_sliding_window": false, "vocab_size": 151936
    });
    let meta = read_config(&config, None).unwrap();
    assert_eq!((meta.architecture.as_str(), meta.head_size, meta.n_heads), ("qwen3", 128, 16));
    assert_eq!((meta.sliding_window, meta.context_len), (None, 40960));
}

#[test]
fn qwen_window_and_yarn() {
    let mut config = qwen_2_5();
    config["use_sliding_window"] = json!(true);
    config["max_window_layers"] = json!(20);
    config["rope_scaling"] =
        json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768});
    let meta = read_config(&config, None).unwrap();
    let layers = (0..24).map(|i| i >= 20).collect();
    assert_eq!(meta.sliding_window, Some(SlidingWindow { len: 32768, layers }));
    assert_eq!(meta.context_len, 131_072);
    let yarn = RopeScaling::Yarn {
        factor: 4.0,
        original_context_len: 32768,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: 0.1 * 4_f32.ln() + 1.0,
    };
    assert_eq!(meta.rope.scaling, yarn);
}

#[test]
fn configs_are_checked() {
    let cases = [
        ("hidden_size", json!(0), "key hidden_size is 0: expected 1 to 1048576"),
        ("hidden_size", json!(null), "key hidden_size is missing"),
        (
            "hidden_size",
            json!("big"),
            "key hidden_size is \"big\", expected a non-negative integer",
        ),
        (
            "hidden_size",
            json!(2048.5),
            "key hidden_size is 2048.5, expected a non-negative integer",
        ),
        ("num_hidden_layers", json!(1001), "key num_hidden_layers is 1001: expected 1 to 1000"),
        (
            "num_attention_heads",
            json!(30),
            "key num_key_value_heads is 8: does not divide 30 heads",
        ),
        ("head_dim", json!(63), "key head_dim is 63: a head size must be even"),
        ("vocab_size", json!(-1), "key vocab_size is -1, expected a non-negative integer"),
        ("hidden_act", json!("relu"), "key hidden_act is relu: supported is silu"),
        (
            "rms_norm_eps",
            json!(0),
            "key rms_norm_eps is 0: expected a positive number, 1e-12 to 1e12",
        ),
        (
            "eos_token_id",
            json!([1, "x"]),
            "key eos_token_id is \"x\", expected a non-negative integer",
        ),
        (
            "eos_token_id",
            json!(128256),
            "key eos_token_id is 128256: the vocabulary has 128256 tokens",
        ),
        (
            "rope_scaling",
            json!({"rope_type": "dynamic"}),
            "key rope_type is dynamic: supported are default, linear, llama3 and yarn",
        ),
        ("rope_scaling", json!({"rope_type": "linear"}), "key factor is missing"),
        ("rope_scaling", json!([]), "key rope_scaling is [], expected an object"),
        ("tie_word_embeddings", json!(1), "key tie_word_embeddings is 1, expected a bool"),
        (
            "architectures",
            json!(["Qwen9"]),
            "key architectures is Qwen9: this architecture is not known; known are llama, qwen2, qwen3, gemma3",
        ),
        ("architectures", json!([]), ""),
        (
            "partial_rotary_factor",
            json!(1e30),
            "key partial_rotary_factor is 1e30: expected over 0 and up to 1",
        ),
        ("rope_theta", json!(0), "key rope_theta is 0: expected 1 to 1e12"),
        ("rope_theta", json!(-1), "key rope_theta is -1: expected 1 to 1e12"),
        ("rope_theta", json!(1e300), "key rope_theta is inf: expected 1 to 1e12"),
        (
            "rope_scaling",
            json!({"rope_type": "linear", "factor": 1e-40}),
            "key factor is 1e-40: expected a positive number, 1e-12 to 1e12",
        ),
    ];
    for (key, value, expected) in cases {
        let mut config = llama_3_2();
        config[key] = value;
        let message = read_config(&config, None).err().unwrap_or_default();
        let expected =
            format!("{}{expected}", if expected.is_empty() { "" } else { "config.json: " });
        assert_eq!(message, expected);
    }
    let mut config = gemma_3_270m();
    config["layer_types"][3] = json!("linear_attention");
    assert_eq!(
        read_config(&config, None).unwrap_err(),
        "config.json: key layer_types is \"linear_attention\": \
         expected full_attention or sliding_attention for each layer"
    );
    let generation = json!({"temperature": -1});
    assert_eq!(
        read_config(&llama_3_2(), Some(&generation)).unwrap_err(),
        "generation_config.json: key temperature is -1: expected 0 to 100"
    );
    let multimodal = json!({"architectures": ["Gemma3ForConditionalGeneration"]});
    assert!(read_config(&multimodal, None).unwrap_err().contains("is not known"));
    assert!(read_config(&json!({}), None).unwrap_err().contains("key model_type is missing"));
}
