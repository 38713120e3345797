//! [`Fields`]: the body of a request, taken apart field by field, so that an error names its field
//! and what is left over is noticed.

use super::error::ApiError;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Fields that do not change the answer: accepted, whatever they say.
const HARMLESS: [&str; 11] = [
    "metadata",
    "parallel_tool_calls",
    "prediction",
    "priority",
    "prompt_cache_key",
    "prompt_cache_retention",
    "request_id",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
];

/// Fields that are accepted only with a value that asks for nothing beyond what is done anyway.
const NEUTRAL: [(&str, &[&str]); 16] = [
    ("add_special_tokens", &["true", "false"]),
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

    /// Takes a field; null is absent.
    pub fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => serde_json::from_value(value)
                .map(Some)
                .map_err(|error| ApiError::invalid(name, format!("{name}: {error}"))),
        }
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
                (false, Some(_)) => return Err(ApiError::unsupported(name)),
                (false, None) => {
                    let message = format!("{name} is not a field that this server knows");
                    return Err(ApiError::invalid(name, message));
                }
            }
        }
        Ok(())
    }
}
