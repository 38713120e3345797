//! Log-probabilities, in the three forms that the API knows.

use paceline_engine::text::TextStream;
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

/// Where tokens begin in the text that they add up to, in characters. One whose bytes go on with a
/// character begins where that does.
#[derive(Clone, Default)]
pub(super) struct Offsets {
    n_chars: usize,
    text: TextStream,
}

impl Offsets {
    /// Of a text that follows `n_chars` characters.
    pub fn after(n_chars: usize) -> Offsets {
        Offsets { n_chars, ..Offsets::default() }
    }

    /// Where the next token begins, of which the text shows these bytes.
    pub fn next(&mut self, bytes: &[u8]) -> usize {
        let Some((&first, rest)) = bytes.split_first() else { return self.n_chars };
        self.push(&[first]);
        // The character of the first byte is complete now, or the one that is to come.
        let begin = self.n_chars - usize::from(!self.text.is_in_character());
        self.push(rest);
        begin
    }

    fn push(&mut self, bytes: &[u8]) {
        self.n_chars += self.text.push(bytes, false).0.chars().count();
    }
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
    /// Adds a token that begins at `offset`, with at most `n_top` likely ones. The first token of a
    /// prompt has no log-probabilities: nothing comes before it.
    pub fn push(
        &mut self,
        vocab: &dyn Vocab,
        id: TokenId,
        logprobs: Option<&Logprobs>,
        n_top: usize,
        offset: usize,
    ) {
        let text = token_text(vocab, id);
        let top = |logprobs: &Logprobs| {
            let likely = logprobs.top.iter().take(n_top);
            let mut top: Map<String, Value> = likely
                .map(|&(id, logprob)| (token_text(vocab, id), json!(finite(logprob))))
                .collect();
            // The token that is there is listed even if it was not likely.
            top.entry(&text).or_insert(json!(finite(logprobs.logprob)));
            Value::Object(top)
        };
        self.top_logprobs.push(logprobs.map_or(Value::Null, top));
        self.token_logprobs.push(json!(logprobs.map(|logprobs| finite(logprobs.logprob))));
        self.tokens.push(text.into());
        self.text_offset.push(offset);
    }

    /// Adds the next token of an answer, in whose text control tokens are not.
    pub fn push_answer(
        &mut self,
        vocab: &dyn Vocab,
        id: TokenId,
        logprobs: &Logprobs,
        n_top: usize,
        offsets: &mut Offsets,
    ) {
        let shown = if vocab.is_control(id) { &[] } else { vocab.token_bytes(id) };
        self.push(vocab, id, Some(logprobs), n_top, offsets.next(shown));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_is_that_of_the_character_that_the_first_byte_belongs_to() {
        let tokens: [&[u8]; 12] = [
            b"a",
            "é".as_bytes(),
            b"",
            b"\xf0",
            b"\x9f\x99",
            b"\x82b",
            b"\xe2\x82",
            b"",
            b"c",
            b"\xff\xffd",
            b"\xe2",
            b"\xe2\x82\xac",
        ];
        let mut offsets = Offsets::after(7);
        let mut before = Vec::new();
        for token in tokens {
            let offset = offsets.next(token);
            if let Some(&first) = token.first() {
                let text = [&before[..], &[first]].concat();
                let n_chars = String::from_utf8_lossy(&text).chars().count();
                assert_eq!(offset, 7 + n_chars - 1, "{token:x?}");
            }
            before.extend(token);
        }
    }
}
