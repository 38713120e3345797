//! `paceline bench run`: how fast a model runs, beside the machine's limits and a peer.

use super::peer::Peer;
use crate::args::BenchRun;
use crate::open::{Located, locate};
use crate::progress;
use crate::usage::UsageError;
use anyhow::ensure;
use paceline::bench::{Bench, LONG_TOKENS, Machine, Measured, Run, Sample};
use paceline::{EngineConfig, LoadOptions, units};
use paceline_kernels::profile::{Op, OpCost};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write, stdout};
use std::time::Duration;

pub fn run(args: BenchRun) -> anyhow::Result<()> {
    let compute = &args.compute;
    compute.check()?;
    let mut runs = Run::usual(args.context);
    choose(&mut runs, &args.only)?;
    let Located { name, path } = locate(args.model.as_deref())?;
    let options = compute.load_options();
    let config = EngineConfig {
        max_num_batched_tokens: compute.max_num_batched_tokens,
        ..EngineConfig::default()
    };
    let peers = args.vs.iter().map(|program| Peer::new(program, &path, options.n_threads));
    let peers = peers.collect::<Result<Vec<_>, _>>()?;
    let names: BTreeSet<&str> = peers.iter().map(Peer::name).collect();
    ensure!(names.len() == peers.len(), "--vs names the same engine twice: one build of each");
    let longest = runs.iter().map(|run| run.prompt_len + run.n_tokens).max().unwrap_or(0);
    let spinner = progress::spinner(&format!("loading {name}"));
    let mut bench = Bench::new(&path, &options, config, &mut runs)?;
    let context_len = bench.context_len();
    let asked = args.context.is_some_and(|context| context + LONG_TOKENS > context_len);
    ensure!(
        !asked && !runs.is_empty(),
        "figures of up to {longest} tokens are asked for: the context of {name} is {context_len}"
    );

    let mut figures: Vec<Figure> = Vec::new();
    let mut machines = Vec::new();
    let mut profiles = Vec::new();
    // The first round warms caches and clocks up, and allocates.
    let n_rounds = args.repeat + 1 + usize::from(args.profile);
    for round in 0..n_rounds {
        for run in &runs {
            let what = run.decode.as_ref().or(run.prefill.as_ref()).map_or("", |name| name);
            spinner.set_message(format!("{name}: round {} of {n_rounds}, {what}", round + 1));
            let with_profile = round > args.repeat;
            let Measured { samples, machine, profiles: costs } =
                bench.measure(run, with_profile)?;
            profiles.extend(costs);
            if round == 0 || with_profile {
                continue;
            }
            machines.push(machine);
            for (name, sample) in samples {
                Figure::of(&mut figures, name).samples.push(sample);
            }
            for peer in &peers {
                for (name, speed) in peer.measure(run)? {
                    let speeds = &mut Figure::of(&mut figures, name).peers;
                    speeds.entry(peer.name()).or_default().push(speed);
                }
            }
        }
    }
    spinner.finish_and_clear();
    let machine = Machine {
        read: median(machines.iter().map(|machine| machine.read)),
        int8: machines.iter().filter_map(|machine| machine.int8).reduce(f64::max),
    };
    let report = Report { name, options, machine, load: bench.load, figures, profiles };
    let mut out = stdout().lock();
    match args.json {
        true => writeln!(out, "{}", report.json())?,
        false => report.write(&mut out)?,
    }
    Ok(())
}

/// A figure's name, its wall time, and what each op took of it.
type OpTimes = (String, Duration, BTreeMap<Op, OpCost>);

/// All that was measured.
struct Report {
    name: String,
    options: LoadOptions,
    machine: Machine,
    load: Duration,
    figures: Vec<Figure>,
    profiles: Vec<OpTimes>,
}

impl Report {
    fn json(&self) -> Value {
        json!({
            "model": self.name,
            "threads": self.options.n_threads,
            "isa": self.options.isa.name(),
            "machine": {
                "read_gb_s": self.machine.read / 1e9,
                "int8_gmac_s": self.machine.int8.map(|peak| peak / 1e9),
            },
            "load_seconds": self.load.as_secs_f64(),
            "peak_resident_bytes": peak_resident_bytes(),
            "rows": self.figures.iter().map(Figure::json).collect::<Vec<_>>(),
        })
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let Report { name, options, machine, .. } = self;
        let int8 = machine
            .int8
            .map_or(String::new(), |peak| format!(", {:.0} G int8 multiply-adds/s", peak / 1e9));
        writeln!(
            out,
            "{name}, {} threads, {}: the machine reads {:.1} GB/s{int8}",
            options.n_threads,
            options.isa,
            machine.read / 1e9
        )?;
        let resident = peak_resident_bytes()
            .map_or(String::new(), |bytes| format!(", at most {} resident", units::bytes(bytes)));
        writeln!(out, "loaded in {:.2} s{resident}\n", self.load.as_secs_f64())?;
        let peers: BTreeSet<&str> = self.figures.iter().flat_map(Figure::peers).collect();
        let heads: String = peers.iter().map(|peer| format!(" {peer:>12}  ratio")).collect();
        writeln!(
            out,
            "{:<14} {:>9} {:>17} {:>9}  {:<25}{heads}",
            "", "tokens/s", "lowest..highest", "limit", "of the limit"
        )?;
        for figure in &self.figures {
            writeln!(out, "{}", figure.line(&peers).trim_end())?;
        }
        self.profiles.iter().try_for_each(|profile| write_profile(out, profile, self.machine))
    }
}

