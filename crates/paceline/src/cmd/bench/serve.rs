//! `paceline bench serve`: how a server behaves under load.

use super::chart::{Bins, columns, overlaps, rates, spread};
use super::html::{Axis, Page, Plot, Target};
use super::table::{Table, figure, percent};
use crate::args::BenchServe;
use crate::progress;
use crate::usage::{UsageError, of_flag};
use anyhow::{Context, ensure};
use paceline::SamplingParams;
use paceline::bench::dataset::{self, Ask, Input};
use paceline::bench::load::{Arrivals, Load, LoadClient, LoadConfig, LoadError};
use paceline::bench::percentiles::Percentiles;
use serde_json::{Value, json};
use std::io::{self, Write, stdout};
use std::path::Path;
use std::time::Duration;

/// Characters of a chart's width.
const WIDTH: usize = 60;

pub fn run(args: BenchServe) -> anyhow::Result<()> {
    let sampling = SamplingParams { temperature: args.temperature, ..SamplingParams::default() };
    sampling.check().map_err(of_flag)?;
    let arrivals = match (args.rate, args.concurrency) {
        (Some(rate), _) => Arrivals::Rate(rate),
        (None, n) => Arrivals::Concurrency(n.unwrap_or(1)),
    };
    let client = LoadClient::new(LoadConfig {
        url: args.url.clone(),
        api_key: args.api_key_file.as_deref().map(read_key).transpose()?,
        arrivals,
        max_tokens: args.max_tokens,
        temperature: args.temperature.into(),
        ignore_eos: args.ignore_eos,
        seed: args.seed,
        timeout: Duration::from_secs_f64(args.timeout),
    });
    let client = client.map_err(|error| match error {
        LoadError::Url { .. } => UsageError(error.to_string()).into(),
        error => anyhow::Error::from(error),
    })?;
    let asks = asks(&args)?;
    let html = args.html.as_deref().map(Target::open).transpose()?;
    // One thread: the cores may be the server's.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (model, load) = runtime.block_on(async {
        let model = match &args.model {
            Some(model) => model.clone(),
            None => client.first_model().await?,
        };
        let bar = progress::steps(asks.len());
        let mut n_failed = 0;
        let load = client.run(&model, &asks, |exchange| {
            n_failed += usize::from(exchange.outcome.is_err());
            if n_failed > 0 {
                bar.set_message(format!("{n_failed} failed"));
            }
            bar.inc(1);
        });
        let load = load.await;
        bar.finish_and_clear();
        anyhow::Ok((model, load))
    })?;
    let report = Report { model: &model, args: &args, arrivals, load: &load };
    let mut out = stdout().lock();
    match args.json {
        true => writeln!(out, "{}", report.json())?,
        false => report.write(&mut out)?,
    }
    if let Some(html) = html {
        report.page().write(html)?;
    }
    report.warn();
    ensure!(load.answers().next().is_some(), "no request was answered in full");
    Ok(())
}

fn read_key(path: &Path) -> anyhow::Result<String> {
    let key = std::fs::read_to_string(path);
    let key = key.with_context(|| format!("--api-key-file {}", path.display()))?;
    // Of a file with several keys and their tenants, as a server has it, the first key.
    let mut words = key.lines().filter_map(|line| line.split_whitespace().next());
    let key = words.find(|word| !word.starts_with('#'));
    let key = key.with_context(|| format!("--api-key-file {}: no key in it", path.display()))?;
    Ok(key.to_owned())
}

