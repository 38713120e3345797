//! [`Event`]: what an engine tells its caller.

use crate::sample::Logprobs;
use paceline_model::TokenId;

/// The number of a request in its engine, in order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token or a stop string.
    Stop,
    /// `max_tokens`, or the end of the context.
    Length,
    /// [`Engine::abort`](crate::Engine::abort).
    Abort,
    /// The request's timeout.
    Timeout,
    /// A panic while its token was chosen: a bug, and nobody else's business.
    Error,
}

/// What stopped a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// One of the model's own end tokens.
    Eos(TokenId),
    /// One of `stop_token_ids`.
    Token(TokenId),
    /// One of `stop`.
    String(String),
}

/// What a sequence cost, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// In the prompt.
    pub prompt_tokens: usize,
    /// Generated, the end token included.
    pub completion_tokens: usize,
    /// Of the prompt, those that the prefix cache had.
    pub cached_tokens: usize,
}

/// What happened in a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A sequence runs for the first time, in this step.
    Started {
        /// The request.
        id: RequestId,
        /// The choice, `0..n`.
        choice: usize,
        /// Tokens that the prefix cache had.
        cached_tokens: usize,
    },
    /// Log-probabilities of the prompt's tokens from number `start` on, in ranges that follow one
    /// another from 1; all come before the first token.
    PromptLogprobs {
        /// The request.
        id: RequestId,
        /// Number of the first token.
        start: usize,
        /// One for each token.
        logprobs: Vec<Logprobs>,
    },
    /// One more token.
    Token {
        /// The request.
        id: RequestId,
        /// The choice, `0..n`.
        choice: usize,
        /// The token.
        token: TokenId,
        /// The text that has become certain with it; may be empty, or longer than the token's.
        text: String,
        /// If asked for.
        logprobs: Option<Logprobs>,
    },
    /// A sequence has ended.
    Finished {
        /// The request.
        id: RequestId,
        /// The choice, `0..n`.
        choice: usize,
        /// Why.
        reason: FinishReason,
        /// What stopped it, if the reason is [`FinishReason::Stop`].
        stop: Option<Stop>,
        /// What it cost.
        usage: Usage,
    },
}
