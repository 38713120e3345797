//! `paceline run`: answers one prompt.

use crate::args::Run;
use crate::figures;
use crate::open::{self, Opened};
use crate::progress;
use crate::usage::{UsageError, of_flag};
use anyhow::{Context, ensure};
use paceline::{
    Completion, Error, Llm, Logprobs, Message, SamplingParams, Stream, TokenId, reason_name,
};
use serde::Serialize;
use std::fs;
use std::io::{self, IsTerminal, Read, Write, stdout};

pub fn run(args: Run) -> anyhow::Result<()> {
    let params = |defaults| SamplingParams {
        logprobs: args.logprobs,
        prompt_logprobs: args.prompt_logprobs,
        ..args.sampling.params(defaults)
    };
    params(SamplingParams::default()).check().map_err(of_flag)?;
    args.engine.check()?;
    for (flag, value) in
        [("--logprobs", args.logprobs), ("--prompt-logprobs", args.prompt_logprobs)]
    {
        if value.is_some() && !args.json {
            usage(format!("{flag} has a meaning only with --json"))?;
        }
    }
    if args.raw && args.system.is_some() {
        usage("--system needs a chat template, which --raw leaves out: give one of the two")?;
    }
    let (model, prompt) = prompt(&args)?;
    let located = open::locate(model.as_deref()).map_err(|error| match error.downcast_ref() {
        Some(Error::NoModel(word)) if args.prompt_file.is_some() && args.words.contains(word) => {
            let rule = "with --prompt-file the word is the MODEL";
            UsageError(format!("{rule}, and there is no model or file {word:?}")).into()
        }
        _ => error,
    })?;
    ensure!(
        args.system.is_none() || located.has_chat_template()?,
        "{} has no chat template, which --system needs: leave it out",
        located.name
    );
    let opened = located.load(&args.engine, &params(SamplingParams::default()))?;
    let Opened { llm, name, .. } = &opened;
    let mut params = params(opened.defaults(0.0));
    let raw = args.raw || !llm.text().has_chat_template();
    if raw && !args.raw {
        eprintln!(
            "paceline: {name} has no chat template: it continues the prompt as it is (--raw)"
        );
    }
    let tokens = if raw {
        llm.text().encode(&prompt, true)
    } else {
        let system = args.system.iter().map(Message::system);
        let messages: Vec<Message> = system.chain([Message::user(prompt)]).collect();
        llm.encode_chat(&messages)?
    };
    limit(&mut params, llm, tokens.len());

    let before = llm.stats();
    let stream = llm.stream(tokens, &params).map_err(|error| match error {
        Error::Invalid(_) => of_flag(error).into(),
        _ => anyhow::Error::from(error),
    })?;
    let completion = if args.json { stream.finish()? } else { show(stream)? };
    if args.json {
        let object = Output::new(&completion, &opened, &params);
        writeln!(stdout(), "{}", serde_json::to_string(&object)?)?;
    }
    eprintln!("{}", figures::line(&completion, &params, [before, llm.stats()]));
    Ok(())
}

/// The model, if one is named, and the prompt.
fn prompt(args: &Run) -> anyhow::Result<(Option<String>, String)> {
    let (model, prompt) = match (&args.words[..], &args.prompt_file) {
        ([], Some(_)) => (None, None),
        ([model], Some(_)) => (Some(model), None),
        (_, Some(_)) => usage("the prompt is given twice: as an argument and by --prompt-file")?,
        ([], None) => usage("no prompt: paceline run \"Why is the sky blue?\", or - for stdin")?,
        ([prompt], None) => (None, Some(prompt)),
        ([model, prompt, ..], None) => (Some(model), Some(prompt)),
    };
    let from_env = std::env::var("PACELINE_MODEL").ok();
    if model.is_some() && args.model.is_some() && args.model != from_env {
        usage("the model is given twice: as an argument and by --model")?;
    }
    let model = model.or(args.model.as_ref()).cloned();
    let text = match (prompt, &args.prompt_file) {
        (Some(prompt), _) if prompt == "-" => {
            let mut bytes = Vec::new();
            io::stdin().read_to_end(&mut bytes).context("stdin")?;
            String::from_utf8(bytes).context("stdin is not UTF-8 text")?
        }
        (Some(prompt), _) => prompt.clone(),
        (None, Some(path)) => {
            let bytes = fs::read(path).with_context(|| path.display().to_string())?;
            String::from_utf8(bytes)
                .with_context(|| format!("{}: not UTF-8 text", path.display()))?
        }
        (None, None) => String::new(),
    };
    Ok((model, text))
}

