//! The tokenizer that a GGUF file describes in its `tokenizer.ggml.*` metadata.

use super::bpe::Bpe;
use super::names::{ADDED, CONTROLS, ENDS, ENDS_IF_CONTROL};
use super::rows::ROWS;
use super::special::Specials;
use super::spm::{SPACE, Spm};
use super::{Kind, Model, Tokenizer, TokenizerError};
use crate::TokenId;
use crate::file::{KeyError, Metadata, Strings, shown};
use crate::meta::token_id;

impl Tokenizer {
    /// The tokenizer that a GGUF file's metadata describe. Its ids are llama.cpp's.
    ///
    /// Source: the GGUF specification, keys `tokenizer.ggml.*`.
    ///
    /// # Errors
    /// If the model or pre-tokenizer is not supported, a key is missing or of another type, or
    /// lists disagree in length.
    pub fn from_gguf(metadata: &Metadata) -> Result<Tokenizer, TokenizerError> {
        let model = metadata.require_str("tokenizer.ggml.model")?;
        let pre = match (model, metadata.get_str("tokenizer.ggml.pre")?) {
            ("gemma4", _) => "gemma4",
            (_, None | Some("")) => "default",
            (_, Some(pre)) => pre,
        };
        if !["gpt2", "llama", "gemma4"].contains(&model) {
            return Err(TokenizerError::UnknownModel { model: shown(model) });
        }
        let tokens = metadata.require_strings("tokenizer.ggml.tokens")?;
        let n = tokens.len();
        if n == 0 || n > i32::MAX as usize {
            return Err(TokenizerError::VocabLen { n });
        }
        let types = metadata.get_i32s("tokenizer.ggml.token_type")?.unwrap_or_default();
        check_len("token_type", types.len(), n)?;
        check_ids(metadata, n)?;
        let id = |key: &str| metadata.get_u32(&format!("tokenizer.ggml.{key}_token_id"));
        let flag = |key: &str| metadata.get_bool(&format!("tokenizer.ggml.{key}"));

        let spm = model == "llama";
        let by_default = |id: TokenId| (spm && (id as usize) < n).then_some(id);
        let unknown = id("unknown")?.or(by_default(0));
        let (model, raw, add_bos) = if spm {
            let scores = metadata.get_f32s("tokenizer.ggml.scores")?.unwrap_or_default();
            check_len("scores", scores.len(), n)?;
            if let Some(i) = scores.iter().position(|score| score.is_nan()) {
                return Err(TokenizerError::Score { i });
            }
            (Model::Spm(Box::new(Spm::new(tokens, scores, unknown))), true, true)
        } else {
            let row = ROWS.iter().find(|row| row.names.contains(&pre));
            let row = row.ok_or_else(|| TokenizerError::UnknownPre { pre: shown(pre) })?;
            let merges = metadata.require_strings("tokenizer.ggml.merges")?;
            (Model::Bpe(Box::new(Bpe::new(row, tokens, merges)?)), row.raw, row.add_bos)
        };

        let mut bytes = Strings::default();
        let (mut control, mut specials, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        for key in ["eos", "eot", "eom"] {
            push_new(&mut ends, id(key)?.or(by_default(2).filter(|_| key == "eos")));
        }
        let is_token = |text: &str| tokens.iter().any(|token| token == text.as_bytes());
        // In gpt-oss `<|end|>` ends a message, not a turn.
        let gpt_oss = is_token("<|return|>") && is_token("<|call|>");
        let mut content = Vec::new();
        for (i, token) in tokens.iter().enumerate() {
            let of_type = types.get(i).copied().unwrap_or(NORMAL);
            let mut kind = Kind::of_type(of_type);
            // Not what is only parsed like one: a word of the vocabulary, such as `</s>`, is text.
            let mut is_control = kind == Kind::Control;
            // Nearly all tokens are words: only those in brackets can be in the lists.
            if matches!(token.first(), Some(b'<' | b'[' | b'_' | 0xe2)) {
                let is_in = |list: &[&str]| list.iter().any(|text| text.as_bytes() == token);
                let ends_turn = is_in(ENDS) && !(gpt_oss && token == b"<|end|>");
                if ends_turn || (of_type == CONTROL && is_in(ENDS_IF_CONTROL)) {
                    push_new(&mut ends, Some(i as TokenId));
                    is_control = true;
                }
                if is_in(ADDED) || (is_in(ENDS) && !ends_turn) {
                    kind = Kind::Added;
                } else if is_in(ENDS) || is_in(ENDS_IF_CONTROL) || is_in(CONTROLS) {
                    kind = Kind::Control;
                }
            }
            if kind != Kind::Normal {
                bytes.push(token);
                specials.push((i as TokenId, token, kind));
            } else if of_type == UNUSED {
                // Padding up to a round number: it has a name and says nothing.
                bytes.push(b"");
            } else if let Some(byte) = byte_token(token).filter(|_| of_type == BYTE) {
                bytes.push(&[byte]);
            } else {
                match &model {
                    Model::Bpe(bpe) if !raw => match bpe.content(i as TokenId) {
                        // Outside the alphabet: it can only stand for its name.
                        [] => bytes.push(token),
                        content => bytes.push(content),
                    },
                    _ => {
                        content.clear();
                        push_with_spaces(token, &mut content);
                        bytes.push(&content);
                    }
                }
            }
            control.push(is_control);
        }

        Ok(Tokenizer {
            model,
            specials: Specials::new(specials),
            bytes,
            control,
            bos: id("bos")?.or(by_default(1)),
            ends,
            // Gemma 4's files say no and mean yes.
            add_bos: flag("add_bos_token")?.unwrap_or(add_bos) || (raw && !spm),
            add_eos: flag("add_eos_token")?.unwrap_or(false),
            add_space_prefix: spm && flag("add_space_prefix")?.unwrap_or(true),
        })
    }
}

/// Values of `tokenizer.ggml.token_type`.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

impl Kind {
    fn of_type(of_type: i32) -> Kind {
        match of_type {
            UNKNOWN | CONTROL => Kind::Control,
            USER_DEFINED => Kind::Added,
            _ => Kind::Normal,
        }
    }
}

/// Checks that every key that names a token names one of the `n` that there are.
fn check_ids(metadata: &Metadata, n: usize) -> Result<(), KeyError> {
    let names_token = |key: &&str| key.starts_with("tokenizer.ggml.") && key.ends_with("_token_id");
    for key in metadata.iter().map(|(key, _)| key).filter(names_token) {
        if let Some(id) = metadata.get_u32(key)? {
            token_id(key, id, n)?;
        }
    }
    Ok(())
}

fn check_len(list: &'static str, len: usize, n: usize) -> Result<(), TokenizerError> {
    match len {
        0 => Ok(()),
        len if len >= n => Ok(()),
        len => Err(TokenizerError::ListLen { list, len, n }),
    }
}

pub(super) fn push_new(ids: &mut Vec<TokenId>, id: Option<TokenId>) {
    ids.extend(id.filter(|id| !ids.contains(id)));
}

/// Appends a token of a raw vocabulary with its spaces as spaces.
pub(super) fn push_with_spaces(token: &[u8], out: &mut Vec<u8>) {
    let mut mark = [0; 4];
    let mark = SPACE.encode_utf8(&mut mark).as_bytes();
    let mut rest = token;
    while let Some(&byte) = rest.first() {
        let space = rest.strip_prefix(mark);
        out.push(if space.is_some() { b' ' } else { byte });
        rest = space.unwrap_or(&rest[1..]);
    }
}

/// The byte that a token `<0xNN>` stands for.
pub(super) fn byte_token(token: &[u8]) -> Option<u8> {
    let digits = token.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    let digits = std::str::from_utf8(digits).ok().filter(|d| d.len() == 2)?;
    u8::from_str_radix(digits, 16).ok()
}
