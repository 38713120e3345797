//! [`Job`]: the engine's events for one HTTP request, which has one or more prompts.

use super::State;
use super::error::ApiError;
use super::metrics::Clock;
use super::record::{Context, Figures};
use super::sampling::Terms;
use crate::completion::{Choice, Completion, reason_name};
use crate::llm::{Error, Prompt};
use crate::worker::{Sink, Ticket};
use paceline_engine::{Event, FinishReason, Request, SamplingParams, Usage};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// The prompts of an HTTP request on their way to completions. Dropping it aborts them.
pub(super) struct Job {
    state: Arc<State>,
    context: Context,
    events: UnboundedReceiver<(usize, Instant, Event)>,
    _ticket: Ticket,
    /// Choices of each prompt.
    pub n: usize,
    /// What has come so far, a completion for each prompt.
    pub completions: Vec<Completion>,
    /// For each choice of each prompt.
    clocks: Vec<Clock>,
    /// Of each prompt, whether the prefix cache may be read for the first choice.
    reads_cache: Vec<bool>,
    /// Nothing is to be generated: the token that the engine samples all the same is left out.
    only_prompt: bool,
}

impl Job {
    /// Gives valid requests, all with the same parameters, to the engine: all or none.
    pub fn start(
        state: &Arc<State>,
        context: Context,
        requests: Vec<Request>,
        only_prompt: bool,
    ) -> Result<Job, ApiError> {
        let (sender, events) = unbounded_channel();
        let n = requests.first().map_or(1, |request| request.params().n);
        let completions: Vec<Completion> = requests
            .iter()
            .map(|request| Completion::new(request.prompt().to_vec(), n, request.seed()))
            .collect();
        let reads_cache =
            requests.iter().map(|request| request.params().prompt_logprobs.is_none()).collect();
        let max_tokens: Vec<Option<usize>> =
            requests.iter().map(|request| request.params().max_tokens).collect();
        let asked = |(i, request): (usize, Request)| {
            let request = match &context.tenant {
                Some(tenant) => request.with_tenant(tenant.clone()),
                None => request,
            };
            let sender = sender.clone();
            let sink: Sink = Box::new(move |at, event| sender.send((i, at, event)).is_ok());
            (request, sink)
        };
        let asked = requests.into_iter().enumerate().map(asked).collect();
        let ticket = state.llm.submit(asked, state.config.max_queue)?;
        max_tokens.into_iter().for_each(|max_tokens| state.metrics.asked(n, max_tokens));
        Ok(Job {
            state: state.clone(),
            events,
            _ticket: ticket,
            n,
            clocks: vec![Clock::new(&context); n * completions.len()],
            reads_cache,
            only_prompt,
            completions,
            context,
        })
    }

    /// The next event with the number of its prompt; `None` when all have ended.
    pub async fn next(&mut self) -> Result<Option<(usize, Event)>, Error> {
        while !self.completions.iter().all(Completion::is_finished) {
            let (prompt, at, mut event) = self.events.recv().await.ok_or(Error::Stopped)?;
            if self.only_prompt && self.leave_out(prompt, &mut event) {
                continue;
            }
            self.completions[prompt].add(&event, self.context.arrived, at);
            self.count(prompt, at, &event);
            return Ok(Some((prompt, event)));
        }
        Ok(None)
    }

    /// Takes out of an event what was generated; true if nothing else was in it.
    fn leave_out(&self, prompt: usize, event: &mut Event) -> bool {
        match event {
            Event::Token { .. } => {
                self.state.metrics.prompt_read(self.completions[prompt].prompt_token_ids.len());
                return true;
            }
            Event::Finished { usage, .. } => usage.completion_tokens = 0,
            Event::Started { .. } | Event::PromptLogprobs { .. } => {}
        }
        false
    }

    fn count(&mut self, prompt: usize, at: Instant, event: &Event) {
        let metrics = &self.state.metrics;
        let clocks = &mut self.clocks[prompt * self.n..][..self.n];
        let completion = &self.completions[prompt];
        let prompt_len = completion.prompt_token_ids.len();
        match event {
            Event::PromptLogprobs { .. } => {}
            Event::Started { choice, cached_tokens, .. } => {
                let was_read = *choice > 0 || self.reads_cache[prompt];
                let cached_tokens = was_read.then_some(*cached_tokens);
                metrics.started(&mut clocks[*choice], at, prompt_len, cached_tokens);
            }
            Event::Token { choice, .. } => metrics.token(&mut clocks[*choice], at, prompt_len),
            Event::Finished { choice, reason, .. } => {
                metrics.ended(&clocks[*choice], at, prompt_len, *reason);
                if completion.is_finished() {
                    metrics.all_ended(clocks);
                }
            }
        }
    }