fn usage<T>(message: impl Into<String>) -> Result<T, UsageError> {
    Err(UsageError(message.into()))
}

/// The length of an answer where nothing is said.
const MAX_TOKENS: usize = 1024;

/// Limits an answer whose length nobody has limited, as far as the context allows.
pub fn limit(params: &mut SamplingParams, llm: &Llm, prompt_len: usize) {
    let limits = llm.limits();
    let room = limits.max_model_len.min(limits.kv_len).saturating_sub(prompt_len);
    if params.max_tokens.is_none() && room > MAX_TOKENS {
        params.max_tokens = Some(MAX_TOKENS);
    }
}

/// Prints the text as it comes.
pub fn show(mut stream: Stream) -> anyhow::Result<Completion> {
    let mut out = stdout().lock();
    // Only where nothing else is drawn: the text goes to the same terminal.
    let mut spinner = Some(progress::spinner("reading the prompt"));
    for chunk in stream.by_ref() {
        if chunk.text.is_empty() {
            continue;
        }
        if let Some(spinner) = spinner.take() {
            spinner.finish_and_clear();
        }
        out.write_all(chunk.text.as_bytes())?;
        out.flush()?;
    }
    drop(spinner);
    let completion = stream.finish()?;
    if !completion.choices[0].text.ends_with('\n') || out.is_terminal() {
        writeln!(out)?;
    }
    Ok(completion)
}

/// What `--json` prints.
#[derive(Serialize)]
struct Output<'a> {
    text: &'a str,
    prompt_token_ids: &'a [TokenId],
    token_ids: &'a [TokenId],
    finish_reason: &'static str,
    logprobs: Option<Vec<TokenLogprobs>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<Vec<Option<TokenLogprobs>>>,
    usage: Usage,
    timings: Timings,
}

#[derive(Serialize)]
struct TokenLogprobs {
    token_id: TokenId,
    token: String,
    logprob: f32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    top: Vec<TokenLogprobs>,
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    cached_tokens: usize,
}

#[derive(Serialize)]
struct Timings {
    load_ms: f64,
    time_to_first_token_ms: f64,
    prefill_tokens_per_second: f64,
    decode_tokens_per_second: f64,
}

impl<'a> Output<'a> {
    fn new(completion: &'a Completion, opened: &Opened, params: &SamplingParams) -> Output<'a> {
        let choice = &completion.choices[0];
        let entry = |token_id: TokenId, logprob: f32| TokenLogprobs {
            token_id,
            token: String::from_utf8_lossy(opened.llm.text().token_bytes(token_id)).into_owned(),
            logprob,
            top: Vec::new(),
        };
        let full = |(&id, logprobs): (&TokenId, &Logprobs)| TokenLogprobs {
            top: logprobs.top.iter().map(|&(id, logprob)| entry(id, logprob)).collect(),
            ..entry(id, logprobs.logprob)
        };
        let prompt_logprobs = params.prompt_logprobs.map(|_| {
            let rest = completion.prompt_token_ids.iter().skip(1);
            let rest = rest.zip(completion.prompt_logprobs.iter().flatten());
            std::iter::once(None).chain(rest.map(full).map(Some)).collect()
        });
        Output {
            text: &choice.text,
            prompt_token_ids: &completion.prompt_token_ids,
            token_ids: &choice.token_ids,
            finish_reason: choice.finish_reason.map_or("", reason_name),
            logprobs: choice
                .logprobs
                .as_ref()
                .map(|all| choice.token_ids.iter().zip(all).map(full).collect()),
            prompt_logprobs,
            usage: Usage {
                prompt_tokens: completion.usage.prompt_tokens,
                completion_tokens: completion.usage.completion_tokens,
                cached_tokens: completion.usage.cached_tokens,
            },
            timings: Timings {
                load_ms: opened.load.as_secs_f64() * 1e3,
                time_to_first_token_ms: completion.timings.first_token.as_secs_f64() * 1e3,
                prefill_tokens_per_second: completion.prefill_tokens_per_second(),
                decode_tokens_per_second: completion.decode_tokens_per_second(),
            },
        }
    }
}
