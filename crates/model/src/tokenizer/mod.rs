//! [`Tokenizer`]: text to token ids and back.
//!
//! One type whatever the source. From a GGUF file the ids are llama.cpp's, from a `tokenizer.json`
//! those of Hugging Face's `tokenizers`; of the same model they differ where `tokenizer.json` asks
//! for Unicode normalisation (NFC), which llama.cpp does not do: `e` + U+0301 stays two characters.
//!
//! Text is cut three times: at special tokens (`special`), into words (`split`), and each word
//! into tokens by merges (`bpe`, `spm`). A token's bytes are fixed, so that text is the
//! concatenation of the tokens' bytes; one character may be spread over several tokens.

mod bpe;
mod gguf;
mod index;
mod json;
mod merge;
mod names;
mod rows;
mod special;
mod split;
mod spm;

use crate::TokenId;
use crate::chat::Rendered;
use crate::file::{KeyError, Strings};
pub(crate) use json::read_json;
use special::{Part, Specials};
use std::path::PathBuf;

/// Whether control-token strings in a text are control tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// They are: rendered templates and raw prompts.
    Parse,
    /// They are plain text: what somebody else wrote.
    Plain,
}

/// A vocabulary that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// `tokenizer.ggml.model` is of another kind.
    #[error("tokenizer model `{model}` is not supported: it must be one of gpt2, llama, gemma4")]
    UnknownModel {
        /// What the file says.
        model: String,
    },
    /// `tokenizer.ggml.pre` is not in the list.
    #[error("pre-tokenizer `{pre}` is not supported: it must be one of {}", known_pre())]
    UnknownPre {
        /// What the file says.
        pre: String,
    },
    /// A key is missing or of another type.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// No tokens, or too many.
    #[error("the vocabulary has {n} tokens: there must be between 1 and 2^31 - 1")]
    VocabLen {
        /// Number of tokens.
        n: usize,
    },
    /// A file of the tokenizer cannot be read.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A merge is not of two symbols.
    #[error(
        "tokenizer.ggml.merges[{i}] is \"{merge}\", not two symbols with a space between: the file is damaged"
    )]
    Merge {
        /// Its place.
        i: usize,
        /// What the file says.
        merge: String,
    },
    /// A token has no place in the order of merges.
    #[error("tokenizer.ggml.scores[{i}] is not a number: the file is damaged")]
    Score {
        /// Its place.
        i: usize,
    },
    /// A list that goes with the tokens is too short.
    #[error("tokenizer.ggml.{list} has {len} entries for {n} tokens: the file is damaged")]
    ListLen {
        /// The list's key.
        list: &'static str,
        /// Its length.
        len: usize,
        /// Number of tokens.
        n: usize,
    },
}

fn known_pre() -> String {
    let names: Vec<&str> = rows::ROWS.iter().flat_map(|row| row.names).copied().collect();
    names.join(", ")
}

/// How a token takes part in encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Made by merges.
    Normal,
    /// Found in text before anything else, by everybody.
    Added,
    /// Found in text before anything else, in [`Special::Parse`] only.
    Control,
}

#[derive(Debug)]
enum Model {
    Bpe(Box<bpe::Bpe>),
    Spm(Box<spm::Spm>),
    Json(Box<json::Json>),
}

/// Turns text into token ids and token ids into text.
#[derive(Debug)]
pub struct Tokenizer {
    model: Model,
    specials: Specials,
    bytes: Strings,
    control: Vec<bool>,
    bos: Option<TokenId>,
    ends: Vec<TokenId>,
    add_bos: bool,
    add_eos: bool,
    add_space_prefix: bool,
}

impl Tokenizer {
    /// The tokens of `text`, with BOS in front if `add_bos` (and the vocabulary has one).
    ///
    /// O(n log n) in the length of the text, whatever it holds.
    pub fn encode(&self, text: &str, special: Special, add_bos: bool) -> Vec<TokenId> {
        let mut ids = Vec::with_capacity(text.len() / 4 + 1);
        ids.extend(self.bos.filter(|_| add_bos));
        match &self.model {
            Model::Json(json) => json.encode(text, special, &mut ids),
            _ => {
                self.encode_parts(text, self.specials.split(text, special), true, &mut ids);
            }
        }
        ids
    }

