//! `POST /v1/chat/completions`

use super::answer::{Answer, Format};
use super::error::ApiError;
use super::fields::Fields;
use super::job::{Job, prepare};
use super::{Shared, logprobs, sampling};
use crate::completion::Choice;
use crate::llm::Prompt;
use crate::text::Message;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::response::Response;
use paceline_engine::{Logprobs, Vocab};
use paceline_model::TokenId;
use serde::Deserialize;
use serde_json::{Map, Value, json};

pub(super) async fn post(
    state: Shared,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let state = state.0;
    let mut fields = Fields::parse(&body?)?;
    sampling::take_model(&mut fields, &state.config.model_name)?;
    let delivery = sampling::take_delivery(&mut fields)?;
    let mut params = sampling::take(&mut fields, &state.config.defaults)?;
    let wanted: bool = fields.take("logprobs")?.unwrap_or(false);
    let top: Option<usize> = fields.take("top_logprobs")?;
    if top.is_some() && !wanted {
        let message = "top_logprobs has a meaning only when logprobs is true";
        return Err(ApiError::invalid("top_logprobs", message));
    }
    params.logprobs = wanted.then(|| top.unwrap_or(0));
    if delivery.stream && params.prompt_logprobs.is_some() {
        return Err(ApiError::invalid("prompt_logprobs", "prompt_logprobs cannot be streamed"));
    }
    let salt: Option<String> = fields.take("cache_salt")?;
    let messages = take_messages(&mut fields)?;
    fields.finish()?;
    let requests = prepare(state.clone(), params, salt, move |state| {
        Ok(vec![Prompt::Tokens(state.llm.text().encode_chat(&messages)?)])
    });
    let job = Job::start(&state, requests.await?);
    Answer::new(state, job, Chat, delivery).respond().await
}

/// What a message says: text, or a list of texts.
#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Deserialize)]
struct Part {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
}

fn take_messages(fields: &mut Fields) -> Result<Vec<Message>, ApiError> {
    let messages: Vec<Map<String, Value>> = fields
        .take("messages")?
        .ok_or_else(|| ApiError::invalid("messages", "messages is missing"))?;
    if messages.is_empty() {
        return Err(ApiError::invalid("messages", "messages is empty"));
    }
    messages.into_iter().enumerate().map(|(i, message)| take_message(i, message)).collect()
}

fn take_message(i: usize, mut message: Map<String, Value>) -> Result<Message, ApiError> {
    let wrong = |field: &str, problem: &str| {
        let param = format!("messages[{i}].{field}");
        let text = format!("{param} {problem}");
        Err(ApiError::invalid(param, text))
    };
    let role = match message.remove("role") {
        Some(Value::String(role)) if role == "developer" => "system".to_owned(),
        Some(Value::String(role)) => role,
        _ => return wrong("role", "must be a string"),
    };
    let content = match message.remove("content").unwrap_or(Value::Null) {
        Value::Null => return wrong("content", "is missing"),
        value => match serde_json::from_value(value) {
            Ok(content) => content,
            Err(_) => return wrong("content", "must be a string or a list of text parts"),
        },
    };
    let content = match content {
        Content::Text(text) => text,
        Content::Parts(parts) => {
            let mut all = String::new();
            for (k, part) in parts.iter().enumerate() {
                match (part.kind.as_str(), &part.text) {
                    ("text", Some(text)) => all += text,
                    _ => {
                        return wrong(
                            &format!("content[{k}]"),
                            "must be a text part: this model reads nothing else",
                        );
                    }
                }
            }
            all
        }
    };
    match message.into_iter().find(|(_, value)| !value.is_null()) {
        Some((field, _)) => wrong(&field, "is not supported: leave it out"),
        None => Ok(Message { role, content }),
    }
}

struct Chat;

impl Format for Chat {
    const OBJECTS: [&'static str; 2] = ["chat.completion", "chat.completion.chunk"];
    const ID: &'static str = "chatcmpl";

    fn choice(&self, vocab: &dyn Vocab, _: &Job, _: usize, choice: &Choice) -> Value {
        let content = choice.logprobs.as_ref().map(|all| {
            let entries = choice.token_ids.iter().zip(all);
            entries.map(|(&id, one)| logprobs::chat(vocab, id, one)).collect::<Vec<Value>>()
        });
        json!({
            "message": {"role": "assistant", "content": choice.text},
            "logprobs": content.map(|content| json!({"content": content})),
        })
    }

    fn open(&self) -> Option<Value> {
        Some(json!({"delta": {"role": "assistant", "content": ""}, "logprobs": null}))
    }

    fn token(
        &mut self,
        vocab: &dyn Vocab,
        _: usize,
        token: TokenId,
        text: &str,
        logprobs: Option<&Logprobs>,
    ) -> Option<Value> {
        let content = logprobs.map(|one| json!({"content": [logprobs::chat(vocab, token, one)]}));
        (!text.is_empty() || content.is_some())
            .then(|| json!({"delta": {"content": text}, "logprobs": content}))
    }

    fn close(&self) -> Value {
        json!({"delta": {}, "logprobs": null})
    }

    fn extras(&self, vocab: &dyn Vocab, job: &Job) -> Value {
        let completion = &job.completions[0];
        match &completion.prompt_logprobs {
            Some(all) => json!({
                "prompt_logprobs": logprobs::prompt(vocab, &completion.prompt_token_ids, all)
            }),
            None => Value::Null,
        }
    }
}
