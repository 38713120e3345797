//! The command line of `paceline bench`.

use super::Compute;
use crate::usage::positive;
use clap::Subcommand;
use clap::builder::FalseyValueParser;
use std::path::PathBuf;

/// `paceline bench`
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Measure a model's prefill and decode beside the machine's limits
    Run(Box<BenchRun>),
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
    /// Measure in turns with llama.cpp: the path of its llama-bench
    #[arg(long, value_name = "PROGRAM")]
    pub vs: Option<PathBuf>,
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
