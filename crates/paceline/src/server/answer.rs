//! [`Answer`]: what both endpoints do with a request, each in its own format.

use super::State;
use super::body::Whole;
use super::error::{ApiError, json_response};
use super::job::Job;
use super::record::Context;
use super::sampling::Delivery;
use super::sse;
use crate::completion::{Choice, reason_name};
use axum::http::StatusCode;
use axum::response::Response;
use paceline_engine::{FinishReason, Logprobs, Request, Stop, Usage, Vocab};
use paceline_model::TokenId;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What the body of a request asks for.
pub(super) struct Asked<F> {
    pub requests: Vec<Request>,
    /// Nothing is to be generated.
    pub only_prompt: bool,
    pub delivery: Delivery,
    pub format: F,
}

/// Reads a body and answers it.
pub(super) async fn answer<F: Format>(
    state: Arc<State>,
    context: Context,
    body: Whole,
    read: fn(&State, &[u8]) -> Result<Asked<F>, ApiError>,
) -> Result<Response, ApiError> {
    // Under overload no time goes into prompts that are refused.
    state.llm.check_room(state.config.max_queue)?;
    let shared = state.clone();
    let asked = aside(move || read(&shared, &body)).await?;
    let id = format!("{}-{}", F::ID, context.id);
    let job = Job::start(&state, context, asked.requests, asked.only_prompt)?;
    Answer::new(state, id, job, asked.format, asked.delivery).respond().await
}

/// Does what takes a while, as reading a long text does, beside the thread that serves the
/// connections.
pub(super) async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(ApiError::bug()))
}

/// How an endpoint writes its answers.
pub(super) trait Format: Send + 'static {
    /// Values of `object`, of a whole answer and of a chunk.
    const OBJECTS: [&'static str; 2];
    /// What its ids begin with.
    const ID: &'static str;

    /// A whole choice of the prompt with that number.
    fn choice(&self, vocab: &dyn Vocab, job: &Job, prompt: usize, choice: &Choice) -> Value;

    /// What opens a choice's stream, if anything does.
    fn open(&self) -> Option<Value>;

    /// A token of the choice with number `index` in the answer; `None` if it shows nothing.
    fn token(
        &mut self,
        vocab: &dyn Vocab,
        job: &Job,
        index: usize,
        token: TokenId,
        text: &str,
        logprobs: Option<&Logprobs>,
    ) -> Option<Value>;

    /// What ends the stream of the choice with number `index` in the answer, besides its reason.
    fn close(&self, vocab: &dyn Vocab, job: &Job, index: usize) -> Value;

    /// What a whole answer has besides its choices and usage.
    fn extras(&self, vocab: &dyn Vocab, job: &Job) -> Value;
}

/// An answer under way.
pub(super) struct Answer<F> {
    state: Arc<State>,
    pub job: Job,
    format: F,
    id: String,
    created: u64,
    pub delivery: Delivery,
}

impl<F: Format> Answer<F> {
    fn new(state: Arc<State>, id: String, job: Job, format: F, delivery: Delivery) -> Answer<F> {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        Answer { state, job, format, id, created, delivery }
    }

    /// Answers, whole or as a stream.
    async fn respond(mut self) -> Result<Response, ApiError> {
        if self.delivery.stream {
            return Ok(sse::respond(self));
        }
        self.job.finish().await?;
        // An answer may hold a million log-probabilities.
        aside(move || Ok(self.whole())).await
    }

    /// The whole answer of a job that has ended.
    fn whole(&self) -> Response {
        let vocab: &dyn Vocab = self.state.llm.text().as_ref();
        let mut choices = Vec::new();
        for (prompt, completion) in self.job.completions.iter().enumerate() {
            for choice in &completion.choices {
                let mut value = self.format.choice(vocab, &self.job, prompt, choice);
                set_end(&mut value, choice.finish_reason, choice.stop.as_ref());
                value["index"] = choices.len().into();
                self.name_seed(&mut value, prompt);
                choices.push(value);
            }
        }
        let mut answer = self.frame(F::OBJECTS[0], choices);
        answer["usage"] = usage(&self.job.usage());
        answer["seed"] = self.job.completions[0].seed.into();
        merge(&mut answer, self.format.extras(vocab, &self.job));
        json_response(StatusCode::OK, &answer)
    }

    /// How long the stream may be silent.
    pub fn heartbeat(&self) -> Duration {
        self.state.config.heartbeat
    }

    /// The chunks that open the stream.
    pub fn open(&self) -> Vec<Value> {
        let n = self.job.completions.len() * self.job.n;
        let chunk = |index| Some(self.chunk(index, self.format.open()?, None));
        (0..n).filter_map(chunk).collect()
    }

    /// The chunk of a token, if it shows something.
    pub fn token(
        &mut self,
        index: usize,
        token: TokenId,
        text: &str,
        logprobs: Option<&Logprobs>,
    ) -> Option<Value> {
        let vocab: &dyn Vocab = self.state.llm.text().as_ref();
        let part = self.format.token(vocab, &self.job, index, token, text, logprobs)?;
        Some(self.chunk(index, part, None))
    }

    /// The last chunk of a choice.
    pub fn close(&self, index: usize, reason: FinishReason, stop: Option<&Stop>) -> Value {
        let vocab: &dyn Vocab = self.state.llm.text().as_ref();
        self.chunk(index, self.format.close(vocab, &self.job, index), Some((reason, stop)))
    }

    /// The last chunk of the stream.
    pub fn usage(&self) -> Value {
        let mut chunk = self.frame(F::OBJECTS[1], Vec::new());
        chunk["usage"] = usage(&self.job.usage());
        chunk
    }

    fn chunk(
        &self,
        index: usize,
        part: Value,
        end: Option<(FinishReason, Option<&Stop>)>,
    ) -> Value {
        let mut choice = part;
        choice["index"] = index.into();
        self.name_seed(&mut choice, index / self.job.n);
        set_end(&mut choice, end.map(|(reason, _)| reason), end.and_then(|(_, stop)| stop));
        let mut chunk = self.frame(F::OBJECTS[1], vec![choice]);
        chunk["seed"] = self.job.completions[0].seed.into();
        if self.delivery.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    /// Of several prompts each may have its own.
    fn name_seed(&self, choice: &mut Value, prompt: usize) {
        if self.job.completions.len() > 1 {
            choice["seed"] = self.job.completions[prompt].seed.into();
        }
    }

    fn frame(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.state.config.model_name,
            "choices": choices,
        })
    }
}

fn set_end(choice: &mut Value, reason: Option<FinishReason>, stop: Option<&Stop>) {
    choice["finish_reason"] = reason.map(reason_name).into();
    choice["stop_reason"] = match stop {
        Some(Stop::String(text)) => text.as_str().into(),
        Some(Stop::Token(id)) => (*id).into(),
        Some(Stop::Eos(_)) | None => Value::Null,
    };
}

fn usage(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    })
}

fn merge(into: &mut Value, from: Value) {
    if let (Value::Object(into), Value::Object(from)) = (into, from) {
        into.extend(from);
    }
}
