//! [`Completion`]: what the engine's events add up to.

use paceline_engine::{Event, FinishReason, Logprobs, Stop, Usage};
use paceline_model::TokenId;
use std::time::{Duration, Instant};

/// The answer to one prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// The prompt's tokens.
    pub prompt_token_ids: Vec<TokenId>,
    /// Log-probabilities of the prompt's tokens from the second on, if asked for.
    pub prompt_logprobs: Option<Vec<Logprobs>>,
    /// The choices, `n` of them.
    pub choices: Vec<Choice>,
    /// The seed in use: the given one, else one that was drawn.
    pub seed: u64,
    /// What it cost, all choices together; the prompt counts once.
    pub usage: Usage,
    /// How long it took.
    pub timings: Timings,
}

/// One of a completion's choices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// The text.
    pub text: String,
    /// The tokens, the end token included.
    pub token_ids: Vec<TokenId>,
    /// One for each token, if asked for.
    pub logprobs: Option<Vec<Logprobs>>,
    /// Why it ended; `None` while it runs.
    pub finish_reason: Option<FinishReason>,
    /// What stopped it, if something did.
    pub stop: Option<Stop>,
}

/// How long a completion took, as its caller saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// From the request to its first token: waiting and the prompt.
    pub first_token: Duration,
    /// From the first token to the last.
    pub decode: Duration,
}

impl Completion {
    /// An empty completion of a prompt with `n` choices.
    pub(crate) fn new(prompt_token_ids: Vec<TokenId>, n: usize, seed: u64) -> Completion {
        let usage = Usage { prompt_tokens: prompt_token_ids.len(), ..Usage::default() };
        let choices = vec![Choice::default(); n];
        let timings = Timings::default();
        Completion { prompt_token_ids, prompt_logprobs: None, choices, seed, usage, timings }
    }

    /// Whether all choices have ended.
    pub fn is_finished(&self) -> bool {
        self.choices.iter().all(|choice| choice.finish_reason.is_some())
    }

    /// Prompt tokens computed in a second: those of the prefix cache do not count.
    pub fn prefill_tokens_per_second(&self) -> f64 {
        let computed = self.usage.prompt_tokens - self.usage.cached_tokens;
        rate(computed, self.timings.first_token)
    }

    /// Tokens generated in a second after the first one of each choice.
    pub fn decode_tokens_per_second(&self) -> f64 {
        rate(self.usage.completion_tokens.saturating_sub(self.choices.len()), self.timings.decode)
    }

    /// Adds what happened at `now` to a request that was made at `start`.
    pub(crate) fn add(&mut self, event: &Event, start: Instant, now: Instant) {
        match event {
            Event::Started { .. } => {}
            Event::PromptLogprobs { logprobs, .. } => {
                self.prompt_logprobs.get_or_insert_default().extend_from_slice(logprobs);
            }
            Event::Token { choice, token, text, logprobs, .. } => {
                if self.choices.iter().all(|choice| choice.token_ids.is_empty()) {
                    self.timings.first_token = now.duration_since(start);
                }
                self.timings.decode = now.duration_since(start) - self.timings.first_token;
                let choice = &mut self.choices[*choice];
                choice.token_ids.push(*token);
                choice.text += text;
                if let Some(logprobs) = logprobs {
                    choice.logprobs.get_or_insert_default().push(logprobs.clone());
                }
            }
            Event::Finished { choice, reason, stop, usage, .. } => {
                // The choices share the first one's prompt.
                if *choice == 0 {
                    self.usage.cached_tokens = usage.cached_tokens;
                }
                self.usage.completion_tokens += usage.completion_tokens;
                let choice = &mut self.choices[*choice];
                choice.finish_reason = Some(*reason);
                choice.stop = stop.clone();
            }
        }
    }
}

/// A reason as the HTTP API and `run --json` write it.
pub fn reason_name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Abort => "abort",
        FinishReason::Timeout => "timeout",
        FinishReason::Error => "error",
    }
}

fn rate(n: usize, time: Duration) -> f64 {
    match time.as_secs_f64() {
        0.0 => 0.0,
        seconds => n as f64 / seconds,
    }
}
