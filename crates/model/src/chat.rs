//! [`ChatTemplate`]: a conversation becomes the text that the model was trained on.
//!
//! A model brings its own template, a Jinja program that transformers would run; here minijinja
//! does. Templates are untrusted: they reach nothing but the conversation, and their work, memory and
//! depth are bounded.

mod guard;
mod strftime;
mod tojson;

use crate::file::{KeyError, Metadata, ModelFile};
use crate::tokenizer::{Tokenizer, TokenizerError, read_json};
use guard::Guard;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind};
use regex::Regex;
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::path::Path;
use std::time::SystemTime;

/// A template longer than this is refused. Real ones have up to 20 KiB.
const MAX_SOURCE_BYTES: usize = 256 << 10;
/// Work that a template may do: about one unit an instruction or 64 bytes.
const BASE_FUEL: u64 = 100_000;
/// More of it for each message, tool and document; and one for every four bytes of text.
const FUEL_PER_ITEM: u64 = 2_000;
const MAX_FUEL: u64 = 4_000_000;
/// Stack for reading a template. An expression may nest as deep as the template is long, and a level
/// takes up to 700 bytes.
const STACK_FOR_SOURCE: usize = 512 << 20;
/// Stack for rendering, per unit of fuel. A template can nest a list once with each unit, and
/// comparing, writing and dropping such a list takes up to 700 bytes a level.
const STACK_PER_FUEL: usize = 1 << 10;

/// Why a conversation could not be written as the model wants it.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// The template is not valid.
    #[error("the chat template cannot be read: {0}")]
    Template(String),
    /// The template fails on this conversation.
    #[error("the chat template fails on these messages: {0}")]
    Render(String),
    /// The template refuses this conversation: the message is its own.
    #[error("the chat template refuses these messages: {0}")]
    Refused(String),
    /// The template works too long.
    #[error("the chat template does not end in bounded time and memory")]
    Endless,
    /// A message is no object, or has no role.
    #[error("messages[{0}] must be an object with a role")]
    Message(usize),
    /// A part of a message's content is not text.
    #[error("messages[{0}].content must be text: this model reads nothing else")]
    Part(usize),
    /// There is no message.
    #[error("messages must hold at least one message")]
    Empty,
    /// Every character that could keep control tokens apart is in use.
    #[error("the messages hold control tokens of the model and every private-use character")]
    NoSentinel,
    /// A file beside the tokenizer cannot be read.
    #[error(transparent)]
    File(#[from] TokenizerError),
    /// A metadata key has another type.
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// What goes into a template beside the messages.
#[derive(Clone, Debug)]
pub struct ChatOptions {
    /// Functions that the model may call, as in the OpenAI API.
    pub tools: Vec<Value>,
    /// Documents to answer from, each with `title` and `text`.
    pub documents: Vec<Value>,
    /// Ends with what begins an answer.
    pub add_generation_prompt: bool,
    /// Further variables, such as `enable_thinking`.
    pub variables: Map<String, Value>,
    /// What `strftime_now` reads, in UTC.
    pub now: SystemTime,
}

impl Default for ChatOptions {
    /// Nothing but an answer to be begun.
    fn default() -> ChatOptions {
        ChatOptions {
            tools: Vec::new(),
            documents: Vec::new(),
            add_generation_prompt: true,
            variables: Map::new(),
            now: SystemTime::UNIX_EPOCH,
        }
    }
}

/// A conversation as text, for [`Tokenizer::encode_chat`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    pub(crate) marked: String,
    pub(crate) sentinel: char,
}

impl Rendered {
    /// The text to read. Which control-token strings are the template's it does not tell: encode
    /// the conversation with [`Tokenizer::encode_chat`].
    pub fn text(&self) -> Cow<'_, str> {
        match self.marked.contains(self.sentinel) {
            true => Cow::Owned(self.marked.replace(self.sentinel, "")),
            false => Cow::Borrowed(&self.marked),
        }
    }
}

/// The shape in which a template reads the content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// A string.
    Text,
    /// A list of parts `{"type": "text", "text": ...}`.
    Parts,
    /// Either.
    Both,
}

/// A model's chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    with_tools: bool,
    guard: Guard,
    content: Content,
    bos: String,
    eos: String,
}

const GGUF_KEY: &str = "tokenizer.chat_template";
const PLAIN: &str = "chat";
const WITH_TOOLS: &str = "chat with tools";