/// What the flags say is to be asked.
fn asks(args: &BenchServe) -> anyhow::Result<Vec<Ask>> {
    let n = args.num_prompts;
    for (flag, is_given, of) in [
        ("--dataset-path", args.dataset_path.is_some(), "sharegpt"),
        ("--prompt-chars", args.prompt_chars.is_some(), "sharegpt"),
        ("--raw", args.raw, "sharegpt"),
        ("--input-len", args.input_len.is_some(), "random"),
    ] {
        if is_given && args.dataset != of {
            return Err(UsageError(format!("{flag} needs --dataset {of}: leave it out")).into());
        }
    }
    let (all, what) = match (args.dataset.as_str(), &args.dataset_path) {
        ("sharegpt", Some(path)) => {
            let turns = dataset::sharegpt(path, args.prompt_chars.clone().unwrap_or(20..=1500))?;
            let ask = |turn: String| match args.raw {
                true => Ask { input: Input::Prompt(turn), max_tokens: None },
                false => Ask { input: Input::user(&turn), max_tokens: None },
            };
            (turns.into_iter().map(ask).collect::<Vec<_>>(), path.display().to_string())
        }
        ("sharegpt", None) => {
            let way_out =
                "--dataset sharegpt needs --dataset-path FILE: tools/fetch_sharegpt.py fetches it";
            return Err(UsageError(way_out.to_owned()).into());
        }
        ("random", _) => {
            let input_len = args.input_len.clone().unwrap_or(128..=128);
            return Ok(dataset::random(n, input_len, args.seed));
        }
        (file, _) if file.ends_with(".jsonl") => {
            (dataset::lines(Path::new(file))?, file.to_owned())
        }
        (other, _) => {
            let known = "sharegpt, random or the path of a .jsonl file";
            return Err(UsageError(format!("--dataset {other:?}: it must be {known}")).into());
        }
    };
    if all.len() < n {
        eprintln!("paceline: {what} has {} requests: they are repeated", all.len());
    }
    Ok(dataset::sample(all, n, args.seed))
}

struct Report<'a> {
    model: &'a str,
    args: &'a BenchServe,
    arrivals: Arrivals,
    load: &'a Load,
}

