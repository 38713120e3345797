//! `paceline pull`: fetches a model into the cache.

use crate::args::Pull;
use crate::progress::Bar;
use crate::usage::UsageError;
use anyhow::{Context, bail, ensure};
use paceline::cache::Cache;
use paceline::catalogue::{Catalogue, Entry};
use paceline::fetch::{self, Fetched};
use paceline::units;
use std::io::{Write, stdout};

pub fn run(args: Pull) -> anyhow::Result<()> {
    let cache = Cache::of_user()?;
    let catalogue = Catalogue::of_user()?;
    if args.model.contains("://") {
        return address(args, &cache, &catalogue);
    }
    let Some(entry) = catalogue.find(&args.model) else {
        bail!(
            "{} is not in the catalogue: `paceline list` shows it, or give the https:// address of a .gguf file",
            args.model
        )
    };
    if args.name.is_some() || args.sha256.is_some() {
        let wrong = format!("--name and --sha256 are for addresses; {} has its own", entry.name);
        return Err(UsageError(wrong).into());
    }
    if let Some(path) = cache.find(&entry.name) {
        writeln!(stdout(), "{}: already in {}", entry.name, path.display())?;
        return Ok(());
    }
    writeln!(stdout(), "{}", terms(entry))?;
    let mut bar = Bar::new();
    let fetched = fetch::fetch(entry, &cache, &mut |progress| bar.show(progress))?;
    drop(bar);
    done(&entry.name, &fetched)
}

fn address(args: Pull, cache: &Cache, catalogue: &Catalogue) -> anyhow::Result<()> {
    let name = args.name.as_deref().or_else(|| fetch::name_in(&args.model)).with_context(|| {
        format!(
            "{}: the last part is no NAME.gguf: give the address of a GGUF file, or a --name",
            args.model
        )
    })?;
    ensure!(catalogue.find(name).is_none(), "{name} is in the catalogue: give another --name");
    let mut bar = Bar::new();
    let sha256 = args.sha256.as_deref();
    let fetched =
        fetch::fetch_url(&args.model, name, sha256, cache, &mut |progress| bar.show(progress))?;
    drop(bar);
    done(name, &fetched)
}

fn done(name: &str, fetched: &Fetched) -> anyhow::Result<()> {
    let Fetched { path, sha256, bytes } = fetched;
    writeln!(stdout(), "{name}: {}, {}", path.display(), units::bytes(*bytes))?;
    writeln!(stdout(), "sha256 {sha256}")?;
    Ok(())
}

/// One line on what a model is and under which terms it comes.
fn terms(entry: &Entry) -> String {
    let Entry { name, title, licence, terms, bytes, .. } = entry;
    let terms = terms.as_ref().map(|terms| format!(", {terms}")).unwrap_or_default();
    format!("{name}: {title}, {}, licence: {licence}{terms}", units::bytes(*bytes))
}
