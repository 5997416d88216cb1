//! A limit on the number of packets.

use portcullis_core::packet::Batch;

use crate::source::{CaptureFormat, Progress, Source, SourceError, Warning};

/// A source that ends after a number of packets.
#[derive(Debug)]
pub struct Limit<S> {
    inner: S,
    left: u64,
}

impl<S: Source> Limit<S> {
    /// Wraps `inner`; ends after `packets` packets.
    pub fn new(inner: S, packets: u64) -> Limit<S> {
        Limit { inner, left: packets }
    }
}

impl<S: Source> Source for Limit<S> {
    fn next_batch(&mut self) -> Result<Option<Batch>, SourceError> {
        if self.left == 0 {
            return Ok(None);
        }
        let mut batch = self.inner.next_batch()?;
        if let Some(batch) = &mut batch {
            batch.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
            self.left -= batch.len() as u64;
        }
        Ok(batch)
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
