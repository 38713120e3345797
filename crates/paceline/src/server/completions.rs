//! `POST /v1/completions`

use super::answer::{Asked, Format, answer};
use super::body::Whole;
use super::error::ApiError;
use super::fields::Fields;
use super::job::{self, Job};
use super::logprobs::{self, Lists};
use super::record::Context;
use super::{Shared, State, sampling};
use crate::completion::{Choice, Completion};
use crate::llm::Prompt;
use axum::response::Response;
use paceline_engine::{Logprobs, SamplingParams, Usage, Vocab};
use paceline_model::TokenId;
use serde::Deserialize;
use serde_json::{Value, json};

/// Tokens to generate where the request does not say, as the API has it.
const MAX_TOKENS: usize = 16;

/// The most prompts in one request.
const MAX_PROMPTS: usize = 1024;

pub(super) async fn post(
    state: Shared,
    context: Context,
    body: Whole,
) -> Result<Response, ApiError> {
    answer(state.0, context, body, read).await
}

/// Reads the body of a request.
pub(super) fn read(state: &State, body: &[u8]) -> Result<Asked<Completions>, ApiError> {
    let mut fields = Fields::parse(body)?;
    sampling::take_model(&mut fields, &state.config.model_name)?;
    let delivery = sampling::take_delivery(&mut fields)?;
    let mut params = sampling::take(&mut fields, &state.config.defaults)?;
    params.max_tokens.get_or_insert(MAX_TOKENS);
    params.logprobs = fields.take("logprobs")?;
    let prompt_logprobs = params.prompt_logprobs;
    if delivery.stream && prompt_logprobs.is_some() {
        return Err(ApiError::invalid("prompt_logprobs", "prompt_logprobs cannot be streamed"));
    }
    let terms = sampling::take_terms(&mut fields)?;
    let add_bos = fields.take("add_special_tokens")?.unwrap_or(true);
    let echo = fields.take("echo")?.unwrap_or(false);
    let prompts = take_prompts(&mut fields)?;
    fields.finish()?;

    let mut only_echo = false;
    if echo {
        sampling::check(&SamplingParams { max_tokens: None, ..params.clone() }, &[])?;
        params.prompt_logprobs = prompt_logprobs.max(params.logprobs);
        if params.max_tokens == Some(0) {
            only_echo = true;
            // The engine samples after every prompt; that token is not shown.
            (params.max_tokens, params.ignore_eos) = (Some(1), true);
            (params.stop, params.stop_token_ids) = Default::default();
        }
    }
    for prompt in &prompts {
        if let Prompt::Text(prompt) = prompt {
            job::check_text(state, "prompt", prompt.len())?;
        }
    }
    let text = state.llm.text();
    let echoes = echo.then(|| prompts.iter().map(|prompt| prompt.text(text.as_ref())).collect());
    let encoded = |prompt| match prompt {
        Prompt::Text(prompt) if !add_bos => text.encode(&prompt, false).into(),
        prompt => prompt,
    };
    let n_logprobs = params.logprobs.unwrap_or(0);
    let prompts = prompts.into_iter().map(encoded).collect();
    let requests = job::requests(state, params, &terms, prompts)?;
    let n_choices = requests.iter().map(|request| request.params().n).sum();
    let offsets = vec![0; n_choices];
    let format = Completions { echoes, only_echo, n_logprobs, prompt_logprobs, offsets };
    Ok(Asked { requests, delivery, format })
}

/// The four forms of `prompt`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Prompts {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<TokenId>),
    TokenLists(Vec<Vec<TokenId>>),
}

fn take_prompts(fields: &mut Fields) -> Result<Vec<Prompt>, ApiError> {
    let wrong = |message: String| Err(ApiError::invalid("prompt", message));
    let value: Option<Value> = fields.take("prompt")?;
    let Some(value) = value else { return wrong("prompt is missing".to_owned()) };
    let prompts = match serde_json::from_value(value) {
        Ok(Prompts::Text(text)) => vec![text.into()],
        Ok(Prompts::Texts(texts)) => texts.into_iter().map(Prompt::from).collect(),
        Ok(Prompts::Tokens(tokens)) => vec![tokens.into()],
        Ok(Prompts::TokenLists(lists)) => lists.into_iter().map(Prompt::from).collect(),
        Err(_) => {
            let forms = "a string, a list of strings, a list of token ids, or a list of such lists";
            return wrong(format!("prompt must be {forms}"));
        }
    };
    match prompts.len() {
        0 => wrong("prompt is empty".to_owned()),
        n if n > MAX_PROMPTS => wrong(format!("prompt has {n} prompts: at most {MAX_PROMPTS}")),
        _ => Ok(prompts),
    }
}

