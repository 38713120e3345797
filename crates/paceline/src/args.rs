//! The command line, as the user typed it. Every flag has a `PACELINE_*` variable of the same name.

use clap::{Parser, Subcommand};

/// Runs and serves large language models on the machine at hand.
#[derive(Debug, Parser)]
#[command(name = "paceline", version, subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "Example: paceline run \"Why is the sky blue?\"")]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Fetch a model into the cache
    Pull(Pull),
    /// Show the catalogue and the cache
    List(List),
    /// Delete a model from the cache
    Rm(Rm),
}

/// `paceline pull`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Models are kept in $PACELINE_CACHE/models, else $XDG_CACHE_HOME/paceline/models,
else ~/.cache/paceline/models, as NAME.gguf. A file gets its name only when its
sha256 is right. `paceline list` shows the catalogue.

Example: paceline pull qwen2.5-coder-0.5b")]
pub struct Pull {
    /// A name of the catalogue, or the http(s) address of a .gguf file
    #[arg(value_name = "NAME|URL")]
    pub model: String,
    /// For an address: the model's name in the cache [default: the file's name]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// For an address: refuse a file with another hash
    #[arg(long, value_name = "HEX")]
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
