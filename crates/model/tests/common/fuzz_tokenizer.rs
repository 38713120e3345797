//! What the fuzz target `tokenizer` does with its bytes; the tests replay its corpus.
//!
//! ```text
//! model pre flags | n { len token type score }* | n { len merge }* | text
//! ```
//! All numbers are bytes. Past the end of the input they are zero.

use paceline_model::file::{Array, Metadata, Strings, Value};
use paceline_model::{ChatOptions, ChatTemplate, Special, Tokenizer};

const MODELS: [&str; 4] = ["gpt2", "llama", "gemma4", "bert"];
const PRES: [&str; 16] = [
    "default",
    "gpt-2",
    "smollm",
    "qwen2",
    "llama-bpe",
    "deepseek-llm",
    "deepseek-v3",
    "superbpe",
    "afmoe",
    "tekken",
    "gpt-4o",
    "jais-2",
    "bloom",
    "kimi-k2",
    "chameleon",
    "?",
];

/// The first 256 tokens are the bytes.
const ALL_BYTES: u8 = 1;
/// All other tokens are normal ones.
const ALL_NORMAL: u8 = 2;
/// The text goes through a chat template as well.
const CHAT: u8 = 4;

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn string(&mut self) -> &'a [u8] {
        let len = usize::from(self.byte() % 16).min(self.0.len());
        let (string, rest) = self.0.split_at(len);
        self.0 = rest;
        string
    }
}

/// The character that GPT-2 writes a byte as.
fn char_of(byte: u8) -> char {
    let printable = |b: &u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let n_before = (0..byte).filter(|b| !printable(b)).count() as u32;
    let other = char::from_u32(0x100 + n_before).unwrap_or_default();
    if printable(&byte) { char::from(byte) } else { other }
}

/// Makes a vocabulary and encodes a text: ids must be in the vocabulary, and the text must come back
/// where every byte has a token.
pub fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let model = MODELS[usize::from(input.byte()) % MODELS.len()];
    let pre = PRES[usize::from(input.byte()) % PRES.len()];
    let flags = input.byte();
    let is_set = |flag: u8| flags & flag != 0;

    let mut tokens = Strings::default();
    let (mut types, mut scores) = (Vec::new(), Vec::new());
    if is_set(ALL_BYTES) {
        for byte in 0..=255u8 {
            match model {
                "gpt2" => tokens.push(char_of(byte).to_string().as_bytes()),
                _ => tokens.push(format!("<0x{byte:02X}>").as_bytes()),
            }
            types.push(if model == "gpt2" { 1 } else { 6 });
            scores.push(0.0);
        }
    }
    for _ in 0..input.byte() {
        tokens.push(input.string());
        let of_type = i32::from(input.byte() % 8);
        types.push(if is_set(ALL_NORMAL) { 1 } else { of_type });
        scores.push(if flags & 8 != 0 { f32::NAN } else { f32::from(input.byte()) - 128.0 });
    }
    let merges: Strings = (0..input.byte()).map(|_| input.string()).collect();
    let text = String::from_utf8_lossy(input.0);

    let mut metadata = Metadata::default();
    let mut put = |key: &str, value| metadata.insert(format!("tokenizer.ggml.{key}"), value);
    put("model", Value::String(model.into()));
    put("pre", Value::String(pre.into()));
    put("tokens", Value::Array(Array::Strings(tokens)));
    put("token_type", Value::Array(Array::I32(types)));
    put("scores", Value::Array(Array::F32(scores)));
    put("merges", Value::Array(Array::Strings(merges)));
    put("bos_token_id", Value::U32(u32::from(flags >> 4)));
    put("add_space_prefix", Value::Bool(flags & 16 != 0));
    put("add_bos_token", Value::Bool(flags & 32 != 0));
    let tokenizer = match Tokenizer::from_gguf(&metadata) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return assert!(!error.to_string().contains('\n')),
    };

    let comes_back = model == "gpt2" && is_set(ALL_BYTES) && is_set(ALL_NORMAL);
    for special in [Special::Parse, Special::Plain] {
        let ids = tokenizer.encode(&text, special, false);
        assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_len()));
        assert!(!comes_back || tokenizer.decode(&ids) == text);
    }
    if is_set(CHAT) && !text.is_empty() {
        let source = "{{ messages[0].content }}<s>{{ messages[0].content | trim }}";
        let Ok(template) = ChatTemplate::new(source, None, &tokenizer) else { return };
        let message = serde_json::json!({"role": "user", "content": text});
        let Ok(rendered) = template.render(&[message], &ChatOptions::default()) else { return };
        let ids = tokenizer.encode_chat(&rendered);
        assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_len()));
        if comes_back && !tokenizer.add_bos() {
            assert_eq!(tokenizer.decode(&ids), rendered.text());
        }
    }
}
