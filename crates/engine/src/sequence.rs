//! [`Sequence`]: one choice of one request, on its way.

use crate::block_pool::BlockId;
use crate::draft::{Speculate, Speculation};
use crate::event::{FinishReason, RequestId, Stop, Usage};
use crate::request::Request;
use crate::sample::processors::History;
use crate::text::{TextStream, Vocab};
use paceline_model::TokenId;
use std::sync::Arc;
use std::time::Duration;

/// ```text
/// | prompt . . . . . . . . . . | output . . . |  drafts  |
/// | computed . . . . |          pending                  |
/// | block | block | block |                                  block table
/// ```
pub(crate) struct Sequence {
    pub id: RequestId,
    pub choice: usize,
    pub request: Arc<Request>,
    /// Among its tenant's sequences, the lowest turn goes first.
    pub turn: i64,
    /// When it ends in any case.
    pub deadline: Option<Duration>,
    /// How many of its tenant's sequences go before it.
    pub rank: usize,
    /// When it became its tenant's first, among all that did; 0 if it is not.
    pub first_since: u64,
    /// Whether there was room for all of its tokens and no block was taken from it since.
    pub admitted: bool,
    pub n_preempted: u32,
    /// Prompt and output.
    pub tokens: Vec<TokenId>,
    /// Guesses of the tokens to come.
    pub drafts: Vec<TokenId>,
    /// Tokens whose K and V are in the cache.
    pub computed: usize,
    pub block_table: Vec<BlockId>,
    /// Blocks of the table that are published.
    pub n_published: usize,
    /// Rows of the prompt whose log-probabilities are reported.
    pub prompt_rows: usize,
    /// First blocks of the table, to be, of which those that are not published can be had from the
    /// store: they are read before anything else is computed.
    pub n_stored: usize,
    /// Tokens that the prefix cache had until the sequence first ran.
    pub cached: usize,
    /// Whether it has run.
    pub started: bool,
    /// False while the choice waits for the first one to compute the prompt that they share.
    pub ready: bool,
    pub history: History,
    pub text: TextStream,
    pub speculation: Option<Speculation>,
    pub finished: Option<(FinishReason, Option<Stop>)>,
}

impl Sequence {
    pub fn new(
        id: RequestId,
        choice: usize,
        request: Arc<Request>,
        speculate: Speculate,
    ) -> Sequence {
        let params = request.params();
        Sequence {
            id,
            choice,
            turn: 0,
            deadline: None,
            rank: usize::MAX,
            first_since: 0,
            admitted: false,
            n_preempted: 0,
            tokens: request.prompt().to_vec(),
            drafts: Vec::new(),
            computed: 0,
            block_table: Vec::new(),
            n_published: 0,
            prompt_rows: 0,
            n_stored: 0,
            cached: 0,
            started: false,
            ready: true,
            history: match params.penalizes() {
                true => History::new(request.prompt()),
                false => History::default(),
            },
            text: TextStream::new(&params.stop, params.include_stop_str_in_output),
            speculation: speculate.start(),
            finished: None,
            request,
        }
    }

    /// The order of arrival.
    pub fn key(&self) -> (RequestId, usize) {
        (self.id, self.choice)
    }

    /// The order in which sequences are served.
    pub fn place(&self) -> (usize, u64, RequestId, usize) {
        (self.rank, self.first_since, self.id, self.choice)
    }

    /// Tokens still to compute, drafts aside.
    pub fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// The prefix cache has the next tokens.
    pub fn hit(&mut self, n_tokens: usize) {
        self.computed += n_tokens;
        if !self.started {
            self.cached += n_tokens;
        }
    }

    /// Blocks to read from the store.
    pub fn n_unread(&self) -> usize {
        self.n_stored.saturating_sub(self.n_published)
    }

    pub fn prompt_len(&self) -> usize {
        self.request.prompt().len()
    }

    /// Tokens generated.
    pub fn n_output(&self) -> usize {
        self.tokens.len() - self.prompt_len()
    }

    /// Rows of the prompt whose log-probabilities have to be reported: row `p` predicts token
    /// `p + 1`. The choices share them.
    pub fn n_prompt_rows(&self) -> usize {
        match self.request.params().prompt_logprobs {
            Some(_) if self.choice == 0 => self.prompt_len() - 1,
            _ => 0,
        }
    }

    /// How many first tokens need no row of their own: all but the last, whose logits are wanted,
    /// and but those with log-probabilities to report.
    pub fn readable_len(&self) -> usize {
        match self.prompt_rows < self.n_prompt_rows() {
            true => self.prompt_rows,
            false => self.tokens.len() - 1,
        }
    }

    /// Appends a sampled token and decides whether it is the last; returns the text that has become
    /// certain.
    pub fn push(&mut self, token: TokenId, vocab: &dyn Vocab) -> String {
        let request = self.request.clone();
        let params = request.params();
        self.tokens.push(token);
        if params.penalizes() {
            self.history.push(token);
        }
        let may_stop = self.n_output() > params.min_tokens;
        let stop = match may_stop {
            true if params.stop_token_ids.contains(&token) => Some(Stop::Token(token)),
            true if !params.ignore_eos && vocab.eos_ids().contains(&token) => {
                Some(Stop::Eos(token))
            }
            _ => None,
        };
        let hidden = stop.is_some() && !params.include_stop_str_in_output;
        let bytes = match hidden || vocab.is_control(token) {
            true => &[],
            false => vocab.token_bytes(token),
        };
        let (mut text, found) = self.text.push(bytes, may_stop && stop.is_none());
        if let Some(i) = found {
            let stop = Stop::String(params.stop[i].clone());
            self.finished = Some((FinishReason::Stop, Some(stop)));
            return text;
        }
        if stop.is_some() {
            self.finished = Some((FinishReason::Stop, stop));
        } else if self.tokens.len() >= request.max_len() {
            self.finished = Some((FinishReason::Length, None));
        }
        if self.finished.is_some() {
            text += &self.text.finish();
        }
        text
    }

    /// What the sequence has cost so far.
    pub fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.prompt_len(),
            completion_tokens: self.n_output(),
            cached_tokens: self.cached,
        }
    }
}
