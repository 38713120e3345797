//! [`Llm`]: a model that generates.

use crate::builder::Builder;
use crate::cache::CacheError;
use crate::catalogue::CatalogueError;
use crate::completion::Completion;
use crate::disk::{DiskError, DiskStore, KvDisk};
use crate::fetch::FetchError;
use crate::memory::{self, KvMemory};
use crate::text::{ChatError, Message, Text};
use crate::worker::{Full, Sink, Ticket, Worker};
use paceline_engine::{
    Engine, EngineConfig, EngineError, Event, FinishReason, InvalidRequest, Limits, Logprobs,
    Request, SamplingParams, Stats,
};
use paceline_kernels::{Isa, KvError};
use paceline_model::meta::SamplingDefaults;
use paceline_model::{ChatOptions, LoadError, Model, TokenId};
use serde_json::Value;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Instant, SystemTime};

/// Why there is no model, or nothing was generated.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing has that name.
    #[error("{0}: no such file, and no such model: `paceline list` shows their names")]
    NoModel(String),
    /// The cache cannot be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The catalogue cannot be read.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
    /// The model could not be fetched.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The model's file cannot be used.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The processor lacks the instruction set.
    #[error("this processor cannot run {0}: leave PACELINE_ISA out to get the best that it can")]
    Isa(Isa),
    /// The request cannot be served, whatever the load.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// The conversation cannot become a prompt.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// The engine cannot be built.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The model was made for shorter texts.
    #[error("max_model_len is {asked}: the model's context is {limit} tokens")]
    ContextLen {
        /// What was asked for.
        asked: usize,
        /// What the model was made for.
        limit: usize,
    },
    /// The blocks of the KV cache cannot be like this.
    #[error(transparent)]
    Kv(#[from] KvError),
    /// The KV cache would hold nothing.
    #[error(
        "--kv-memory {bytes} is less than one block of the KV cache: {block_bytes} bytes for \
         {block_len} tokens"
    )]
    KvMemory {
        /// What it was to get.
        bytes: u64,
        /// What one block takes.
        block_bytes: usize,
        /// Tokens in a block.
        block_len: usize,
    },
    /// The KV cache cannot be kept on disk.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The test of memory's speed finds no memory.
    #[error("no memory to measure the machine with: {bytes} bytes are needed beside the model")]
    ReadTest {
        /// What the test reads.
        bytes: usize,
    },
    /// The system refuses a thread.
    #[error("cannot start the engine's thread: {0}")]
    Thread(std::io::Error),
    /// Too many requests wait.
    #[error(
        "as many requests wait as may, of {max_queue} (--max-queue) at most: try again in \
         {retry_after} s"
    )]
    Busy {
        /// How many may wait.
        max_queue: usize,
        /// When to try again, in seconds.
        retry_after: u64,
    },
    /// More prompts than there is ever room for.
    #[error(
        "prompt has {n} prompts: {max_num_seqs} can run (--max-num-seqs) and {max_queue} more wait \
         (--max-queue); ask in smaller batches"
    )]
    Batch {
        /// Prompts.
        n: usize,
        /// How many run at once.
        max_num_seqs: usize,
        /// How many may wait.
        max_queue: usize,
    },
    /// The request has ended before its time.
    #[error("the engine has failed: its message is above; this is a bug of paceline")]
    Stopped,
}

/// What to continue: text, or tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Text, in which control tokens may be written.
    Text(String),
    /// Tokens, taken as they are.
    Tokens(Vec<TokenId>),
}

