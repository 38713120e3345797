//! The catalogue's models, where they are in the cache.

mod common;

use common::cached;
use paceline_kernels::DType;
use paceline_model::file::{GgufFile, ModelFile};
use paceline_model::meta::{
    Activation, LayerTensors, ModelMeta, RopeMeta, RopeScaling, RopeStyle, SamplingDefaults,
    SlidingWindow,
};

#[test]
fn smollm2_has_the_published_shapes() {
    let Some(path) = cached("smollm2-135m") else { return };
    let file = GgufFile::open(&path).unwrap();
    let metadata = file.metadata();
    assert_eq!(metadata.len(), 33);
    assert_eq!(metadata.require_str("general.architecture"), Ok("llama"));
    assert_eq!(metadata.require_strings("tokenizer.ggml.tokens").unwrap().len(), 49152);
    assert_eq!(metadata.require_i32s("tokenizer.ggml.token_type").unwrap().len(), 49152);
    assert_eq!(file.tensors().len(), 272);
    let embedding = file.tensor("token_embd.weight").unwrap();
    assert_eq!(embedding.shape, [49152, 576]);
    assert_eq!(embedding.dtype, DType::Q8_0);
    assert_eq!(embedding.bytes.len(), 30_081_024);
    let down = file.tensor("blk.0.ffn_down.weight").unwrap();
    assert_eq!((down.shape, down.dtype), (&[576, 1536][..], DType::Q4_1));
    assert!(ModelFile::open(&path).unwrap().tensor("output_norm.weight").is_some());
}

#[test]
fn smollm2_meta() {
    let Some(path) = cached("smollm2-135m") else { return };
    let meta = ModelMeta::read(&ModelFile::open(&path).unwrap()).unwrap();
    assert_eq!(
        meta,
        ModelMeta {
            architecture: "llama".to_owned(),
            name: Some("Smollm2 135M 8k Lc100K Mix1 Ep2".to_owned()),
            n_layers: 30,
            d_model: 576,
            n_heads: 9,
            n_kv_heads: 3,
            head_size: 64,
            ffn_len: 1536,
            vocab_len: 49152,
            context_len: 8192,
            rms_eps: 1e-5,
            activation: Activation::Silu,
            tensors: LayerTensors { qkv_bias: false, qk_norm: false, post_norm: false },
            norm_offset: 0.0,
            embedding_scale: 1.0,
            attn_scale: 0.125,
            attn_softcap: None,
            logit_softcap: None,
            rope: RopeMeta {
                base: 100_000.0,
                local_base: None,
                dim: 64,
                style: RopeStyle::Norm,
                scaling: RopeScaling::None,
                divisors: None,
            },
            sliding_window: None,
            tie_word_embeddings: true,
            bos_id: Some(1),
            eos_ids: vec![2],
            sampling: SamplingDefaults::default(),
        }
    );
}

#[test]
fn gemma3_meta() {
    let Some(path) = cached("gemma3-270m") else { return };
    let meta = ModelMeta::read(&ModelFile::open(&path).unwrap()).unwrap();
    let full = [5, 11, 17];
    let window = SlidingWindow { len: 512, layers: (0..18).map(|i| !full.contains(&i)).collect() };
    assert_eq!(
        meta,
        ModelMeta {
            architecture: "gemma3".to_owned(),
            name: Some("Gemma 3 270m".to_owned()),
            n_layers: 18,
            d_model: 640,
            n_heads: 4,
            n_kv_heads: 1,
            head_size: 256,
            ffn_len: 2048,
            vocab_len: 262_144,
            context_len: 32768,
            rms_eps: 1e-6,
            activation: Activation::GeluTanh,
            tensors: LayerTensors { qkv_bias: false, qk_norm: true, post_norm: true },
            norm_offset: 0.0,
            embedding_scale: 640_f32.sqrt(),
            attn_scale: 0.0625,
            attn_softcap: None,
            logit_softcap: None,
            rope: RopeMeta {
                base: 1_000_000.0,
                local_base: Some(10_000.0),
                dim: 256,
                style: RopeStyle::Neox,
                scaling: RopeScaling::None,
                divisors: None,
            },
            sliding_window: Some(window),
            tie_word_embeddings: true,
            bos_id: Some(2),
            eos_ids: vec![1],
            sampling: SamplingDefaults::default(),
        }
    );
}

