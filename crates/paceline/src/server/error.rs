//! [`ApiError`]: an error as OpenAI's API writes it.

use crate::llm::Error;
use crate::text::ChatError;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use paceline_engine::InvalidRequest;
use paceline_model::chat::ChatError as template;
use serde_json::{Value, json};
use std::time::Duration;

/// Why a request gets no answer.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    code: Option<&'static str>,
    /// The field of the request.
    param: Option<String>,
    message: String,
    /// When to try again, in seconds.
    retry_after: Option<u64>,
}

impl ApiError {
    /// A request that nothing is wrong with but the value of `param`.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError {
            status: StatusCode::BAD_REQUEST,
            code: None,
            param: Some(param.into()),
            message: message.into(),
            retry_after: None,
        }
    }

    /// A field that asks for what this server does not do.
    pub fn unsupported(param: impl Into<String>, way_out: &str) -> ApiError {
        let param = param.into();
        let message = format!("{param} is not supported here: {way_out}");
        ApiError { code: Some("unsupported_parameter"), ..ApiError::invalid(param, message) }
    }

    pub fn not_found(message: String) -> ApiError {
        ApiError {
            status: StatusCode::NOT_FOUND,
            code: None,
            param: None,
            message,
            retry_after: None,
        }
    }

    pub fn no_model(asked: &str, name: &str) -> ApiError {
        ApiError {
            code: Some("model_not_found"),
            param: Some("model".to_owned()),
            ..ApiError::not_found(format!(
                "there is no model {asked:?} here: this server has {name:?}"
            ))
        }
    }

    pub fn method(path: &str) -> ApiError {
        let message = format!("{path} does not answer this method");
        ApiError { status: StatusCode::METHOD_NOT_ALLOWED, ..ApiError::not_found(message) }
    }

    /// What went wrong is our fault.
    pub fn bug() -> ApiError {
        let message = "this request has hit a bug of paceline; the server's log has its message";
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        ApiError { status, ..ApiError::not_found(message.to_owned()) }
    }

    /// An error of the prompt with number `i` among `n`.
    pub fn of_prompt(self, i: usize, n: usize) -> ApiError {
        match self.param.as_deref() {
            Some("prompt") if n > 1 => ApiError {
                param: Some(format!("prompt[{i}]")),
                message: self.message.replacen("prompt", &format!("prompt[{i}]"), 1),
                ..self
            },
            _ => self,
        }
    }

    /// A body that is no request at all.
    pub fn body(message: String) -> ApiError {
        ApiError { status: StatusCode::BAD_REQUEST, ..ApiError::not_found(message) }
    }

    /// Nobody knows who asks.
    pub fn unauthorized(message: &str) -> ApiError {
        ApiError {
            status: StatusCode::UNAUTHORIZED,
            code: Some("invalid_api_key"),
            ..ApiError::not_found(message.to_owned())
        }
    }

    pub fn too_large(limit: usize) -> ApiError {
        let message = format!("the body is too large: this server reads {limit} bytes at most");
        ApiError { status: StatusCode::PAYLOAD_TOO_LARGE, ..ApiError::not_found(message) }
    }

    /// The bodies of others take all the memory that there is for them.
    pub fn no_memory() -> ApiError {
        ApiError {
            status: StatusCode::SERVICE_UNAVAILABLE,
            code: Some("overloaded"),
            retry_after: Some(1),
            ..ApiError::not_found("too many bodies are being read: try again in 1 s".to_owned())
        }
    }

    pub fn too_slow(time: Duration) -> ApiError {
        let message = format!("the body did not come within {} s", time.as_secs_f64());
        ApiError { status: StatusCode::REQUEST_TIMEOUT, ..ApiError::not_found(message) }
    }

    /// What is wrong; what a client has written is not repeated at any length.
    fn message(&self) -> String {
        brief(&self.message, 1_000)
    }

    pub fn to_json(&self) -> Value {
        let kind = match self.status {
            StatusCode::INTERNAL_SERVER_ERROR | StatusCode::SERVICE_UNAVAILABLE => "server_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            _ => "invalid_request_error",
        };
        json!({"error": {
            "message": self.message(),
            "type": kind,
            "param": self.param.as_ref().map(|param| brief(param, 200)),
            "code": self.code,
        }})
    }
}

/// At most `n` characters of a text, and a sign where it goes on.
fn brief(text: &str, n: usize) -> String {
    match text.char_indices().nth(n) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// What an answer says is wrong, for the log.
#[derive(Clone, Debug)]
pub(super) struct Problem(pub String);

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = json_response(self.status, &self.to_json());
        let headers = response.headers_mut();
        match self.status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            // What is left of the body is not read.
            StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::REQUEST_TIMEOUT
            | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.extensions_mut().insert(Problem(self.message()));
        response
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> ApiError {
        let message = error.to_string();
        match error {
            Error::Invalid(invalid) => {
                let code = matches!(invalid, InvalidRequest::ContextLen { .. })
                    .then_some("context_length_exceeded");
                ApiError { code, ..ApiError::invalid(invalid.field(), message) }
            }
            Error::Chat(ChatError::Template(template::Message(i))) => {
                ApiError::invalid(format!("messages[{i}]"), message)
            }
            Error::Chat(ChatError::Template(template::Part(i))) => {
                ApiError::invalid(format!("messages[{i}].content"), message)
            }
            Error::Chat(_) => ApiError::invalid("messages", message),
            Error::Batch { .. } => ApiError::invalid("prompt", message),
            Error::Busy { retry_after, .. } => ApiError {
                status: StatusCode::TOO_MANY_REQUESTS,
                code: Some("queue_full"),
                retry_after: Some(retry_after),
                ..ApiError::not_found(message)
            },
            _ => ApiError {
                status: StatusCode::INTERNAL_SERVER_ERROR,
                ..ApiError::not_found(message)
            },
        }
    }
}

/// A response with a JSON body.
pub(super) fn json_response(status: StatusCode, value: &impl serde::Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => (status, [(header::CONTENT_TYPE, "application/json")], body).into_response(),
        // Our own values: no map has keys that are not strings.
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
