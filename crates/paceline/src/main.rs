//! The `paceline` command.

mod args;
mod cmd;
mod figures;
#[cfg(feature = "server")]
mod log;
mod open;
mod progress;
mod usage;

use std::io;
use std::process::ExitCode;
use usage::UsageError;

fn main() -> ExitCode {
    match usage::parse().map_err(anyhow::Error::from).and_then(cmd::run) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of our output went away, as `head` does: no failure.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("paceline: {}", one_line(&error));
            ExitCode::from(if error.is::<UsageError>() { 2 } else { 1 })
        }
    }
}

/// The error and its causes, each said once: many messages hold that of their cause already. What
/// others wrote, in names and files, adds no line and steers no terminal.
fn one_line(error: &anyhow::Error) -> String {
    let mut line = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !line.contains(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref().is_some_and(|io: &io::Error| io.kind() == io::ErrorKind::BrokenPipe)
    })
}
