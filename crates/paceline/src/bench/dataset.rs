//! [`Ask`]: what requests ask, from a file or made up.

use super::random::Random;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, SeqAccess, Visitor};
use serde_json::{Value, json};
use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// What one request asks.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// A text to continue, or a conversation.
    pub input: Input,
    /// The most tokens of the answer, if the dataset says so.
    pub max_tokens: Option<usize>,
}

/// What is sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A text to continue.
    Prompt(String),
    /// Messages of a conversation, as OpenAI's API has them.
    Messages(Value),
}

impl Input {
    /// The one turn of a user.
    pub fn user(text: &str) -> Input {
        Input::Messages(json!([{"role": "user", "content": text}]))
    }
}

/// A dataset cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// The file cannot be read.
    #[error("{path}: {error}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A line is no request.
    #[error("{path}, line {line}: {problem}", path = path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// The file is not what ShareGPT looks like.
    #[error(
        "{path}: no list of conversations, which ShareGPT is: [{{\"conversations\": [{{\"from\": \
         \"human\", \"value\": ..}}]}}] ({problem})",
        path = path.display()
    )]
    NotShareGpt {
        /// The file.
        path: PathBuf,
        /// What the reader says.
        problem: String,
    },
    /// Nothing in the file can be asked.
    #[error("{path}: {what}", path = path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// What it has nothing of.
        what: String,
    },
}

/// Reads requests from a file with one JSON object a line: `{"prompt": TEXT}` or
/// `{"messages": [..]}`, both with `"max_tokens"` if need be. Blank lines are skipped.
///
/// # Errors
/// If the file cannot be read, a line is anything else, or there is none.
pub fn lines(path: &Path) -> Result<Vec<Ask>, DatasetError> {
    let bytes = read(path)?;
    let mut asks = Vec::new();
    for (i, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let ask = ask_of(line);
        asks.push(ask.map_err(|problem| DatasetError::Line {
            path: path.to_owned(),
            line: i + 1,
            problem,
        })?);
    }
    some(asks, path, "no line with a request in it")
}

fn ask_of(line: &[u8]) -> Result<Ask, String> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Line {
        prompt: Option<String>,
        messages: Option<Vec<Value>>,
        max_tokens: Option<usize>,
    }
    let line: Line = serde_json::from_slice(line).map_err(|error| problem_of(&error))?;
    let input = match (line.prompt, line.messages) {
        (Some(prompt), None) => Input::Prompt(prompt),
        (None, Some(messages)) => Input::Messages(messages.into()),
        _ => return Err("it must have either a prompt or messages".to_owned()),
    };
    if line.max_tokens == Some(0) {
        return Err("max_tokens is 0: it must be at least 1".to_owned());
    }
    Ok(Ask { input, max_tokens: line.max_tokens })
}

/// The error without its place, which is the line's.
fn problem_of(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&place).unwrap_or(&text).to_owned()
}

/// Reads the first turns of ShareGPT's conversations, of those that a human begins with a text of
/// `chars` characters. The file may be cut off: what comes before counts.
///
/// # Errors
/// If the file cannot be read, is something else, or has no such turn.
pub fn sharegpt(path: &Path, chars: RangeInclusive<usize>) -> Result<Vec<String>, DatasetError> {
    let bytes = read(path)?;
    let mut turns = Vec::new();
    let mut n_conversations = 0;
    let each = |conversation: &Value| {
        n_conversations += 1;
        let text = first_turn(conversation).filter(|text| chars.contains(&text.chars().count()));
        turns.extend(text.map(str::to_owned));
    };
    let read = Each(each).deserialize(&mut serde_json::Deserializer::from_slice(&bytes));
    if let (Err(error), 0) = (read, n_conversations) {
        return Err(DatasetError::NotShareGpt {
            path: path.to_owned(),
            problem: error.to_string(),
        });
    }
    let (least, most) = chars.into_inner();
    some(
        turns,
        path,
        &format!(
            "none of {n_conversations} conversations begins with a human turn of {least} to \
             {most} characters"
        ),
    )
}

/// What a human says first, if the conversation begins with that.
fn first_turn(conversation: &Value) -> Option<&str> {
    let turns = conversation["conversations"].as_array()?;
    let first = turns.iter().find(|turn| turn["from"] != "system")?;
    let human = first["from"] == "human" || first["from"] == "user";
    first["value"].as_str().filter(|_| human)
}

/// Hands over the values of a list as they are read, up to where it breaks off.
struct Each<F>(F);

impl<'de, F: FnMut(&Value)> DeserializeSeed<'de> for Each<F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, F: FnMut(&Value)> Visitor<'de> for Each<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        while let Some(value) = list.next_element()? {
            (self.0)(&value);
        }
        Ok(())
    }
}

/// Words that most vocabularies have as one token each.
const WORDS: [&str; 48] = [
    "time", "people", "way", "water", "words", "day", "part", "number", "sound", "work", "place",
    "year", "back", "thing", "name", "sentence", "man", "line", "world", "head", "end", "hand",
    "house", "page", "country", "school", "study", "life", "city", "tree", "farm", "story",
    "night", "car", "group", "music", "river", "state", "book", "room", "friend", "idea", "fish",
    "mountain", "north", "horse", "face", "wood",
];

