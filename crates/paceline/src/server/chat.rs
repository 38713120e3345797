//! `POST /v1/chat/completions`

use super::answer::{Asked, Format, answer};
use super::body::Whole;
use super::error::ApiError;
use super::fields::Fields;
use super::job::{self, Job};
use super::record::Context;
use super::{Shared, State, logprobs, sampling};
use crate::completion::Choice;
use crate::llm::Error;
use axum::response::Response;
use paceline_engine::{Logprobs, Vocab};
use paceline_model::{ChatOptions, TokenId};
use serde_json::{Value, json};
use std::time::SystemTime;

pub(super) async fn post(
    state: Shared,
    context: Context,
    body: Whole,
) -> Result<Response, ApiError> {
    answer(state.0, context, body, read).await
}

/// Bytes of the strings in a value.
fn text_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(text_bytes).sum(),
        Value::Object(values) => values.values().map(text_bytes).sum(),
        _ => 0,
    }
}

/// Reads the body of a request.
pub(super) fn read(state: &State, body: &[u8]) -> Result<Asked<Chat>, ApiError> {
    let mut fields = Fields::parse(body)?;
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
    sampling::check(&params, &[("logprobs", "top_logprobs")])?;
    if delivery.stream && params.prompt_logprobs.is_some() {
        return Err(ApiError::invalid("prompt_logprobs", "prompt_logprobs cannot be streamed"));
    }
    let terms = sampling::take_terms(&mut fields)?;
    let (messages, options) = take_conversation(&mut fields)?;
    fields.finish()?;
    job::check_text(state, "messages", messages.iter().map(text_bytes).sum())?;
    let prompt = state.llm.text().encode_chat(&messages, &options).map_err(Error::from)?;
    let requests = job::requests(state, params, &terms, vec![prompt.into()])?;
    Ok(Asked { requests, only_prompt: false, delivery, format: Chat })
}

/// Takes what the template makes a prompt of.
pub(super) fn take_conversation(
    fields: &mut Fields,
) -> Result<(Vec<Value>, ChatOptions), ApiError> {
    let messages = take_messages(fields)?;
    let options = take_options(fields)?;
    // The template says all that there is to say.
    if fields.take("add_special_tokens")?.unwrap_or(false) {
        return Err(ApiError::unsupported("add_special_tokens", "it must be false, or left out"));
    }
    Ok((messages, options))
}

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];
const MESSAGE_FIELDS: [&str; 6] =
    ["role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content"];

/// Takes the messages. The model's template decides what it makes of them; here is checked what no
/// template can make sense of.
fn take_messages(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let mut messages: Vec<Value> = fields
        .take("messages")?
        .ok_or_else(|| ApiError::invalid("messages", "messages is missing"))?;
    for (i, message) in messages.iter_mut().enumerate() {
        let invalid = |field: &str, problem: &str| {
            let field = format!("messages[{i}]{field}");
            let message = format!("{field} {problem}");
            Err(ApiError::invalid(field, message))
        };
        let Some(object) = message.as_object_mut() else {
            return invalid("", "must be an object with a role");
        };
        // Clients send back what they were answered, `refusal: null` and the like.
        object.retain(|_, value| !value.is_null());
        if let Some(field) = object.keys().find(|key| !MESSAGE_FIELDS.contains(&key.as_str())) {
            return invalid(&format!(".{field}"), "is not supported: leave it out");
        }
        let role = object.get("role").and_then(Value::as_str).unwrap_or_default();
        if !ROLES.contains(&role) {
            return invalid(".role", &format!("must be one of {}", ROLES.join(", ")));
        }
        let calls_tools = object.get("tool_calls").is_some_and(Value::is_array);
        match object.get("content") {
            Some(Value::String(_) | Value::Array(_)) => {}
            None if calls_tools => {}
            _ => return invalid(".content", "must be a string or a list of text parts"),
        }
        // The newer name of the same role, which templates do not know.
        if role == "developer" {
            object.insert("role".to_owned(), "system".into());
        }
    }
    Ok(messages)
}

/// Takes what goes into the template beside the messages.
fn take_options(fields: &mut Fields) -> Result<ChatOptions, ApiError> {
    Ok(ChatOptions {
        documents: fields.take("documents")?.unwrap_or_default(),
        add_generation_prompt: fields.take("add_generation_prompt")?.unwrap_or(true),
        variables: fields.take("chat_template_kwargs")?.unwrap_or_default(),
        now: SystemTime::now(),
        ..ChatOptions::default()
    })
}

/// A message of the assistant.
pub(super) struct Chat;

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
        _: &Job,
        _: usize,
        token: TokenId,
        text: &str,
        logprobs: Option<&Logprobs>,
    ) -> Option<Value> {
        let content = logprobs.map(|one| json!({"content": [logprobs::chat(vocab, token, one)]}));
        (!text.is_empty() || content.is_some())
            .then(|| json!({"delta": {"content": text}, "logprobs": content}))
    }

    fn close(&self, _: &dyn Vocab, _: &Job, _: usize) -> Value {
        json!({"delta": {}, "logprobs": null})
    }

    fn extras(&self, vocab: &dyn Vocab, job: &Job) -> Value {
        let completion = &job.completions[0];
        match &completion.prompt_logprobs {
            Some(all) => json!({
                "prompt_logprobs": logprobs::prompt(vocab, &completion.prompt_token_ids, all, usize::MAX)
            }),
            None => Value::Null,
        }
    }
}