impl Report<'_> {
    fn seconds(&self) -> f64 {
        self.load.time.as_secs_f64()
    }

    fn n_completed(&self) -> usize {
        self.load.answers().count()
    }

    /// Tokens of the prompts and answers, a second, where the server counts prompts.
    fn total_per_second(&self) -> Option<f64> {
        let tokens = self.load.prompt_tokens()? + self.load.output_tokens();
        Some(tokens as f64 / self.seconds())
    }

    /// Answers within the limits that were given, if any was.
    fn n_good(&self) -> Option<usize> {
        let limit = |ms: Option<f64>| ms.map(|ms| Duration::from_secs_f64(ms / 1e3));
        let (ttft, itl) = (limit(self.args.slo_ttft), limit(self.args.slo_itl));
        (ttft.is_some() || itl.is_some()).then(|| self.load.n_good(ttft, itl))
    }

    fn json(&self) -> Value {
        let load = self.load;
        let percentiles = |all: Option<Percentiles>| match all {
            Some(all) => json!({"p50": all.p50, "p90": all.p90, "p99": all.p99, "mean": all.mean}),
            None => json!({"p50": null, "p90": null, "p99": null, "mean": null}),
        };
        let errors = load.errors();
        let errors = errors.iter().map(|(error, n)| json!({"message": error, "requests": n}));
        let (rate, concurrency) = match self.arrivals {
            Arrivals::Rate(rate) => (Some(rate), None),
            Arrivals::Concurrency(n) => (None, Some(n)),
        };
        json!({
            "model": self.model,
            "url": self.args.url,
            "dataset": self.args.dataset,
            "rate": rate,
            "concurrency": concurrency,
            "seconds": self.seconds(),
            "completed": self.n_completed(),
            "failed": load.exchanges.len() - self.n_completed(),
            "errors": errors.collect::<Vec<_>>(),
            "output_tokens": load.output_tokens(),
            "prompt_tokens": load.prompt_tokens(),
            "tokens_counted_by": if load.n_uncounted() == 0 { "server" } else { "chunks" },
            "requests_per_second": self.n_completed() as f64 / self.seconds(),
            "output_tokens_per_second": load.output_tokens() as f64 / self.seconds(),
            "total_tokens_per_second": self.total_per_second(),
            "goodput_requests_per_second": self.n_good().map(|n| n as f64 / self.seconds()),
            "ttft_ms": percentiles(load.ttft()),
            "itl_ms": percentiles(load.itl()),
            "e2e_ms": percentiles(load.e2e()),
        })
    }

    fn title(&self) -> String {
        let how = match self.arrivals {
            Arrivals::Rate(rate) => format!("{rate} a second"),
            Arrivals::Concurrency(n) => format!("{n} at a time"),
        };
        let n = self.load.exchanges.len();
        format!(
            "{} at {}: {n} requests of {}, {how}, in {:.1} s",
            self.model,
            self.args.url,
            self.args.dataset,
            self.seconds()
        )
    }

    /// Everything but latencies.
    fn totals(&self) -> Table {
        let mut table = Table::new(["", "", ""]);
        let mut row = |name: &str, value: String, note: String| {
            table.push([name.to_owned(), value, note]);
        };
        let (load, n, n_all) = (self.load, self.n_completed(), self.load.exchanges.len());
        let failed = if n < n_all { format!("{} failed", n_all - n) } else { String::new() };
        row("completed", n.to_string(), failed);
        row("requests/s", figure(n as f64 / self.seconds()), String::new());
        let tokens = load.output_tokens();
        let counted = match load.n_uncounted() {
            0 => format!("{tokens} tokens, as the server counts"),
            n => format!("{tokens} pieces: the server does not count the tokens of {n} answers"),
        };
        row("output tokens/s", figure(tokens as f64 / self.seconds()), counted);
        let (total, of_prompts) = match load.prompt_tokens() {
            Some(n) => (self.total_per_second().map_or(String::new(), figure), n.to_string()),
            None => ("unknown".to_owned(), "not counted by the server".to_owned()),
        };
        row("total tokens/s", total, format!("prompts: {of_prompts}"));
        if let Some(n_good) = self.n_good() {
            let limit = |ms: Option<f64>, what: &str| ms.map(|ms| format!("{what} {ms} ms"));
            let limits =
                [limit(self.args.slo_ttft, "first within"), limit(self.args.slo_itl, "then every")];
            let limits: Vec<String> = limits.into_iter().flatten().collect();
            let share = percent(n_good as f64 / n_all as f64);
            let note = format!("{share} of all requests: {}", limits.join(", "));
            row("goodput requests/s", figure(n_good as f64 / self.seconds()), note);
        }
        table
    }

    /// Milliseconds of each kind.
    fn latencies(&self) -> [(&'static str, Vec<f64>); 3] {
        let answers = || self.load.answers();
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        [
            ("first token", answers().map(|(sent, answer)| ms(answer.first() - sent)).collect()),
            ("between tokens", answers().flat_map(|(_, answer)| answer.gaps()).map(ms).collect()),
            ("end to end", answers().map(|(sent, answer)| ms(answer.end - sent)).collect()),
        ]
    }

    fn latency_table(&self, with_spread: bool) -> Table {
        let mut table = Table::new(["ms", "p50", "p90", "p99", "mean"]);
        if with_spread {
            table.head.push(format!("{:<32}", "from the least to the most"));
        }
        for (name, values) in self.latencies() {
            let Some(all) = Percentiles::of(values.iter().copied()) else { continue };
            let figures = [all.p50, all.p90, all.p99, all.mean].map(figure);
            let mut row = vec![name.to_owned()];
            row.extend(figures);
            if with_spread {
                let bins = Bins::of(&values);
                let ends = format!("{} .. {}", figure(bins.low), figure(bins.high));
                row.push(format!("{} {ends:<17}", spread(&values, bins, 16)));
            }
            table.rows.push(row);
        }
        table
    }

    /// Pieces a second, and requests under way, in each of `n` parts of the time.
    fn over_time(&self, n: usize) -> [Vec<f64>; 2] {
        let pieces = self.load.answers().flat_map(|(_, answer)| {
            let per_piece = answer.output_tokens() as f64 / answer.pieces.len() as f64;
            answer.pieces.iter().map(move |piece| (piece.as_secs_f64(), per_piece))
        });
        let spans = self.load.answers().map(|(sent, answer)| (sent, answer.end));
        let spans = spans.map(|(sent, end)| (sent.as_secs_f64(), end.as_secs_f64()));
        [rates(pieces, self.seconds(), n), overlaps(spans, self.seconds(), n)]
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{}\n", self.title())?;
        for row in self.totals().rows {
            writeln!(out, "{:<19} {:>9}  {}", row[0], row[1], row[2])?;
        }
        if self.n_completed() == 0 {
            return Ok(());
        }
        writeln!(out, "\n{}", self.latency_table(true))?;
        let names = ["output tokens/s", "requests under way"];
        for (name, values) in names.into_iter().zip(self.over_time(WIDTH)) {
            let most = values.iter().copied().fold(0.0, f64::max);
            writeln!(out, "{name}, at most {}", figure(most))?;
            for line in columns(&values, most, 4) {
                writeln!(out, "  │{line}")?;
            }
            let end = format!("{:.1} s", self.seconds());
            writeln!(out, "  └{}\n   0{end:>width$}", "─".repeat(WIDTH), width = WIDTH - 1)?;
        }
        Ok(())
    }

    fn page(&self) -> Page {
        let mut page = Page::new(&self.title());
        page.table(&self.totals());
        if self.n_completed() == 0 {
            return page;
        }
        page.table(&self.latency_table(false));
        let latencies = self.latencies();
        let all = latencies.iter().flat_map(|(_, values)| values.iter().copied());
        let mut plot = Plot::new(Axis::decades("ms", all), Axis::to("share within", 1.0), 240.0);
        for (i, (name, values)) in latencies.into_iter().enumerate() {
            plot.name(["f0", "f2", "f3"][i], name);
            plot.shares([0, 2, 3][i], values);
        }
        page.plot("Latency", &plot);
        const PARTS: usize = 200;
        let labels = ["tokens/s", "requests"];
        let titles = ["Output over time", "Requests under way"];
        for (i, values) in self.over_time(PARTS).into_iter().enumerate() {
            let most = values.iter().copied().fold(0.0, f64::max);
            let (x, y) = (Axis::to("s", self.seconds()), Axis::to(labels[i], most));
            let mut plot = Plot::new(x, y, 160.0);
            let part = self.seconds() / PARTS as f64;
            let points = values.iter().enumerate();
            plot.line(2, points.map(|(i, &value)| ((i as f64 + 0.5) * part, value)));
            page.plot(titles[i], &plot);
        }
        page.plot("Each request", &self.timeline());
        page
    }

    fn timeline(&self) -> Plot {
        let n = self.load.exchanges.len();
        let (x, y) = (Axis::to("s", self.seconds()), Axis::to("request", n as f64));
        let mut plot = Plot::new(x, y, (n as f64 * 4.0).clamp(120.0, 1600.0));
        plot.name("wait", "until the first token");
        plot.name("write", "until the last");
        for (i, exchange) in self.load.exchanges.iter().enumerate() {
            let Ok(answer) = &exchange.outcome else { continue };
            let [sent, first, end] =
                [exchange.sent, answer.first(), answer.end].map(|time| time.as_secs_f64());
            // The first request is at the top.
            let lane = (n - 1 - i) as f64;
            plot.bar("wait", lane, sent, first);
            plot.bar("write", lane, first, end);
        }
        plot
    }

    /// The first reasons why requests failed, on stderr.
    fn warn(&self) {
        const SHOWN: usize = 3;
        let errors = self.load.errors();
        for (error, n) in errors.iter().take(SHOWN) {
            let requests = if *n == 1 { "request" } else { "requests" };
            let line: String =
                error.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            eprintln!("paceline: {n} {requests} failed: {line}");
        }
        if errors.len() > SHOWN {
            eprintln!("paceline: {} more kinds of failure: --json shows all", errors.len() - SHOWN);
        }
    }
}
