//! Progress on stderr, drawn only when that is a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use paceline::fetch::Progress;
use std::time::Duration;

/// A fetch in progress, on one line.
pub struct Bar {
    bar: ProgressBar,
}

impl Bar {
    pub fn new() -> Bar {
        Bar { bar: spinner("") }
    }

    /// Shows what the fetch reports.
    pub fn show(&mut self, progress: Progress) {
        match progress {
            Progress::Now(what) => self.bar.set_message(what),
            Progress::Skipped(why) => {
                self.bar.suspend(|| eprintln!("paceline: skipped: {why}"));
                self.bar.set_position(0);
            }
            Progress::Bytes { done, total } => {
                if let Some(total) = total.filter(|total| self.bar.length() != Some(*total)) {
                    self.bar.set_length(total);
                    self.bar.set_style(style(
                        "{spinner} [{bar:30}] {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta} {wide_msg}",
                    ));
                }
                self.bar.set_position(done);
            }
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A spinner that says what takes so long.
pub fn spinner(what: &str) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    bar.set_style(style("{spinner} {wide_msg}"));
    bar.set_message(what.to_owned());
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

/// A bar of so many things to do.
pub fn steps(n: usize) -> ProgressBar {
    let bar = ProgressBar::new(n as u64);
    bar.set_style(style("{spinner} [{bar:30}] {pos}/{len} {elapsed} {wide_msg}"));
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

fn style(template: &str) -> ProgressStyle {
    // The templates are in this file; a wrong one shows as a plain bar.
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}
