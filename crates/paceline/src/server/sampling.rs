//! The sampling parameters of a request: the same fields in both endpoints.

use super::error::ApiError;
use super::fields::{Fields, Kind, OneOrMany};
use paceline_engine::{Request, SamplingParams};
use paceline_model::TokenId;
use serde::Deserialize;
use serde_json::Number;
use std::collections::BTreeMap;
use std::time::Duration;

/// How the answer comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Delivery {
    /// As events, while it is generated.
    pub stream: bool,
    /// A stream ends with the usage.
    pub include_usage: bool,
}

/// On which terms a request is served. Nothing here changes its text.
pub(super) struct Terms {
    salt: Option<String>,
    priority: i32,
    timeout: Option<Duration>,
}

impl Terms {
    /// The request, on these terms.
    pub fn of(&self, mut request: Request) -> Request {
        if let Some(salt) = &self.salt {
            request = request.with_salt(salt);
        }
        if let Some(timeout) = self.timeout {
            request = request.with_timeout(timeout);
        }
        request.with_priority(self.priority)
    }
}

/// Takes the terms.
pub(super) fn take_terms(fields: &mut Fields) -> Result<Terms, ApiError> {
    let timeout = match fields.take::<f32>("timeout")? {
        None => None,
        Some(seconds) => match Duration::try_from_secs_f32(seconds) {
            Ok(timeout) if !timeout.is_zero() => Some(timeout),
            _ => {
                let message = format!("timeout is {seconds}: it must be seconds, above 0");
                return Err(ApiError::invalid("timeout", message));
            }
        },
    };
    let priority = fields.take("priority")?.unwrap_or(0);
    Ok(Terms { salt: fields.take("cache_salt")?, priority, timeout })
}

/// A seed: any whole number of 64 bits; those below 0 count from the end of the range.
#[derive(Deserialize)]
#[serde(try_from = "Number")]
struct Seed(u64);

impl TryFrom<Number> for Seed {
    type Error = &'static str;

    fn try_from(number: Number) -> Result<Seed, &'static str> {
        let bits = number.as_u64().or_else(|| number.as_i64().map(i64::cast_unsigned));
        bits.map(Seed).ok_or(Seed::KIND)
    }
}

impl Kind for Seed {
    const KIND: &'static str = "a whole number of 64 bits";
}

/// Takes the sampling parameters; what is absent stays as in `defaults`. The fields for
/// log-probabilities differ between the endpoints and are theirs.
pub(super) fn take(
    fields: &mut Fields,
    defaults: &SamplingParams,
) -> Result<SamplingParams, ApiError> {
    let mut params = defaults.clone();
    macro_rules! set {
        ($($field:ident),*) => {
            $(if let Some(value) = fields.take(stringify!($field))? { params.$field = value; })*
        };
    }
    set!(temperature, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty);
    set!(stop_token_ids, include_stop_str_in_output, min_tokens, ignore_eos, n);
    if let Some(top_k) = fields.take::<i64>("top_k")? {
        // -1 is how vLLM writes "all".
        params.top_k = match top_k {
            -1 => 0,
            _ => usize::try_from(top_k)
                .map_err(|_| ApiError::invalid("top_k", "top_k must be -1, 0 or more"))?,
        };
    }
    params.seed = fields.take("seed")?.map(|Seed(bits)| bits).or(params.seed);
    if let Some(stop) = fields.take("stop")? {
        params.stop = match stop {
            OneOrMany::One(stop) => vec![stop],
            OneOrMany::Many(stop) => stop,
        };
    }
    if let Some(bias) = fields.take::<BTreeMap<String, f32>>("logit_bias")? {
        let entry = |(id, bias): (String, f32)| match id.parse::<TokenId>() {
            Ok(id) => Ok((id, bias)),
            Err(_) => {
                Err(ApiError::invalid("logit_bias", format!("logit_bias: {id:?} is no token id")))
            }
        };
        params.logit_bias = bias.into_iter().map(entry).collect::<Result<_, _>>()?;
    }
    params.max_tokens = fields.take("max_tokens")?.or(params.max_tokens);
    let newer = "max_completion_tokens";
    if let Some(max_tokens) = fields.take(newer)? {
        params.max_tokens = Some(max_tokens);
        check(&params, &[("max_tokens", newer)])?;
    }
    params.prompt_logprobs = fields.take("prompt_logprobs")?;
    let best_of: Option<usize> = fields.take("best_of")?;
    if best_of.is_some_and(|best_of| best_of != params.n) {
        let way_out = format!("it must be {}, which is n, or left out", params.n);
        return Err(ApiError::unsupported("best_of", &way_out));
    }
    Ok(params)
}

/// Checks what needs no model; `names` are those that the request has for some parameters.
pub(super) fn check(params: &SamplingParams, names: &[(&str, &str)]) -> Result<(), ApiError> {
    params.check().map_err(|error| {
        let field = error.field();
        let name = names.iter().find(|(own, _)| *own == field).map_or(field, |(_, name)| name);
        ApiError::invalid(name, error.to_string().replacen(field, name, 1))
    })
}

/// Takes the fields that say how the answer comes.
pub(super) fn take_delivery(fields: &mut Fields) -> Result<Delivery, ApiError> {
    #[derive(Default, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Options {
        #[serde(default)]
        include_usage: bool,
        #[serde(default, rename = "include_obfuscation")]
        _include_obfuscation: bool,
    }
    impl Kind for Options {
        const KIND: &'static str = "an object with include_usage, which is true or false";
    }
    let stream: bool = fields.take("stream")?.unwrap_or(false);
    let options: Option<Options> = fields.take("stream_options")?;
    if options.is_some() && !stream {
        let message = "stream_options has a meaning only when stream is true";
        return Err(ApiError::invalid("stream_options", message));
    }
    Ok(Delivery { stream, include_usage: options.unwrap_or_default().include_usage })
}

/// Checks the name of the model, if the request has one.
pub(super) fn take_model(fields: &mut Fields, name: &str) -> Result<(), ApiError> {
    match fields.take::<String>("model")? {
        Some(asked) if asked != name => Err(ApiError::no_model(&asked, name)),
        _ => Ok(()),
    }
}
