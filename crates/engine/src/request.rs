//! [`Request`]: what a user asks for, valid by construction.

use crate::text::Vocab;
use paceline_model::TokenId;
use std::sync::Arc;
use std::time::Duration;

/// The most choices of one request (`n`).
pub const MAX_CHOICES: usize = 128;
/// The most log-probabilities per position (`logprobs`, `prompt_logprobs`).
pub const MAX_LOGPROBS: usize = 100;
/// The most stop strings of one request.
pub const MAX_STOPS: usize = 64;
/// The longest stop string, in bytes.
pub const MAX_STOP_BYTES: usize = 1024;
/// The most `stop_token_ids`, and the most `logit_bias` entries.
pub const MAX_TOKEN_LIST: usize = 1024;

/// How the next token is chosen and when to end. The order in which these apply is fixed: see
/// [`crate::sample`].
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// T >= 0: divides the logits. 0 takes the most likely token.
    pub temperature: f32,
    /// Keeps the k most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// In (0, 1]: keeps the fewest most likely tokens whose probabilities sum to this; 1 keeps all.
    pub top_p: f32,
    /// In [0, 1]: keeps tokens at least this times as likely as the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Greater than 0: divides the positive and multiplies the negative logits of tokens in the
    /// prompt or the output; 1 changes nothing.
    pub repetition_penalty: f32,
    /// In [-2, 2]: subtracted from a logit for each time its token is in the output.
    pub frequency_penalty: f32,
    /// In [-2, 2]: subtracted from the logits of tokens in the output.
    pub presence_penalty: f32,
    /// Added to the logits of these tokens, each in [-100, 100].
    pub logit_bias: Vec<(TokenId, f32)>,
    /// The same seed gives the same text; without one the caller draws one.
    pub seed: Option<u64>,
    /// Strings that end the output.
    pub stop: Vec<String>,
    /// Tokens that end the output, besides the model's own end tokens.
    pub stop_token_ids: Vec<TokenId>,
    /// Shows the stop string (or the text of the stop token) that ended the output.
    pub include_stop_str_in_output: bool,
    /// Tokens to generate before anything but `max_tokens` may end the output.
    pub min_tokens: usize,
    /// The most tokens to generate; `None` goes to the end of the context.
    pub max_tokens: Option<usize>,
    /// The model's own end tokens do not end the output.
    pub ignore_eos: bool,
    /// Reports the log-probability of each token, and of this many most likely ones.
    pub logprobs: Option<usize>,
    /// The same for the tokens of the prompt, from the second on.
    pub prompt_logprobs: Option<usize>,
    /// Number of independent outputs (choices).
    pub n: usize,
}

impl Default for SamplingParams {
    fn default() -> SamplingParams {
        SamplingParams {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: None,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            include_stop_str_in_output: false,
            min_tokens: 0,
            max_tokens: None,
            ignore_eos: false,
            logprobs: None,
            prompt_logprobs: None,
            n: 1,
        }
    }
}

