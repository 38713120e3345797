//! `paceline bench batching`: what it gains to compose each step anew.

use super::chart;
use super::html::{Axis, Page, Plot, Target};
use super::table::{Table, figure, percent};
use crate::args::BenchBatching;
use crate::open::{Located, locate};
use crate::progress;
use crate::usage::UsageError;
use anyhow::anyhow;
use paceline::bench::arrivals::poisson;
use paceline::bench::batching::{Batching, Served, Turn, Way};
use paceline::bench::percentiles::Percentiles;
use paceline::bench::steps::StepCosts;
use paceline::bench::workload;
use paceline::{EngineConfig, EngineError, Error, LoadOptions};
use serde_json::{Value, json};
use std::io::{self, Write, stdout};
use std::time::Duration;

pub fn run(args: BenchBatching) -> anyhow::Result<()> {
    let compute = &args.compute;
    compute.check()?;
    if args.slots > compute.max_num_batched_tokens {
        let (slots, most) = (args.slots, compute.max_num_batched_tokens);
        let wrong = format!(
            "--slots is {slots}: a step has at most {most} rows, as \
                             --max-num-batched-tokens says"
        );
        return Err(UsageError(wrong).into());
    }
    let html = args.html.as_deref().map(Target::open).transpose()?;
    let Located { name, path } = locate(args.model.as_deref())?;
    let options = compute.load_options();
    let config = EngineConfig {
        max_num_seqs: args.slots,
        max_num_batched_tokens: compute.max_num_batched_tokens,
        ..EngineConfig::default()
    };
    let spinner = progress::spinner(&format!("loading {name}"));
    let workload = workload::sharegpt(args.requests, args.scale);
    let batching = Batching::new(&path, &options, config, workload);
    let mut batching = batching.map_err(|error| match error {
        Error::Engine(EngineError::KvMemory(_)) => {
            anyhow!(
                "no memory for {} of the longest requests: lower --slots or --scale",
                args.slots
            )
        }
        error => anyhow::Error::from(error).context(format!("cannot measure {name}")),
    })?;
    spinner.finish_and_clear();

    let at_once = vec![Duration::ZERO; args.requests];
    let before = batching.measure_steps()?;
    let continuous = serve(&mut batching, Way::Continuous, &at_once)?;
    let costs = before.mean(&batching.measure_steps()?);
    let predicted = costs.predict(batching.workload(), args.slots, batching.budget());
    let under_load = match args.load {
        0.0 => None,
        load => {
            let rate = load * args.requests as f64 / continuous.time.as_secs_f64();
            let arrivals = poisson(args.requests, rate, args.seed);
            let served = [Way::StaticRagged, Way::Continuous]
                .map(|way| serve(&mut batching, way, &arrivals));
            let [ragged, continuous] = served;
            Some(UnderLoad { rate, served: [ragged?, continuous?] })
        }
    };
    let mut others = Vec::new();
    for way in [Way::Sequential, Way::StaticPadded, Way::StaticRagged] {
        others.push(serve(&mut batching, way, &at_once)?);
    }
    let served = others.into_iter().chain([continuous]).collect();
    let report = Report { name, args: &args, options, costs, predicted, served, under_load };
    let mut out = stdout().lock();
    match args.json {
        true => writeln!(out, "{}", report.json())?,
        false => report.write(&mut out)?,
    }
    match html {
        Some(html) => report.page().write(html),
        None => Ok(()),
    }
}

fn serve(batching: &mut Batching, way: Way, arrivals: &[Duration]) -> anyhow::Result<Served> {
    let bar = progress::steps(arrivals.len());
    bar.set_message(way.name());
    let served = batching.serve(way, arrivals, || bar.inc(1));
    bar.finish_and_clear();
    Ok(served?)
}

/// The same workload, arriving at random.
struct UnderLoad {
    /// Requests a second.
    rate: f64,
    /// Static and ragged, and continuous.
    served: [Served; 2],
}

struct Report<'a> {
    name: String,
    args: &'a BenchBatching,
    options: LoadOptions,
    costs: StepCosts,
    /// Seconds that the costs of the steps predict for continuous batching.
    predicted: f64,
    /// All there at the start, in the order of [`Way::ALL`].
    served: Vec<Served>,
    under_load: Option<UnderLoad>,
}

