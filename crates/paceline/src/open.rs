//! Opening a model for a command: settings checked, found or fetched, loaded, with progress on the
//! way.

use crate::args::{Compute, Engine};
use crate::progress::{self, Bar};
use crate::usage::{UsageError, of_flag};
use anyhow::Context;
use paceline::cache::Cache;
use paceline::catalogue::{Catalogue, DEFAULT_MODEL};
use paceline::{
    Builder, Error, Isa, KvMemory, Limits, Llm, LoadOptions, SamplingParams, find_model,
};
use paceline_engine::Request;
use paceline_model::ChatTemplate;
use paceline_model::file::ModelFile;
use paceline_model::meta::ModelMeta;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The most that the KV cache takes of the disk without being told.
const DISK_BYTES: u64 = 4 << 30;

/// A model whose file is here.
pub struct Located {
    /// As the user calls it.
    pub name: String,
    pub path: PathBuf,
}

/// A model that is ready.
pub struct Opened {
    pub llm: Llm,
    /// As the user calls it.
    pub name: String,
    pub path: PathBuf,
    /// How long it took to load, without fetching.
    pub load: Duration,
    pub n_threads: usize,
    pub isa: Isa,
}

/// The file of a model that the user named, fetched if need be.
pub fn locate(model: Option<&str>) -> anyhow::Result<Located> {
    let name = model.unwrap_or(DEFAULT_MODEL);
    let mut bar = None;
    let path = find_model(name, &Catalogue::of_user()?, &Cache::of_user()?, &mut |progress| {
        bar.get_or_insert_with(Bar::new).show(progress);
    })?;
    Ok(Located { name: name.to_owned(), path })
}

impl Located {
    /// Whether the model's file has a chat template, without loading the model.
    pub fn has_chat_template(&self) -> anyhow::Result<bool> {
        let name = &self.name;
        let file = ModelFile::open(&self.path).with_context(|| format!("cannot load {name}"))?;
        Ok(ChatTemplate::source(&file).with_context(|| format!("cannot load {name}"))?.is_some())
    }

    /// Loads the model as the flags say, unless it could not do what `params` ask for.
    pub fn load(self, args: &Engine, params: &SamplingParams) -> anyhow::Result<Opened> {
        let Located { name, path } = self;
        let spinner = progress::spinner(&format!("loading {name}"));
        let start = Instant::now();
        check(&path, args, params).with_context(|| format!("cannot load {name}"))?;
        let llm = args.builder(&path).build().with_context(|| format!("cannot load {name}"))?;
        spinner.finish_and_clear();
        let (isa, n_threads) = (args.compute.isa(), args.compute.n_threads());
        Ok(Opened { llm, name, path, load: start.elapsed(), n_threads, isa })
    }
}

/// Refuses what the head of a model's file says is out of its range, before the weights are read.
fn check(path: &Path, args: &Engine, params: &SamplingParams) -> anyhow::Result<()> {
    let meta = ModelMeta::read(&ModelFile::open(path)?)?;
    let limit = meta.context_len;
    let max_model_len = args.max_model_len.unwrap_or(limit);
    if max_model_len > limit {
        return Err(of_flag(Error::ContextLen { asked: max_model_len, limit }).into());
    }
    let Compute { block_size: block_len, kv_type_k, kv_type_v, .. } = args.compute;
    let layout = meta.kv_layout(block_len, kv_type_k.into(), kv_type_v.into());
    // What else there may be is found when it is loaded.
    if let (Some(KvMemory::Bytes(bytes)), Ok(block_bytes)) = (args.kv_memory, layout.block_bytes())
        && bytes < block_bytes as u64
    {
        return Err(of_flag(Error::KvMemory { bytes, block_bytes, block_len }).into());
    }
    if let Some(max_tokens) = params.max_tokens.filter(|&n| n >= max_model_len) {
        let problem = format!("the prompt and the answer have {max_model_len} tokens at most");
        return Err(UsageError(format!("--max-tokens is {max_tokens}: {problem}")).into());
    }
    // The rest does not depend on the prompt: any token will do for it.
    let params = SamplingParams { max_tokens: None, ..params.clone() };
    let (vocab_len, max_num_seqs) = (meta.vocab_len, args.max_num_seqs);
    let limits = Limits { vocab_len, max_model_len, kv_len: usize::MAX, max_num_seqs };
    Request::new(vec![0], params, 0, &limits).map_err(of_flag)?;
    Ok(())
}

impl Engine {
    /// Checks the flags as far as no model is needed for it.
    pub fn check(&self) -> anyhow::Result<()> {
        Ok(self.builder(Path::new("")).check().map_err(of_flag)?)
    }

    /// The most that the KV cache may take of the disk.
    pub fn disk_bytes(&self) -> u64 {
        self.kv_cache_disk.unwrap_or(DISK_BYTES)
    }

    fn builder(&self, path: &Path) -> Builder {
        let builder = self.compute.builder(path);
        let mut builder = builder
            .max_num_seqs(self.max_num_seqs)
            .speculate(self.speculate.into())
            .kv_cache(!self.no_kv_cache)
            .prefix_cache(!self.no_prefix_cache);
        if let Some(memory) = self.kv_memory {
            builder = builder.kv_memory(memory);
        }
        if let Some(folder) = &self.kv_cache_dir {
            builder = builder.kv_disk(folder, self.disk_bytes());
        }
        if let Some(len) = self.max_model_len {
            builder = builder.max_model_len(len);
        }
        builder
    }
}

impl Compute {
    /// Checks the flags as far as no model is needed for it.
    pub fn check(&self) -> anyhow::Result<()> {
        Ok(self.builder(Path::new("")).check().map_err(of_flag)?)
    }

    /// The instruction set asked for, or the best.
    pub fn isa(&self) -> Isa {
        self.isa.unwrap_or_else(Isa::best)
    }

    /// The threads asked for, or one for each core.
    pub fn n_threads(&self) -> usize {
        self.threads.unwrap_or_else(paceline::available_cores)
    }

    /// How the model is loaded.
    pub fn load_options(&self) -> LoadOptions {
        LoadOptions {
            isa: self.isa(),
            n_threads: self.n_threads(),
            block_len: self.block_size,
            k_type: self.kv_type_k.into(),
            v_type: self.kv_type_v.into(),
            ..LoadOptions::default()
        }
    }

    fn builder(&self, path: &Path) -> Builder {
        Llm::builder(path)
            .isa(self.isa())
            .threads(self.n_threads())
            .block_len(self.block_size)
            .kv_types(self.kv_type_k.into(), self.kv_type_v.into())
            .max_num_batched_tokens(self.max_num_batched_tokens)
    }
}

impl Opened {
    /// What the model's authors recommend; where they do not, `temperature`.
    pub fn defaults(&self, temperature: f32) -> SamplingParams {
        self.llm.defaults(temperature)
    }
}
