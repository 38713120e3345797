//! [`Bench`]: how fast a model runs, beside what the machine could do at best.
//!
//! Everything goes through the engine, as a request would: scheduling, sampling and all. What a step
//! must read and multiply at the very least is [`Cost`]; the machine's speed at both is measured
//! right before and after each run, since other tenants of a machine take their share of it by the
//! minute.

pub mod arrivals;
pub mod batching;
pub mod dataset;
#[cfg(feature = "load")]
mod events;
#[cfg(feature = "load")]
pub mod load;
pub mod percentiles;
mod random;
pub mod steps;
pub mod workload;

use crate::Error;
use crate::text::ModelText;
use paceline_engine::{Engine, EngineConfig, Limits, Request, SamplingParams};
use paceline_kernels::profile::{Op, OpCost};
use paceline_kernels::{Cpu, Profile, ReadTest};
use paceline_model::{Cost, LoadOptions, Loaded, Model, Rows, TokenId, Work};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of the test of memory, far more than caches hold.
const READ_BYTES: usize = 256 << 20;

/// Tokens that are decoded after a long prompt.
pub const LONG_TOKENS: usize = 24;

/// Sequences that start with a prompt of `prompt_len` tokens each and then decode together.
#[derive(Clone, Debug)]
pub struct Run {
    /// The name of the prompts' figure, if it is of interest.
    pub prefill: Option<String>,
    /// The name of the decoding's figure, if it is of interest.
    pub decode: Option<String>,
    /// Tokens of each prompt.
    pub prompt_len: usize,
    /// Sequences.
    pub n_seqs: usize,
    /// Tokens that each generates.
    pub n_tokens: usize,
}

impl Run {
    /// The usual runs, and decoding at `context` tokens as well.
    pub fn usual(context: Option<usize>) -> Vec<Run> {
        let run = |prompt_len, n_seqs, n_tokens| Run {
            prefill: None,
            decode: None,
            prompt_len,
            n_seqs,
            n_tokens,
        };
        let rows = |n: usize| Run { decode: Some(format!("rows{n}")), ..run(128, n, 24) };
        let long = |len: usize| Run {
            prefill: Some(format!("prefill{len}")),
            decode: Some(format!("decode@{len}")),
            ..run(len, 1, LONG_TOKENS)
        };
        let mut runs = vec![
            Run { prefill: Some("prefill512".to_owned()), ..run(512, 1, 1) },
            Run { decode: Some("decode@128".to_owned()), ..run(128, 1, 48) },
            long(4096),
        ];
        runs.extend(context.map(long));
        runs.extend([4, 8, 32].map(rows));
        runs
    }
}

/// One measurement of one figure.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Tokens per second, of all sequences together.
    pub speed: f64,
    /// Tokens per second at the machine's limits, as measured around the run.
    pub limit: f64,
}

/// What the machine did at best around a run.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Bytes read per second.
    pub read: f64,
    /// int8 multiply-adds per second; `None` in scalar code.
    pub int8: Option<f64>,
}

/// What a run measured.
#[derive(Debug)]
pub struct Measured {
    /// The figures that are of interest.
    pub samples: Vec<(String, Sample)>,
    /// The machine meanwhile.
    pub machine: Machine,
    /// With a profile: for each figure the wall time and what each op took of it.
    pub profiles: Vec<(String, Duration, BTreeMap<Op, OpCost>)>,
}

/// A model in an engine of its own, to be measured.
pub struct Bench {
    engine: Engine,
    limits: Limits,
    cost: Cost,
    profile: Arc<Profile>,
    cpu: Cpu,
    memory: ReadTest,
    /// Makes each prompt another.
    n_prompts: usize,
    /// How long loading took.
    pub load: Duration,
}

impl Bench {
    /// Loads a model and reserves memory for `runs`; those that do not fit its context are left out.
    ///
    /// # Errors
    /// If the model cannot be loaded, or there is no memory.
    pub fn new(
        path: &Path,
        options: &LoadOptions,
        config: EngineConfig,
        runs: &mut Vec<Run>,
    ) -> Result<Bench, Error> {
        let start = Instant::now();
        let Loaded { model, tokenizer, chat_template: template, .. } =
            paceline_model::load(path, options)?;
        let load = start.elapsed();
        let spec = model.spec().clone();
        runs.retain(|run| run.prompt_len + run.n_tokens <= spec.context_len);
        let blocks =
            |run: &Run| run.n_seqs * (run.prompt_len + run.n_tokens).div_ceil(spec.block_len);
        let n_blocks = runs.iter().map(blocks).max().unwrap_or(1);
        let profile = model.cpu().profile();
        let text = Arc::new(ModelText { tokenizer, template });
        let config = EngineConfig { n_blocks, prefix_cache: false, ..config };
        let engine = Engine::new(Box::new(model), text, config)?;
        let memory =
            ReadTest::new(READ_BYTES).map_err(|_| Error::ReadTest { bytes: READ_BYTES })?;
        Ok(Bench {
            limits: engine.limits().clone(),
            engine,
            cost: spec.cost,
            profile,
            cpu: Cpu::new(options.isa, options.n_threads),
            memory,
            n_prompts: 0,
            load,
        })
    }

