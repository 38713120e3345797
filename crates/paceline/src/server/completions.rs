//! `POST /v1/completions`

use super::answer::{Answer, Format};
use super::error::ApiError;
use super::fields::Fields;
use super::job::{Job, prepare};
use super::logprobs::{self, Lists};
use super::{Shared, sampling};
use crate::completion::Choice;
use crate::llm::Prompt;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::response::Response;
use paceline_engine::{Logprobs, Vocab};
use paceline_model::TokenId;
use serde::Deserialize;
use serde_json::{Value, json};

/// Tokens to generate where the request does not say, as the API has it.
const MAX_TOKENS: usize = 16;

/// The most prompts in one request.
const MAX_PROMPTS: usize = 1024;

pub(super) async fn post(
    state: Shared,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let state = state.0;
    let mut fields = Fields::parse(&body?)?;
    sampling::take_model(&mut fields, &state.config.model_name)?;
    let delivery = sampling::take_delivery(&mut fields)?;
    let mut params = sampling::take(&mut fields, &state.config.defaults)?;
    params.max_tokens.get_or_insert(MAX_TOKENS);
    params.logprobs = fields.take("logprobs")?;
    if delivery.stream && params.prompt_logprobs.is_some() {
        return Err(ApiError::invalid("prompt_logprobs", "prompt_logprobs cannot be streamed"));
    }
    let salt: Option<String> = fields.take("cache_salt")?;
    let prompts = take_prompts(&mut fields)?;
    fields.finish()?;
    let n_choices = prompts.len() * params.n.min(state.llm.limits().max_num_seqs);
    let requests = prepare(state.clone(), params, salt, move |_| Ok(prompts));
    let job = Job::start(&state, requests.await?);
    let format = Completions { offsets: vec![0; n_choices] };
    Answer::new(state, job, format, delivery).respond().await
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

struct Completions {
    /// Characters streamed so far, of each choice of the answer.
    offsets: Vec<usize>,
}

impl Format for Completions {
    const OBJECTS: [&'static str; 2] = ["text_completion"; 2];
    const ID: &'static str = "cmpl";

    fn choice(&self, vocab: &dyn Vocab, job: &Job, prompt: usize, choice: &Choice) -> Value {
        let lists = choice.logprobs.as_ref().map(|all| {
            let mut lists = Lists::default();
            let mut offset = 0;
            for (&id, one) in choice.token_ids.iter().zip(all) {
                lists.push(vocab, id, one, &mut offset);
            }
            lists.into_json()
        });
        let mut value = json!({"text": choice.text, "logprobs": lists});
        let completion = &job.completions[prompt];
        if let Some(all) = &completion.prompt_logprobs {
            value["prompt_logprobs"] = logprobs::prompt(vocab, &completion.prompt_token_ids, all);
        }
        value
    }

    fn open(&self) -> Option<Value> {
        None
    }

    fn token(
        &mut self,
        vocab: &dyn Vocab,
        index: usize,
        token: TokenId,
        text: &str,
        logprobs: Option<&Logprobs>,
    ) -> Option<Value> {
        let lists = logprobs.map(|one| {
            let mut lists = Lists::default();
            lists.push(vocab, token, one, &mut self.offsets[index]);
            lists.into_json()
        });
        (!text.is_empty() || lists.is_some()).then(|| json!({"text": text, "logprobs": lists}))
    }

    fn close(&self) -> Value {
        json!({"text": "", "logprobs": null})
    }

    fn extras(&self, _: &dyn Vocab, _: &Job) -> Value {
        Value::Null
    }
}
