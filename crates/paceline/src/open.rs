//! Opening a model for a command: found or fetched, loaded, with progress on the way.

use crate::args::Engine;
use crate::progress::{self, Bar};
use anyhow::Context;
use paceline::cache::Cache;
use paceline::catalogue::{Catalogue, DEFAULT_MODEL};
use paceline::{Isa, Llm, SamplingParams, find_model};
use std::path::PathBuf;
use std::time::{Duration, Instant};

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
pub fn locate(model: Option<&str>) -> anyhow::Result<(String, PathBuf)> {
    let name = model.unwrap_or(DEFAULT_MODEL);
    let mut bar = None;
    let path = find_model(name, &Catalogue::of_user()?, &Cache::of_user()?, &mut |progress| {
        bar.get_or_insert_with(Bar::new).show(progress);
    })?;
    Ok((name.to_owned(), path))
}

/// Loads a model as the flags say.
pub fn open(model: Option<&str>, args: &Engine) -> anyhow::Result<Opened> {
    let (name, path) = locate(model)?;
    let spinner = progress::spinner(&format!("loading {name}"));
    let start = Instant::now();
    let isa = args.isa.unwrap_or_else(Isa::best);
    let n_threads = args.threads.unwrap_or_else(paceline::available_cores);
    let mut builder = Llm::builder(&path)
        .isa(isa)
        .threads(n_threads)
        .block_len(args.block_size)
        .kv_types(args.kv_type_k.into(), args.kv_type_v.into())
        .max_num_seqs(args.max_num_seqs)
        .max_num_batched_tokens(args.max_num_batched_tokens)
        .speculate(args.speculate.into())
        .kv_cache(!args.no_kv_cache)
        .prefix_cache(!args.no_prefix_cache);
    if let Some(memory) = args.kv_memory {
        builder = builder.kv_memory(memory);
    }
    if let Some(len) = args.max_model_len {
        builder = builder.max_model_len(len);
    }
    let llm = builder.build().with_context(|| format!("cannot load {name}"))?;
    spinner.finish_and_clear();
    Ok(Opened { llm, name, path, load: start.elapsed(), n_threads, isa })
}

impl Opened {
    /// What the model's authors recommend; where they do not, `temperature`.
    pub fn defaults(&self, temperature: f32) -> SamplingParams {
        self.llm.defaults(temperature)
    }
}