#[test]
fn qwen2_meta() {
    let names = ["qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"];
    // L, D, H, F of each.
    let sizes = [[24, 896, 14, 4864], [28, 1536, 12, 8960]];
    for (name, sizes) in names.into_iter().zip(sizes) {
        let Some(path) = cached(name) else { continue };
        let meta = ModelMeta::read(&ModelFile::open(&path).unwrap()).unwrap();
        assert_eq!([meta.n_layers, meta.d_model, meta.n_heads, meta.ffn_len], sizes);
        assert_eq!((meta.architecture.as_str(), meta.n_kv_heads), ("qwen2", 2));
        assert_eq!(meta.head_size, meta.d_model / meta.n_heads);
        assert_eq!((meta.vocab_len, meta.context_len), (151_936, 32768));
        assert_eq!((meta.rms_eps, meta.rope.base), (1e-6, 1_000_000.0));
        assert_eq!((meta.rope.style, meta.rope.dim), (RopeStyle::Neox, meta.head_size));
        assert!(!meta.tie_word_embeddings && meta.sliding_window.is_none());
        assert_eq!((meta.bos_id, meta.eos_ids), (Some(151_643), vec![151_645]));
    }
}

/// Every tensor is where PyPI `gguf` finds it, with the same bytes.
#[test]
fn smollm2_tensors_are_those_of_the_reference() {
    let Some(path) = cached("smollm2-135m") else { return };
    let file = GgufFile::open(&path).unwrap();
    let mut rows = include_str!("data/smollm2-135m.tsv").lines();
    for info in file.tensors() {
        let dims: Vec<_> = info.shape.iter().rev().map(usize::to_string).collect();
        let bytes = file.tensor_bytes(&info.name).unwrap();
        let found = format!(
            "{}\t{}\t{}\t{}\t{}\t{}",
            info.name,
            info.dtype,
            dims.join(","),
            info.range.start,
            bytes.len(),
            adler32(bytes)
        );
        assert_eq!(rows.next(), Some(&found[..]));
    }
    assert_eq!(rows.next(), None);
}

fn adler32(bytes: &[u8]) -> u32 {
    let (mut a, mut b) = (1_u32, 0_u32);
    // 5552 bytes are the most before b could overflow.
    for chunk in bytes.chunks(5552) {
        for &byte in chunk {
            a += u32::from(byte);
            b += a;
        }
        (a, b) = (a % 65521, b % 65521);
    }
    b << 16 | a
}

#[test]
fn tensor_types_are_counted() {
    use DType::*;
    let expected: [(&str, &[(DType, usize)]); 4] = [
        ("smollm2-135m", &[(F32, 61), (Q4_1, 210), (Q8_0, 1)]),
        ("gemma3-270m", &[(F32, 109), (Q5_0, 81), (Q8_0, 10), (Q4_K, 27), (Q6_K, 9)]),
        ("qwen2.5-coder-0.5b", &[(F32, 121), (Q5_0, 133), (Q8_0, 13), (Q4_K, 12), (Q6_K, 12)]),
        ("qwen2.5-coder-1.5b", &[(F32, 141), (Q4_K, 169), (Q6_K, 29)]),
    ];
    for (name, expected) in expected {
        let Some(path) = cached(name) else { continue };
        let file = ModelFile::open(&path).unwrap();
        let found: Vec<_> =
            file.totals().iter().map(|(&dtype, total)| (dtype, total.n_tensors)).collect();
        assert_eq!(found, expected);
        // The data fills the file to its end.
        let ModelFile::Gguf(gguf) = &file else { panic!() };
        let end = gguf.tensors().iter().map(|tensor| tensor.range.end).max().unwrap() as u64;
        let file_len = std::fs::metadata(&path).unwrap().len();
        assert_eq!(end.next_multiple_of(32), file_len);
    }
}
