//! `POST /v1/completions`

use super::answer::{Asked, Format, answer};
use super::body::Whole;
use super::error::ApiError;
use super::fields::Fields;
use super::job::{self, Job};
use super::logprobs::{self, Lists, Offsets};
use super::record::Context;
use super::{Shared, State, sampling};
use crate::completion::{Choice, Completion};
use crate::llm::Prompt;
use axum::response::Response;
use paceline_engine::{Logprobs, SamplingParams, Vocab};
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

    let only_prompt = echo && params.max_tokens == Some(0);
    if echo {
        sampling::check(&SamplingParams { max_tokens: None, ..params.clone() }, &[])?;
        params.prompt_logprobs = prompt_logprobs.max(params.logprobs);
        if only_prompt {
            // The engine samples after every prompt; the job leaves that token out.
            (params.max_tokens, params.ignore_eos) = (Some(1), true);
            (params.stop, params.stop_token_ids) = Default::default();
        }
    }
    for (i, prompt) in prompts.iter().enumerate() {
        if let Prompt::Text(text) = prompt {
            let fits = job::check_text(state, "prompt", text.len());
            fits.map_err(|error| error.of_prompt(i, prompts.len()))?;
        }
    }
    let text = state.llm.text();
    let echoes = echo.then(|| prompts.iter().map(|prompt| prompt.text(text.as_ref())).collect());
    let encoded = |prompt| match prompt {
        Prompt::Text(prompt) if !add_bos => text.encode(&prompt, false).into(),
        prompt => prompt,
    };
    let n_logprobs = params.logprobs;
    let prompts = prompts.into_iter().map(encoded).collect();
    let requests = job::requests(state, params, &terms, prompts)?;
    let n_choices = requests.iter().map(|request| request.params().n).sum();
    let offsets = vec![Offsets::default(); n_choices];
    let format = Completions { echoes, n_logprobs, prompt_logprobs, offsets };
    Ok(Asked { requests, only_prompt, delivery, format })
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
    /// Likely tokens beside each token of the answer, if asked for.
    n_logprobs: Option<usize>,
    /// Likely tokens beside each token of the prompt, apart from the answer.
    prompt_logprobs: Option<usize>,
    /// Of each choice of the answer, where its next streamed token begins.
    offsets: Vec<Offsets>,
}

impl Completions {
    /// What an answer to the prompt with that number begins with: its text, and its tokens with
    /// their log-probabilities.
    fn begin(&self, vocab: &dyn Vocab, job: &Job, prompt: usize) -> (String, Lists, Offsets) {
        let Some(echo) = self.echoes.as_ref().map(|echoes| echoes[prompt].clone()) else {
            return Default::default();
        };
        let Completion { prompt_token_ids: ids, prompt_logprobs, .. } = &job.completions[prompt];
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| vocab.token_bytes(id)).copied().collect();
        // What the tokenizer has put in front is no part of the text.
        let lead = String::from_utf8_lossy(&bytes)
            .strip_suffix(&echo)
            .map_or(0, |lead| lead.chars().count());
        let (mut lists, mut offsets) = (Lists::default(), Offsets::default());
        let mut logprobs = prompt_logprobs.iter().flatten();
        for (i, &id) in ids.iter().enumerate() {
            let one = if i == 0 { None } else { logprobs.next() };
            let offset = offsets.next(vocab.token_bytes(id)).saturating_sub(lead);
            lists.push(vocab, id, one, self.n_top(), offset);
        }
        let offsets = Offsets::after(echo.chars().count());
        (echo, lists, offsets)
    }

    fn n_top(&self) -> usize {
        self.n_logprobs.unwrap_or(0)
    }

    fn lists(&self, lists: Lists) -> Option<Value> {
        self.n_logprobs.map(|_| lists.into_json())
    }
}

impl Format for Completions {
    const OBJECTS: [&'static str; 2] = ["text_completion"; 2];
    const ID: &'static str = "cmpl";

    fn choice(&self, vocab: &dyn Vocab, job: &Job, prompt: usize, choice: &Choice) -> Value {
        let (text, mut lists, mut offsets) = self.begin(vocab, job, prompt);
        for (&id, one) in choice.token_ids.iter().zip(choice.logprobs.iter().flatten()) {
            lists.push_answer(vocab, id, one, self.n_top(), &mut offsets);
        }
        let mut value = json!({"text": text + &choice.text, "logprobs": self.lists(lists)});
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
        let (mut shown, mut lists) = (String::new(), Lists::default());
        if job.choice(index).token_ids.len() == 1 {
            (shown, lists, self.offsets[index]) = self.begin(vocab, job, index / job.n);
        }
        shown += text;
        if let Some(one) = logprobs {
            lists.push_answer(vocab, token, one, self.n_top(), &mut self.offsets[index]);
        }
        let lists = self.lists(lists);
        (!shown.is_empty() || lists.is_some()).then(|| json!({"text": shown, "logprobs": lists}))
    }

    fn close(&self, vocab: &dyn Vocab, job: &Job, index: usize) -> Value {
        if self.echoes.is_none() || !job.choice(index).token_ids.is_empty() {
            return json!({"text": "", "logprobs": null});
        }
        // No token has come to show the prompt with.
        let (text, lists, _) = self.begin(vocab, job, index / job.n);
        json!({"text": text, "logprobs": self.lists(lists)})
    }

    fn extras(&self, _: &dyn Vocab, _: &Job) -> Value {
        Value::Null
    }
}
