//! Tokens become text, a piece at a time.

use paceline_model::TokenId;

/// What the engine must know of a tokenizer.
pub trait Vocab: Send + Sync {
    /// The bytes of a token; they need not be whole characters.
    fn token_bytes(&self, id: TokenId) -> &[u8];

    /// Whether the token steers and is not text (`<|im_end|>`, `<bos>`).
    fn is_control(&self, id: TokenId) -> bool;

    /// The model's own end tokens.
    fn eos_ids(&self) -> &[TokenId];
}

/// Bytes in, text out: the pieces never split a character and never show a stop string.
///
/// Without stop strings the pieces concatenate to `String::from_utf8_lossy` of all bytes. Text that
/// may yet become a stop string is held back until that is decided. What ends the stream depends
/// only on the bytes, not on how they were split: the stop string that is complete first, of two
/// complete at once the one that began first.
#[derive(Clone, Debug, Default)]
pub struct TextStream {
    stops: Vec<String>,
    include_stop: bool,
    /// An incomplete character.
    bytes: Vec<u8>,
    /// Text that may become a stop string.
    held: String,
}

impl TextStream {
    /// An empty stream that ends at the first of `stops`, shown if `include_stop`.
    pub fn new(stops: &[String], include_stop: bool) -> TextStream {
        TextStream { stops: stops.to_vec(), include_stop, ..TextStream::default() }
    }

    /// Adds bytes; returns the text that is now certain, and the number of the stop string that
    /// ended the stream. With `search` off, stop strings are not looked for in these bytes.
    pub fn push(&mut self, bytes: &[u8], search: bool) -> (String, Option<usize>) {
        self.bytes.extend_from_slice(bytes);
        let mut text = std::mem::take(&mut self.held);
        let used = decode(&self.bytes, &mut text);
        self.bytes.drain(..used);
        if !search {
            return (text, None);
        }
        let found = self
            .stops
            .iter()
            .enumerate()
            .filter_map(|(i, stop)| text.find(stop).map(|start| (start + stop.len(), start, i)))
            .min();
        if let Some((end, start, i)) = found {
            text.truncate(if self.include_stop { end } else { start });
            self.bytes.clear();
            return (text, Some(i));
        }
        self.held = text.split_off(self.undecided(&text));
        (text, None)
    }

    /// Whether the last character is not complete yet.
    pub fn is_in_character(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// Ends the stream: returns all text that was held back.
    pub fn finish(&mut self) -> String {
        let mut text = std::mem::take(&mut self.held);
        if !std::mem::take(&mut self.bytes).is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
        text
    }

    /// Where the longest tail of `text` begins that some stop string begins with.
    fn undecided(&self, text: &str) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(1);
        let from = text.len().saturating_sub(longest - 1);
        let mut starts = (from..text.len()).filter(|&i| text.is_char_boundary(i));
        starts
            .find(|&i| self.stops.iter().any(|stop| stop.starts_with(&text[i..])))
            .unwrap_or(text.len())
    }
}

/// Appends `bytes` as text, invalid ones as U+FFFD; returns how many were used. What is left is the
/// beginning of a character.
fn decode(mut bytes: &[u8], text: &mut String) -> usize {
    let all = bytes.len();
    loop {
        let error = match std::str::from_utf8(bytes) {
            Ok(valid) => {
                text.push_str(valid);
                return all;
            }
            Err(error) => error,
        };
        let (valid, rest) = bytes.split_at(error.valid_up_to());
        text.push_str(std::str::from_utf8(valid).unwrap_or_default());
        match error.error_len() {
            None => return all - rest.len(),
            Some(n) => {
                text.push(char::REPLACEMENT_CHARACTER);
                bytes = &rest[n..];
            }
        }
    }
}