    /// The figures for the log.
    fn figures(&self) -> Figures {
        let least =
            |time: fn(&Clock) -> Option<Duration>| self.clocks.iter().filter_map(time).min();
        let choices = self.completions.iter().flat_map(|completion| &completion.choices);
        let usage = self.usage();
        Figures {
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.cached_tokens,
            completion_tokens: choices.clone().map(|choice| choice.token_ids.len()).sum(),
            queue: least(Clock::queue),
            first_token: least(Clock::first_token),
            finish_reason: choices
                .filter_map(|choice| choice.finish_reason)
                .next_back()
                .map(reason_name),
        }
    }

    /// The choice with that number in the answer.
    pub fn choice(&self, index: usize) -> &Choice {
        &self.completions[index / self.n].choices[index % self.n]
    }

    /// Waits for everything.
    pub async fn finish(&mut self) -> Result<(), Error> {
        while self.next().await?.is_some() {}
        Ok(())
    }

    /// What all prompts cost.
    pub fn usage(&self) -> Usage {
        let sum = |part: fn(&Usage) -> usize| self.completions.iter().map(|c| part(&c.usage)).sum();
        Usage {
            prompt_tokens: sum(|usage| usage.prompt_tokens),
            completion_tokens: sum(|usage| usage.completion_tokens),
            cached_tokens: sum(|usage| usage.cached_tokens),
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        *self.context.figures() = self.figures();
        // What has not ended by itself is aborted now.
        let now = Instant::now();
        let all = self.completions.iter().zip(self.clocks.chunks(self.n));
        for (completion, clocks) in all.filter(|(completion, _)| !completion.is_finished()) {
            let prompt_len = completion.prompt_token_ids.len();
            let choices = completion.choices.iter().zip(clocks);
            for (_, clock) in choices.filter(|(choice, _)| choice.finish_reason.is_none()) {
                self.state.metrics.ended(clock, now, prompt_len, FinishReason::Abort);
            }
            self.state.metrics.all_ended(clocks);
        }
    }
}

/// The most log-probabilities in an answer: each takes some hundred bytes of memory on its way.
const MAX_LOGPROBS: usize = 1 << 20;

/// Refuses a text for a prompt that is too long, whatever its tokens are.
pub(super) fn check_text(state: &State, field: &str, n_bytes: usize) -> Result<(), ApiError> {
    let max = state.max_text_bytes;
    if n_bytes <= max {
        return Ok(());
    }
    let max_len = state.llm.limits().max_model_len;
    let message = format!("{field} has {n_bytes} bytes: at most {max} can be {max_len} tokens");
    Err(ApiError::invalid(field, message))
}

/// Refuses requests whose answer would hold too many log-probabilities.
fn check_logprobs(requests: &[Request]) -> Result<(), ApiError> {
    let count = |request: &Request| {
        let params = request.params();
        let each = |n_top: Option<usize>| n_top.map_or(0, |n_top| n_top + 1);
        let prompt = request.prompt().len() * each(params.prompt_logprobs);
        let output = (request.max_len() - request.prompt().len()) * each(params.logprobs);
        params.n * (prompt + output)
    };
    let n: usize = requests.iter().map(count).sum();
    if n <= MAX_LOGPROBS {
        return Ok(());
    }
    let message = format!(
        "the answer could have {n} log-probabilities: at most {MAX_LOGPROBS}; ask for fewer of them, \
         fewer tokens, choices or prompts"
    );
    Err(ApiError::invalid("logprobs", message))
}

/// Turns what a request asks for into valid requests for the engine. With a seed, each prompt has
/// that one and is answered as it would be alone; without, each draws its own.
pub(super) fn requests(
    state: &State,
    params: SamplingParams,
    terms: &Terms,
    prompts: Vec<Prompt>,
) -> Result<Vec<Request>, ApiError> {
    let n = prompts.len();
    let request = |(i, prompt)| match state.llm.request(prompt, &params) {
        Ok(request) => Ok(terms.of(request)),
        Err(error) => Err(ApiError::from(error).of_prompt(i, n)),
    };
    let requests: Vec<Request> =
        prompts.into_iter().enumerate().map(request).collect::<Result<_, _>>()?;
    check_logprobs(&requests)?;
    Ok(requests)
}
