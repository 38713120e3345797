//! The benchmarks of llama.cpp and ik_llama.cpp, run in between ours.

use anyhow::{Context, anyhow, ensure};
use paceline::bench::Run;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// `llama-bench`, and llama.cpp's `llama-batched-bench` beside it where it was built.
pub struct Peer {
    program: PathBuf,
    /// The fork: it repacks weights if asked to, and says a context in other words.
    is_ik: bool,
    batched: Option<PathBuf>,
    model: PathBuf,
    n_threads: String,
}

impl Peer {
    pub fn new(program: &Path, model: &Path, n_threads: usize) -> anyhow::Result<Peer> {
        ensure!(
            program.is_file(),
            "{}: no such program; --vs takes the path of llama-bench",
            program.display()
        );
        let help = output(Command::new(program).arg("--help"))?;
        let is_ik = help.contains("--run-time-repack");
        let batched = program.with_file_name("llama-batched-bench");
        Ok(Peer {
            program: program.to_owned(),
            is_ik,
            batched: (!is_ik && batched.is_file()).then_some(batched),
            model: model.to_owned(),
            n_threads: n_threads.to_string(),
        })
    }

    pub fn name(&self) -> &'static str {
        if self.is_ik { "ik_llama.cpp" } else { "llama.cpp" }
    }

    /// Tokens per second of the peer in the figures of a run.
    pub fn measure(&self, run: &Run) -> anyhow::Result<Vec<(String, f64)>> {
        let (len, n) = (run.prompt_len.to_string(), run.n_tokens.to_string());
        let mut figures = Vec::new();
        if let Some(name) = &run.prefill {
            figures.push((name.clone(), self.single(&["-p", &len, "-n", "0"])?));
        }
        match &run.decode {
            Some(name) if run.n_seqs == 1 && self.is_ik => {
                let context = format!("{len},{n}");
                figures
                    .push((name.clone(), self.single(&["-p", "0", "-n", "0", "-gp", &context])?));
            }
            Some(name) if run.n_seqs == 1 => {
                figures.push((name.clone(), self.single(&["-p", "0", "-n", &n, "-d", &len])?));
            }
            Some(name) => {
                figures.extend(self.batched(run)?.map(|speed| (name.clone(), speed)));
            }
            None => {}
        }
        Ok(figures)
    }

    fn single(&self, what: &[&str]) -> anyhow::Result<f64> {
        let usual = ["-r", "1", "-fa", "1", "-o", "json"];
        let own: &[&str] = if self.is_ik { &["-rtr", "1"] } else { &[] };
        let output = self.output(&self.program, &[what, &usual, own].concat())?;
        let program = self.program.display();
        let results: Value = serde_json::from_str(&output)
            .map_err(|_| anyhow!("{program} printed no JSON: is it llama-bench?"))?;
        let speed = results[0]["avg_ts"].as_f64().filter(|speed| *speed > 0.0);
        speed.context("llama-bench's answer has no avg_ts above 0")
    }

    fn batched(&self, run: &Run) -> anyhow::Result<Option<f64>> {
        let Some(program) = &self.batched else { return Ok(None) };
        let [len, n_tokens, n_seqs] =
            [run.prompt_len, run.n_tokens, run.n_seqs].map(|n| n.to_string());
        let context = (run.n_seqs * (run.prompt_len + run.n_tokens)).to_string();
        let args = [
            "-c",
            &context,
            "-npp",
            &len,
            "-ntg",
            &n_tokens,
            "-npl",
            &n_seqs,
            "-fa",
            "on",
            "--output-format",
            "jsonl",
        ];
        let output = self.output(program, &args)?;
        let line = output.lines().find_map(|line| serde_json::from_str::<Value>(line).ok());
        let speed = line.as_ref().and_then(|line| line["speed_tg"].as_f64());
        let speed = speed.filter(|speed| *speed > 0.0);
        Ok(Some(speed.context("llama-batched-bench's answer has no speed_tg above 0")?))
    }

    fn output(&self, program: &Path, args: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new(program);
        output(command.arg("-m").arg(&self.model).args(["-t", &self.n_threads]).args(args))
    }
}

/// What a program prints.
fn output(command: &mut Command) -> anyhow::Result<String> {
    let program = command.get_program().display().to_string();
    let output = command.output().with_context(|| program.clone())?;
    let last = String::from_utf8_lossy(&output.stderr);
    let last = last.lines().last().unwrap_or("it says nothing");
    ensure!(output.status.success(), "{program} failed ({}): {last}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
