//! An [`Llm`] without arithmetic.
#![allow(dead_code)]

use paceline::{ChatError, ChatOptions, Llm, LlmConfig, Text, TokenId, Vocab};
use paceline_engine::testing::{FakeModel, FakeVocab};
use paceline_model::chat::ChatError as Template;
use paceline_model::{Batch, KvMemoryError, Mat, Model, ModelSpec};
use serde_json::Value;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

pub const VOCAB_LEN: usize = 600;
pub const CONTEXT_LEN: usize = 4096;

/// The control token of the fake vocabulary.
const BOS: TokenId = 257;

/// Bytes are tokens; a message is a line.
pub struct FakeText {
    vocab: FakeVocab,
    pub template: bool,
    /// A text begins with a token of its own.
    pub bos: bool,
    /// The server, not the engine, finds a bug when it asks about this token.
    pub panics_on: Option<TokenId>,
    /// The engine finds a bug at the text of [`BOMB`], the model one where it reads [`MINE`].
    pub fragile: bool,
}

pub const BOMB: TokenId = 599;
pub const MINE: TokenId = 598;

impl FakeText {
    pub fn new(template: bool) -> FakeText {
        FakeText {
            vocab: FakeVocab::new(VOCAB_LEN),
            template,
            bos: false,
            panics_on: None,
            fragile: false,
        }
    }
}

impl Vocab for FakeText {
    fn token_bytes(&self, id: TokenId) -> &[u8] {
        let of_engine = std::thread::current().name() == Some("engine");
        assert!(!of_engine || !self.fragile || id != BOMB, "a bomb");
        assert!(of_engine || self.panics_on != Some(id), "the bug of this test");
        self.vocab.token_bytes(id)
    }

    fn is_control(&self, id: TokenId) -> bool {
        self.vocab.is_control(id)
    }

    fn eos_ids(&self) -> &[TokenId] {
        self.vocab.eos_ids()
    }
}

impl Text for FakeText {
    fn max_token_bytes(&self) -> usize {
        1
    }

    fn encode(&self, text: &str, add_bos: bool) -> Vec<TokenId> {
        let bos = (add_bos && self.bos).then_some(BOS);
        bos.into_iter().chain(text.bytes().map(TokenId::from)).collect()
    }

    fn encode_chat(
        &self,
        messages: &[Value],
        options: &ChatOptions,
    ) -> Result<Vec<TokenId>, ChatError> {
        if !self.template {
            return Err(ChatError::NoTemplate);
        }
        let mut text = String::new();
        for (i, message) in messages.iter().enumerate() {
            let role = message["role"].as_str().ok_or(Template::Message(i))?;
            let content = message["content"].as_str().ok_or(Template::Part(i))?;
            if role == "narrator" {
                return Err(Template::Refused("no narrator".to_owned()).into());
            }
            text += &format!("{role}: {content}\n");
        }
        if let Some(language) = options.variables.get("language") {
            text += &format!("in {language}\n");
        }
        Ok(self.encode(&(text + "assistant: "), false))
    }

    fn has_chat_template(&self) -> bool {
        self.template
    }
}

/// A model that takes its time.
struct Slow(FakeModel, Duration, bool);

impl Model for Slow {
    fn spec(&self) -> &ModelSpec {
        self.0.spec()
    }

    fn reserve_kv(&mut self, n_blocks: usize) -> Result<(), KvMemoryError> {
        self.0.reserve_kv(n_blocks)
    }

    fn forward(&mut self, batch: &Batch) {
        std::thread::sleep(self.1);
        assert!(!self.2 || !batch.tokens.contains(&MINE), "a mine");
        self.0.forward(batch);
    }

    fn logits(&mut self, outputs: Range<usize>, logits: &mut Mat) {
        self.0.logits(outputs, logits);
    }

    fn read_block(&self, block: u32, bytes: &mut Vec<u8>) {
        self.0.read_block(block, bytes);
    }

    fn write_block(&mut self, block: u32, bytes: &[u8]) {
        self.0.write_block(block, bytes);
    }
}

/// An engine whose steps take at least `step`.
pub fn llm(step: Duration, template: bool) -> Llm {
    build(step, FakeText::new(template), LlmConfig::default())
}

/// An engine with that vocabulary, whose steps take at least `step`.
pub fn build(step: Duration, text: impl Text + 'static, config: LlmConfig) -> Llm {
    let model = Slow(FakeModel::new(VOCAB_LEN, 16, CONTEXT_LEN), step, false);
    Llm::from_parts(Box::new(model), Arc::new(text), config).unwrap()
}

/// An engine in which [`BOMB`] and [`MINE`] lie.
pub fn fragile(step: Duration, config: LlmConfig) -> Llm {
    let model = Slow(FakeModel::new(VOCAB_LEN, 16, CONTEXT_LEN), step, true);
    let text = FakeText { fragile: true, ..FakeText::new(true) };
    Llm::from_parts(Box::new(model), Arc::new(text), config).unwrap()
}
