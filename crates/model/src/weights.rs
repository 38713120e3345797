//! [`Weights`]: the tensors of a file under canonical names, each taken exactly once.
//!
//! The canonical names are GGUF's (`blk.0.attn_q.weight`); those of Hugging Face are translated.
//! What nobody took is an error: a tensor that the architecture ignores would mean wrong answers.

use crate::file::{ModelFile, TensorView};
use crate::meta::ModelMeta;
use paceline_kernels::{Cpu, DType, Packer, QMat, quant};
use std::collections::BTreeMap;

/// Tensors still to be taken.
pub(crate) struct Weights<'f> {
    tensors: BTreeMap<String, TensorView<'f>>,
    packer: Packer<'f>,
}

/// In which numbers the model computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Precision {
    /// Weights in the file's own bits, activations in int8 where the weights are integers.
    #[default]
    Native,
    /// Everything but the KV cache in f32: slow and large, the yardstick of the others.
    Float,
}

/// The file's tensors are not those of its architecture.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// The architecture needs a tensor that the file lacks.
    #[error("tensor '{0}' is missing: the file is incomplete, fetch it again")]
    Missing(String),
    /// A tensor has another shape than the metadata imply.
    #[error("tensor '{name}' has shape {found:?} where the metadata imply {expected:?}")]
    Shape {
        /// Name in the file.
        name: String,
        /// Shape in the file.
        found: Vec<usize>,
        /// Shape by the metadata.
        expected: Vec<usize>,
    },
    /// A tensor cannot be packed.
    #[error("tensor '{name}': {reason}")]
    Tensor {
        /// Name in the file.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The architecture knows nothing of a tensor.
    #[error("tensor '{0}' is unknown to the architecture, so the answers would be wrong")]
    Leftover(String),
    /// Two tensors of the file have the same canonical name.
    #[error("tensor '{0}' is there twice")]
    Duplicate(String),
}

impl<'f> Weights<'f> {
    /// All tensors of a file but those that the metadata already hold.
    pub(crate) fn new(
        file: &'f ModelFile,
        meta: &ModelMeta,
        cpu: &'f Cpu,
        precision: Precision,
    ) -> Result<Weights<'f>, WeightsError> {
        let mut tensors = BTreeMap::new();
        for tensor in file.tensors() {
            let name = match file {
                ModelFile::Gguf(_) => Some(tensor.name.to_owned()),
                ModelFile::Safetensors(_) => gguf_name(tensor.name, meta.tensors.post_norm),
            };
            let name = name.unwrap_or_else(|| tensor.name.to_owned());
            let repeated = name == "output.weight" && meta.tie_word_embeddings;
            if repeated || name == "rope_freqs.weight" || name.ends_with("rotary_emb.inv_freq") {
                continue;
            }
            if tensors.insert(name.clone(), tensor).is_some() {
                return Err(WeightsError::Duplicate(name));
            }
        }
        Ok(Weights { tensors, packer: Packer::new(Some(cpu)).float(precision == Precision::Float) })
    }

    /// The weight `[n_out, n_in]`, packed.
    pub(crate) fn matrix(
        &mut self,
        name: &str,
        n_out: usize,
        n_in: usize,
    ) -> Result<QMat, WeightsError> {
        let tensor = self.take(name, &[n_out, n_in])?;
        let packed = self.packer.pack(tensor.dtype, n_out, n_in, tensor.bytes);
        let packed = packed.map_err(|error| reason(&tensor, error))?;
        tensor.release();
        Ok(packed)
    }

    /// A vector, in f32.
    pub(crate) fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>, WeightsError> {
        let tensor = self.take(name, &[len])?;
        if !matches!(tensor.dtype, DType::F32 | DType::F16 | DType::BF16) {
            return Err(reason(
                &tensor,
                format!("a vector of type {} is not supported", tensor.dtype),
            ));
        }
        let mut values = vec![0.0; len];
        quant::decode(tensor.dtype, tensor.bytes, &mut values)
            .map_err(|error| reason(&tensor, error))?;
        match values.iter().all(|value| value.is_finite()) {
            true => Ok(values),
            false => Err(reason(&tensor, "holds a value that is not finite: the file is damaged")),
        }
    }

    /// The weight of a norm: a vector plus `offset`.
    pub(crate) fn norm(
        &mut self,
        name: &str,
        len: usize,
        offset: f32,
    ) -> Result<Vec<f32>, WeightsError> {
        let mut values = self.vector(name, len)?;
        values.iter_mut().for_each(|value| *value += offset);
        Ok(values)
    }

    /// Ends the taking.
    pub(crate) fn finish(self) -> Result<(), WeightsError> {
        match self.tensors.into_values().next() {
            Some(tensor) => Err(WeightsError::Leftover(tensor.name.into())),
            None => Ok(()),
        }
    }

    fn take(&mut self, name: &str, shape: &[usize]) -> Result<TensorView<'f>, WeightsError> {
        let missing = || WeightsError::Missing(name.into());
        let tensor = self.tensors.remove(name).ok_or_else(missing)?;
        match tensor.shape == shape {
            true => Ok(tensor),
            false => Err(WeightsError::Shape {
                name: tensor.name.into(),
                found: tensor.shape.to_vec(),
                expected: shape.to_vec(),
            }),
        }
    }
}

fn reason(tensor: &TensorView<'_>, error: impl ToString) -> WeightsError {
    WeightsError::Tensor { name: tensor.name.into(), reason: error.to_string() }
}

/// GGUF's name of a tensor of a Hugging Face folder.
fn gguf_name(name: &str, post_norms: bool) -> Option<String> {
    let name = name.strip_prefix("model.").unwrap_or(name);
    let top = match name {
        "embed_tokens.weight" => Some("token_embd.weight"),
        "norm.weight" => Some("output_norm.weight"),
        "lm_head.weight" => Some("output.weight"),
        _ => None,
    };
    if let Some(top) = top {
        return Some(top.into());
    }
    let (layer, rest) = name.strip_prefix("layers.")?.split_once('.')?;
    let (module, kind) = rest.rsplit_once('.')?;
    let module = match module {
        "input_layernorm" => "attn_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        // Gemma norms the attention's output before the residual; others mean the next norm by it.
        "post_attention_layernorm" if post_norms => "post_attention_norm",
        "post_attention_layernorm" | "pre_feedforward_layernorm" => "ffn_norm",
        "post_feedforward_layernorm" => "post_ffw_norm",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        _ => return None,
    };
    Some(format!("blk.{layer}.{module}.{kind}"))
}
