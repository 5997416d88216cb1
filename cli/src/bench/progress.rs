//! Progress of a benchmark on a terminal.

use std::io::{IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use portcullis_bench::run::RunProgress;

/// A progress bar with the remaining time; hidden unless standard error is a terminal.
pub struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Creates a bar at 0 %.
    pub fn new() -> Progress {
        if !stderr().is_terminal() {
            return Progress { bar: None };
        }
        let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::stderr());
        // The template is constant; if it did not parse, the default style would do.
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent:>3} %  {eta} left  {wide_msg}") {
            bar.set_style(style);
        }
        Progress { bar: Some(bar) }
    }

    /// Shows how far the run is.
    pub fn show(&mut self, step: &RunProgress<'_>) {
        if let Some(bar) = &self.bar {
            bar.set_length(step.all as u64);
            bar.set_position(step.done as u64);
            bar.set_message(step.now.to_owned());
        }
    }

    /// Removes the bar.
    pub fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