impl Report<'_> {
    fn tokens(&self) -> [usize; 2] {
        let turns = &self.served[0].turns;
        let sum = |length: fn(&Turn) -> usize| turns.iter().map(length).sum();
        [sum(|turn| turn.lengths.prompt), sum(|turn| turn.lengths.output)]
    }

    fn continuous(&self) -> &Served {
        &self.served[self.served.len() - 1]
    }

    /// Of the predicted speed, what continuous batching reached.
    fn of_predicted(&self) -> f64 {
        self.predicted / self.continuous().time.as_secs_f64()
    }

    fn predicted_tokens_per_second(&self) -> f64 {
        self.tokens()[1] as f64 / self.predicted
    }

    fn json(&self) -> Value {
        let percentiles = |all: Option<Percentiles>| {
            let all = all.map(
                |all| json!({"p50": all.p50, "p90": all.p90, "p99": all.p99, "mean": all.mean}),
            );
            all.unwrap_or_default()
        };
        let of = |served: &Served| {
            let mut object = json!({
                "output_tokens_per_second": served.output_tokens_per_second(),
                "seconds": served.time.as_secs_f64(),
                "e2e_ms": percentiles(served.e2e()),
                "shortest_half_e2e_ms": percentiles(served.shortest_half_e2e()),
                "useful_rows": served.useful_rows(),
                "slots_at_work": served.slots_at_work(self.args.slots),
            });
            if served.way != Way::StaticPadded {
                object["ttft_ms"] = percentiles(served.ttft());
            }
            object
        };
        let [prompt_tokens, output_tokens] = self.tokens();
        let decode = self.costs.decode.iter();
        let decode = decode.map(|decode| json!({
            "rows": decode.n_rows,
            "at": decode.at.map(|(context, seconds)| json!({"context": context, "ms": seconds * 1e3})),
        }));
        let prefill = self.costs.prefill.iter();
        let prefill = prefill.map(|(n, seconds)| json!({"rows": n, "ms": seconds * 1e3}));
        let mut object = json!({
            "model": self.name,
            "threads": self.options.n_threads,
            "isa": self.options.isa.name(),
            "requests": self.args.requests,
            "slots": self.args.slots,
            "scale": self.args.scale,
            "prompt_tokens": prompt_tokens,
            "output_tokens": output_tokens,
            "steps": {"decode": decode.collect::<Vec<_>>(), "prefill": prefill.collect::<Vec<_>>()},
            "predicted_output_tokens_per_second": self.predicted_tokens_per_second(),
            "of_predicted": self.of_predicted(),
        });
        for served in &self.served {
            object[served.way.key()] = of(served);
        }
        if let Some(UnderLoad { rate, served }) = &self.under_load {
            let mut under_load = json!({"load": self.args.load, "requests_per_second": rate});
            for served in served {
                under_load[served.way.key()] = of(served);
            }
            object["under_load"] = under_load;
        }
        object
    }

    fn title(&self) -> String {
        let [prompt, output] = self.tokens();
        format!(
            "{}, {} threads, {}: {} requests of {prompt} prompt and {output} output tokens, {} slots",
            self.name,
            self.options.n_threads,
            self.options.isa,
            self.args.requests,
            self.args.slots
        )
    }

    fn at_once(&self) -> Table {
        let mut table = Table::new([
            "all there at the start",
            "output tokens/s",
            "continuous is",
            "end to end s: p50",
            "p90",
            "p99",
            "useful rows",
            "slots at work",
        ]);
        let best = self.continuous().output_tokens_per_second();
        for served in &self.served {
            let speed = served.output_tokens_per_second();
            let mut row = vec![
                served.way.name().to_owned(),
                figure(speed),
                format!("{}x", figure(best / speed)),
            ];
            row.extend(seconds(served.e2e()));
            row.push(percent(served.useful_rows()));
            row.push(percent(served.slots_at_work(self.args.slots)));
            table.rows.push(row);
        }
        table.rows.push(vec![
            "as its steps predict".to_owned(),
            figure(self.predicted_tokens_per_second()),
            format!("{}x", figure(self.of_predicted())),
        ]);
        table
    }

    fn arriving(&self) -> Option<(String, Table)> {
        let UnderLoad { rate, served } = self.under_load.as_ref()?;
        let title = format!(
            "arriving at random, {} a second, {} of what continuous batching does at best",
            figure(*rate),
            percent(self.args.load)
        );
        let mut table = Table::new([
            "",
            "first token s: p50",
            "p90",
            "p99",
            "end to end s: p50",
            "p90",
            "p99",
            "shortest half: p50",
        ]);
        for served in served {
            let mut row = vec![served.way.name().to_owned()];
            row.extend(seconds(served.ttft()));
            row.extend(seconds(served.e2e()));
            row.extend(seconds(served.shortest_half_e2e()).into_iter().take(1));
            table.rows.push(row);
        }
        Some((title, table))
    }

    fn steps(&self) -> String {
        let decode = self.costs.decode.iter();
        let decode = decode.map(|decode| {
            let ms = decode.seconds((decode.at[0].0 + decode.at[1].0) / 2.0) * 1e3;
            format!("{} {}", decode.n_rows, figure(ms))
        });
        let prefill = self.costs.prefill.iter();
        let prefill = prefill.map(|(n, seconds)| format!("{n} {}", figure(seconds * 1e3)));
        format!(
            "a step in ms, by rows: decoding {}; of a prompt {}",
            decode.collect::<Vec<_>>().join(", "),
            prefill.collect::<Vec<_>>().join(", ")
        )
    }

    /// Of the slowest way.
    fn longest(&self) -> f64 {
        self.served.iter().map(|served| served.time.as_secs_f64()).fold(0.0, f64::max)
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{}\n\n{}", self.title(), self.at_once())?;
        writeln!(out, "{}\n", self.steps())?;
        if let Some((title, table)) = self.arriving() {
            writeln!(out, "{title}\n{table}")?;
        }
        writeln!(out, "slots over time: █ at work, ░ computed for nobody")?;
        for served in &self.served {
            writeln!(out, "{}", served.way.name())?;
            for line in strip(served, self.args.slots, self.longest()) {
                writeln!(out, "  │{line}")?;
            }
        }
        let end = format!("{:.1} s", self.longest());
        writeln!(out, "  └{}\n   0{end:>width$}", "─".repeat(WIDTH), width = WIDTH - 1)
    }

    fn page(&self) -> Page {
        let mut page = Page::new(&self.title());
        page.table(&self.at_once());
        page.text(&self.steps());
        if let Some((title, table)) = self.arriving() {
            page.text(&title);
            page.table(&table);
        }
        let e2e = |served: &Served| {
            let times = served.turns.iter().map(|turn| turn.end - turn.arrival);
            times.map(|time| time.as_secs_f64()).collect::<Vec<_>>()
        };
        let plots = [("all there at the start", &self.served[..])].into_iter();
        let under_load = self.under_load.iter();
        let under_load = under_load.map(|load| ("arriving at random", &load.served[..]));
        for (title, all) in plots.chain(under_load) {
            let values = all.iter().flat_map(e2e);
            let mut plot =
                Plot::new(Axis::decades("s", values), Axis::to("share within", 1.0), 240.0);
            for served in all {
                let i = Way::ALL.iter().position(|way| *way == served.way).unwrap_or(0);
                plot.name(["f0", "f1", "f2", "f3"][i], served.way.name());
                plot.shares(i, e2e(served));
            }
            page.plot(&format!("End to end, {title}"), &plot);
        }
        for served in &self.served {
            page.plot(served.way.name(), &self.timeline(served));
        }
        page
    }

    fn timeline(&self, served: &Served) -> Plot {
        let n_lanes = served.turns.iter().map(|turn| turn.slot + 1).max().unwrap_or(1) as f64;
        let x = Axis::to("s", self.longest());
        let mut plot = Plot::new(x, Axis::to("slot", n_lanes), (n_lanes * 9.0).max(16.0));
        plot.name("read", "prompt");
        plot.name("write", "answer");
        plot.name("waste", "for nobody");
        for turn in &served.turns {
            let lane = n_lanes - 1.0 - turn.slot as f64;
            let [start, first, done, end] =
                [turn.start, turn.first, turn.done, turn.end].map(|time| time.as_secs_f64());
            plot.bar("read", lane, start, first);
            plot.bar("write", lane, first, done);
            if end > done {
                plot.bar("waste", lane, done, end);
            }
        }
        plot
    }
}

/// Characters of a timeline's width.
const WIDTH: usize = 72;

/// The slots at work over time, and above them those that work for nobody.
fn strip(served: &Served, slots: usize, seconds: f64) -> Vec<String> {
    const HEIGHT: usize = 4;
    let turns = || served.turns.iter();
    let at = |time: Duration| time.as_secs_f64();
    let work = turns().map(|turn| (at(turn.start), at(turn.done)));
    let work = chart::overlaps(work, seconds, WIDTH);
    let all = turns().map(|turn| (at(turn.start), at(turn.end)));
    let all = chart::overlaps(all, seconds, WIDTH);
    let work = chart::columns(&work, slots as f64, HEIGHT);
    let all = chart::columns(&all, slots as f64, HEIGHT);
    let cell = |(work, all): (char, char)| if work == ' ' && all != ' ' { '░' } else { work };
    work.iter()
        .zip(&all)
        .map(|(work, all)| work.chars().zip(all.chars()).map(cell).collect())
        .collect()
}

fn seconds(all: Option<Percentiles>) -> Vec<String> {
    let all = all.into_iter().flat_map(|all| [all.p50, all.p90, all.p99]);
    all.map(|ms| figure(ms / 1e3)).collect()
}
