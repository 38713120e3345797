//! The command line, as the user typed it. Every flag has a `PACELINE_*` variable of the same name.

mod bench;

#[cfg(feature = "load")]
pub use bench::BenchServe;
pub use bench::{BenchBatching, BenchCommand, BenchRun};

#[cfg(feature = "server")]
use crate::usage::positive;
use crate::usage::{number, seed, sha256, size, top_k, whole};
use clap::builder::FalseyValueParser;
#[cfg(feature = "server")]
use clap::builder::NonEmptyStringValueParser;
use clap::{Parser, Subcommand, ValueEnum};
use paceline::{KvMemory, KvType, SamplingParams, Speculate, TokenId};
use std::path::PathBuf;

/// Runs and serves large language models on the machine at hand.
#[derive(Debug, Parser)]
#[command(name = "paceline", version, subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "\
PACELINE_* variables mirror the flags: PACELINE_THREADS=2 is --threads 2.

Example: paceline run \"Why is the sky blue?\"")]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer one prompt
    Run(Box<Run>),
    /// Talk with a model
    Chat(Box<Chat>),
    /// Serve a model over HTTP, in the dialect of OpenAI's API
    #[cfg(feature = "server")]
    Serve(Box<Serve>),
    /// Measure speed
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Bench {
        /// What to measure.
        #[command(subcommand)]
        command: BenchCommand,
    },
    /// Fetch a model into the cache
    Pull(Pull),
    /// Show the catalogue and the cache
    List(List),
    /// Delete a model from the cache
    Rm(Rm),
    /// Show what a model's file holds
    Inspect(Inspect),
}

/// `paceline run`
#[derive(Debug, clap::Args)]
#[command(override_usage = "paceline run [OPTIONS] [MODEL] <PROMPT>")]
#[command(after_help = "\
MODEL is a name (`paceline list`), a .gguf file or a Hugging Face folder; without it, smollm2-135m.
PROMPT is the user's turn of a chat, or what a model without a chat template continues; - is stdin.
Also: --min-tokens, --stop-token-id, and the other engine flags of `paceline serve --help`.
Example: paceline run qwen2.5-coder-0.5b \"Write a haiku about rivers\" --temperature 0.8")]
pub struct Run {
    /// The model, unless it is the default, and the prompt
    #[arg(value_name = "MODEL|PROMPT", num_args = 0..=2, hide = true)]
    pub words: Vec<String>,
    /// The model, as a flag
    #[arg(long, env = "PACELINE_MODEL", hide_env = true)]
    pub model: Option<String>,
    /// Read the prompt from a file; the one word left is then MODEL
    #[arg(long, value_name = "FILE", env = "PACELINE_PROMPT_FILE", hide_env = true)]
    pub prompt_file: Option<PathBuf>,
    /// Continue the prompt as it is, without the chat template
    #[arg(long, env = "PACELINE_RAW", hide_env = true, value_parser = FalseyValueParser::new())]
    pub raw: bool,
    /// What the model is told to be
    #[arg(long, value_name = "TEXT", env = "PACELINE_SYSTEM", hide_env = true)]
    pub system: Option<String>,
    /// Print one JSON object instead of the text
    #[arg(long, env = "PACELINE_JSON", hide_env = true, value_parser = FalseyValueParser::new())]
    pub json: bool,
    /// With --json: log-probabilities of the tokens and of the N likeliest
    #[arg(long, value_name = "N", value_parser = whole::<usize>, env = "PACELINE_LOGPROBS", hide_env = true)]
    pub logprobs: Option<usize>,
    /// With --json: the same for the prompt's tokens
    #[arg(
        long,
        value_name = "N",
        value_parser = whole::<usize>, env = "PACELINE_PROMPT_LOGPROBS",
        hide_env = true
    )]
    pub prompt_logprobs: Option<usize>,
    #[command(flatten)]
    pub sampling: Sampling,
    #[command(flatten)]
    pub engine: Engine,
}

