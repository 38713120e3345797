//! `paceline bench`: one file for each thing to measure.

mod peer;
mod run;

use crate::args::BenchCommand;

pub fn run(command: BenchCommand) -> anyhow::Result<()> {
    match command {
        BenchCommand::Run(args) => run::run(*args),
    }
}
