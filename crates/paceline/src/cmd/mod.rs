//! The subcommands, one file each.

mod bench;
mod chat;
mod inspect;
mod list;
mod pull;
mod rm;
mod run;
#[cfg(feature = "server")]
mod serve;

use crate::args::{Args, Command};

/// Does what the command line says.
pub fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Run(args) => run::run(*args),
        Command::Chat(args) => chat::run(*args),
        #[cfg(feature = "server")]
        Command::Serve(args) => serve::run(*args),
        Command::Bench { command } => bench::run(command),
        Command::Pull(args) => pull::run(args),
        Command::List(_) => list::run(),
        Command::Rm(args) => rm::run(args),
        Command::Inspect(args) => inspect::run(args),
    }
}