impl Prompt {
    /// The text, which for tokens is what they stand for.
    #[cfg(feature = "server")]
    pub(crate) fn text(&self, text: &dyn Text) -> String {
        match self {
            Prompt::Text(prompt) => prompt.clone(),
            Prompt::Tokens(tokens) => text.decode(tokens),
        }
    }
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Prompt {
        Prompt::Text(text.to_owned())
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Prompt {
        Prompt::Text(text)
    }
}

impl From<&String> for Prompt {
    fn from(text: &String) -> Prompt {
        Prompt::Text(text.clone())
    }
}

impl From<Vec<TokenId>> for Prompt {
    fn from(tokens: Vec<TokenId>) -> Prompt {
        Prompt::Tokens(tokens)
    }
}

impl From<&[TokenId]> for Prompt {
    fn from(tokens: &[TokenId]) -> Prompt {
        Prompt::Tokens(tokens.to_vec())
    }
}

/// How much an [`Llm`] does at once, and with how much memory. Nothing here changes what is
/// generated.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LlmConfig {
    /// Memory for the KV cache; without it the least of 2 GiB, half of the available memory, and
    /// what `max_num_seqs` sequences of the longest length take.
    pub kv_memory: Option<KvMemory>,
    /// Where the KV cache goes on on disk, if it does.
    pub kv_disk: Option<KvDisk>,
    /// How the engine works; its `n_blocks` follows from `kv_memory`.
    pub engine: EngineConfig,
}

/// A model with an engine of its own, which serves any number of callers at once.
///
/// Dropping it ends whatever still runs, and writes what is in the KV cache to the disk if that is where
/// it goes on.
pub struct Llm {
    worker: Worker,
    text: Arc<dyn Text>,
    limits: Limits,
    kv_bytes: u64,
    disk_bytes: u64,
    recommended: SamplingDefaults,
}

impl Llm {
    /// Loads a model with the usual settings: a name of the catalogue (fetched if need be), a GGUF
    /// file, or a folder as Hugging Face ships them.
    ///
    /// # Errors
    /// If there is no such model, or its file is damaged or of an unknown architecture.
    pub fn load(model: impl AsRef<Path>) -> Result<Llm, Error> {
        Llm::builder(model).build()
    }

    /// Settings for loading a model.
    pub fn builder(model: impl AsRef<Path>) -> Builder {
        Builder::new(model.as_ref())
    }

    /// An engine for a model that is in memory already.
    ///
    /// # Errors
    /// If a setting is out of range, or the KV memory is not to be had.
    pub fn from_parts(
        model: Box<dyn Model>,
        text: Arc<dyn Text>,
        config: LlmConfig,
    ) -> Result<Llm, Error> {
        let LlmConfig { kv_memory, kv_disk, mut engine } = config;
        let spec = model.spec();
        let (asked, limit) = (engine.max_model_len, spec.context_len);
        if asked > limit && asked != usize::MAX {
            return Err(Error::ContextLen { asked, limit });
        }
        // What is 0 here, the engine refuses below.
        let longest = asked.min(limit).max(1).div_ceil(spec.block_len);
        let most = (longest as u64)
            .saturating_mul(engine.max_num_seqs.max(1) as u64)
            .saturating_mul(spec.kv_block_bytes as u64);
        let bytes = memory::kv_bytes(kv_memory, most, memory::available());
        let (block_bytes, block_len) = (spec.kv_block_bytes, spec.block_len);
        let n_blocks = bytes / block_bytes.max(1) as u64;
        if n_blocks == 0 {
            return Err(Error::KvMemory { bytes, block_bytes, block_len });
        }
        engine.n_blocks = usize::try_from(n_blocks).unwrap_or(usize::MAX);
        let vocab: Arc<dyn paceline_engine::Vocab> = text.clone();
        let store = kv_disk.map(|disk| DiskStore::open(&disk, spec)).transpose()?;
        let mut engine = Engine::new(model, vocab, engine)?;
        let disk_bytes = store.as_ref().map_or(0, DiskStore::n_bytes);
        if let Some(store) = store {
            engine = engine.with_store(Box::new(store));
        }
        let limits = engine.limits().clone();
        let worker = Worker::start(engine).map_err(Error::Thread)?;
        let kv_bytes = n_blocks * block_bytes as u64;
        let recommended = SamplingDefaults::default();
        Ok(Llm { worker, text, limits, kv_bytes, disk_bytes, recommended })
    }

