//! The tokenizer that a `tokenizer.json` describes, run by Hugging Face's `tokenizers`.

use super::bpe::push_bytes_of;
use super::gguf::{byte_token, push_new};
use super::names::{ENDS, ENDS_IF_CONTROL};
use super::special::Specials;
use super::{Kind, Model, Special, Tokenizer, TokenizerError};
use crate::TokenId;
use crate::file::{Strings, shorten};
use serde_json::Value;
use std::path::Path;
use std::sync::OnceLock;

/// Holes that a vocabulary may have between its ids.
const MAX_HOLES: usize = 1 << 16;

/// A tokenizer of `tokenizers`.
#[derive(Debug)]
pub(super) struct Json {
    parse: tokenizers::Tokenizer,
    /// The same, for text whose special tokens are text. Few need it.
    plain: OnceLock<tokenizers::Tokenizer>,
}

impl Json {
    pub fn encode(&self, text: &str, special: Special, out: &mut Vec<TokenId>) {
        let tokenizer = match special {
            Special::Parse => &self.parse,
            Special::Plain => self.plain.get_or_init(|| {
                let mut plain = self.parse.clone();
                plain.set_encode_special_tokens(true);
                plain
            }),
        };
        encode(tokenizer, text, out);
    }
}

/// Appends the tokens of `text`. Where `tokenizers` gives up (its patterns backtrack, and on
/// hundreds of thousands of spaces too far) the halves are encoded, each for itself.
fn encode(tokenizer: &tokenizers::Tokenizer, text: &str, out: &mut Vec<TokenId>) {
    if let Ok(encoding) = tokenizer.encode_fast(text, false) {
        return out.extend_from_slice(encoding.get_ids());
    }
    let half = (text.len() / 2..text.len()).find(|&i| text.is_char_boundary(i)).unwrap_or(0);
    if half > 0 {
        encode(tokenizer, &text[..half], out);
        encode(tokenizer, &text[half..], out);
    }
}

impl Tokenizer {
    /// The tokenizer of a directory as Hugging Face ships it: `tokenizer.json`, with what
    /// `tokenizer_config.json`, `generation_config.json` and `config.json` say of BOS and EOS. Its
    /// ids are those of `tokenizers`.
    ///
    /// # Errors
    /// If there is no `tokenizer.json`, or one of the files cannot be read.
    pub fn from_directory(directory: &Path) -> Result<Tokenizer, TokenizerError> {
        let path = directory.join("tokenizer.json");
        let fault = |problem: String| TokenizerError::File { path: path.clone(), problem };
        let bytes = std::fs::read(&path).map_err(|e| fault(e.to_string()))?;
        let description: Value =
            serde_json::from_slice(&bytes).map_err(|e| fault(shorten(&e.to_string())))?;
        let mut hf = tokenizers::Tokenizer::from_bytes(&bytes).map_err(|e| {
            fault(format!("the tokenizer is not supported: {}", shorten(&e.to_string())))
        })?;
        // A prompt is never cut or filled up behind the caller's back.
        hf.with_padding(None);
        hf.with_truncation(None).map_err(|e| fault(shorten(&e.to_string())))?;

        let vocab = hf.get_vocab(true);
        let n = vocab.values().max().map_or(0, |&id| id as usize + 1);
        if n == 0 || n > vocab.len() + MAX_HOLES {
            return Err(TokenizerError::VocabLen { n });
        }
        let mut names = vec![""; n];
        vocab.iter().for_each(|(name, &id)| names[id as usize] = name);
        let added = hf.get_added_tokens_decoder();
        let mut kinds = vec![Kind::Normal; n];
        for (&id, token) in &added {
            if let Some(kind) = kinds.get_mut(id as usize) {
                *kind = if token.special { Kind::Control } else { Kind::Added };
            }
        }
        let writing = Writing::of(&description);
        let mut bytes = Strings::default();
        let mut content = Vec::new();
        for (name, &kind) in names.iter().zip(&kinds) {
            content.clear();
            match kind {
                Kind::Normal => writing.push(name, &mut content),
                _ => content.extend_from_slice(name.as_bytes()),
            }
            bytes.push(&content);
        }

        let config = read_json(directory, "tokenizer_config.json")?;
        let name_of = |key: &str| {
            let token = &config[key];
            token.as_str().or_else(|| token["content"].as_str()).and_then(|name| vocab.get(name))
        };
        let mut ends = Vec::new();
        push_new(&mut ends, name_of("eos_token").copied());
        for file in ["generation_config.json", "config.json"] {
            let ids = read_json(directory, file)?["eos_token_id"].take();
            let ids = if ids.is_array() { ids.as_array().cloned() } else { Some(vec![ids]) };
            for id in ids.unwrap_or_default().iter().filter_map(Value::as_u64) {
                push_new(&mut ends, TokenId::try_from(id).ok().filter(|&id| (id as usize) < n));
            }
        }
        for name in ENDS.iter().chain(ENDS_IF_CONTROL) {
            let id = vocab.get(*name).copied();
            push_new(&mut ends, id.filter(|&id| kinds[id as usize] == Kind::Control));
        }
        // What the post-processor puts around nothing is what it puts around every text.
        let around = hf.encode_fast("", true).map(|e| e.get_ids().to_vec()).unwrap_or_default();
        let bos = name_of("bos_token").copied();
        let bos = bos.or(around.first().copied().filter(|id| !ends.contains(id)));

        let specials = names.iter().enumerate().filter(|(i, _)| kinds[*i] != Kind::Normal);
        let specials =
            specials.map(|(i, name)| (i as TokenId, name.as_bytes(), kinds[i])).collect();
        Ok(Tokenizer {
            specials: Specials::new(specials),
            bytes,
            control: kinds.iter().map(|&kind| kind == Kind::Control).collect(),
            bos,
            add_bos: bos.is_some() && around.first() == bos.as_ref(),
            add_eos: around.last().is_some_and(|id| ends.contains(id)),
            ends,
            add_space_prefix: false,
            model: Model::Json(Box::new(Json { parse: hf, plain: OnceLock::new() })),
        })
    }
}

