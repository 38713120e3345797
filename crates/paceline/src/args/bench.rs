//! The command line of `paceline bench`.

use super::Compute;
use crate::usage::{above_0, positive, seed, share};
#[cfg(feature = "load")]
use crate::usage::{number, range};
use clap::Subcommand;
use clap::builder::FalseyValueParser;
#[cfg(feature = "load")]
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// `paceline bench`
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Measure a model's prefill and decode beside the machine's limits
    Run(Box<BenchRun>),
    /// Load a server that speaks OpenAI's API, whoever made it, and measure its answers
    #[cfg(feature = "load")]
    Serve(Box<BenchServe>),
    /// Show what continuous batching gains over one by one and static batches
    Batching(Box<BenchBatching>),
}

/// `paceline bench run`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
prefillN: a prompt of N tokens; decode@N: one sequence after N tokens; rowsN: N sequences at once.
The limit is what reading weights and KV cache, or multiplying, takes at the speeds that the machine
shows in the same minute.

Example: paceline bench run qwen2.5-coder-0.5b --only prefill512,decode@128 --profile")]
pub struct BenchRun {
    /// A name (`paceline list`), a .gguf file or a Hugging Face folder [default: smollm2-135m]
    #[arg(env = "PACELINE_MODEL", hide_env = true)]
    pub model: Option<String>,
    /// Print one JSON object instead of the table
    #[arg(long, env = "PACELINE_JSON", hide_env = true, value_parser = FalseyValueParser::new())]
    pub json: bool,
    /// Show where the time goes, op by op
    #[arg(long, conflicts_with = "json")]
    pub profile: bool,
    /// Measure in turns with llama.cpp, ik_llama.cpp: llama-bench of each
    #[arg(long, value_name = "PROGRAM")]
    pub vs: Vec<PathBuf>,
    /// Rounds; the median counts
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = positive::<usize>)]
    pub repeat: usize,
    /// Only these figures
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Another length of context, beside 128 and 4096
    #[arg(long, value_name = "TOKENS", value_parser = positive::<usize>)]
    pub context: Option<usize>,
    #[command(flatten)]
    pub compute: Compute,
}

/// `paceline bench batching`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Requests have the lengths of ShareGPT's first turns and answers; all are there at the start, and once
more they arrive at random. Static batches end with their slowest request: padded ones compute all rows
to the end, ragged ones drop those that are done. The defaults take some minutes.

Example: paceline bench batching smollm2-135m --scale 0.25 --html batching.html")]
pub struct BenchBatching {
    /// A name (`paceline list`), a .gguf file or a Hugging Face folder [default: smollm2-135m]
    #[arg(env = "PACELINE_MODEL", hide_env = true)]
    pub model: Option<String>,
    /// Requests
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = positive::<usize>)]
    pub requests: usize,
    /// Sequences at a time
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = positive::<usize>)]
    pub slots: usize,
    /// What all lengths are multiplied by
    #[arg(long, value_name = "X", default_value = "1", value_parser = above_0)]
    pub scale: f64,
    /// Arrivals at random, as a share of what continuous batching does; 0: none
    #[arg(long, value_name = "X", default_value = "0.8", value_parser = share)]
    pub load: f64,
    /// Of the times of arrival
    #[arg(long, value_name = "N", default_value = "0", value_parser = seed)]
    pub seed: u64,
    /// Print one JSON object instead of the tables
    #[arg(long, env = "PACELINE_JSON", hide_env = true, value_parser = FalseyValueParser::new())]
    pub json: bool,
    /// Write a report with the timelines of all requests as well
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    #[command(flatten)]
    pub compute: Compute,
}

/// `paceline bench serve`
#[cfg(feature = "load")]
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("arrivals").required(true).args(["rate", "concurrency"]))]
#[command(after_help = "\
A dataset is sharegpt (first turns of conversations; tools/fetch_sharegpt.py fetches the file), random
(common words), or a .jsonl file with {\"prompt\": ..} or {\"messages\": [..]} and maybe max_tokens a line.

Example: paceline bench serve --url http://127.0.0.1:8000 --dataset random --concurrency 16")]
pub struct BenchServe {
    /// The server, with /v1 or without
    #[arg(long, value_name = "URL")]
    pub url: String,
    /// What is asked: sharegpt, random or FILE.jsonl
    #[arg(long, value_name = "DATASET")]
    pub dataset: String,
    /// ShareGPT's file
    #[arg(long, value_name = "FILE")]
    pub dataset_path: Option<PathBuf>,
    /// Requests a second, at random times (a Poisson process)
    #[arg(long, value_name = "R", value_parser = above_0)]
    pub rate: Option<f64>,
    /// Requests at a time, the next one when one ends
    #[arg(long, value_name = "C", value_parser = positive::<usize>)]
    pub concurrency: Option<usize>,
    /// Requests
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = positive::<usize>)]
    pub num_prompts: usize,
    /// The most tokens of an answer, where a file does not say
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = positive::<usize>)]
    pub max_tokens: usize,
    /// Has answers go on to the most tokens (not in OpenAI's API)
    #[arg(long)]
    pub ignore_eos: bool,
    /// How tokens are chosen
    #[arg(long, value_name = "T", default_value = "0", value_parser = number)]
    pub temperature: f32,
    /// sharegpt: characters of a turn [default: 20..1500]
    #[arg(long, value_name = "N..M", value_parser = range)]
    pub prompt_chars: Option<RangeInclusive<usize>>,
    /// sharegpt: as a prompt to continue, without the chat template
    #[arg(long)]
    pub raw: bool,
    /// random: words of a prompt, about as many tokens [default: 128]
    #[arg(long, value_name = "N..M", value_parser = range)]
    pub input_len: Option<RangeInclusive<usize>>,
    /// Of the choice of prompts, and of the times of arrival
    #[arg(long, value_name = "N", default_value = "0", value_parser = seed)]
    pub seed: u64,
    /// The model to ask [default: the first that the server names]
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// A file with the key that the server wants
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Seconds until a request counts as failed
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = above_0)]
    pub timeout: f64,
    /// Goodput counts answers that begin within so many milliseconds
    #[arg(long, value_name = "MS", value_parser = above_0)]
    pub slo_ttft: Option<f64>,
    /// .. and whose pieces then come so many milliseconds apart at most, on average
    #[arg(long, value_name = "MS", value_parser = above_0)]
    pub slo_itl: Option<f64>,
    /// Print one JSON object instead of the table
    #[arg(long, env = "PACELINE_JSON", hide_env = true, value_parser = FalseyValueParser::new())]
    pub json: bool,
    /// Write a report with plots as well
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}