    pub(crate) fn recommending(self, recommended: SamplingDefaults) -> Llm {
        Llm { recommended, ..self }
    }

    /// The sampling parameters that the model's authors recommend; with `temperature` where they
    /// recommend none.
    pub fn defaults(&self, temperature: f32) -> SamplingParams {
        let neutral = SamplingParams::default();
        let recommended = &self.recommended;
        SamplingParams {
            temperature: recommended.temperature.unwrap_or(temperature),
            top_k: recommended.top_k.unwrap_or(neutral.top_k),
            top_p: recommended.top_p.unwrap_or(neutral.top_p),
            min_p: recommended.min_p.unwrap_or(neutral.min_p),
            repetition_penalty: recommended
                .repetition_penalty
                .unwrap_or(neutral.repetition_penalty),
            ..neutral
        }
    }

    /// What a request may ask.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Memory of the KV cache.
    pub fn kv_bytes(&self) -> u64 {
        self.kv_bytes
    }

    /// What was there of the KV cache on disk at the start, in bytes.
    pub fn disk_bytes(&self) -> u64 {
        self.disk_bytes
    }

    /// The model's tokenizer and chat template.
    pub fn text(&self) -> &Arc<dyn Text> {
        &self.text
    }

    /// The engine's counters after its last step.
    pub fn stats(&self) -> Stats {
        self.worker.stats()
    }

    /// Whether the engine can still generate; it stops only by a bug.
    pub fn is_alive(&self) -> bool {
        self.worker.is_alive()
    }

    /// Ends all requests that are under way.
    pub fn abort_all(&self) {
        self.worker.abort_all();
    }

    /// Continues prompts, all of them in one batch that changes as they end. The answers have the
    /// order of the prompts.
    ///
    /// # Errors
    /// If one of the requests is invalid; nothing is generated then.
    pub fn generate<P: Clone + Into<Prompt>>(
        &self,
        prompts: &[P],
        params: &SamplingParams,
    ) -> Result<Vec<Completion>, Error> {
        let requests: Result<Vec<Request>, Error> =
            prompts.iter().map(|prompt| self.request(prompt.clone().into(), params)).collect();
        let streams: Vec<Stream> =
            requests?.into_iter().map(|request| self.start(request)).collect();
        streams.into_iter().map(Stream::finish).collect()
    }

    /// Answers a conversation.
    ///
    /// # Errors
    /// If the model has no chat template, it refuses the messages, or the request is invalid.
    pub fn chat(&self, messages: &[Message], params: &SamplingParams) -> Result<Completion, Error> {
        self.stream_chat(messages, params)?.finish()
    }

    /// Continues a prompt, token by token.
    ///
    /// # Errors
    /// If the request is invalid.
    pub fn stream(
        &self,
        prompt: impl Into<Prompt>,
        params: &SamplingParams,
    ) -> Result<Stream, Error> {
        Ok(self.start(self.request(prompt.into(), params)?))
    }

    /// Answers a conversation, token by token.
    ///
    /// # Errors
    /// As for [`Llm::chat`].
    pub fn stream_chat(
        &self,
        messages: &[Message],
        params: &SamplingParams,
    ) -> Result<Stream, Error> {
        self.stream(self.encode_chat(messages)?, params)
    }

    /// The tokens of a conversation, up to where the answer begins.
    ///
    /// # Errors
    /// If the model has no chat template, or it refuses the messages.
    pub fn encode_chat(&self, messages: &[Message]) -> Result<Vec<TokenId>, Error> {
        let messages: Vec<Value> = messages.iter().map(Value::from).collect();
        let options = ChatOptions { now: SystemTime::now(), ..ChatOptions::default() };
        Ok(self.text.encode_chat(&messages, &options)?)
    }

    /// Checks a request.
    ///
    /// # Errors
    /// If it cannot be served.
    pub fn request(&self, prompt: Prompt, params: &SamplingParams) -> Result<Request, Error> {
        let tokens = match prompt {
            Prompt::Text(text) => self.text.encode(&text, true),
            Prompt::Tokens(tokens) => tokens,
        };
        Ok(Request::new(tokens, params.clone(), draw_seed(), &self.limits)?)
    }

