//! Log-probabilities, in the three forms that the API knows.

use paceline_engine::{Logprobs, Vocab};
use paceline_model::TokenId;
use serde_json::{Map, Value, json};

/// A token's text; bytes that are no text of their own become U+FFFD.
pub(super) fn token_text(vocab: &dyn Vocab, id: TokenId) -> String {
    String::from_utf8_lossy(vocab.token_bytes(id)).into_owned()
}

/// A log-probability that JSON can hold: it has no infinity.
fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}

/// An entry of `logprobs.content` of a chat's choice.
pub(super) fn chat(vocab: &dyn Vocab, id: TokenId, logprobs: &Logprobs) -> Value {
    let entry = |id, logprob| {
        json!({
            "token": token_text(vocab, id),
            "logprob": finite(logprob),
            "bytes": vocab.token_bytes(id),
        })
    };
    let top: Vec<Value> = logprobs.top.iter().map(|&(id, logprob)| entry(id, logprob)).collect();
    let mut own = entry(id, logprobs.logprob);
    own["top_logprobs"] = Value::Array(top);
    own
}

/// `logprobs` of a completion's choice: parallel lists, one entry for each token.
#[derive(Default)]
pub(super) struct Lists {
    tokens: Vec<Value>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<usize>,
}

impl Lists {
    /// Adds a token with at most `n_top` likely ones; `offset` is where its text begins, in
    /// characters.
    pub fn push(
        &mut self,
        vocab: &dyn Vocab,
        id: TokenId,
        logprobs: &Logprobs,
        n_top: usize,
        offset: usize,
    ) {
        let text = token_text(vocab, id);
        let likely = logprobs.top.iter().take(n_top);
        let mut top: Map<String, Value> =
            likely.map(|&(id, logprob)| (token_text(vocab, id), json!(finite(logprob)))).collect();
        // The token that is there is listed even if it was not likely.
        top.entry(&text).or_insert(json!(finite(logprobs.logprob)));
        self.tokens.push(text.into());
        self.token_logprobs.push(json!(finite(logprobs.logprob)));
        self.top_logprobs.push(top.into());
        self.text_offset.push(offset);
    }

    /// Adds the first token of a prompt, which nothing comes before.
    pub fn push_first(&mut self, vocab: &dyn Vocab, id: TokenId) {
        self.tokens.push(token_text(vocab, id).into());
        self.token_logprobs.push(Value::Null);
        self.top_logprobs.push(Value::Null);
        self.text_offset.push(0);
    }

    pub fn into_json(self) -> Value {
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        })
    }
}

/// `prompt_logprobs`: null for the first token, then for each token its own log-probability and
/// those of the `n_top` most likely ones, by token id. `rank` is null for a token that is not among
/// them.
pub(super) fn prompt(
    vocab: &dyn Vocab,
    prompt: &[TokenId],
    logprobs: &[Logprobs],
    n_top: usize,
) -> Value {
    let entry = |id, logprob: f32, rank: Option<usize>| json!({"logprob": finite(logprob), "rank": rank, "decoded_token": token_text(vocab, id)});
    let position = |(&id, logprobs): (&TokenId, &Logprobs)| {
        let ranked = logprobs.top.iter().zip(1..).take(n_top);
        let mut map: Map<String, Value> = ranked
            .map(|(&(id, logprob), rank)| (id.to_string(), entry(id, logprob, Some(rank))))
            .collect();
        map.entry(id.to_string()).or_insert_with(|| entry(id, logprobs.logprob, None));
        Value::Object(map)
    };
    let rest = prompt.iter().skip(1).zip(logprobs).map(position);
    std::iter::once(Value::Null).chain(rest).collect()
}
