//! The log of `paceline serve`, on standard error.

use crate::args::{Log, LogFormat, LogLevel};
use std::io::{IsTerminal, stderr};
use tracing::level_filters::LevelFilter;

/// Writes what happens from now on.
pub fn start(args: &Log) {
    let level = match args.log_level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    let log =
        tracing_subscriber::fmt().with_writer(stderr).with_max_level(level).with_target(false);
    match args.log_format {
        LogFormat::Pretty => log.with_ansi(stderr().is_terminal()).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}
