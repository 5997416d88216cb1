//! Progress of a run, on standard error.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use portcullis::packet_io;
use portcullis::pipeline::Totals;

use crate::{out, progress_bar};

/// Time that a run takes before a terminal shows its progress.
const DISPLAY_DELAY: Duration = Duration::from_secs(1);

/// Shows progress: a bar on a terminal, otherwise a line once per second if asked for.
pub struct Progress {
    begun: Instant,
    wanted: bool,
    terminal: bool,
    bar: Option<ProgressBar>,
    last: Instant,
}

impl Progress {
    /// Creates it without showing anything. With `wanted`, progress is shown from the start, and
    /// also without a terminal.
    pub fn new(wanted: bool) -> Progress {
        let now = Instant::now();
        Progress { begun: now, wanted, terminal: stderr().is_terminal(), bar: None, last: now }
    }

    /// Updates the display after a batch, at most ten times per second.
    pub fn show(&mut self, totals: &Totals, progress: packet_io::Progress) {
        if self.last.elapsed() < Duration::from_millis(100) {
            return;
        }
        let elapsed = self.begun.elapsed();
        let rate = out::rate(totals.packets as f64 / elapsed.as_secs_f64(), "pps");
        if self.terminal && (self.wanted || elapsed > DISPLAY_DELAY) {
            let bar = self.bar.get_or_insert_with(|| {
                let template = match progress.total {
                    Some(_) => "{bar:30} {percent:>3} %  {msg}  {eta} left",
                    None => "{spinner} {msg}  {elapsed}",
                };
                progress_bar::new(progress.total, template)
            });
            bar.set_position(progress.done);
            bar.set_message(format!("{} packets, {rate}", out::grouped(totals.packets)));
        } else if self.wanted && !self.terminal && self.last.elapsed() > DISPLAY_DELAY {
            let part = match progress.total {
                Some(total) if total > 0 => format!(", {:.0} %", progress.done as f64 / total as f64 * 100.0),
                _ => String::new(),
            };
            out::note(&format!("{} packets{part}, {rate}", out::grouped(totals.packets)));
        } else {
            return;
        }
        self.last = Instant::now();
    }

    /// Prints something above the bar.
    pub fn above(&self, print: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// Removes the bar.
    pub fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
