//! The same small random weights as a GGUF file and as a Hugging Face folder are the same model, for
//! every architecture: names, the order of Q and K rows, Gemma's norms, the rotary embeddings.

mod common;

use common::gguf::Gguf;
use paceline_kernels::{DType, Isa, KvType, NUMERICS};
use paceline_model::file::{Array, Strings, Value};
use paceline_model::{Batch, LoadOptions, Mat, Model, load};
use safetensors::tensor::{Dtype, TensorView};
use std::path::Path;

const D: usize = 64;
const H: usize = 4;
const K: usize = 2;
const E: usize = 32;
const F: usize = 96;
const L: usize = 7;
const V: usize = 256;

/// A tensor by both of its names.
struct Tensor {
    gguf: String,
    hf: String,
    shape: Vec<usize>,
    values: Vec<f32>,
}

/// Repeatable values of no pattern.
fn random(name: &str, n: usize, scale: f32, offset: f32) -> Vec<f32> {
    let mut state = name.bytes().fold(0x243F_6A88_85A3_08D3_u64, |state, byte| {
        (state ^ u64::from(byte)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    });
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..n).map(|_| offset + scale * next()).collect()
}

/// The tensors of a family, as Hugging Face orders rows and stores norms.
fn tensors(architecture: &str) -> Vec<Tensor> {
    let gemma = architecture == "gemma3";
    let mut all = Vec::new();
    let mut add = |gguf: &str, hf: &str, shape: &[usize]| {
        let (scale, offset) = match (shape.len(), gguf.contains("norm"), gemma) {
            (2, ..) => (0.4, 0.0),
            (_, true, true) => (0.5, 0.0),
            (_, true, false) => (0.5, 1.0),
            _ => (0.5, 0.0),
        };
        let values = random(gguf, shape.iter().product(), scale, offset);
        all.push(Tensor { gguf: gguf.into(), hf: hf.into(), shape: shape.to_vec(), values });
    };
    add("token_embd.weight", "model.embed_tokens.weight", &[V, D]);
    add("output_norm.weight", "model.norm.weight", &[D]);
    if !gemma {
        add("output.weight", "lm_head.weight", &[V, D]);
    }
    for i in 0..L {
        let mut layer = |gguf: &str, hf: &str, shape: &[usize]| {
            add(&format!("blk.{i}.{gguf}"), &format!("model.layers.{i}.{hf}"), shape);
        };
        layer("attn_norm.weight", "input_layernorm.weight", &[D]);
        layer("attn_q.weight", "self_attn.q_proj.weight", &[H * E, D]);
        layer("attn_k.weight", "self_attn.k_proj.weight", &[K * E, D]);
        layer("attn_v.weight", "self_attn.v_proj.weight", &[K * E, D]);
        layer("attn_output.weight", "self_attn.o_proj.weight", &[D, H * E]);
        layer("ffn_gate.weight", "mlp.gate_proj.weight", &[F, D]);
        layer("ffn_up.weight", "mlp.up_proj.weight", &[F, D]);
        layer("ffn_down.weight", "mlp.down_proj.weight", &[D, F]);
        if architecture == "qwen2" {
            layer("attn_q.bias", "self_attn.q_proj.bias", &[H * E]);
            layer("attn_k.bias", "self_attn.k_proj.bias", &[K * E]);
            layer("attn_v.bias", "self_attn.v_proj.bias", &[K * E]);
        }
        if gemma || architecture == "qwen3" {
            layer("attn_q_norm.weight", "self_attn.q_norm.weight", &[E]);
            layer("attn_k_norm.weight", "self_attn.k_norm.weight", &[E]);
        }
        match gemma {
            true => {
                layer("post_attention_norm.weight", "post_attention_layernorm.weight", &[D]);
                layer("ffn_norm.weight", "pre_feedforward_layernorm.weight", &[D]);
                layer("post_ffw_norm.weight", "post_feedforward_layernorm.weight", &[D]);
            }
            false => layer("ffn_norm.weight", "post_attention_layernorm.weight", &[D]),
        }
    }
    all
}