impl ChatTemplate {
    /// The template of a GGUF file, if it has one: `tokenizer.chat_template`, and
    /// `tokenizer.chat_template.tool_use` for conversations with tools.
    ///
    /// # Errors
    /// If the template is not valid, or a key has another type.
    pub fn from_gguf(
        metadata: &Metadata,
        tokenizer: &Tokenizer,
    ) -> Result<Option<ChatTemplate>, ChatError> {
        let Some(source) = metadata.get_str(GGUF_KEY)? else { return Ok(None) };
        let with_tools = metadata.get_str("tokenizer.chat_template.tool_use")?;
        ChatTemplate::new(source, with_tools, tokenizer).map(Some)
    }

    /// The template of a directory as Hugging Face ships it, if it has one: `chat_template.jinja`
    /// and `additional_chat_templates/tool_use.jinja`, else `chat_template` of
    /// `tokenizer_config.json`.
    ///
    /// # Errors
    /// If a template is not valid, or a file cannot be read.
    pub fn from_directory(
        directory: &Path,
        tokenizer: &Tokenizer,
    ) -> Result<Option<ChatTemplate>, ChatError> {
        match Sources::of(directory)? {
            Sources { plain: Some(plain), with_tools } => {
                ChatTemplate::new(&plain, with_tools.as_deref(), tokenizer).map(Some)
            }
            Sources { plain: None, .. } => Ok(None),
        }
    }

    /// The template of a file as it is written there, unread.
    ///
    /// # Errors
    /// If a file cannot be read, or a key has another type.
    pub fn source(file: &ModelFile) -> Result<Option<String>, ChatError> {
        match file {
            ModelFile::Gguf(file) => Ok(file.metadata().get_str(GGUF_KEY)?.map(str::to_owned)),
            ModelFile::Safetensors(directory) => Ok(Sources::of(directory.path())?.plain),
        }
    }

    /// The template `source`, and another for conversations with tools where there is one.
    ///
    /// # Errors
    /// If a template is not valid.
    pub fn new(
        source: &str,
        with_tools: Option<&str>,
        tokenizer: &Tokenizer,
    ) -> Result<ChatTemplate, ChatError> {
        let mut environment = environment();
        for (name, source) in [(PLAIN, Some(source)), (WITH_TOOLS, with_tools)] {
            let Some(source) = source else { continue };
            if source.len() > MAX_SOURCE_BYTES {
                let n = source.len();
                return Err(ChatError::Template(format!("it has {n} bytes, the limit is 256 KiB")));
            }
            let source = without_generation(source);
            let added =
                with_stack(STACK_FOR_SOURCE, || environment.add_template_owned(name, source))?;
            added.map_err(|e| ChatError::Template(one_line(&e)))?;
        }
        let name = |id: Option<u32>| {
            let bytes = id.map(|id| tokenizer.token_bytes(id)).unwrap_or_default();
            String::from_utf8_lossy(bytes).into_owned()
        };
        let mut template = ChatTemplate {
            environment,
            with_tools: with_tools.is_some(),
            guard: Guard::new(tokenizer),
            content: Content::Both,
            bos: name(tokenizer.bos_id()),
            eos: name(tokenizer.eos_ids().first().copied()),
        };
        template.content = template.probe_content();
        Ok(template)
    }

    /// Writes `messages` as the model wants them.
    ///
    /// A message is an object as in the OpenAI API: `role`, `content` (a string, or text parts),
    /// `tool_calls`, `tool_call_id`, `name`. Entries that are null count as absent, and arguments of
    /// tool calls may be JSON text or an object, as for transformers.
    ///
    /// # Errors
    /// If there is no message, one has no role or a part that is not text, or if the template fails
    /// or refuses.
    pub fn render(&self, messages: &[Value], options: &ChatOptions) -> Result<Rendered, ChatError> {
        if messages.is_empty() {
            return Err(ChatError::Empty);
        }
        let normal = messages.iter().enumerate().map(|(i, m)| normalize(i, m, self.content));
        let normal = normal.collect::<Result<Vec<_>, ChatError>>()?;
        let parsed: Vec<_> = normal.iter().map(with_parsed_arguments).collect();
        match self.render_normal(&parsed, options) {
            // A few templates paste the arguments as text, as they came.
            Err(error) if parsed != normal => {
                self.render_normal(&normal, options).map_err(|_| error)
            }
            rendered => rendered,
        }
    }

