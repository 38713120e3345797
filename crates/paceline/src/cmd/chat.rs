//! `paceline chat`: a conversation at the terminal, or from a pipe, a turn a line.

use super::run::{limit, show};
use crate::args::Chat;
use crate::figures;
use crate::open;
use crate::usage::of_flag;
use anyhow::{Context, bail};
use paceline::cache::Cache;
use paceline::{Error, FinishReason, Llm, Message, SamplingParams};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use std::io::{self, BufRead, ErrorKind, IsTerminal};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

const HELP: &str = "\
/reset        forget the conversation
/system TEXT  set what the model is told to be, and forget the conversation
/exit         end (so does Ctrl-D)
Ctrl-C stops an answer; the conversation goes on from what was said.";

const NOT_TEXT: &str = "paceline: this line is not UTF-8 text and was left out: send it again";

pub fn run(args: Chat) -> anyhow::Result<()> {
    let neutral = args.sampling.params(SamplingParams::default());
    neutral.check().map_err(of_flag)?;
    args.engine.check()?;
    let located = open::locate(args.model.as_deref())?;
    if !located.has_chat_template()? {
        let name = located.name;
        bail!("{name} has no chat template: `paceline run {name} \"...\"` continues a text");
    }
    let opened = located.load(&args.engine, &neutral)?;
    let name = &opened.name;
    let params = args.sampling.params(opened.defaults(0.0));
    let llm = Arc::new(opened.llm);
    let answering = Arc::new(AtomicBool::new(false));
    stop_on_ctrl_c(Arc::downgrade(&llm), answering.clone())?;

    let mut lines = Lines::new()?;
    if let Lines::Terminal { .. } = lines {
        eprintln!("{name}: /help shows the commands, /exit ends");
    }
    let mut talk = Talk::new(args.system);
    while let Some(line) = lines.next()? {
        let line = line.trim();
        match line.split_once(char::is_whitespace).unwrap_or((line, "")) {
            ("", _) => {}
            ("/exit" | "/quit", _) => break,
            ("/help", _) => eprintln!("{HELP}"),
            ("/reset", _) => talk.reset(),
            ("/system", text) => talk = Talk::new(Some(text.trim().to_owned())),
            (word, _) if word.starts_with('/') => {
                eprintln!("there is no command {word}: /help shows them");
            }
            _ => talk.turn(line, &llm, &params, &answering)?,
        }
    }
    lines.save();
    Ok(())
}

/// On Ctrl-C an answer is stopped; with none under way, the program. The model is not kept: its end has
/// things to do.
fn stop_on_ctrl_c(llm: Weak<Llm>, answering: Arc<AtomicBool>) -> anyhow::Result<()> {
    let stop = move || match answering.load(Ordering::SeqCst) {
        true => llm.upgrade().iter().for_each(|llm| llm.abort_all()),
        // As the shell reports a program that the signal ended.
        false => std::process::exit(130),
    };
    ctrlc::set_handler(stop).context("cannot listen for Ctrl-C")
}

/// The conversation so far.
struct Talk {
    messages: Vec<Message>,
}

impl Talk {
    fn new(system: Option<String>) -> Talk {
        let system = system.filter(|text| !text.is_empty());
        Talk { messages: system.into_iter().map(Message::system).collect() }
    }

    /// Forgets everything but the system's message.
    fn reset(&mut self) {
        self.messages.retain(|message| message.role == "system");
    }

    /// The user says something and the model answers. What cannot be answered is taken back.
    fn turn(
        &mut self,
        line: &str,
        llm: &Llm,
        params: &SamplingParams,
        answering: &AtomicBool,
    ) -> anyhow::Result<()> {
        self.messages.push(Message::user(line));
        let before = llm.stats();
        let mut params = params.clone();
        let stream = llm.encode_chat(&self.messages).and_then(|tokens| {
            limit(&mut params, llm, tokens.len());
            llm.stream(tokens, &params)
        });
        let stream = match stream {
            Ok(stream) => stream,
            Err(error @ (Error::Invalid(_) | Error::Chat(_))) => {
                self.messages.pop();
                eprintln!("paceline: {error}; /reset begins anew");
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        answering.store(true, Ordering::SeqCst);
        let completion = show(stream);
        answering.store(false, Ordering::SeqCst);
        let completion = completion?;
        let choice = &completion.choices[0];
        if choice.finish_reason == Some(FinishReason::Abort) {
            eprintln!("(stopped)");
        }
        self.messages.push(Message::assistant(&choice.text));
        eprintln!("{}", figures::line(&completion, &params, [before, llm.stats()]));
        Ok(())
    }
}

/// Where the user's lines come from.
enum Lines {
    Terminal { editor: Box<DefaultEditor>, history: Option<PathBuf> },
    Pipe,
}

impl Lines {
    fn new() -> anyhow::Result<Lines> {
        if !io::stdin().is_terminal() {
            return Ok(Lines::Pipe);
        }
        let mut editor = Box::new(DefaultEditor::new().context("the terminal")?);
        let history = Cache::of_user().ok().map(|cache| cache.folder().join("chat_history"));
        if let Some(history) = &history {
            // There is none the first time.
            let _ = editor.load_history(history);
        }
        Ok(Lines::Terminal { editor, history })
    }

    /// The next line; `None` at the end.
    fn next(&mut self) -> anyhow::Result<Option<String>> {
        match self {
            Lines::Pipe => loop {
                let mut line = Vec::new();
                let n = io::stdin().lock().read_until(b'\n', &mut line).context("stdin")?;
                match String::from_utf8(line) {
                    Ok(line) => return Ok((n > 0).then_some(line)),
                    Err(_) => eprintln!("{NOT_TEXT}"),
                }
            },
            Lines::Terminal { editor, .. } => loop {
                match editor.readline("> ") {
                    Ok(line) => {
                        let _ = editor.add_history_entry(&line);
                        return Ok(Some(line));
                    }
                    Err(ReadlineError::Interrupted) => eprintln!("(/exit or Ctrl-D ends)"),
                    Err(ReadlineError::Eof) => return Ok(None),
                    Err(ReadlineError::Io(error)) if error.kind() == ErrorKind::InvalidData => {
                        eprintln!("{NOT_TEXT}");
                    }
                    Err(error) => return Err(error).context("the terminal"),
                }
            },
        }
    }

    /// Keeps what was typed for the next time.
    fn save(&mut self) {
        if let Lines::Terminal { editor, history: Some(history) } = self
            && let Err(error) = editor.save_history(history)
        {
            eprintln!("paceline: {}: {error}", history.display());
        }
    }
}