/// A continuation of each prompt.
pub(super) struct Completions {
    /// The texts of the prompts, if each answer begins with its prompt.
    echoes: Option<Vec<String>>,
    /// Nothing is shown but the prompt.
    only_echo: bool,
    /// Likely tokens beside each token of the answer.
    n_logprobs: usize,
    /// Likely tokens beside each token of the prompt, apart from the answer.
    prompt_logprobs: Option<usize>,
    /// Characters of the tokens streamed so far, of each choice of the answer.
    offsets: Vec<usize>,
}

impl Completions {
    /// What an answer to the prompt with that number begins with: its text and the log-probabilities
    /// of its tokens.
    fn begin(&self, vocab: &dyn Vocab, job: &Job, prompt: usize) -> (String, Lists, usize) {
        let (mut lists, mut offset) = (Lists::default(), 0);
        let Some(echo) = self.echoes.as_ref().map(|echoes| &echoes[prompt]) else {
            return (String::new(), lists, offset);
        };
        let Completion { prompt_token_ids: ids, prompt_logprobs, .. } = &job.completions[prompt];
        lists.push_first(vocab, ids[0]);
        // A token that was put in front of the text is no part of it.
        if echo.starts_with(&logprobs::token_text(vocab, ids[0])) || !vocab.is_control(ids[0]) {
            offset += logprobs::token_text(vocab, ids[0]).chars().count();
        }
        for (&id, one) in ids[1..].iter().zip(prompt_logprobs.iter().flatten()) {
            lists.push(vocab, id, one, self.n_logprobs, offset);
            offset += logprobs::token_text(vocab, id).chars().count();
        }
        (echo.clone(), lists, offset)
    }
}

impl Format for Completions {
    const OBJECTS: [&'static str; 2] = ["text_completion"; 2];
    const ID: &'static str = "cmpl";

    fn choice(&self, vocab: &dyn Vocab, job: &Job, prompt: usize, choice: &Choice) -> Value {
        let (mut text, mut lists, mut offset) = self.begin(vocab, job, prompt);
        if !self.only_echo {
            text += &choice.text;
            for (&id, one) in choice.token_ids.iter().zip(choice.logprobs.iter().flatten()) {
                lists.push(vocab, id, one, self.n_logprobs, offset);
                offset += logprobs::token_text(vocab, id).chars().count();
            }
        }
        let lists = choice.logprobs.is_some().then(|| lists.into_json());
        let mut value = json!({"text": text, "logprobs": lists});
        if let Some(n_top) = self.prompt_logprobs {
            let Completion { prompt_token_ids, prompt_logprobs, .. } = &job.completions[prompt];
            let all = prompt_logprobs.as_deref().unwrap_or_default();
            value["prompt_logprobs"] = logprobs::prompt(vocab, prompt_token_ids, all, n_top);
        }
        value
    }

    fn open(&self) -> Option<Value> {
        None
    }

    fn token(
        &mut self,
        vocab: &dyn Vocab,
        job: &Job,
        index: usize,
        token: TokenId,
        text: &str,
        logprobs: Option<&Logprobs>,
    ) -> Option<Value> {
        let (prompt, choice) = (index / job.n, index % job.n);
        let is_first = job.completions[prompt].choices[choice].token_ids.len() == 1;
        let (mut shown, mut lists) = (String::new(), Lists::default());
        if is_first {
            (shown, lists, self.offsets[index]) = self.begin(vocab, job, prompt);
        }
        if !self.only_echo {
            shown += text;
            if let Some(one) = logprobs {
                let offset = &mut self.offsets[index];
                lists.push(vocab, token, one, self.n_logprobs, *offset);
                *offset += logprobs::token_text(vocab, token).chars().count();
            }
        }
        let lists = logprobs.map(|_| lists.into_json());
        (!shown.is_empty() || lists.is_some()).then(|| json!({"text": shown, "logprobs": lists}))
    }

    fn close(&self) -> Value {
        json!({"text": "", "logprobs": null})
    }

    fn extras(&self, _: &dyn Vocab, _: &Job) -> Value {
        Value::Null
    }

    fn usage(&self, job: &Job) -> Usage {
        let completion_tokens = if self.only_echo { 0 } else { job.usage().completion_tokens };
        Usage { completion_tokens, ..job.usage() }
    }
}