/// Prompts of random words, as many as `words` says: about as many tokens, since the words are
/// common ones. What they were to the server, its usage says.
///
/// # Panics
/// If `words` is empty.
pub fn random(n: usize, words: RangeInclusive<usize>, seed: u64) -> Vec<Ask> {
    let mut random = Random::new(seed);
    let (least, most) = words.into_inner();
    let mut prompt = || {
        let n_words = least + random.below(most - least + 1);
        let words: Vec<&str> = (0..n_words).map(|_| WORDS[random.below(WORDS.len())]).collect();
        words.join(" ")
    };
    (0..n).map(|_| Ask { input: Input::Prompt(prompt()), max_tokens: None }).collect()
}

/// Takes `n` at random, each of them once before any comes again.
pub fn sample<T: Clone>(mut of: Vec<T>, n: usize, seed: u64) -> Vec<T> {
    Random::new(seed).shuffle(&mut of);
    of.iter().cycle().take(n).cloned().collect()
}

fn read(path: &Path) -> Result<Vec<u8>, DatasetError> {
    std::fs::read(path).map_err(|error| DatasetError::Read { path: path.to_owned(), error })
}

fn some<T>(found: Vec<T>, path: &Path, what: &str) -> Result<Vec<T>, DatasetError> {
    match found.is_empty() {
        true => Err(DatasetError::Empty { path: path.to_owned(), what: what.to_owned() }),
        false => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: impl AsRef<[u8]>) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    #[test]
    fn a_line_is_a_request() {
        let text = "{\"prompt\": \"Once\"}\n\n{\"messages\": [{\"role\": \"user\", \"content\": \
                    \"Hi\"}], \"max_tokens\": 5}\r\n";
        let asks = lines(file(text).path()).unwrap();
        let expected = [
            Ask { input: Input::Prompt("Once".to_owned()), max_tokens: None },
            Ask { input: Input::user("Hi"), max_tokens: Some(5) },
        ];
        assert_eq!(asks, expected);
    }

    #[test]
    fn a_wrong_line_is_named() {
        for (text, parts) in [
            ("{\"prompt\": \"a\"}\n{\"prompt\": 5}", &["line 2: ", "expected a string"][..]),
            ("{\"prompt\": \"a\", \"temprature\": 0}", &["line 1: ", "`temprature`"]),
            ("{\"prompt\": \"a\", \"messages\": []}", &["line 1: it must have either"]),
            ("{}", &["line 1: it must have either a prompt or messages"]),
            ("{\"prompt\": \"a\", \"max_tokens\": 0}", &["at least 1"]),
            ("\n\n[1, ", &["line 3: "]),
            (" \n", &["no line with a request"]),
        ] {
            let error = lines(file(text).path()).unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
            assert!(!error.contains("column"), "{error}");
        }
        let error = lines(Path::new("/no/such.jsonl")).unwrap_err().to_string();
        assert!(error.starts_with("/no/such.jsonl: "), "{error}");
    }

    const SHAREGPT: &str = r#"[
        {"id": "a", "conversations": [{"from": "human", "value": "What is tea?"},
                                      {"from": "gpt", "value": "A drink."}]},
        {"id": "b", "conversations": [{"from": "gpt", "value": "Going on from before."},
                                      {"from": "human", "value": "Thanks a lot."}]},
        {"id": "c", "conversations": [{"from": "system", "value": "Be terse."},
                                      {"from": "human", "value": "Größe des Mondes"}]},
        {"id": "d", "conversations": []}, 17,
        {"id": "e", "conversations": [{"from": "human", "value": "Hi"}]},
        {"id": "f", "conversations": [{"from": "human", "value": "What is cut of"#;

    #[test]
    fn conversations_are_read_up_to_where_the_file_is_cut() {
        let turns = sharegpt(file(SHAREGPT).path(), 3..=16).unwrap();
        assert_eq!(turns, ["What is tea?", "Größe des Mondes"]);
        let whole = "[{\"conversations\": [{\"from\": \"human\", \"value\": \"Hello\"}]}]";
        assert_eq!(sharegpt(file(whole).path(), 1..=9).unwrap(), ["Hello"]);
    }

    #[test]
    fn what_is_no_sharegpt_is_refused() {
        for (text, part) in [
            ("{\"prompt\": \"a\"}", "no list of conversations"),
            ("", "no list of conversations"),
            ("[{", "no list of conversations"),
            ("[1, 2]", "none of 2 conversations begins"),
            (SHAREGPT, "none of 6 conversations begins with a human turn of 100 to 200"),
        ] {
            let error = sharegpt(file(text).path(), 100..=200).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn random_prompts_have_the_lengths_asked_for() {
        let asks = random(300, 3..=5, 1);
        let words = |ask: &Ask| match &ask.input {
            Input::Prompt(text) => text.split(' ').count(),
            Input::Messages(_) => 0,
        };
        let mut seen: Vec<usize> = asks.iter().map(words).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, [3, 4, 5]);
        assert_eq!(asks, random(300, 3..=5, 1));
        assert_ne!(asks, random(300, 3..=5, 2));
    }

    #[test]
    fn a_sample_repeats_only_what_it_must() {
        let asks = random(10, 8..=8, 1);
        let seven = sample(asks.clone(), 7, 9);
        assert!(seven.iter().all(|ask| seven.iter().filter(|other| *other == ask).count() == 1));
        let twenty = sample(asks.clone(), 20, 9);
        assert!(asks.iter().all(|ask| twenty.iter().filter(|other| *other == ask).count() == 2));
        assert_eq!(seven, twenty[..7]);
    }
}