    /// The longest sequence, in tokens.
    pub fn context_len(&self) -> usize {
        self.limits.max_model_len
    }

    /// The machine's speed now.
    pub fn machine(&self) -> Machine {
        Machine { read: self.memory.run(&self.cpu, 3), int8: self.cpu.int8_peak() }
    }

    /// Measures a run.
    ///
    /// # Errors
    /// If the engine refuses its requests.
    pub fn measure(&mut self, run: &Run, with_profile: bool) -> Result<Measured, Error> {
        let before = self.machine();
        for _ in 0..run.n_seqs {
            let request = self.request(run)?;
            self.engine.add(request);
        }
        self.profile.set(with_profile);
        let mut profiles = Vec::new();
        let (mut prefill, mut prefill_work) = (Duration::ZERO, Work::default());
        let (mut decode, mut decode_work) = (Vec::new(), Work::default());
        let mut computed = vec![0; run.n_seqs];
        while self.engine.has_work() {
            let decodes = computed.iter().all(|&n| n >= run.prompt_len);
            let n_rows = self.engine.stats().rows;
            let start = Instant::now();
            self.engine.step();
            let time = start.elapsed();
            // Sequences are served in their order, so what a step did follows from its rows.
            let mut left = (self.engine.stats().rows - n_rows) as usize;
            let mut spans = Vec::new();
            for computed in &mut computed {
                let rows = run.prompt_len.saturating_sub(*computed).max(1).min(left);
                if rows > 0 {
                    let n_outputs = usize::from(*computed + rows >= run.prompt_len);
                    spans.push(Rows { position: *computed, n: rows, n_outputs });
                    *computed += rows;
                    left -= rows;
                }
            }
            let work = self.cost.step(&spans);
            if decodes {
                decode.push(time);
                decode_work += work;
            } else {
                prefill += time;
                prefill_work += work;
                if with_profile && computed.iter().all(|&n| n >= run.prompt_len) {
                    let name = run.prefill.iter();
                    profiles.extend(name.map(|name| (name.clone(), prefill, self.profile.costs())));
                    self.profile.set(true);
                }
            }
        }
        if with_profile {
            let total: Duration = decode.iter().sum();
            let name = run.decode.iter();
            profiles.extend(name.map(|name| (name.clone(), total, self.profile.costs())));
        }
        self.profile.set(false);
        let after = self.machine();
        let machine = Machine {
            read: (before.read + after.read) / 2.0,
            int8: before.int8.zip(after.int8).map(|(a, b)| a.max(b)),
        };
        let sample = |n_tokens: usize, seconds: f64, work: Work| Sample {
            speed: n_tokens as f64 / seconds,
            limit: n_tokens as f64 / work.seconds(machine.read, machine.int8),
        };
        let mut samples = Vec::new();
        if let Some(name) = &run.prefill {
            let n_tokens = run.n_seqs * run.prompt_len;
            samples.push((name.clone(), sample(n_tokens, prefill.as_secs_f64(), prefill_work)));
        }
        if let (Some(name), false) = (&run.decode, decode.is_empty()) {
            let n_steps = decode.len();
            decode.sort_unstable();
            let seconds = decode[n_steps / 2].as_secs_f64() * n_steps as f64;
            samples.push((name.clone(), sample(run.n_seqs * n_steps, seconds, decode_work)));
        }
        Ok(Measured { samples, machine, profiles })
    }

    /// A prompt that none before was, of tokens from all over the vocabulary.
    fn request(&mut self, run: &Run) -> Result<Request, Error> {
        self.n_prompts += 1;
        let prompt = prompt(self.n_prompts, run.prompt_len, self.limits.vocab_len);
        let params = SamplingParams {
            temperature: 0.0,
            max_tokens: Some(run.n_tokens),
            ignore_eos: true,
            ..SamplingParams::default()
        };
        Ok(Request::new(prompt, params, 0, &self.limits)?)
    }
}

/// Prompt number `i`: tokens from all over the vocabulary, as no other prompt has them.
fn prompt(i: usize, len: usize, vocab_len: usize) -> Vec<TokenId> {
    let token = |place: usize| {
        let mixed = (place as u64 * 0x9E37_79B9 + i as u64 * 0x85EB_CA6B) >> 7;
        (mixed % vocab_len as u64) as TokenId
    };
    (0..len).map(token).collect()
}