    fn render_normal(
        &self,
        messages: &[Map<String, Value>],
        options: &ChatOptions,
    ) -> Result<Rendered, ChatError> {
        let name = if self.with_tools && !options.tools.is_empty() { WITH_TOOLS } else { PLAIN };
        let mut variables = options.variables.clone();
        for (key, list) in [("tools", &options.tools), ("documents", &options.documents)] {
            let value = if list.is_empty() { Value::Null } else { Value::Array(list.clone()) };
            variables.insert(key.to_owned(), value);
        }

        let (mut n_bytes, mut used) = (0, guard::Used::default());
        let mut note = |text: &str| {
            n_bytes += text.len();
            used.note(text);
        };
        self.environment.templates().for_each(|(_, template)| note(template.source()));
        messages.iter().for_each(|message| guard::for_each_string(message, &mut note));
        guard::for_each_string(&variables, &mut note);
        let sentinel = used.free()?;
        let guarded = messages.iter().map(|m| self.guard.guard_message(m, sentinel));
        let guarded = Value::Array(guarded.map(Value::Object).collect());
        let mut context = self.guard.guard_entries(&variables, sentinel);
        context.insert("messages".to_owned(), guarded);
        context.insert("add_generation_prompt".to_owned(), options.add_generation_prompt.into());
        for (key, token) in [("bos_token", &self.bos), ("eos_token", &self.eos)] {
            context.entry(key).or_insert_with(|| token.as_str().into());
        }

        let mut environment = self.environment.clone();
        let n_items = messages.len() + options.tools.len() + options.documents.len();
        let fuel = BASE_FUEL + n_items as u64 * FUEL_PER_ITEM + n_bytes as u64 / 4;
        let fuel = fuel.min(MAX_FUEL);
        environment.set_fuel(Some(fuel));
        let now = options.now;
        environment.add_function("strftime_now", move |format: &str| {
            let unknown = || raise(format!("strftime_now cannot write `{format}`"));
            strftime::strftime(now, format).ok_or_else(unknown)
        });
        let rendered = with_stack(fuel as usize * STACK_PER_FUEL, || {
            environment.get_template(name).and_then(|template| template.render(Serde(context)))
        });
        let marked = rendered?.map_err(|e| chat_error(&e))?;
        Ok(Rendered { marked, sentinel })
    }

    /// Finds out by trying in which shape the template reads contents.
    fn probe_content(&self) -> Content {
        const NEEDLE: &str = "needle-in-content";
        let reads = |content: Value| {
            let message = json!({"role": "user", "content": content});
            let message = message.as_object().cloned().unwrap_or_default();
            match self.render_normal(&[message], &ChatOptions::default()) {
                // A template that pastes the list as it is does not read it.
                Ok(rendered) => {
                    let pasted =
                        ["'text'", "\"text\""].iter().any(|key| rendered.marked.contains(key));
                    rendered.marked.contains(NEEDLE) && !pasted
                }
                Err(_) => false,
            }
        };
        match (reads(json!(NEEDLE)), reads(json!([{"type": "text", "text": NEEDLE}]))) {
            (true, true) => Content::Both,
            (false, true) => Content::Parts,
            _ => Content::Text,
        }
    }
}

/// The templates of a directory.
struct Sources {
    plain: Option<String>,
    with_tools: Option<String>,
}