/// The values as a converter writes them to GGUF: `llama` pairs neighbouring rows of Q and K, and
/// Gemma's norms get the 1 that Hugging Face leaves out.
fn converted(architecture: &str, tensor: &Tensor) -> Vec<f32> {
    let values = &tensor.values;
    let is_qk = tensor.gguf.contains("attn_q.") || tensor.gguf.contains("attn_k.");
    if architecture == "llama" && is_qk {
        let row = |r: usize| &values[r * D..(r + 1) * D];
        let order = (0..tensor.shape[0]).map(|r| {
            let (head, i) = (r / E, r % E);
            head * E + i / 2 + (i % 2) * (E / 2)
        });
        return order.flat_map(row).copied().collect();
    }
    let norm = architecture == "gemma3" && tensor.gguf.contains("norm");
    values.iter().map(|value| if norm { value + 1.0 } else { *value }).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// The values as Q8_0, with one scale for all, 2^-9.
fn q8_0(values: &[f32]) -> Vec<u8> {
    let (blocks, rest) = values.as_chunks::<32>();
    assert!(rest.is_empty());
    let code = |value: &f32| (value * 512.0).round() as i8 as u8;
    blocks.iter().flat_map(|block| [0x00, 0x18].into_iter().chain(block.iter().map(code))).collect()
}

/// Writes a model whose matrices are of type `matrices`, F32 or Q8_0.
fn write_gguf(architecture: &str, matrices: DType, path: &Path) {
    let key = |name: &str| format!("{architecture}.{name}");
    let mut words = Strings::default();
    (0..V).for_each(|i| words.push(format!("t{i}").as_bytes()));
    let mut file = Gguf::default()
        .with("general.architecture", Value::String(architecture.into()))
        .with(&key("block_count"), Value::U32(L as u32))
        .with(&key("context_length"), Value::U32(512))
        .with(&key("embedding_length"), Value::U32(D as u32))
        .with(&key("feed_forward_length"), Value::U32(F as u32))
        .with(&key("attention.head_count"), Value::U32(H as u32))
        .with(&key("attention.head_count_kv"), Value::U32(K as u32))
        .with(&key("attention.key_length"), Value::U32(E as u32))
        .with(&key("attention.value_length"), Value::U32(E as u32))
        .with(&key("attention.layer_norm_rms_epsilon"), Value::F32(1e-5))
        .with(&key("rope.freq_base"), Value::F32(50_000.0))
        .with("tokenizer.ggml.model", Value::String("gpt2".into()))
        .with("tokenizer.ggml.pre", Value::String("default".into()))
        .with("tokenizer.ggml.tokens", Value::Array(Array::Strings(words)))
        .with("tokenizer.ggml.merges", Value::Array(Array::Strings(Strings::default())));
    if architecture == "gemma3" {
        file = file.with(&key("attention.sliding_window"), Value::U32(8));
    }
    for tensor in tensors(architecture) {
        let values = converted(architecture, &tensor);
        let (dtype, data) = match (matrices, tensor.shape.len()) {
            (DType::Q8_0, 2) => (DType::Q8_0, q8_0(&values)),
            _ => (DType::F32, bytes(&values)),
        };
        file = file.with_tensor(&tensor.gguf, dtype, &tensor.shape, &data);
    }
    std::fs::write(path, file.bytes()).expect("a temporary file");
}

fn write_folder(architecture: &str, path: &Path) {
    let class = match architecture {
        "llama" => "LlamaForCausalLM",
        "qwen2" => "Qwen2ForCausalLM",
        "qwen3" => "Qwen3ForCausalLM",
        _ => "Gemma3ForCausalLM",
    };
    let config = serde_json::json!({
        "architectures": [class], "hidden_size": D, "intermediate_size": F, "num_hidden_layers": L,
        "num_attention_heads": H, "num_key_value_heads": K, "head_dim": E, "vocab_size": V,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 50_000.0,
        "tie_word_embeddings": architecture == "gemma3", "sliding_window": 8,
        "use_sliding_window": false, "sliding_window_pattern": 6, "rope_local_base_freq": 10_000.0,
        "query_pre_attn_scalar": E,
        "hidden_act": if architecture == "gemma3" { "gelu_pytorch_tanh" } else { "silu" },
        "model_type": if architecture == "gemma3" { "gemma3_text" } else { architecture },
    });
    let mut config = config.as_object().expect("an object").clone();
    if architecture != "gemma3" {
        config.remove("sliding_window");
    }
    let vocab: serde_json::Map<_, _> = (0..V).map(|i| (format!("t{i}"), i.into())).collect();
    let tokenizer = serde_json::json!({
        "version": "1.0", "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
            "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    std::fs::create_dir(path).expect("a temporary folder");
    let write = |name: &str, text: String| std::fs::write(path.join(name), text).expect("a file");
    write("config.json", serde_json::to_string(&config).expect("plain JSON"));
    write("tokenizer.json", tokenizer.to_string());
    let tensors = tensors(architecture);
    let data: Vec<Vec<u8>> = tensors.iter().map(|tensor| bytes(&tensor.values)).collect();
    let views = tensors.iter().zip(&data).map(|(tensor, data)| {
        (&tensor.hf, TensorView::new(Dtype::F32, tensor.shape.clone(), data).expect("a tensor"))
    });
    safetensors::serialize_to_file(views, None, &path.join("model.safetensors")).expect("a file");
}

/// Logits of every row of a text of 20 tokens, longer than Gemma's window here.
fn logits(path: &Path) -> Mat {
    computed(path, &LoadOptions::default()).0
}

/// The same, and K and V of the first 16 tokens.
fn computed(path: &Path, options: &LoadOptions) -> (Mat, Vec<u8>) {
    let mut loaded = load(path, options).unwrap_or_else(|error| panic!("{error}"));
    loaded.model.reserve_kv(2).expect("memory for two blocks");
    let tokens: Vec<u32> = (0..20).map(|i| i * 37 % V as u32).collect();
    let mut batch = Batch::default();
    batch.push(&tokens, 0, &[1, 0]);
    batch.outputs = (0..tokens.len()).collect();
    loaded.model.forward(&batch);
    let mut logits = Mat::zeros(0, V);
    loaded.model.logits(0..tokens.len(), &mut logits);
    let mut block = Vec::new();
    loaded.model.read_block(1, &mut block);
    (logits, block)
}

/// K and V that were computed under one version of the numbers are taken for those of the same version,
/// whenever and wherever: if this fails since a change was meant, raise `NUMERICS` with it.
#[test]
fn the_numbers_are_those_of_their_version() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("model.gguf");
    for isa in Isa::available() {
        let mut hash = 0xCBF2_9CE4_8422_2325_u64;
        for architecture in ["llama", "qwen2", "qwen3", "gemma3"] {
            for (matrices, kv) in [(DType::F32, KvType::I16), (DType::Q8_0, KvType::Q8_0)] {
                write_gguf(architecture, matrices, &path);
                let options = LoadOptions { isa, k_type: kv, v_type: kv, ..LoadOptions::default() };
                let (logits, block) = computed(&path, &options);
                for byte in bytes(logits.as_slice()).into_iter().chain(block) {
                    hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
                }
            }
        }
        assert_eq!((NUMERICS, format!("{hash:016x}")), (1, "c35962a698249fe6".to_owned()), "{isa}");
    }
}

/// A block that is read out and written elsewhere is as good as one that was computed there.
#[test]
fn a_block_can_be_taken_out_and_put_back() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("model.gguf");
    write_gguf("llama", DType::Q8_0, &path);
    let tokens: Vec<u32> = (0..20).map(|i| i * 37 % V as u32).collect();
    let (expected, block) = computed(&path, &LoadOptions::default());
    let mut loaded = load(&path, &LoadOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    let model = &mut loaded.model;
    assert_eq!(block.len(), model.spec().kv_block_bytes);
    model.reserve_kv(4).expect("memory for four blocks");
    model.write_block(3, &block);
    let mut batch = Batch::default();
    batch.push(&tokens[16..], 16, &[3, 0]);
    batch.outputs = (0..4).collect();
    model.forward(&batch);
    let mut logits = Mat::zeros(0, V);
    model.logits(0..4, &mut logits);
    assert_eq!(logits.as_slice(), &expected.as_slice()[16 * V..]);
}

#[test]
fn formats_agree() {
    for architecture in ["llama", "qwen2", "qwen3", "gemma3"] {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (file, folder) = (dir.path().join("model.gguf"), dir.path().join("model"));
        write_gguf(architecture, DType::F32, &file);
        write_folder(architecture, &folder);
        let (a, b) = (logits(&file), logits(&folder));
        let largest = a.as_slice().iter().fold(0.0f32, |max, x| max.max(x.abs()));
        assert!(largest > 0.5, "{architecture}: logits of next to nothing");
        for (x, y) in a.as_slice().iter().zip(b.as_slice()) {
            // Llama's heads are summed in another order of values.
            assert!((x - y).abs() <= 1e-3 * largest, "{architecture}: {x} and {y}");
        }
    }
}

/// A tensor that the architecture does not know would mean wrong answers, so it is an error.
#[test]
fn every_tensor_is_taken_once() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("model.gguf");
    write_gguf("llama", DType::F32, &path);
    let bytes_of = std::fs::read(&path).expect("the file");
    let error = |old: &str, new: &str| {
        let at = bytes_of.windows(old.len()).position(|w| w == old.as_bytes()).expect("the name");
        let mut changed = bytes_of.clone();
        changed[at..at + old.len()].copy_from_slice(new.as_bytes());
        std::fs::write(&path, changed).expect("a temporary file");
        load(&path, &LoadOptions::default()).err().expect("an error").to_string()
    };
    let renamed = error("blk.3.ffn_up.weight", "blk.3.ffn_xp.weight");
    assert!(renamed.contains("'blk.3.ffn_up.weight' is missing"), "{renamed}");
}