impl SamplingParams {
    /// Checks every range that does not depend on the model: these parameters are good for some
    /// request.
    ///
    /// # Errors
    /// The first value that is out of range.
    pub fn check(&self) -> Result<(), InvalidRequest> {
        // A comparison with NaN is false, so each range refuses it.
        let float = |field, value: f32, ok, limit: &str| {
            check(field, shown(value), ok, || limit.to_owned())
        };
        let t = self.temperature;
        float("temperature", t, (0.0..=100.0).contains(&t), "from 0 to 100")?;
        let p = self.top_p;
        float("top_p", p, p > 0.0 && p <= 1.0, "above 0 and at most 1")?;
        float("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "from 0 to 1")?;
        let r = self.repetition_penalty;
        float("repetition_penalty", r, r > 0.0 && r <= 100.0, "above 0 and at most 100")?;
        let f = self.frequency_penalty;
        float("frequency_penalty", f, (-2.0..=2.0).contains(&f), "from -2 to 2")?;
        let f = self.presence_penalty;
        float("presence_penalty", f, (-2.0..=2.0).contains(&f), "from -2 to 2")?;

        let count = |field, n: usize, max: usize, what: &str| {
            check(field, format!("{n} {what}"), n <= max, || format!("at most {max}"))
        };
        count("logit_bias", self.logit_bias.len(), MAX_TOKEN_LIST, "entries")?;
        for &(_, bias) in &self.logit_bias {
            float("logit_bias", bias, (-100.0..=100.0).contains(&bias), "from -100 to 100")?;
        }
        count("stop_token_ids", self.stop_token_ids.len(), MAX_TOKEN_LIST, "ids")?;
        count("stop", self.stop.len(), MAX_STOPS, "strings")?;
        for stop in &self.stop {
            check("stop", "an empty string", !stop.is_empty(), || "non-empty strings".into())?;
            count("stop", stop.len(), MAX_STOP_BYTES, "bytes")?;
        }
        count("logprobs", self.logprobs.unwrap_or(0), MAX_LOGPROBS, "tokens")?;
        count("prompt_logprobs", self.prompt_logprobs.unwrap_or(0), MAX_LOGPROBS, "tokens")?;
        let n = self.n;
        check("n", n, (1..=MAX_CHOICES).contains(&n), || format!("from 1 to {MAX_CHOICES}"))?;
        check("max_tokens", 0, self.max_tokens != Some(0), || "at least 1".into())?;
        let (min, max) = (self.min_tokens, self.max_tokens.unwrap_or(usize::MAX));
        check("min_tokens", min, min <= max, || format!("at most {max}, the tokens to generate"))
    }

    /// Whether the tokens so far change the logits.
    pub(crate) fn penalizes(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.frequency_penalty != 0.0
            || self.presence_penalty != 0.0
    }

    /// The tokens that end the output, in no particular order; an id may come twice.
    pub(crate) fn stop_ids<'a>(&'a self, vocab: &'a dyn Vocab) -> impl Iterator<Item = TokenId> {
        let eos: &[TokenId] = if self.ignore_eos { &[] } else { vocab.eos_ids() };
        self.stop_token_ids.iter().chain(eos).copied()
    }
}

/// What a request may ask of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// V.
    pub vocab_len: usize,
    /// The longest sequence, prompt and output together.
    pub max_model_len: usize,
    /// Tokens that the whole KV cache holds.
    pub kv_len: usize,
    /// The most sequences in a step.
    pub max_num_seqs: usize,
}

/// Why a request was refused. Each message names the field, its value and the limit.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum InvalidRequest {
    /// No tokens to continue.
    #[error("prompt is empty: give at least one token")]
    EmptyPrompt,
    /// A token of the prompt does not exist.
    #[error("prompt token {index} is {token}: the vocabulary has {vocab_len} tokens")]
    PromptToken {
        /// Place in the prompt.
        index: usize,
        /// The id.
        token: TokenId,
        /// V.
        vocab_len: usize,
    },
    /// The prompt, with the asked output, is longer than the model's context.
    #[error(
        "prompt of {prompt_len} tokens plus {max_tokens} to generate (max_tokens) exceeds the \
         context of {limit} tokens: shorten the prompt or lower max_tokens"
    )]
    ContextLen {
        /// Tokens in the prompt.
        prompt_len: usize,
        /// Tokens to generate: `max_tokens`, or 1 without it.
        max_tokens: usize,
        /// The limit.
        limit: usize,
    },
    /// The prompt, with the asked output, does not fit the whole KV cache.
    #[error(
        "prompt of {prompt_len} tokens plus {max_tokens} to generate (max_tokens) exceeds the \
         KV cache of {limit} tokens: raise --kv-memory, shorten the prompt or lower max_tokens"
    )]
    KvLen {
        /// Tokens in the prompt.
        prompt_len: usize,
        /// Tokens to generate: `max_tokens`, or 1 without it.
        max_tokens: usize,
        /// The limit.
        limit: usize,
    },
    /// A parameter is out of range.
    #[error("{field} is {value}: it must be {limit}")]
    Param {
        /// The parameter's name.
        field: &'static str,
        /// What it is.
        value: String,
        /// What it must be.
        limit: String,
    },
}

impl InvalidRequest {
    /// The name of the field at fault.
    pub fn field(&self) -> &'static str {
        match self {
            InvalidRequest::EmptyPrompt
            | InvalidRequest::PromptToken { .. }
            | InvalidRequest::ContextLen { .. }
            | InvalidRequest::KvLen { .. } => "prompt",
            InvalidRequest::Param { field, .. } => field,
        }
    }
}

/// A valid request: the engine can always finish it.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    prompt: Vec<TokenId>,
    params: SamplingParams,
    seed: u64,
    max_len: usize,
    salt: Arc<str>,
    tenant: Arc<str>,
    priority: i32,
    timeout: Option<Duration>,
}

