//! Repeating a source.

use portcullis_core::packet::Batch;

use crate::source::{CaptureFormat, Progress, Source, SourceError, Warning};

/// A source that reopens another one when that ends.
pub struct Repeat {
    open: Box<dyn FnMut() -> Result<Box<dyn Source>, SourceError> + Send>,
    inner: Box<dyn Source>,
    /// Rounds that remain after the current one.
    left: u64,
    /// Completed rounds.
    before: u64,
    /// Whether the current round has returned a packet.
    gave: bool,
    warnings: Vec<Warning>,
    done: bool,
}

impl std::fmt::Debug for Repeat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Repeat").field("left", &self.left).field("before", &self.before).finish_non_exhaustive()
    }
}

impl Repeat {
    /// Returns the packets of the source that `open` opens, `times` times over.
    ///
    /// # Errors
    /// The error of the first `open`, which is called immediately.
    pub fn new(
        times: u64,
        mut open: impl FnMut() -> Result<Box<dyn Source>, SourceError> + Send + 'static,
    ) -> Result<Repeat, SourceError> {
        let inner = open()?;
        let (left, done) = (times.saturating_sub(1), times == 0);
        Ok(Repeat { open: Box::new(open), inner, left, before: 0, gave: false, warnings: Vec::new(), done })
    }
}

impl Source for Repeat {
    fn next_batch(&mut self) -> Result<Option<Batch>, SourceError> {
        while !self.done {
            match self.inner.next_batch() {
                // Do not reopen a source without packets: it would never end.
                Ok(None) if self.left > 0 && self.gave => {
                    self.warnings.append(&mut self.inner.take_warnings());
                    self.before += 1;
                    self.left -= 1;
                    self.gave = false;
                    self.inner = (self.open)().inspect_err(|_| self.done = true)?;
                }
                other => {
                    self.gave = matches!(other, Ok(Some(_)));
                    self.done = !self.gave;
                    return other;
                }
            }
        }
        Ok(None)
    }

    fn format(&self) -> &CaptureFormat {
        self.inner.format()
    }

    fn take_warnings(&mut self) -> Vec<Warning> {
        self.warnings.append(&mut self.inner.take_warnings());
        // Each round repeats the same warnings.
        let mut warnings: Vec<Warning> = Vec::new();
        for warning in self.warnings.drain(..) {
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
        warnings
    }

    fn progress(&self) -> Progress {
        let Progress { done, total } = self.inner.progress();
        let rounds = self.before.saturating_add(self.left).saturating_add(1);
        Progress {
            done: total.unwrap_or(0).saturating_mul(self.before).saturating_add(done),
            total: total.map(|total| total.saturating_mul(rounds)),
        }
    }
}
