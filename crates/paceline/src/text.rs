//! [`Text`]: what the facade needs of a model's tokenizer and chat template.

use paceline_engine::Vocab;
use paceline_model::{ChatOptions, ChatTemplate, Special, TokenId, Tokenizer};
use serde_json::{Value, json};

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who speaks: `system`, `user` or `assistant`, as the model's template knows them.
    pub role: String,
    /// What is said. Strings that look like control tokens are plain text here.
    pub content: String,
}

impl Message {
    /// What the user says.
    pub fn user(content: impl Into<String>) -> Message {
        Message { role: "user".to_owned(), content: content.into() }
    }

    /// What the model is told to be.
    pub fn system(content: impl Into<String>) -> Message {
        Message { role: "system".to_owned(), content: content.into() }
    }

    /// What the model says.
    pub fn assistant(content: impl Into<String>) -> Message {
        Message { role: "assistant".to_owned(), content: content.into() }
    }
}

impl From<&Message> for Value {
    fn from(message: &Message) -> Value {
        json!({"role": message.role, "content": message.content})
    }
}

/// A conversation cannot become a prompt.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// The model is a base model.
    #[error("the model has no chat template: use a raw prompt (run --raw, or /v1/completions)")]
    NoTemplate,
    /// The template fails, or refuses the conversation.
    #[error(transparent)]
    Template(#[from] paceline_model::chat::ChatError),
}

/// Text and conversations to tokens.
pub trait Text: Vocab {
    /// The tokens of a raw prompt, in which control tokens may be written. With `add_bos`, what the
    /// model expects at the start of a text is put in front, if it expects anything.
    fn encode(&self, text: &str, add_bos: bool) -> Vec<TokenId>;

    /// Bytes of text that a token stands for, at most. Unless one knows, any number.
    fn max_token_bytes(&self) -> usize {
        usize::MAX
    }

    /// The text of tokens, control tokens by name; bytes that are not UTF-8 become U+FFFD.
    fn decode(&self, ids: &[TokenId]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.token_bytes(id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The tokens of a conversation, up to where the model's answer begins. A message is an object
    /// as in OpenAI's API.
    ///
    /// # Errors
    /// If there is no template, or it refuses the messages.
    fn encode_chat(
        &self,
        messages: &[Value],
        options: &ChatOptions,
    ) -> Result<Vec<TokenId>, ChatError>;

    /// Whether there is a template for conversations.
    fn has_chat_template(&self) -> bool;
}

/// The tokenizer and template of a model's file.
pub(crate) struct ModelText {
    pub tokenizer: Tokenizer,
    pub template: Option<ChatTemplate>,
}

impl Vocab for ModelText {
    fn token_bytes(&self, id: TokenId) -> &[u8] {
        self.tokenizer.token_bytes(id)
    }

    fn is_control(&self, id: TokenId) -> bool {
        self.tokenizer.is_control(id)
    }

    fn eos_ids(&self) -> &[TokenId] {
        self.tokenizer.eos_ids()
    }
}

impl Text for ModelText {
    fn encode(&self, text: &str, add_bos: bool) -> Vec<TokenId> {
        self.tokenizer.encode(text, Special::Parse, add_bos && self.tokenizer.add_bos())
    }

    fn max_token_bytes(&self) -> usize {
        let bytes = |id| self.tokenizer.token_bytes(id).len();
        // A tokenizer may shorten a text before it cuts it, by composing characters: by less than half.
        2 * (0..self.tokenizer.vocab_len() as TokenId).map(bytes).max().unwrap_or(0)
    }

    fn encode_chat(
        &self,
        messages: &[Value],
        options: &ChatOptions,
    ) -> Result<Vec<TokenId>, ChatError> {
        let template = self.template.as_ref().ok_or(ChatError::NoTemplate)?;
        Ok(self.tokenizer.encode_chat(&template.render(messages, options)?))
    }

    fn has_chat_template(&self) -> bool {
        self.template.is_some()
    }
}
