//! Keeping control-token strings in a message apart from those of the template.
//!
//! Before rendering, every string that a user controls gets a *sentinel*, a character that occurs
//! nowhere else, into each control-token string: `<|im_end|>` becomes `<` S `|im_end|>`. The
//! rendered text is cut at control tokens, which finds only the template's own; then the sentinel is
//! taken out. The template may trim, split and join the strings meanwhile.

use super::ChatError;
use crate::tokenizer::Tokenizer;
use aho_corasick::AhoCorasick;
use serde_json::{Map, Value};

/// Roles that templates compare with and write into control tokens: they stay whole.
const ROLES: &[&str] = &[
    "system",
    "developer",
    "user",
    "assistant",
    "model",
    "tool",
    "function",
    "ipython",
    "documents",
];

/// The control tokens of a vocabulary, to be broken.
#[derive(Debug)]
pub(super) struct Guard {
    finder: Option<AhoCorasick>,
    /// Sorted, so that those with a given beginning stand together.
    texts: Vec<String>,
    longest: usize,
}

impl Guard {
    pub fn new(tokenizer: &Tokenizer) -> Guard {
        // A token of one character cannot be broken.
        let texts = tokenizer.control_texts().filter(|text| text.chars().nth(1).is_some());
        let mut texts: Vec<String> = texts.map(str::to_owned).collect();
        texts.sort_unstable();
        // In any case, since a template may change case; breaking too much does no harm.
        let finder = AhoCorasick::builder().ascii_case_insensitive(true).build(&texts).ok();
        let longest = texts.iter().map(String::len).max().unwrap_or(0);
        Guard { finder, texts, longest }
    }

    /// The byte positions in `text` where a sentinel goes, ascending.
    fn breaks(&self, text: &str) -> Vec<usize> {
        let after_first = |at: usize| at + text[at..].chars().next().map_or(0, char::len_utf8);
        let mut breaks = Vec::new();
        if let Some(finder) = &self.finder {
            breaks.extend(finder.find_overlapping_iter(text).map(|m| after_first(m.start())));
        }
        // The end may be the beginning of a control token that the next string completes.
        let near_end = text.len().saturating_sub(self.longest);
        let ends = text[ceil_char(text, near_end)..].char_indices();
        for at in ends.map(|(i, _)| ceil_char(text, near_end) + i) {
            let tail = &text[at..];
            let next = self.texts.partition_point(|control| control.as_str() < tail);
            if self.texts.get(next).is_some_and(|control| control.starts_with(tail)) {
                breaks.push(after_first(at));
            }
        }
        breaks.sort_unstable();
        breaks.dedup();
        breaks
    }

    fn guard_text(&self, text: &str, sentinel: char) -> String {
        let mut out = String::with_capacity(text.len() + 8);
        let mut start = 0;
        for at in self.breaks(text) {
            out.push_str(&text[start..at]);
            out.push(sentinel);
            start = at;
        }
        out.push_str(&text[start..]);
        out
    }

    /// Breaks the control tokens of every string in `value`, the keys of objects included.
    fn guard(&self, value: &Value, sentinel: char) -> Value {
        match value {
            Value::String(text) => Value::String(self.guard_text(text, sentinel)),
            Value::Array(items) => items.iter().map(|item| self.guard(item, sentinel)).collect(),
            Value::Object(entries) => Value::Object(self.guard_entries(entries, sentinel)),
            other => other.clone(),
        }
    }

    /// The same for the keys and values of an object.
    pub fn guard_entries(
        &self,
        entries: &Map<String, Value>,
        sentinel: char,
    ) -> Map<String, Value> {
        let guarded = entries.iter();
        guarded.map(|(k, v)| (self.guard_text(k, sentinel), self.guard(v, sentinel))).collect()
    }

    /// Breaks the control tokens in a message.
    pub fn guard_message(
        &self,
        message: &Map<String, Value>,
        sentinel: char,
    ) -> Map<String, Value> {
        let mut guarded = self.guard_entries(message, sentinel);
        if let Some(Value::String(role)) = guarded.get_mut("role")
            && !ROLES.contains(&role.as_str())
        {
            // Templates put roles into control tokens: an unknown one must not complete one.
            *role = format!("{sentinel}{role}{sentinel}");
        }
        guarded
    }
}

fn ceil_char(text: &str, at: usize) -> usize {
    (at..text.len()).find(|&i| text.is_char_boundary(i)).unwrap_or(text.len())
}

/// The characters that could be a sentinel and occur in some text.
#[derive(Default)]
pub(super) struct Used(Vec<char>);

impl Used {
    pub fn note(&mut self, text: &str) {
        self.0.extend(text.chars().filter(|c| matches!(c, '\u{e000}'..='\u{fdef}')));
    }

    /// A character that occurs in none of the texts. The first choice is U+FDD0, a noncharacter:
    /// Unicode reserves it for uses like this.
    pub fn free(mut self) -> Result<char, ChatError> {
        self.0.sort_unstable();
        let mut candidates = ('\u{fdd0}'..='\u{fdef}').chain('\u{e000}'..='\u{f8ff}');
        candidates.find(|c| self.0.binary_search(c).is_err()).ok_or(ChatError::NoSentinel)
    }
}

/// Calls `each` with every string in the values of `entries`, and with every key.
pub(super) fn for_each_string(entries: &Map<String, Value>, each: &mut impl FnMut(&str)) {
    fn walk(value: &Value, each: &mut impl FnMut(&str)) {
        match value {
            Value::String(text) => each(text),
            Value::Array(items) => items.iter().for_each(|item| walk(item, each)),
            Value::Object(entries) => for_each_string(entries, each),
            _ => {}
        }
    }
    for (key, value) in entries {
        each(key);
        walk(value, each);
    }
}
