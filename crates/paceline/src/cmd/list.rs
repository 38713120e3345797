//! `paceline list`: shows the catalogue and what else is in the cache.

use paceline::cache::Cache;
use paceline::catalogue::Catalogue;
use paceline::units;
use std::io::{Write, stdout};

pub fn run() -> anyhow::Result<()> {
    let cache = Cache::of_user()?;
    let catalogue = Catalogue::of_user()?;
    let present = cache.list()?;
    let mut rows = vec![["NAME", "SIZE", "PRESENT", "LICENCE", "MODEL"].map(str::to_owned)];
    for entry in &catalogue.entries {
        let here = present.iter().any(|(name, _)| *name == entry.name);
        rows.push([
            entry.name.clone(),
            units::bytes(entry.bytes),
            if here { "yes" } else { "no" }.to_owned(),
            entry.licence.clone(),
            entry.title.clone(),
        ]);
    }
    for (name, bytes) in &present {
        if catalogue.find(name).is_none() {
            let size = units::bytes(*bytes);
            rows.push([name, &size, "yes", "?", "(pulled from an address)"].map(str::to_owned));
        }
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: [usize; 5] = std::array::from_fn(width);
    let mut out = stdout().lock();
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    writeln!(out, "\nin {}", cache.models().display())?;
    Ok(())
}
