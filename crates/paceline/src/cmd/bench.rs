//! `paceline bench`: one file for each thing to measure.

mod batching;
// Without the load client some of their forms are not needed.
#[cfg_attr(not(feature = "load"), allow(dead_code))]
mod chart;
mod html;
mod peer;
mod run;
#[cfg(feature = "load")]
mod serve;
#[cfg_attr(not(feature = "load"), allow(dead_code))]
mod table;

use crate::args::BenchCommand;

pub fn run(command: BenchCommand) -> anyhow::Result<()> {
    match command {
        BenchCommand::Run(args) => run::run(*args),
        BenchCommand::Batching(args) => batching::run(*args),
        #[cfg(feature = "load")]
        BenchCommand::Serve(args) => serve::run(*args),
    }
}
