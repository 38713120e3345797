//! [`Job`]: the engine's events for one HTTP request, which has one or more prompts.

use super::State;
use super::error::ApiError;
use crate::completion::Completion;
use crate::llm::{Error, Prompt, draw_seed};
use crate::worker::Ticket;
use paceline_engine::{Event, Request, SamplingParams, Usage};
use std::time::Instant;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// The prompts of an HTTP request on their way to completions. Dropping it aborts them.
pub(super) struct Job {
    events: UnboundedReceiver<(usize, Instant, Event)>,
    _tickets: Vec<Ticket>,
    start: Instant,
    /// Choices of each prompt.
    pub n: usize,
    /// What has come so far, a completion for each prompt.
    pub completions: Vec<Completion>,
}

impl Job {
    /// Gives valid requests, all with the same parameters, to the engine.
    pub fn start(state: &State, requests: Vec<Request>) -> Job {
        let (sender, events) = unbounded_channel();
        let start = Instant::now();
        let n = requests.first().map_or(1, |request| request.params().n);
        let completions = requests
            .iter()
            .map(|request| Completion::new(request.prompt().to_vec(), n, request.seed()))
            .collect();
        let submit = |(i, request)| {
            let sender = sender.clone();
            let sink = move |at, event| sender.send((i, at, event)).is_ok();
            state.llm.submit(request, Box::new(sink))
        };
        let tickets = requests.into_iter().enumerate().map(submit).collect();
        Job { events, _tickets: tickets, start, n, completions }
    }

    /// The next event with the number of its prompt; `None` when all have ended.
    pub async fn next(&mut self) -> Result<Option<(usize, Event)>, Error> {
        if self.completions.iter().all(Completion::is_finished) {
            return Ok(None);
        }
        let (prompt, now, event) = self.events.recv().await.ok_or(Error::Stopped)?;
        self.completions[prompt].add(&event, self.start, now);
        Ok(Some((prompt, event)))
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

/// Turns what a request asks for into valid requests for the engine.
pub(super) fn requests(
    state: &State,
    mut params: SamplingParams,
    salt: Option<&str>,
    prompts: Vec<Prompt>,
) -> Result<Vec<Request>, ApiError> {
    // One seed for all prompts, so that the answer can name it.
    params.seed.get_or_insert_with(draw_seed);
    let n = prompts.len();
    let request = |(i, prompt)| match state.llm.request(prompt, &params) {
        Ok(request) => Ok(match salt {
            Some(salt) => request.with_salt(salt),
            None => request,
        }),
        Err(error) if n > 1 => Err(ApiError::from(error).of_prompt(i)),
        Err(error) => Err(error.into()),
    };
    prompts.into_iter().enumerate().map(request).collect()
}