/// `paceline chat`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
In the chat: /help, /reset, /system TEXT, /exit. Ctrl-C stops an answer, Ctrl-D ends the program.
Also: --min-tokens, --stop-token-id, and the other engine flags of `paceline serve --help`.

Example: paceline chat qwen2.5-coder-0.5b --system \"You are terse\"")]
pub struct Chat {
    /// A name (`paceline list`), a .gguf file or a Hugging Face folder [default: smollm2-135m]
    #[arg(env = "PACELINE_MODEL", hide_env = true)]
    pub model: Option<String>,
    /// What the model is told to be
    #[arg(long, value_name = "TEXT", env = "PACELINE_SYSTEM", hide_env = true)]
    pub system: Option<String>,
    #[command(flatten)]
    pub sampling: Sampling,
    #[command(flatten)]
    pub engine: Engine,
}

/// `paceline serve`
#[cfg(feature = "server")]
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Endpoints: /v1/chat/completions, /v1/completions, /v1/models, /metrics, /health; docs/serve.md has all.
Where a request does not say, the model's own sampling parameters hold, else temperature 1.
Example: paceline serve qwen2.5-coder-0.5b --port 8080
         curl localhost:8080/v1/completions -d '{\"prompt\": \"def fib(n):\", \"max_tokens\": 50}'")]
pub struct Serve {
    /// A name (`paceline list`), a .gguf file or a Hugging Face folder [default: smollm2-135m]
    #[arg(env = "PACELINE_MODEL", hide_env = true)]
    pub model: Option<String>,
    /// The address to listen on; 0.0.0.0 is all
    #[arg(long, default_value = "127.0.0.1", env = "PACELINE_HOST", hide_env = true)]
    pub host: String,
    /// The port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 8000, value_parser = whole::<u16>, env = "PACELINE_PORT", hide_env = true)]
    pub port: u16,
    /// The model's name in requests and answers [default: as given]
    #[arg(
        long,
        value_name = "NAME",
        value_parser = NonEmptyStringValueParser::new(), env = "PACELINE_SERVED_MODEL_NAME",
        hide_env = true
    )]
    pub served_model_name: Option<String>,
    #[command(flatten)]
    pub access: Access,
    #[command(flatten)]
    pub bounds: Bounds,
    #[command(flatten)]
    pub log: Log,
    #[command(flatten)]
    pub engine: Engine,
}

/// Who may ask, and how it is kept from others.
#[cfg(feature = "server")]
#[derive(Debug, clap::Args)]
pub struct Access {
    /// A file with an API key on each line, and maybe its tenant's name
    #[arg(long, value_name = "FILE", env = "PACELINE_API_KEY_FILE", hide_env = true)]
    pub api_key_file: Option<PathBuf>,
    /// Speak HTTPS: a file with the certificates, as PEM
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_key",
        env = "PACELINE_TLS_CERT",
        hide_env = true
    )]
    pub tls_cert: Option<PathBuf>,
    /// .. and one with their key
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_cert",
        env = "PACELINE_TLS_KEY",
        hide_env = true
    )]
    pub tls_key: Option<PathBuf>,
}

/// How much a client may ask of the server.
#[cfg(feature = "server")]
#[derive(Debug, clap::Args)]
pub struct Bounds {
    /// Seconds that running requests get when the server is stopped
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = whole::<u64>, env = "PACELINE_GRACE", hide_env = true)]
    pub grace: u64,
    /// The largest request, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = positive::<u32>, env = "PACELINE_MAX_BODY", hide_env = true)]
    pub max_body: u32,
    /// The most requests that wait; more are refused
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = whole::<u32>, env = "PACELINE_MAX_QUEUE", hide_env = true)]
    pub max_queue: u32,
    /// The most connections at once; more wait
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = positive::<u32>, env = "PACELINE_MAX_CONNECTIONS", hide_env = true)]
    pub max_connections: u32,
}

