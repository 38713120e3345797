//! Reading the command line. What is wrong with it becomes one line.

use crate::args::Args;
use clap::error::{ContextKind, ErrorKind};
use clap::{Arg, Command, CommandFactory, FromArgMatches};
use paceline::{Error, KvMemory};
#[cfg(feature = "load")]
use std::ops::RangeInclusive;

/// The command line asks for what cannot be.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// Flags that the help of `run` and `chat` leaves to the one line that names them.
const RARE: [&str; 7] = [
    "min_tokens",
    "stop_token_id",
    "block_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "no_prefix_cache",
    "kv_cache_dir",
];

/// Reads the command line and the environment. Asked for help or the version, prints it and ends
/// the program.
///
/// # Errors
/// If it is not understood.
pub fn parse() -> Result<Args, UsageError> {
    let read = command().try_get_matches().and_then(|found| Args::from_arg_matches(&found));
    read.map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => error.exit(),
        _ => UsageError(one_line(&error)),
    })
}

fn command() -> Command {
    let mut command = Args::command().mut_subcommands(prepared);
    for name in ["run", "chat"] {
        command = command.mut_subcommand(name, |command| {
            command.mut_args(|arg| match RARE.contains(&arg.get_id().as_str()) {
                true => arg.hide(true),
                false => arg,
            })
        });
    }
    command
}

/// A command, and those below it, as all of ours are.
fn prepared(command: Command) -> Command {
    command
        .allow_negative_numbers(true)
        .help_template("{about-with-newline}{usage-heading} {usage}\n\n{all-args}{after-help}")
        .mut_args(without_empty_variable)
        .mut_subcommands(prepared)
}

/// A variable that is set to nothing says nothing.
fn without_empty_variable(arg: Arg) -> Arg {
    let value = arg.get_env().and_then(std::env::var_os);
    if value.is_some_and(|value| value.is_empty()) { arg.env(None::<&str>) } else { arg }
}

/// What is wrong, and where to read more.
fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let said = text.lines().map(str::trim).take_while(|line| {
        !line.starts_with("Usage: ") && !line.starts_with("For more information")
    });
    let mut line = String::new();
    for part in said.filter(|part| !part.is_empty()) {
        let part = match part.strip_prefix("tip: ") {
            Some(tip) => format!("; {tip}"),
            None => format!(" {}", part.strip_prefix("error: ").unwrap_or(part)),
        };
        line += &part;
    }
    let flag = error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
    if let Some(name) = variable_of(&flag) {
        line += &format!(" (from {name})");
    }
    // The deepest command that was named.
    let (mut command, mut of) = (&Args::command(), String::new());
    while let Some(sub) =
        std::env::args().nth(of.split(' ').count()).and_then(|word| command.find_subcommand(word))
    {
        command = sub;
        of += &format!("{} ", sub.get_name());
    }
    format!("{}; `paceline {of}--help` shows the usage", line.trim())
}

/// The variable that `--flag <VALUE>` came from, if it did.
fn variable_of(flag: &str) -> Option<String> {
    let flag = flag.split(' ').next()?;
    let name = flag.strip_prefix("--")?.replace('-', "_").to_ascii_uppercase();
    let name = format!("PACELINE_{name}");
    let typed = std::env::args().any(|arg| arg.split('=').next() == Some(flag));
    (!typed && std::env::var_os(&name).is_some()).then_some(name)
}

/// The error of a setting or a parameter that was given as a flag.
pub fn of_flag(error: impl Into<Error>) -> UsageError {
    let error = error.into();
    let field = match &error {
        Error::Invalid(invalid) => invalid.field(),
        Error::Engine(paceline::EngineError::Config { field, .. }) => field,
        Error::ContextLen { .. } => "max_model_len",
        Error::Kv(_) => return UsageError(format!("--block-size: {error}")),
        _ => return UsageError(error.to_string()),
    };
    let flag = match field {
        // It is an argument, and has its message's only other field by it.
        "prompt" => return UsageError(error.to_string().replace("max_tokens", "--max-tokens")),
        "stop_token_ids" => "stop-token-id".to_owned(),
        field => field.replace('_', "-"),
    };
    UsageError(error.to_string().replacen(field, &format!("--{flag}"), 1))
}

/// A whole number.
pub fn whole<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let is_whole = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse::<u64>().map(T::try_from) {
        Ok(Ok(value)) => Ok(value),
        _ if is_whole => Err("it is too large".to_owned()),
        _ => Err("it must be a whole number of at least 0".to_owned()),
    }
}

/// A whole number over 0.
pub fn positive<T: TryFrom<u64> + Default + PartialEq>(text: &str) -> Result<T, String> {
    match whole(text) {
        Ok(value) if value == T::default() => Err("it must be at least 1".to_owned()),
        value => value,
    }
}

/// A number above 0 that a clock can count with.
pub fn above_0(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if (1e-4..=1e9).contains(&value) => Ok(value),
        Ok(_) => Err("it must be from 0.0001 to 1000000000".to_owned()),
        Err(_) => Err("it must be a number".to_owned()),
    }
}

/// How much of something, up to ten times all of it.
pub fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if (0.0..=10.0).contains(&value) => Ok(value),
        Ok(_) => Err("it must be from 0 to 10".to_owned()),
        Err(_) => Err("it must be a number".to_owned()),
    }
}

/// A length, or the lengths from one to another: `128`, `20..1500`.
#[cfg(feature = "load")]
pub fn range(text: &str) -> Result<RangeInclusive<usize>, String> {
    let (least, most) = text.split_once("..").unwrap_or((text, text));
    match (positive(least)?, positive(most)?) {
        (least, most) if least > most => Err(format!("{least} is more than {most}")),
        (least, most) => Ok(least..=most),
    }
}

/// How many of the likeliest tokens are kept: 0 and -1 are all.
pub fn top_k(text: &str) -> Result<usize, String> {
    if text == "-1" { Ok(0) } else { whole(text) }
}

/// A seed: any whole number of 64 bits; those below 0 count from the end of the range.
pub fn seed(text: &str) -> Result<u64, String> {
    text.parse().map(i64::cast_unsigned).or_else(|_| whole(text))
}

/// Bytes, as people write them.
pub fn size(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(KvMemory::Bytes(bytes)) => Ok(bytes),
        _ => Err("it must be a size, such as 4GiB, 512MiB or a number of bytes".to_owned()),
    }
}

/// A number.
pub fn number(text: &str) -> Result<f32, String> {
    text.parse().map_err(|_| "it must be a number".to_owned())
}

/// A hash, in hexadecimal.
pub fn sha256(text: &str) -> Result<String, String> {
    match text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit()) {
        true => Ok(text.to_owned()),
        false => Err("it must be 64 hexadecimal digits".to_owned()),
    }
}
