//! What changes the logits and what cuts their tail, each a pure function of a row.

use super::noise::{exp, ln};
use crate::request::SamplingParams;
use paceline_model::TokenId;
use std::collections::HashMap;

/// Which tokens a sequence has seen, for the penalties.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Times in the output; 0 for a token of the prompt alone.
    counts: HashMap<TokenId, u32>,
}

impl History {
    /// The tokens of a prompt.
    pub fn new(prompt: &[TokenId]) -> History {
        History { counts: prompt.iter().map(|&t| (t, 0)).collect() }
    }

    /// Adds a token of the output.
    pub fn push(&mut self, token: TokenId) {
        *self.counts.entry(token).or_default() += 1;
    }

    /// The penalties: for a token of prompt or output `l := l / r` if `l > 0`, else `l * r`; for one
    /// that is `c > 0` times in the output then `l := l - c * frequency - presence`.
    pub fn penalize(&self, params: &SamplingParams, logits: &mut [f32]) {
        let r = params.repetition_penalty;
        for (&token, &count) in &self.counts {
            let l = &mut logits[token as usize];
            *l = if *l > 0.0 { *l / r } else { *l * r };
            if count > 0 {
                *l -= count as f32 * params.frequency_penalty;
                *l -= params.presence_penalty;
            }
        }
    }
}

/// The last token that is kept, in the order (logit descending, id ascending). Every truncation
/// (min-p, top-k, top-p) keeps a prefix of that order, so a cut is all that it has to find.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cut {
    /// Its logit.
    pub logit: f32,
    /// Its id.
    pub id: TokenId,
}

impl Cut {
    /// Keeps every token that is not banned.
    pub const NONE: Cut = Cut { logit: f32::MIN, id: TokenId::MAX };

    /// Whether a token is kept. A NaN never is.
    #[inline]
    pub fn keeps(&self, id: TokenId, logit: f32) -> bool {
        logit > self.logit || (logit == self.logit && id <= self.id)
    }
}

/// A token and its logit.
pub type Candidate = (TokenId, f32);

/// The tokens of a row that a cut keeps, in id order.
pub fn kept(logits: &[f32], cut: Cut) -> impl Iterator<Item = Candidate> {
    // -0 and 0 are one value; the total order that sorts them would part them.
    (0..).zip(logits.iter().map(|&l| l + 0.0)).filter(move |&(id, l)| cut.keeps(id, l))
}

/// (logit descending, id ascending).
fn by_logit(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// Appends the `k` first tokens of the order to `out`, sorted. Expected time O(V): a token is looked
/// at twice only if it is among the `k` best of those before it or so.
pub fn select_top(logits: &[f32], k: usize, out: &mut Vec<Candidate>) {
    out.clear();
    if k == 0 {
        return;
    }
    let mut floor = Cut::NONE;
    for (id, l) in (0..).zip(logits.iter().copied()) {
        if !floor.keeps(id, l) {
            continue;
        }
        out.push((id, l + 0.0));
        if out.len() >= 2 * k + 64 {
            let (_, last, _) = out.select_nth_unstable_by(k - 1, by_logit);
            floor = Cut { logit: last.1, id: last.0 };
            out.truncate(k);
        }
    }
    out.sort_unstable_by(by_logit);
    out.truncate(k);
}

/// Min-p: keeps `p_i >= min_p * p_max`, that is `l_i >= l_max + T ln(min_p)`.
pub fn min_p(max: f32, temperature: f64, min_p: f32) -> Cut {
    let floor = max as f64 + temperature * ln(min_p as f64);
    let nearest = floor as f32;
    let logit = if (nearest as f64) < floor { nearest.next_up() } else { nearest };
    Cut { logit, id: TokenId::MAX }
}

/// Top-p: of the tokens that `cut` keeps, the fewest first ones whose probabilities
/// `softmax(l / T)` sum to at least `p`.
///
/// Probabilities are summed in fixed point, `w_i = floor(2^40 e^((l_i - l_max) / T))`, so the sum is
/// exact and the same in every order. Tokens are counted into classes of equal `floor(-8 ln p_i)`;
/// only the class in which the sum reaches `p` has to be sorted.
pub fn top_p(
    logits: &[f32],
    cut: Cut,
    max: f32,
    temperature: f64,
    p: f32,
    scratch: &mut Vec<Candidate>,
) -> Cut {
    const ONE: f64 = (1u64 << 40) as f64;
    const DEPTH: f64 = 28.0; // e^-28 < 2^-40: what lies below weighs nothing
    const CLASSES: usize = 8 * DEPTH as usize;
    let scale = 1.0 / temperature;
    let gap = |l: f32| (max as f64 - l as f64) * scale;
    let weight = |gap: f64| (exp(-gap) * ONE) as u64;
    let class = |gap: f64| (gap * 8.0) as usize;

    let mut classes = [0u64; CLASSES];
    for (_, l) in kept(logits, cut) {
        let gap = gap(l);
        if gap < DEPTH {
            classes[class(gap)] += weight(gap);
        }
    }
    let total: u64 = classes.iter().sum();
    let target = ((total as f64 * p as f64).ceil() as u64).clamp(1, total.max(1));

    let mut sum = 0;
    let mut last = 0;
    while last + 1 < CLASSES && sum + classes[last] < target {
        sum += classes[last];
        last += 1;
    }
    scratch.clear();
    scratch.extend(kept(logits, cut).filter(|&(_, l)| class(gap(l)) == last));
    scratch.sort_unstable_by(by_logit);
    for &(id, l) in scratch.iter() {
        sum += weight(gap(l));
        if sum >= target {
            return Cut { logit: l, id };
        }
    }
    cut
}