/// What is written on standard error.
#[cfg(feature = "server")]
#[derive(Debug, clap::Args)]
pub struct Log {
    /// pretty, or json for programs
    #[arg(
        long,
        value_name = "FORMAT",
        hide_possible_values = true,
        default_value = "pretty",
        env = "PACELINE_LOG_FORMAT",
        hide_env = true
    )]
    pub log_format: LogFormat,
    /// error, warn, info or debug
    #[arg(
        long,
        value_name = "LEVEL",
        hide_possible_values = true,
        default_value = "info",
        env = "PACELINE_LOG_LEVEL",
        hide_env = true
    )]
    pub log_level: LogLevel,
    /// Write the prompts too
    #[arg(long, env = "PACELINE_LOG_PROMPTS", hide_env = true, value_parser = FalseyValueParser::new())]
    pub log_prompts: bool,
}

/// For whom the log is.
#[cfg(feature = "server")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// People.
    Pretty,
    /// Programs.
    Json,
}

/// What is worth a line.
#[cfg(feature = "server")]
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum LogLevel {
    /// What went wrong.
    Error,
    /// What may go wrong.
    Warn,
    /// Each request that generates.
    Info,
    /// Each request.
    Debug,
}

/// How tokens are chosen. Without a flag the model's own recommendation holds, where it has one.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Sampling (default: the model's own, else as said)")]
pub struct Sampling {
    /// 0 takes the likeliest token [else 0]
    #[arg(long, short, value_name = "T", value_parser = number, env = "PACELINE_TEMPERATURE", hide_env = true)]
    pub temperature: Option<f32>,
    /// Only the K likeliest; 0 and -1 are all [else 0]
    #[arg(long, value_name = "K", value_parser = top_k, env = "PACELINE_TOP_K", hide_env = true)]
    pub top_k: Option<usize>,
    /// Only the likeliest that sum to P [else 1]
    #[arg(long, value_name = "P", value_parser = number, env = "PACELINE_TOP_P", hide_env = true)]
    pub top_p: Option<f32>,
    /// Only those at least P times as likely as the likeliest [else 0]
    #[arg(long, value_name = "P", value_parser = number, env = "PACELINE_MIN_P", hide_env = true)]
    pub min_p: Option<f32>,
    /// Above 1 makes what was said less likely [else 1]
    #[arg(long, value_name = "X", value_parser = number, env = "PACELINE_REPETITION_PENALTY", hide_env = true)]
    pub repetition_penalty: Option<f32>,
    /// Subtracted for each time that a token was generated [0]
    #[arg(
        long,
        value_name = "X",
        value_parser = number, env = "PACELINE_FREQUENCY_PENALTY",
        hide_env = true
    )]
    pub frequency_penalty: Option<f32>,
    /// Subtracted once a token was generated [0]
    #[arg(
        long,
        value_name = "X",
        value_parser = number, env = "PACELINE_PRESENCE_PENALTY",
        hide_env = true
    )]
    pub presence_penalty: Option<f32>,
    /// Added to a token's logit, as 42=-100; may be repeated
    #[arg(long, value_name = "ID=X", value_parser = bias, env = "PACELINE_LOGIT_BIAS", hide_env = true)]
    pub logit_bias: Vec<(TokenId, f32)>,
    /// The same seed gives the same text [a new one each time]
    #[arg(long, value_name = "N", value_parser = seed, env = "PACELINE_SEED", hide_env = true)]
    pub seed: Option<u64>,
    /// The most tokens to generate [1024, or as many as fit]
    #[arg(long, short = 'n', value_name = "N", value_parser = whole::<usize>, env = "PACELINE_MAX_TOKENS", hide_env = true)]
    pub max_tokens: Option<usize>,
    /// Tokens before anything else may end the text [0]
    #[arg(long, value_name = "N", value_parser = whole::<usize>, env = "PACELINE_MIN_TOKENS", hide_env = true)]
    pub min_tokens: Option<usize>,
    /// A string that ends the text; may be repeated
    #[arg(long, value_name = "TEXT", env = "PACELINE_STOP", hide_env = true)]
    pub stop: Vec<String>,
    /// A token that ends the text; may be repeated
    #[arg(long, value_name = "ID", value_parser = whole::<TokenId>, env = "PACELINE_STOP_TOKEN_ID", hide_env = true)]
    pub stop_token_id: Vec<TokenId>,
    /// Go on after the model's end token
    #[arg(long, env = "PACELINE_IGNORE_EOS", hide_env = true, value_parser = FalseyValueParser::new())]
    pub ignore_eos: bool,
}

