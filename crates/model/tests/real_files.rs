//! The catalogue's models, where they are in the cache.

mod common;

use common::cached;
use paceline_kernels::DType;
use paceline_model::file::{GgufFile, ModelFile};

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