impl Request {
    /// Checks a request against the engine's limits. `drawn_seed` is used if `params.seed` is
    /// `None`; the engine itself draws nothing.
    ///
    /// # Errors
    /// The first value that is out of range, see [`InvalidRequest`].
    pub fn new(
        prompt: Vec<TokenId>,
        params: SamplingParams,
        drawn_seed: u64,
        limits: &Limits,
    ) -> Result<Request, InvalidRequest> {
        params.check()?;
        check_limits(&params, limits)?;
        if prompt.is_empty() {
            return Err(InvalidRequest::EmptyPrompt);
        }
        let vocab_len = limits.vocab_len;
        if let Some(index) = prompt.iter().position(|&t| t as usize >= vocab_len) {
            return Err(InvalidRequest::PromptToken { index, token: prompt[index], vocab_len });
        }
        let prompt_len = prompt.len();
        let max_tokens = params.max_tokens.unwrap_or(1);
        let total = prompt_len.saturating_add(max_tokens);
        if total > limits.max_model_len {
            let limit = limits.max_model_len;
            return Err(InvalidRequest::ContextLen { prompt_len, max_tokens, limit });
        }
        if total > limits.kv_len {
            return Err(InvalidRequest::KvLen { prompt_len, max_tokens, limit: limits.kv_len });
        }
        let max_len = match params.max_tokens {
            Some(_) => total,
            None => limits.max_model_len.min(limits.kv_len),
        };
        let min = params.min_tokens;
        let room = max_len - prompt_len;
        check("min_tokens", min, min <= room, || {
            format!("at most {room}, the tokens to generate")
        })?;
        let seed = params.seed.unwrap_or(drawn_seed);
        let (salt, tenant) = ("".into(), "".into());
        Ok(Request { prompt, params, seed, max_len, salt, tenant, priority: 0, timeout: None })
    }

    /// Separates this request's prefix cache from that of requests with another salt.
    pub fn with_salt(mut self, salt: &str) -> Request {
        self.salt = salt.into();
        self
    }

    /// Says whose request this is: tenants share the engine evenly. Without it, all requests are of
    /// the same one.
    pub fn with_tenant(mut self, tenant: Arc<str>) -> Request {
        self.tenant = tenant;
        self
    }

    /// Serves the request before those of the same tenant with a higher number that came less than a
    /// minute earlier for each level between them; 0 without it.
    pub fn with_priority(mut self, priority: i32) -> Request {
        self.priority = priority;
        self
    }

    /// Ends the request, wherever it is, when it has been in the engine for so long.
    pub fn with_timeout(mut self, timeout: Duration) -> Request {
        self.timeout = Some(timeout);
        self
    }

    /// The tokens to continue.
    pub fn prompt(&self) -> &[TokenId] {
        &self.prompt
    }

    /// How to choose and when to end.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// The seed in use: the given one, else the drawn one.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The prefix cache's salt.
    pub fn salt(&self) -> &Arc<str> {
        &self.salt
    }

    /// Whose request it is.
    pub fn tenant(&self) -> &Arc<str> {
        &self.tenant
    }

    /// Lower is sooner.
    pub fn priority(&self) -> i32 {
        self.priority
    }

    /// How long the request may be in the engine.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// The longest that a sequence of this request gets, prompt and output together.
    pub fn max_len(&self) -> usize {
        self.max_len
    }
}

fn check(
    field: &'static str,
    value: impl ToString,
    ok: bool,
    limit: impl FnOnce() -> String,
) -> Result<(), InvalidRequest> {
    if ok {
        return Ok(());
    }
    Err(InvalidRequest::Param { field, value: value.to_string(), limit: limit() })
}

/// A number as one would write it.
fn shown(value: f32) -> String {
    match value.abs() {
        f32::INFINITY => "out of range".to_owned(),
        1e-4..1e7 | 0.0 => value.to_string(),
        _ => format!("{value:e}"),
    }
}

/// Checks the parameters against what the model and the engine allow.
fn check_limits(p: &SamplingParams, limits: &Limits) -> Result<(), InvalidRequest> {
    let max_n = limits.max_num_seqs;
    check("n", p.n, p.n <= max_n, || format!("at most {max_n}, the sequences in a step"))?;
    let biased = p.logit_bias.iter().map(|&(token, _)| ("logit_bias", token));
    let stops = p.stop_token_ids.iter().map(|&token| ("stop_token_ids", token));
    for (field, token) in biased.chain(stops) {
        check(field, token, (token as usize) < limits.vocab_len, || {
            format!("ids below {}, the size of the vocabulary", limits.vocab_len)
        })?;
    }
    Ok(())
}