/// How a step is computed. Nothing here changes the text, but --kv-type-*.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Engine")]
pub struct Compute {
    /// Threads that compute [default: every core]
    #[arg(long, value_name = "N", value_parser = whole::<usize>, env = "PACELINE_THREADS", hide_env = true)]
    pub threads: Option<usize>,
    /// Instruction set: scalar, avx2 or avx512 [default: the best]
    #[arg(long, env = "PACELINE_ISA", hide = true)]
    pub isa: Option<paceline::Isa>,
    /// How K is kept: i16, q8_0
    #[arg(
        long,
        value_name = "TYPE",
        hide_possible_values = true,
        default_value = "i16",
        env = "PACELINE_KV_TYPE_K",
        hide_env = true
    )]
    pub kv_type_k: Kv,
    /// How V is kept: i16, q8_0
    #[arg(
        long,
        value_name = "TYPE",
        hide_possible_values = true,
        default_value = "i16",
        env = "PACELINE_KV_TYPE_V",
        hide_env = true
    )]
    pub kv_type_v: Kv,
    /// Tokens in a block of the KV cache
    #[arg(
        long,
        value_name = "N",
        default_value_t = 16,
        value_parser = whole::<usize>, env = "PACELINE_BLOCK_SIZE",
        hide_env = true
    )]
    pub block_size: usize,
    /// The most tokens in a step
    #[arg(
        long,
        value_name = "N",
        default_value_t = 512,
        value_parser = whole::<usize>, env = "PACELINE_MAX_NUM_BATCHED_TOKENS",
        hide_env = true
    )]
    pub max_num_batched_tokens: usize,
}

/// How much is done at once, and with how much memory. Nothing here changes the text, but
/// --kv-type-*.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Engine")]
pub struct Engine {
    #[command(flatten)]
    pub compute: Compute,
    /// The longest prompt and answer together [default: the model's]
    #[arg(long, value_name = "N", value_parser = whole::<usize>, env = "PACELINE_MAX_MODEL_LEN", hide_env = true)]
    pub max_model_len: Option<usize>,
    /// KV cache: 2GiB, 50% .. [default: 2GiB, at most half of what is free]
    #[arg(long, value_name = "SIZE", env = "PACELINE_KV_MEMORY", hide_env = true)]
    pub kv_memory: Option<KvMemory>,
    /// Keep what the KV cache gives up there, up to --kv-cache-disk [4GiB]
    #[arg(long, value_name = "DIR", env = "PACELINE_KV_CACHE_DIR", hide_env = true)]
    pub kv_cache_dir: Option<PathBuf>,
    /// The most that is kept there; the help of --kv-cache-dir names it
    #[arg(
        long,
        value_name = "SIZE",
        requires = "kv_cache_dir",
        value_parser = size, env = "PACELINE_KV_CACHE_DISK",
        hide = true
    )]
    pub kv_cache_disk: Option<u64>,
    /// The most sequences in a step
    #[arg(
        long,
        value_name = "N",
        default_value_t = 256,
        value_parser = whole::<usize>, env = "PACELINE_MAX_NUM_SEQS",
        hide_env = true
    )]
    pub max_num_seqs: usize,
    /// Guess ahead and verify: off, lookup (what followed before)
    #[arg(
        long,
        value_name = "HOW",
        hide_possible_values = true,
        default_value = "off",
        env = "PACELINE_SPECULATE",
        hide_env = true
    )]
    pub speculate: Guess,
    /// Compute everything again for each token (for teaching)
    #[arg(long, env = "PACELINE_NO_KV_CACHE", hide_env = true, value_parser = FalseyValueParser::new())]
    pub no_kv_cache: bool,
    /// Compute every prompt, also if its beginning is known
    #[arg(long, env = "PACELINE_NO_PREFIX_CACHE", hide_env = true, value_parser = FalseyValueParser::new())]
    pub no_prefix_cache: bool,
}

