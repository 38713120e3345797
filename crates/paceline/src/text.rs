//! [`Text`]: what the facade needs of a model's tokenizer and chat template.

use paceline_engine::Vocab;
use paceline_model::TokenId;

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

/// A conversation cannot become a prompt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChatError {
    /// The model is a base model.
    #[error("the model has no chat template: use a raw prompt (run --raw, or /v1/completions)")]
    NoTemplate,
    /// The template refuses the conversation.
    #[error("the model's chat template refuses the messages: {0}")]
    Refused(String),
}

/// Text and conversations to tokens.
pub trait Text: Vocab {
    /// The tokens of a raw prompt: control tokens may be written in it, and what the model expects
    /// at the start of a text is put in front.
    fn encode(&self, text: &str) -> Vec<TokenId>;

    /// The tokens of a conversation, up to where the model's answer begins.
    ///
    /// # Errors
    /// If there is no template, or it refuses the messages.
    fn encode_chat(&self, messages: &[Message]) -> Result<Vec<TokenId>, ChatError>;

    /// Whether there is a template for conversations.
    fn has_chat_template(&self) -> bool;
}
