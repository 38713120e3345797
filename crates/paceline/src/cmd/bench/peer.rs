//! llama.cpp's own benchmarks, run in between ours.

use anyhow::{Context, anyhow, ensure};
use paceline::bench::Run;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// `llama-bench`, and `llama-batched-bench` beside it where it was built.
pub struct Peer {
    program: PathBuf,
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
        let batched = program.with_file_name("llama-batched-bench");
        Ok(Peer {
            program: program.to_owned(),
            batched: batched.is_file().then_some(batched),
            model: model.to_owned(),
            n_threads: n_threads.to_string(),
        })
    }

    /// Tokens per second of the peer in the figures of a run.
    pub fn measure(&self, run: &Run) -> anyhow::Result<Vec<(String, f64)>> {
        let (len, n) = (run.prompt_len.to_string(), run.n_tokens.to_string());
        let mut figures = Vec::new();
        if let Some(name) = &run.prefill {
            figures.push((name.clone(), self.single(&["-p", &len, "-n", "0"])?));
        }
        match &run.decode {
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
        let output = self.output(&self.program, &[what, &usual].concat())?;
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
        command.arg("-m").arg(&self.model).args(["-t", &self.n_threads]).args(args);
        let output = command.output().with_context(|| program.display().to_string())?;
        let last = String::from_utf8_lossy(&output.stderr);
        let last = last.lines().last().unwrap_or("it says nothing");
        ensure!(
            output.status.success(),
            "{} failed ({}): {last}",
            program.display(),
            output.status
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