impl Sources {
    fn of(directory: &Path) -> Result<Sources, ChatError> {
        let read = |name: &str| match std::fs::read_to_string(directory.join(name)) {
            Ok(source) => Ok(Some(source)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(ChatError::Template(format!("{name}: {error}"))),
        };
        let mut plain = read("chat_template.jinja")?;
        let mut with_tools = read("additional_chat_templates/tool_use.jinja")?;
        if plain.is_none() {
            let config = read_json(directory, "tokenizer_config.json")?;
            let source = |value: &Value| value.as_str().map(str::to_owned);
            match &config["chat_template"] {
                // A list of named templates.
                Value::Array(named) => {
                    let find = |name| named.iter().find(|entry| entry["name"] == name);
                    plain = find("default").and_then(|entry| source(&entry["template"]));
                    with_tools = find("tool_use").and_then(|entry| source(&entry["template"]));
                }
                one => plain = source(one),
            }
        }
        Ok(Sources { plain, with_tools })
    }
}

/// Brings a message into the form that transformers hands to templates: no null entries, reasoning
/// under each of its names, contents in a shape that the template reads.
fn normalize(i: usize, message: &Value, shape: Content) -> Result<Map<String, Value>, ChatError> {
    let message = message.as_object().filter(|m| m.get("role").is_some_and(Value::is_string));
    let mut message = message.ok_or(ChatError::Message(i))?.clone();
    message.retain(|_, value| !value.is_null());
    let reasoning = REASONING.iter().find_map(|&key| message.get(key)).cloned();
    if let Some(reasoning) = reasoning {
        message.entry("thinking").or_insert_with(|| reasoning.clone());
        message.insert("reasoning_content".to_owned(), reasoning);
    }
    match message.get_mut("content") {
        Some(Value::Array(parts)) => {
            let texts = parts.iter().map(|part| match part {
                Value::String(text) => Some(text.as_str()),
                part => part.get("text").and_then(Value::as_str),
            });
            let texts = texts.collect::<Option<Vec<_>>>().ok_or(ChatError::Part(i))?;
            if shape == Content::Text {
                let text = texts.join("\n");
                message.insert("content".to_owned(), text.into());
            }
        }
        Some(content @ Value::String(_)) if shape == Content::Parts => {
            *content = json!([{"type": "text", "text": content}]);
        }
        _ => {}
    }
    Ok(message)
}

/// The names that reasoning goes under, the most usual first.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// The message with the arguments of its tool calls as objects: most templates write them as JSON.
fn with_parsed_arguments(message: &Map<String, Value>) -> Map<String, Value> {
    let mut message = message.clone();
    if let Some(Value::Array(calls)) = message.get_mut("tool_calls") {
        for call in calls {
            if let Some(arguments) = call.pointer_mut("/function/arguments")
                && let Some(Ok(parsed @ Value::Object(_))) =
                    arguments.as_str().map(serde_json::from_str)
            {
                *arguments = parsed;
            }
        }
    }
    message
}

/// The environment that transformers makes, less what changes with each conversation.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.unwrap_or_default());
    environment.set_debug(false);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    // The names of templates are no file names: nothing is escaped.
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    // These write more than their fuel pays for, and no chat needs them.
    environment.remove_filter("pprint");
    environment.remove_global("debug");
    environment.add_filter("tojson", tojson::tojson);
    // Where minijinja differs from Jinja2: how it writes very large and small floats, and that it
    // takes none for iterable.
    environment.set_formatter(|out, state, value| match f64::try_from(value.clone()) {
        Ok(float) if value.is_number() && !value.is_integer() => {
            out.write_str(&tojson::float_repr(float)).map_err(minijinja::Error::from)
        }
        _ => minijinja::escape_formatter(out, state, value),
    });
    environment.add_filter("string", |value: &minijinja::Value| {
        match f64::try_from(value.clone()) {
            Ok(float) if value.is_number() && !value.is_integer() => tojson::float_repr(float),
            _ => value.to_string(),
        }
    });
    environment.add_test("iterable", |value: &minijinja::Value| {
        !value.is_none() && value.try_iter().is_ok()
    });
    environment.add_function("raise_exception", |message: minijinja::Value| {
        Err::<(), _>(raise(message.to_string()))
    });
    environment
}

/// Turns `{% generation %}`, with which transformers marks what the assistant says, into a block
/// that does nothing.
fn without_generation(source: &str) -> String {
    let begin = Regex::new(r"\{%([-+]?)\s*generation\s*([-+]?)%\}").expect("a valid pattern");
    let end = Regex::new(r"\{%([-+]?)\s*endgeneration\s*([-+]?)%\}").expect("a valid pattern");
    let source = begin.replace_all(source, "{%$1 if true $2%}");
    end.replace_all(&source, "{%$1 endif $2%}").into_owned()
}

/// Runs `work` on a stack of `bytes`, of which memory is taken only as it is used.
fn with_stack<R: Send>(bytes: usize, work: impl FnOnce() -> R + Send) -> Result<R, ChatError> {
    let failed = || ChatError::Render(format!("no thread with a stack of {} MiB", bytes >> 20));
    std::thread::scope(|scope| {
        let builder =
            std::thread::Builder::new().name("chat template".to_owned()).stack_size(bytes);
        let thread = builder.spawn_scoped(scope, work).map_err(|_| failed())?;
        thread.join().map_err(|_| failed())
    })
}

/// What a template says with `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn raise(message: String) -> minijinja::Error {
    minijinja::Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(message))
}

fn chat_error(error: &minijinja::Error) -> ChatError {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        if let Some(Raised(message)) = error.downcast_ref() {
            return ChatError::Refused(one_line(message));
        }
        if error
            .downcast_ref::<minijinja::Error>()
            .is_some_and(|e| e.kind() == ErrorKind::OutOfFuel)
        {
            return ChatError::Endless;
        }
        cause = error.source();
    }
    ChatError::Render(one_line(error))
}

fn one_line(message: &impl ToString) -> String {
    let message = message.to_string();
    let words: Vec<&str> = message.split_whitespace().collect();
    words.join(" ").chars().take(300).collect()
}
