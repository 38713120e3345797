//! [`Fields`]: the body of a request, taken apart field by field, so that an error names its field
//! and what is left over is noticed.

use super::error::ApiError;
use paceline_model::TokenId;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// What a field can hold, in words that follow "must be".
pub(super) trait Kind: DeserializeOwned {
    const KIND: &'static str;
}

/// One value, or a list of them.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

macro_rules! kinds {
    ($($type:ty: $kind:literal;)*) => {
        $(impl Kind for $type {
            const KIND: &'static str = $kind;
        })*
    };
}

kinds! {
    bool: "true or false";
    String: "a string";
    f32: "a number";
    usize: "a whole number of at least 0";
    i32: "a whole number of 32 bits";
    i64: "a whole number";
    OneOrMany<String>: "a string or a list of strings";
    Vec<TokenId>: "a list of token ids, which are whole numbers of at least 0";
    BTreeMap<String, f32>: "an object with a number for each token id";
    Vec<Value>: "a list";
    Map<String, Value>: "an object";
    Value: "anything";
}

/// The largest whole number up to which JSON's readers agree: 2^53.
const MAX_WHOLE: f64 = 9_007_199_254_740_992.0;

/// Fields that do not change the answer: accepted, whatever they say.
const HARMLESS: [&str; 10] = [
    "metadata",
    "parallel_tool_calls",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_retention",
    "request_id",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
];

/// Fields that are accepted only with a value that asks for nothing beyond what is done anyway.
const NEUTRAL: [(&str, &[&str]); 15] = [
    ("audio", &[]),
    ("continue_final_message", &["false"]),
    ("echo", &["false"]),
    ("function_call", &["\"none\"", "\"auto\""]),
    ("functions", &["[]"]),
    ("length_penalty", &["1", "1.0"]),
    ("modalities", &["[\"text\"]"]),
    ("response_format", &["{\"type\":\"text\"}"]),
    ("skip_special_tokens", &["true"]),
    ("spaces_between_special_tokens", &["true"]),
    ("suffix", &["\"\""]),
    ("tool_choice", &["\"none\"", "\"auto\""]),
    ("tools", &["[]"]),
    ("truncate_prompt_tokens", &[]),
    ("use_beam_search", &["false"]),
];

/// The fields of a request that have not been taken yet.
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    /// Reads a body.
    pub fn parse(body: &[u8]) -> Result<Fields, ApiError> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => Ok(Fields(fields)),
            Ok(_) => Err(ApiError::body("the body must be a JSON object".to_owned())),
            Err(error) => Err(ApiError::body(format!("the body is not JSON: {error}"))),
        }
    }

    /// Whether a field is there.
    pub fn has(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| !value.is_null())
    }

    /// Takes a field; null is absent.
    pub fn take<T: Kind>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        let value = match self.0.remove(name) {
            None | Some(Value::Null) => return Ok(None),
            Some(value) => value,
        };
        let huge = value.as_f64().is_some_and(|value| value.abs() > MAX_WHOLE);
        serde_json::from_value(value).map(Some).map_err(|_| {
            let problem = if huge { "is out of range: it " } else { "" };
            ApiError::invalid(name, format!("{name} {problem}must be {}", T::KIND))
        })
    }

    /// Sees to it that nothing is left that would change the answer.
    pub fn finish(self) -> Result<(), ApiError> {
        for (name, value) in self.0 {
            let neutral = NEUTRAL.iter().find(|(neutral, _)| *neutral == name);
            let ok = value.is_null()
                || HARMLESS.contains(&name.as_str())
                || neutral.is_some_and(|(_, values)| values.contains(&value.to_string().as_str()));
            match (ok, neutral) {
                (true, _) => {}
                (false, Some((_, []))) => return Err(ApiError::unsupported(name, "leave it out")),
                (false, Some((_, values))) => {
                    let way_out = format!("it must be {}, or left out", values.join(" or "));
                    return Err(ApiError::unsupported(name, &way_out));
                }
                (false, None) => {
                    let message = format!("{name} is not a field that this server knows");
                    return Err(ApiError::invalid(name, message));
                }
            }
        }
        Ok(())
    }
}
