//! Sampling as a function: the token at position `i` follows from (logits, parameters, the tokens
//! before `i`, seed, choice, `i`) and from nothing else.
//!
//! The order is fixed:
//!
//! 1. repetition penalty (prompt and output), frequency and presence penalties (output)
//! 2. logit bias
//! 3. `min_tokens`: bans the tokens that would end the output
//! 4. temperature
//! 5. min-p, then top-k, then top-p over what is left
//! 6. `argmax(l / T + g)` over the tokens left, with Gumbel noise `g` that belongs to (seed,
//!    choice, position, token): a draw from `softmax(l / T)`
//!
//! The order is that of vLLM's V1 sampler, except that its bias comes before the penalties: here a
//! bias is what is added in the end, whatever the token's history.
//!
//! Ties take the lowest id. Temperature 0 takes `argmax l`; 5 and 6 have nothing to change then.
//! Log-probabilities are those of the model, before 1.

pub mod noise;
pub mod processors;

use crate::request::SamplingParams;
use noise::{GUMBEL_MAX, Noise};
use paceline_model::TokenId;
use processors::{Candidate, Cut, History};

/// The log-probability of a token, beside those of the most likely ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// Of the token, natural logarithm.
    pub logprob: f32,
    /// The most likely tokens, most likely first.
    pub top: Vec<(TokenId, f32)>,
}

/// Where a token is to be drawn: all that the noise depends on.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The request's seed.
    pub seed: u64,
    /// The choice.
    pub choice: usize,
    /// The position of the token in its sequence.
    pub position: usize,
}

/// Draws tokens. Holds buffers, and nothing that a result depends on.
#[derive(Debug, Default)]
pub struct Sampler {
    logits: Vec<f32>,
    candidates: Vec<Candidate>,
}

impl Sampler {
    /// The token for a row of logits `[V]`. `history` is read if the parameters penalize, `banned`
    /// tokens cannot be drawn.
    pub fn sample(
        &mut self,
        logits: &[f32],
        params: &SamplingParams,
        history: &History,
        banned: impl Iterator<Item = TokenId>,
        place: Place,
    ) -> TokenId {
        let mut banned = banned.peekable();
        if !params.penalizes() && params.logit_bias.is_empty() && banned.peek().is_none() {
            return self.draw(logits, params, place);
        }
        let mut row = std::mem::take(&mut self.logits);
        row.clear();
        row.extend_from_slice(logits);
        if params.penalizes() {
            history.penalize(params, &mut row);
        }
        for &(token, bias) in &params.logit_bias {
            row[token as usize] += bias;
        }
        for token in banned {
            row[token as usize] = f32::NEG_INFINITY;
        }
        let token = self.draw(&row, params, place);
        self.logits = row;
        token
    }

    /// Steps 4 to 6.
    fn draw(&mut self, logits: &[f32], params: &SamplingParams, place: Place) -> TokenId {
        let (first, max) = argmax(logits);
        if params.temperature == 0.0 || !max.is_finite() {
            return first;
        }
        let temperature = params.temperature as f64;
        let mut cut = Cut::NONE;
        if params.min_p > 0.0 {
            cut = processors::min_p(max, temperature, params.min_p);
        }
        if (1..logits.len()).contains(&params.top_k) {
            processors::select_top(logits, params.top_k, &mut self.candidates);
            if let Some(&(id, logit)) = self.candidates.last()
                && cut.keeps(id, logit)
            {
                cut = Cut { logit, id };
            }
        }
        if params.top_p < 1.0 {
            let scratch = &mut self.candidates;
            cut = processors::top_p(logits, cut, max, temperature, params.top_p, scratch);
        }
        noisy_argmax(logits, cut, (first, max), temperature, place)
    }

    /// `log softmax(l)` of `token` and of the `n_top` most likely tokens. The sum of exponentials
    /// is taken in f64, in id order.
    pub fn logprobs(&mut self, logits: &[f32], token: TokenId, n_top: usize) -> Logprobs {
        let (_, max) = argmax(logits);
        let max = if max == f32::NEG_INFINITY { 0.0 } else { max as f64 };
        let sum: f64 = logits.iter().map(|&l| noise::exp(l as f64 - max)).sum();
        let log_sum = max + noise::ln(sum);
        let logprob = |l: f32| (l as f64 - log_sum) as f32;
        processors::select_top(logits, n_top, &mut self.candidates);
        Logprobs {
            logprob: logprob(logits[token as usize]),
            top: self.candidates.iter().map(|&(id, l)| (id, logprob(l))).collect(),
        }
    }
}

/// The largest logit and the lowest id that has it; (0, -inf) if there is none.
fn argmax(logits: &[f32]) -> (TokenId, f32) {
    const LANES: usize = 16;
    let (rows, rest) = logits.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for row in rows {
        for (m, &l) in lanes.iter_mut().zip(row) {
            // Not `f32::max`: a NaN is not larger than anything.
            *m = if l > *m { l } else { *m };
        }
    }
    let all = lanes.iter().chain(rest);
    let max = all.fold(f32::NEG_INFINITY, |m, &l| if l > m { l } else { m });
    let id = logits.iter().position(|&l| l == max).unwrap_or(0);
    (id as TokenId, max)
}

/// `argmax(l + T g)` over the tokens that a cut keeps: it has the order of `l / T + g`, and is
/// defined for the smallest T. `first` is the token with the largest logit.
fn noisy_argmax(
    logits: &[f32],
    cut: Cut,
    first: (TokenId, f32),
    temperature: f64,
    place: Place,
) -> TokenId {
    let noise = Noise::new(place.seed, place.choice, place.position);
    let score = |l: f32, bits: u32| l as f64 + temperature * noise::gumbel(bits);
    // A logit below this cannot win, whatever its noise.
    let floor = |best: f64| ((best - temperature * GUMBEL_MAX) as f32).next_down().max(cut.logit);

    let (mut token, l) = first;
    let mut best = score(l, noise.bits(token / 4)[token as usize % 4]);
    let mut least = floor(best);
    for (block, four) in (0..).zip(logits.chunks(4)) {
        if !four.iter().any(|&l| l >= least) {
            continue;
        }
        for ((id, &l), bits) in (4 * block..).zip(four).zip(noise.bits(block)) {
            if !cut.keeps(id, l) || l as f64 + temperature * noise::gumbel_bound(bits) < best {
                continue;
            }
            let score = score(l, bits);
            if score > best || (score == best && id < token) {
                (best, token) = (score, id);
                least = floor(best);
            }
        }
    }
    token
}
