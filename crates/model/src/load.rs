//! [`load`]: a path becomes a model that computes, its tokenizer and its chat template.

use crate::chat::{ChatError, ChatTemplate};
use crate::decoder::{Decoder, DecoderWeights};
use crate::file::{FileError, ModelFile};
use crate::meta::ModelMeta;
use crate::tokenizer::{Tokenizer, TokenizerError};
use crate::weights::{Precision, Weights, WeightsError};
use paceline_kernels::team::available_cores;
use paceline_kernels::{Cpu, Isa, KvError, KvType};
use std::path::{Path, PathBuf};

/// How a model is loaded.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The instruction set; one that this machine can run.
    pub isa: Isa,
    /// Threads that compute, at least 1.
    pub n_threads: usize,
    /// In which numbers.
    pub precision: Precision,
    /// B: tokens in a block of the KV cache.
    pub block_len: usize,
    /// How K is kept.
    pub k_type: KvType,
    /// How V is kept.
    pub v_type: KvType,
}

impl Default for LoadOptions {
    /// The best instruction set on every core, in the file's own bits, with an I16 cache.
    fn default() -> LoadOptions {
        LoadOptions {
            isa: Isa::best(),
            n_threads: available_cores(),
            precision: Precision::Native,
            block_len: 16,
            k_type: KvType::I16,
            v_type: KvType::I16,
        }
    }
}

/// A model in memory, ready to compute.
pub struct Loaded {
    /// The model.
    pub model: Decoder,
    /// Its fixed numbers and facts.
    pub meta: ModelMeta,
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// How a conversation becomes text; base models have none.
    pub chat_template: Option<ChatTemplate>,
}

/// A model cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// Its tensors are not those of its architecture.
    #[error("{path}: {error}")]
    Weights {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: WeightsError,
    },
    /// Its tokenizer cannot be used.
    #[error("{path}: {error}")]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: TokenizerError,
    },
    /// Its chat template cannot be used.
    #[error("{path}: {error}")]
    Chat {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: ChatError,
    },
    /// Its KV cache cannot be as asked for.
    #[error("{path}: {error}")]
    Kv {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: KvError,
    },
}

/// Loads a GGUF file or a folder as Hugging Face ships them.
///
/// # Errors
/// If the file is damaged or of an unknown architecture, or the options do not suit the model.
///
/// # Panics
/// If this machine cannot run the instruction set, or the number of threads is 0.
pub fn load(path: &Path, options: &LoadOptions) -> Result<Loaded, LoadError> {
    let file = ModelFile::open(path)?;
    let meta = ModelMeta::read(&file)?;
    let kv_layout = meta.kv_layout(options.block_len, options.k_type, options.v_type);
    let kv_block_bytes =
        kv_layout.block_bytes().map_err(|error| LoadError::Kv { path: path.into(), error })?;
    let cpu = Cpu::new(options.isa, options.n_threads);
    // The vocabulary is read beside the weights: together they are the time until the first token.
    let (weights, text) = std::thread::scope(|scope| {
        let text = scope.spawn(|| load_text(&file));
        let weights = Weights::new(&file, &meta, &cpu, options.precision)
            .and_then(|weights| DecoderWeights::take(&meta, weights));
        (weights, text.join().expect("reading a tokenizer does not panic"))
    });
    let weights = weights.map_err(|error| LoadError::Weights { path: path.into(), error })?;
    let (tokenizer, chat_template) = text?;
    let model = Decoder::new(meta.clone(), weights, cpu, kv_layout, kv_block_bytes);
    Ok(Loaded { model, meta, tokenizer, chat_template })
}

/// Reads the tokenizer and the chat template of a file, without its weights.
///
/// # Errors
/// If one of them is damaged or not supported.
pub fn load_text(file: &ModelFile) -> Result<(Tokenizer, Option<ChatTemplate>), LoadError> {
    let path = file.path();
    let tokenizer = match file {
        ModelFile::Gguf(file) => Tokenizer::from_gguf(file.metadata()),
        ModelFile::Safetensors(_) => Tokenizer::from_directory(path),
    };
    let tokenizer = tokenizer.map_err(|error| LoadError::Tokenizer { path: path.into(), error })?;
    let chat_template = match file {
        ModelFile::Gguf(file) => ChatTemplate::from_gguf(file.metadata(), &tokenizer),
        ModelFile::Safetensors(_) => ChatTemplate::from_directory(path, &tokenizer),
    };
    let chat_template =
        chat_template.map_err(|error| LoadError::Chat { path: path.into(), error })?;
    Ok((tokenizer, chat_template))
}
