//! The line of figures that ends an answer.

use paceline::{Completion, FinishReason, SamplingParams, Stats};
use std::fmt::Write;

/// What an answer cost, on one line; `stats` are the engine's counters before and after it.
pub fn line(completion: &Completion, params: &SamplingParams, stats: [Stats; 2]) -> String {
    let usage = &completion.usage;
    let mut line = format!(
        "{} prompt tokens ({} cached), {} generated; first token {:.0} ms; prefill {:.1}, decode {:.1} tokens/s",
        usage.prompt_tokens,
        usage.cached_tokens,
        usage.completion_tokens,
        completion.timings.first_token.as_secs_f64() * 1e3,
        completion.prefill_tokens_per_second(),
        completion.decode_tokens_per_second(),
    );
    // Writing to a string cannot fail.
    let drafts = |stats: &Stats| (stats.drafts_proposed, stats.drafts_accepted);
    let ((proposed, accepted), (all_proposed, all_accepted)) =
        (drafts(&stats[0]), drafts(&stats[1]));
    if all_proposed > proposed {
        let _ = write!(
            line,
            "; {} of {} drafts accepted",
            all_accepted - accepted,
            all_proposed - proposed
        );
    }
    if params.temperature > 0.0 {
        let _ = write!(line, "; seed {}", completion.seed);
    }
    if completion.choices[0].finish_reason == Some(FinishReason::Length) {
        let limit = match params.max_tokens {
            Some(max) if usage.completion_tokens >= max => "--max-tokens",
            _ => "the end of the context",
        };
        let _ = write!(line, "; cut at {limit}");
    }
    line
}
