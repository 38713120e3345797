//! `paceline rm`: deletes a model from the cache.

use crate::args::Rm;
use paceline::cache::Cache;
use paceline::units;
use std::io::{Write, stdout};

pub fn run(args: Rm) -> anyhow::Result<()> {
    let freed = Cache::of_user()?.remove(&args.name)?;
    writeln!(stdout(), "{}: deleted, {} freed", args.name, units::bytes(freed))?;
    Ok(())
}