/// How K or V are kept.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Kv {
    /// Two bytes a value.
    #[value(alias = "f16")]
    I16,
    /// A little over one byte a value.
    #[value(name = "q8_0")]
    Q8_0,
}

impl From<Kv> for KvType {
    fn from(kv: Kv) -> KvType {
        match kv {
            Kv::I16 => KvType::I16,
            Kv::Q8_0 => KvType::Q8_0,
        }
    }
}

/// Where drafts come from.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Guess {
    /// Nowhere.
    Off,
    /// From the prompt and the output.
    Lookup,
}

/// The most drafts of a sequence in a step.
const MAX_DRAFTS: usize = 8;

impl From<Guess> for Speculate {
    fn from(guess: Guess) -> Speculate {
        match guess {
            Guess::Off => Speculate::Off,
            Guess::Lookup => Speculate::Lookup { max_drafts: MAX_DRAFTS },
        }
    }
}

impl Sampling {
    /// The parameters, where `defaults` are the model's own.
    pub fn params(&self, defaults: SamplingParams) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_k: self.top_k.unwrap_or(defaults.top_k),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(defaults.repetition_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(defaults.frequency_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(defaults.presence_penalty),
            logit_bias: self.logit_bias.clone(),
            seed: self.seed,
            max_tokens: self.max_tokens,
            min_tokens: self.min_tokens.unwrap_or(0),
            stop: self.stop.clone(),
            stop_token_ids: self.stop_token_id.clone(),
            ignore_eos: self.ignore_eos,
            ..defaults
        }
    }
}

fn bias(text: &str) -> Result<(TokenId, f32), String> {
    let wrong = || format!("{text:?} is not of the form ID=X, such as 42=-100");
    let (id, bias) = text.split_once('=').ok_or_else(wrong)?;
    Ok((id.trim().parse().map_err(|_| wrong())?, bias.trim().parse().map_err(|_| wrong())?))
}

/// `paceline pull`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Models are kept in $PACELINE_CACHE/models, else $XDG_CACHE_HOME/paceline/models,
else ~/.cache/paceline/models, as NAME.gguf. A file gets its name only when its
sha256 is right. `paceline list` shows the catalogue; $PACELINE_CATALOGUE names
a file with another one.

Example: paceline pull qwen2.5-coder-0.5b")]
pub struct Pull {
    /// A name of the catalogue, or the http(s) address of a .gguf file
    #[arg(value_name = "NAME|URL")]
    pub model: String,
    /// For an address: the model's name in the cache [default: the file's name]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// For an address: refuse a file with another hash
    #[arg(long, value_name = "HEX", value_parser = sha256)]
    pub sha256: Option<String>,
}

/// `paceline list`
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: paceline list")]
pub struct List {}

/// `paceline rm`
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: paceline rm qwen2.5-coder-0.5b")]
pub struct Rm {
    /// A name that `paceline list` shows as present
    pub name: String,
}

/// `paceline inspect`
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: paceline inspect smollm2-135m")]
pub struct Inspect {
    /// A name (`paceline list`), a .gguf file or a Hugging Face folder [default: smollm2-135m]
    #[arg(env = "PACELINE_MODEL", hide_env = true)]
    pub model: Option<String>,
    /// Print one JSON object
    #[arg(long, env = "PACELINE_JSON", hide_env = true, value_parser = FalseyValueParser::new())]
    pub json: bool,
}
