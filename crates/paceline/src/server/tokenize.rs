//! `POST /tokenize` and `/detokenize`, in vLLM's shapes.

use super::answer::aside;
use super::body::Whole;
use super::error::{ApiError, json_response};
use super::fields::Fields;
use super::{Shared, State, chat, logprobs, sampling};
use crate::llm::Error;
use axum::http::StatusCode;
use axum::response::Response;
use paceline_model::TokenId;
use serde_json::{Value, json};

pub(super) async fn tokenize(state: Shared, body: Whole) -> Result<Response, ApiError> {
    let value = aside(move || tokens(&state.0, &body)).await?;
    Ok(json_response(StatusCode::OK, &value))
}

pub(super) async fn detokenize(state: Shared, body: Whole) -> Result<Response, ApiError> {
    let value = aside(move || text(&state.0, &body)).await?;
    Ok(json_response(StatusCode::OK, &value))
}

/// The tokens of a prompt or of a conversation, as the endpoints that generate would compute them.
pub(super) fn tokens(state: &State, body: &[u8]) -> Result<Value, ApiError> {
    let mut fields = Fields::parse(body)?;
    sampling::take_model(&mut fields, &state.config.model_name)?;
    let with_text = fields.take("return_token_strs")?.unwrap_or(false);
    let vocab = state.llm.text();
    let prompt: Option<String> = fields.take("prompt")?;
    let tokens = match prompt {
        Some(prompt) => {
            let add_bos = fields.take("add_special_tokens")?.unwrap_or(true);
            fields.finish()?;
            vocab.encode(&prompt, add_bos)
        }
        None if !fields.has("messages") => {
            return Err(ApiError::invalid("prompt", "prompt is missing, and messages as well"));
        }
        None => {
            let (messages, options) = chat::take_conversation(&mut fields)?;
            fields.finish()?;
            vocab.encode_chat(&messages, &options).map_err(Error::from)?
        }
    };
    let text = |&id: &TokenId| logprobs::token_text(vocab.as_ref(), id);
    let texts: Option<Vec<String>> = with_text.then(|| tokens.iter().map(text).collect());
    Ok(json!({
        "count": tokens.len(),
        "max_model_len": state.llm.limits().max_model_len,
        "tokens": tokens,
        "token_strs": texts,
    }))
}

/// The text of tokens, control tokens by name.
pub(super) fn text(state: &State, body: &[u8]) -> Result<Value, ApiError> {
    let mut fields = Fields::parse(body)?;
    sampling::take_model(&mut fields, &state.config.model_name)?;
    let tokens: Option<Vec<TokenId>> = fields.take("tokens")?;
    fields.finish()?;
    let tokens = tokens.ok_or_else(|| ApiError::invalid("tokens", "tokens is missing"))?;
    let n = state.llm.limits().vocab_len;
    if let Some(i) = tokens.iter().position(|&id| id as usize >= n) {
        let message = format!("tokens[{i}] is {}: the vocabulary has {n} tokens", tokens[i]);
        return Err(ApiError::invalid(format!("tokens[{i}]"), message));
    }
    Ok(json!({"prompt": state.llm.text().decode(&tokens)}))
}