/// A JSON file of the directory; null if it is not there.
pub(crate) fn read_json(directory: &Path, name: &str) -> Result<Value, TokenizerError> {
    let path = directory.join(name);
    let fault = |problem: String| TokenizerError::File { path: path.clone(), problem };
    match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|e| fault(shorten(&e.to_string()))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Value::Null),
        Err(error) => Err(fault(error.to_string())),
    }
}

/// How the names of tokens write bytes: what the decoder would undo.
#[derive(Debug, Default)]
struct Writing {
    byte_level: bool,
    byte_fallback: bool,
    /// Texts and what they stand for, mostly U+2581 and a space.
    replaced: Vec<(String, String)>,
}

impl Writing {
    fn of(description: &Value) -> Writing {
        let mut writing = Writing::default();
        for part in ["decoder", "pre_tokenizer"] {
            writing.read(&description[part], part == "decoder");
        }
        writing
    }

    fn read(&mut self, component: &Value, decoder: bool) {
        match component["type"].as_str() {
            Some("Sequence") => {
                for list in ["decoders", "pretokenizers"] {
                    let parts = component[list].as_array();
                    parts.into_iter().flatten().for_each(|part| self.read(part, decoder));
                }
            }
            Some("ByteLevel") => self.byte_level = true,
            Some("ByteFallback") => self.byte_fallback = true,
            Some("Metaspace") if decoder => {
                let mark = component["replacement"].as_str().unwrap_or("\u{2581}");
                self.replaced.push((mark.to_owned(), " ".to_owned()));
            }
            Some("Replace") if decoder => {
                if let (Some(pattern), Some(content)) =
                    (component["pattern"]["String"].as_str(), component["content"].as_str())
                {
                    self.replaced.push((pattern.to_owned(), content.to_owned()));
                }
            }
            _ => {}
        }
    }

    /// Appends what the token `name` stands for.
    fn push(&self, name: &str, out: &mut Vec<u8>) {
        if self.byte_fallback
            && let Some(byte) = byte_token(name.as_bytes())
        {
            return out.push(byte);
        }
        if self.byte_level && push_bytes_of(name.as_bytes(), out) {
            return;
        }
        let mut text = name.to_owned();
        for (pattern, content) in self.replaced.iter().filter(|(pattern, _)| !pattern.is_empty()) {
            text = text.replace(pattern, content);
        }
        out.extend_from_slice(text.as_bytes());
    }
}
