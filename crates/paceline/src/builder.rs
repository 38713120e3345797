//! [`Builder`]: how a model is loaded into an [`Llm`].

use crate::cache::Cache;
use crate::catalogue::Catalogue;
use crate::disk::{self, DiskError, KvDisk};
use crate::fetch::{self, Progress};
use crate::llm::{Error, Llm, LlmConfig};
use crate::memory::KvMemory;
use crate::text::ModelText;
use paceline_engine::{EngineError, Speculate};
use paceline_kernels::{Isa, KvLayout, KvType};
use paceline_model::LoadOptions;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most threads that compute.
const MAX_THREADS: usize = 512;

/// Less than the smallest block of a KV cache that makes sense.
const MIN_KV_BYTES: u64 = 64 << 10;

/// How a model is loaded. Nothing but the types of the KV cache changes what is generated.
#[derive(Clone, Debug)]
pub struct Builder {
    model: PathBuf,
    load: LoadOptions,
    config: LlmConfig,
}

impl Builder {
    pub(crate) fn new(model: &Path) -> Builder {
        Builder {
            model: model.to_owned(),
            load: LoadOptions::default(),
            config: LlmConfig::default(),
        }
    }

    /// Memory for the KV cache, in bytes or as a share of what is available. Without it the least of
    /// 2 GiB, half of the available memory, and what `max_num_seqs` sequences of the longest length
    /// take. The system gives the memory only as it is used.
    pub fn kv_memory(mut self, memory: impl Into<KvMemory>) -> Builder {
        self.config.kv_memory = Some(memory.into());
        self
    }

    /// Keeps what the KV cache in memory gives up in a folder, also for later runs of the same model: at
    /// most so many bytes.
    pub fn kv_disk(mut self, folder: impl Into<PathBuf>, bytes: u64) -> Builder {
        let (folder, model) = (folder.into(), String::new());
        self.config.kv_disk = Some(KvDisk { folder, bytes, model });
        self
    }

    /// The most sequences in a step, 256 by default.
    pub fn max_num_seqs(mut self, n: usize) -> Builder {
        self.config.engine.max_num_seqs = n;
        self
    }

    /// The most tokens in a step, 512 by default: longer prompts are computed in several steps,
    /// beside the other sequences' tokens.
    pub fn max_num_batched_tokens(mut self, n: usize) -> Builder {
        self.config.engine.max_num_batched_tokens = n;
        self
    }

    /// Threads that compute; every core by default.
    pub fn threads(mut self, n: usize) -> Builder {
        self.load.n_threads = n;
        self
    }

    /// The instruction set; the best one by default.
    pub fn isa(mut self, isa: Isa) -> Builder {
        self.load.isa = isa;
        self
    }

    /// The longest sequence, prompt and output together; the model's context by default.
    pub fn max_model_len(mut self, n: usize) -> Builder {
        self.config.engine.max_model_len = n;
        self
    }

    /// Where drafts come from; nowhere by default.
    pub fn speculate(mut self, speculate: Speculate) -> Builder {
        self.config.engine.speculate = speculate;
        self
    }

    /// How K and V are kept, I16 by default.
    pub fn kv_types(mut self, k: KvType, v: KvType) -> Builder {
        (self.load.k_type, self.load.v_type) = (k, v);
        self
    }

    /// Tokens in a block of the KV cache, 16 by default.
    pub fn block_len(mut self, n: usize) -> Builder {
        self.load.block_len = n;
        self
    }

    /// Whether sequences share the blocks of equal beginnings; they do by default.
    pub fn prefix_cache(mut self, on: bool) -> Builder {
        self.config.engine.prefix_cache = on;
        self
    }

    /// Off: computes all tokens of a sequence again for each new one, to show what the cache saves.
    pub fn kv_cache(mut self, on: bool) -> Builder {
        self.config.engine.kv_cache = on;
        self
    }

    /// Checks what does not depend on the model: before it is fetched, say.
    ///
    /// # Errors
    /// If a setting is out of range.
    pub fn check(&self) -> Result<(), Error> {
        let LoadOptions { isa, n_threads, block_len, k_type, v_type, .. } = self.load;
        if !(1..=MAX_THREADS).contains(&n_threads) {
            let (field, value, limit) = ("threads", n_threads, "from 1 to 512");
            return Err(EngineError::Config { field, value, limit }.into());
        }
        if !isa.is_available() {
            return Err(Error::Isa(isa));
        }
        if let Some(KvMemory::Bytes(bytes)) = self.config.kv_memory
            && bytes < MIN_KV_BYTES
        {
            let (field, value) = ("kv_memory", bytes as usize);
            return Err(EngineError::Config { field, value, limit: "at least 64KiB" }.into());
        }
        let engine = &self.config.engine;
        if self.config.kv_disk.is_some() && !(engine.prefix_cache && engine.kv_cache) {
            return Err(DiskError::NoPrefixCache.into());
        }
        // A head that suits every type: what is wrong now are the blocks.
        let (n_layers, n_kv_heads, head_size) = (1, 1, 256);
        let layout = KvLayout { n_layers, n_kv_heads, head_size, block_len, k_type, v_type };
        layout.block_bytes()?;
        Ok(engine.check()?)
    }

    /// Loads the model; one of the catalogue that is not in the cache yet is fetched.
    ///
    /// # Errors
    /// If there is no such model, its file is damaged or of an unknown architecture, or a setting is
    /// out of range.
    pub fn build(self) -> Result<Llm, Error> {
        self.check()?;
        let Builder { model, load, mut config } = self;
        let path = match model.to_str() {
            Some(name) => {
                find_model(name, &Catalogue::of_user()?, &Cache::of_user()?, &mut |_| ())?
            }
            None => model,
        };
        // A file is read once for both if the system has the memory for it.
        let (loaded, hash) = std::thread::scope(|scope| {
            let hash = config.kv_disk.is_some().then(|| scope.spawn(|| disk::hash_of(&path)));
            let loaded = paceline_model::load(&path, &load);
            (loaded, hash.map(|hash| hash.join().expect("hashing a file does not panic")))
        });
        let loaded = loaded?;
        if let (Some(disk), Some(hash)) = (&mut config.kv_disk, hash) {
            let LoadOptions { precision, k_type, v_type, .. } = load;
            disk.model = format!("{} {precision:?}, K {k_type:?}, V {v_type:?}", hash?);
        }
        let text = ModelText { tokenizer: loaded.tokenizer, template: loaded.chat_template };
        let llm = Llm::from_parts(Box::new(loaded.model), Arc::new(text), config)?;
        Ok(llm.recommending(loaded.meta.sampling))
    }
}

/// The file of a model: `name` is one of the cache or the catalogue, fetched if need be, or a path.
/// A file with the name of a model in the catalogue is `./NAME`.
///
/// # Errors
/// If there is nothing of that name, or it cannot be fetched.
pub fn find_model(
    name: &str,
    catalogue: &Catalogue,
    cache: &Cache,
    progress: &mut dyn FnMut(Progress),
) -> Result<PathBuf, Error> {
    if let Some(path) = cache.find(name) {
        return Ok(path);
    }
    if let Some(entry) = catalogue.find(name) {
        return Ok(fetch::fetch(entry, cache, progress)?.path);
    }
    let path = Path::new(name);
    match path.exists() {
        true => Ok(path.to_owned()),
        false => Err(Error::NoModel(name.to_owned())),
    }
}