/// The ops of a figure's time, the longest first.
fn write_profile(
    out: &mut impl Write,
    (name, time, costs): &OpTimes,
    machine: Machine,
) -> io::Result<()> {
    let all = time.as_secs_f64();
    writeln!(
        out,
        "\n{name:<36} {:>7} {:>8} {:>6}  {:>12}  {:>14}",
        "calls", "ms", "time", "GB/s", "G MAC/s"
    )?;
    let mut costs: Vec<_> = costs.iter().collect();
    costs.sort_by_key(|(_, cost)| Reverse(cost.time));
    let in_ops: f64 = costs.iter().map(|(_, cost)| cost.time.as_secs_f64()).sum();
    for (op, cost) in costs {
        let seconds = cost.time.as_secs_f64();
        let of = |amount: u64, limit: Option<f64>| {
            let speed = amount as f64 / seconds;
            match (amount, limit) {
                (0, _) => String::new(),
                (_, Some(limit)) => {
                    format!("{:.1} {:>3.0} %", speed / 1e9, speed / limit * 100.0)
                }
                (_, None) => format!("{:.1}", speed / 1e9),
            }
        };
        writeln!(
            out,
            "  {op:<34} {:>7} {:>8.2} {:>4.1} %  {:>12}  {:>14}",
            cost.n_calls,
            seconds * 1e3,
            seconds / all * 100.0,
            of(cost.bytes, Some(machine.read)),
            of(cost.macs, machine.int8)
        )?;
    }
    writeln!(
        out,
        "  {:<34} {:>7} {:>8.2} {:>4.1} %",
        "all else",
        "",
        (all - in_ops) * 1e3,
        (1.0 - in_ops / all) * 100.0
    )
}

/// Leaves the figures that `only` names, all if it names none.
fn choose(runs: &mut Vec<Run>, only: &[String]) -> Result<(), UsageError> {
    let known: Vec<String> =
        runs.iter().flat_map(|run| run.prefill.iter().chain(&run.decode)).cloned().collect();
    if let Some(name) = only.iter().find(|name| !known.contains(name)) {
        let known = known.join(", ");
        return Err(UsageError(format!("--only names '{name}': the figures are {known}")));
    }
    if !only.is_empty() {
        runs.iter_mut().for_each(|run| {
            run.prefill.take_if(|name| !only.contains(name));
            run.decode.take_if(|name| !only.contains(name));
        });
        runs.retain(|run| run.prefill.is_some() || run.decode.is_some());
    }
    Ok(())
}

/// All measurements of a figure.
struct Figure {
    name: String,
    samples: Vec<Sample>,
    /// Tokens per second of each peer.
    peers: BTreeMap<&'static str, Vec<f64>>,
}

impl Figure {
    fn of(figures: &mut Vec<Figure>, name: String) -> &mut Figure {
        let i = figures.iter().position(|figure| figure.name == name).unwrap_or_else(|| {
            figures.push(Figure { name, samples: Vec::new(), peers: BTreeMap::new() });
            figures.len() - 1
        });
        &mut figures[i]
    }

    fn speed(&self) -> f64 {
        median(self.samples.iter().map(|sample| sample.speed))
    }

    fn limit(&self) -> f64 {
        median(self.samples.iter().map(|sample| sample.limit))
    }

    /// Each measurement over the limit of its own minute.
    fn fraction(&self) -> f64 {
        median(self.samples.iter().map(|sample| sample.speed / sample.limit))
    }

    fn spread(&self) -> (f64, f64) {
        let speeds = || self.samples.iter().map(|sample| sample.speed);
        (speeds().fold(f64::MAX, f64::min), speeds().fold(0.0, f64::max))
    }

    fn peers(&self) -> impl Iterator<Item = &'static str> {
        self.peers.keys().copied()
    }

    fn peer(&self, name: &str) -> Option<f64> {
        self.peers.get(name).map(|speeds| median(speeds.iter().copied()))
    }

    fn line(&self, peers: &BTreeSet<&str>) -> String {
        const WIDTH: usize = 20;
        let (low, high) = self.spread();
        let full = ((self.fraction() * WIDTH as f64).round() as usize).min(WIDTH);
        let bar = "█".repeat(full) + &"·".repeat(WIDTH - full);
        let peers = peers.iter().map(|name| match self.peer(name) {
            Some(peer) => format!(" {peer:>12.1} {:>5.2}x", self.speed() / peer),
            None => format!(" {:>19}", ""),
        });
        format!(
            "{:<14} {:>9.1} {:>17} {:>9.1}  {bar} {:>3.0} %{}",
            self.name,
            self.speed(),
            format!("{low:.1}..{high:.1}"),
            self.limit(),
            self.fraction() * 100.0,
            peers.collect::<String>(),
        )
    }

    fn json(&self) -> Value {
        let (low, high) = self.spread();
        let mut row = BTreeMap::from([
            ("name", json!(self.name)),
            ("tokens_per_second", json!(self.speed())),
            ("limit_tokens_per_second", json!(self.limit())),
            ("limit_fraction", json!(self.fraction())),
            ("lowest", json!(low)),
            ("highest", json!(high)),
        ]);
        let peers: BTreeMap<_, _> = self.peers().map(|name| (name, self.peer(name))).collect();
        if !peers.is_empty() {
            row.insert("peers", json!(peers));
        }
        json!(row)
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The most memory that this process has had, where the system tells.
fn peak_resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
