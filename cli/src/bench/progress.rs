//! How far a benchmark is, on a terminal.

use std::io::{IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use portcullis_bench::run::Step;

/// A bar with the time left; nothing where standard error is no terminal.
pub struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Nothing done yet.
    pub fn new() -> Progress {
        if !stderr().is_terminal() {
            return Progress { bar: None };
        }
        let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::stderr());
        // A template that does not parse would be our mistake; the bar has a look of its own.
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent:>3} %  {eta} left  {wide_msg}") {
            bar.set_style(style);
        }
        Progress { bar: Some(bar) }
    }

    /// Something is done, or begins.
    pub fn show(&mut self, step: &Step<'_>) {
        if let Some(bar) = &self.bar {
            bar.set_length(step.all as u64);
            bar.set_position(step.done as u64);
            bar.set_message(step.now.to_owned());
        }
    }

    /// Takes the bar away.
    pub fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