    fn start(&self, request: Request) -> Stream {
        let (sender, events) = channel();
        let start = Instant::now();
        let completion =
            Completion::new(request.prompt().to_vec(), request.params().n, request.seed());
        let send = move |at, event| sender.send((at, event)).is_ok();
        let asked: Vec<(Request, Sink)> = vec![(request, Box::new(send))];
        // No queue is that long. Without a ticket, the stream would end at once.
        let ticket = self.worker.submit(asked, usize::MAX).ok();
        Stream { events, _ticket: ticket, completion, start }
    }

    /// Hands checked requests to the engine, unless more than `max_queue` would wait then; the sinks
    /// get their events and return false to abort.
    #[cfg(feature = "server")]
    pub(crate) fn submit(
        &self,
        requests: Vec<(Request, Sink)>,
        max_queue: usize,
    ) -> Result<Ticket, Error> {
        let n = requests.len();
        self.worker.submit(requests, max_queue).map_err(|full| self.refusal(full, n, max_queue))
    }

    /// Whether a request would find room, before anything is done for it.
    #[cfg(feature = "server")]
    pub(crate) fn check_room(&self, max_queue: usize) -> Result<(), Error> {
        self.worker.check_room(max_queue).map_err(|full| self.refusal(full, 1, max_queue))
    }

    #[cfg(feature = "server")]
    fn refusal(&self, full: Full, n: usize, max_queue: usize) -> Error {
        match full {
            Full::Now { retry_after } => Error::Busy { max_queue, retry_after },
            Full::Always => Error::Batch { n, max_num_seqs: self.limits.max_num_seqs, max_queue },
        }
    }
}

/// A seed for a request that brings none: different from call to call, and small enough for a
/// number in JSON to hold exactly.
pub fn draw_seed() -> u64 {
    RandomState::new().build_hasher().finish() >> 11
}

/// One step of a [`Stream`]: a token, or the end of a choice.
#[derive(Clone, Debug, PartialEq)]
pub struct Chunk {
    /// The choice, `0..n`.
    pub choice: usize,
    /// The token; `None` at the end.
    pub token: Option<TokenId>,
    /// The text that has become certain with it: maybe none yet, never half a character.
    pub text: String,
    /// If asked for.
    pub logprobs: Option<Logprobs>,
    /// Why the choice ended, if it has.
    pub finish_reason: Option<FinishReason>,
}

/// A completion that is being generated. Dropping it aborts the request.
pub struct Stream {
    events: Receiver<(Instant, Event)>,
    _ticket: Option<Ticket>,
    completion: Completion,
    start: Instant,
}

impl Stream {
    /// What has come so far.
    pub fn completion(&self) -> &Completion {
        &self.completion
    }

    /// Waits for the rest and returns all of it.
    ///
    /// # Errors
    /// If the engine fails on the way.
    pub fn finish(mut self) -> Result<Completion, Error> {
        self.by_ref().for_each(drop);
        match self.completion.is_finished() {
            true => Ok(self.completion),
            false => Err(Error::Stopped),
        }
    }
}

impl Iterator for Stream {
    type Item = Chunk;

    fn next(&mut self) -> Option<Chunk> {
        while !self.completion.is_finished() {
            let (now, event) = self.events.recv().ok()?;
            self.completion.add(&event, self.start, now);
            match event {
                Event::Started { .. } | Event::PromptLogprobs { .. } => {}
                Event::Token { choice, token, text, logprobs, .. } => {
                    let finish_reason = None;
                    return Some(Chunk {
                        choice,
                        token: Some(token),
                        text,
                        logprobs,
                        finish_reason,
                    });
                }
                Event::Finished { choice, reason, .. } => {
                    return Some(Chunk {
                        choice,
                        token: None,
                        text: String::new(),
                        logprobs: None,
                        finish_reason: Some(reason),
                    });
                }
            }
        }
        None
    }
}
