//! Writing a copy of all packets that pass by.

use portcullis_core::packet::Batch;

use crate::sink::Sink;
use crate::source::{CaptureFormat, Progress, Source, SourceError, Warning};

/// A source that also writes its packets to a sink, before the filter changes them.
pub struct Tee<S> {
    inner: S,
    sink: Option<Box<dyn Sink>>,
    all: Vec<u32>,
}

impl<S: std::fmt::Debug> std::fmt::Debug for Tee<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tee").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S: Source> Tee<S> {
    /// Wraps `inner`, writing each packet to `sink`. The sink is finished when the source ends or
    /// the wrapper is dropped; a failure is reported only in the former case.
    pub fn new(inner: S, sink: Box<dyn Sink>) -> Tee<S> {
        Tee { inner, sink: Some(sink), all: Vec::new() }
    }
}

impl<S: Source> Source for Tee<S> {
    fn next_batch(&mut self) -> Result<Option<Batch>, SourceError> {
        let batch = self.inner.next_batch();
        match (&batch, &mut self.sink) {
            (Ok(Some(batch)), Some(sink)) => {
                self.all.extend(self.all.len() as u32..batch.len() as u32);
                sink.write(batch, &self.all[..batch.len()])?;
            }
            (_, sink) => {
                if let Some(sink) = sink.take() {
                    let finished = sink.finish();
                    // The source's own error takes precedence.
                    if batch.is_ok() {
                        finished?;
                    }
                }
            }
        }
        batch
    }

    fn format(&self) -> &CaptureFormat {
        self.inner.format()
    }

    fn take_warnings(&mut self) -> Vec<Warning> {
        self.inner.take_warnings()
    }

    fn progress(&self) -> Progress {
        self.inner.progress()
    }
}

impl<S> Drop for Tee<S> {
    fn drop(&mut self) {
        if let Some(sink) = self.sink.take() {
            // Errors cannot be reported from a destructor.
            let _ = sink.finish();
        }
    }
}
