//! The subcommands, one file each.

mod list;
mod pull;
mod rm;

use crate::args::{Args, Command};

/// Does what the command line says.
pub fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Pull(args) => pull::run(args),
        Command::List(_) => list::run(),
        Command::Rm(args) => rm::run(args),
    }
}