    /// The tokens of a conversation: control-token strings of the template are control tokens,
    /// those in messages are plain text. BOS comes in front if the model expects it and the template
    /// did not write it.
    pub fn encode_chat(&self, chat: &Rendered) -> Vec<TokenId> {
        if matches!(self.model, Model::Json(_)) && !chat.marked.contains(chat.sentinel) {
            // `tokenizers` sees the whole text: its rules for spaces look across special tokens.
            let begun = self.bos_name().is_some_and(|bos| chat.marked.starts_with(bos));
            return self.encode(&chat.marked, Special::Parse, self.add_bos && !begun);
        }
        let parts = self.specials.split(&chat.marked, Special::Parse);
        let bos = self.bos.filter(|&bos| self.add_bos && parts.first() != Some(&Part::Token(bos)));
        let mut ids = Vec::with_capacity(chat.marked.len() / 4 + 1);
        ids.extend(bos);
        let mut after_special = true;
        for part in parts {
            let guarded = match &part {
                Part::Text(range) => Some(&chat.marked[range.clone()]),
                Part::Token(_) => None,
            };
            match guarded.filter(|text| text.contains(chat.sentinel)) {
                Some(guarded) => {
                    let text = guarded.replace(chat.sentinel, "");
                    let parts = self.specials.split(&text, Special::Plain);
                    after_special = self.encode_parts(&text, parts, after_special, &mut ids);
                }
                None => {
                    let parts = vec![part];
                    after_special = self.encode_parts(&chat.marked, parts, after_special, &mut ids);
                }
            }
        }
        ids
    }

    /// Appends the tokens of `parts`; tells whether the last was a special token.
    fn encode_parts(
        &self,
        text: &str,
        parts: Vec<Part>,
        mut after_special: bool,
        ids: &mut Vec<TokenId>,
    ) -> bool {
        for part in parts {
            match &part {
                Part::Token(id) => ids.push(*id),
                Part::Text(range) => {
                    let text = &text[range.clone()];
                    match &self.model {
                        Model::Bpe(bpe) => bpe.encode(text, ids),
                        Model::Json(json) => json.encode(text, Special::Plain, ids),
                        Model::Spm(spm) => {
                            let space_before = self.add_space_prefix && after_special;
                            spm.encode(text, space_before, ids);
                        }
                    }
                }
            }
            after_special = matches!(part, Part::Token(_));
        }
        after_special
    }

    fn bos_name(&self) -> Option<&str> {
        let name = std::str::from_utf8(self.token_bytes(self.bos?)).ok()?;
        Some(name).filter(|name| !name.is_empty())
    }

    /// The names of the control tokens.
    pub(crate) fn control_texts(&self) -> impl Iterator<Item = &str> {
        self.specials.control_texts()
    }

    /// V: number of tokens.
    pub fn vocab_len(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes that a token stands for in text; nothing for an id that is not in the vocabulary.
    ///
    /// Those of a control token are its name.
    pub fn token_bytes(&self, id: TokenId) -> &[u8] {
        self.bytes.get(id as usize).unwrap_or_default()
    }

    /// Whether a token steers rather than says something.
    pub fn is_control(&self, id: TokenId) -> bool {
        self.control.get(id as usize).copied().unwrap_or(false)
    }

    /// The tokens that end an answer: EOS, EOT and EOM as the file has them, and those that are
    /// known by name.
    pub fn eos_ids(&self) -> &[TokenId] {
        &self.ends
    }

    /// The token that begins a text.
    pub fn bos_id(&self) -> Option<TokenId> {
        self.bos
    }

    /// Whether the model expects BOS in front of a text.
    pub fn add_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether the model was made with EOS at the end of each text. A prompt never takes it.
    pub fn add_eos(&self) -> bool {
        self.add_eos
    }

    /// The text of `ids`, control tokens by name; bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[TokenId]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.token_bytes(id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
