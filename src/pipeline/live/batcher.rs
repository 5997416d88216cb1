//! Closing batches.

use std::time::{Duration, Instant};

use portcullis_core::packet::Batch;
use portcullis_io::live::{LiveError, Receiver};

use super::Closing;

/// How long nothing may happen before somebody looks whether it is to stop.
pub(super) const PATIENCE: Duration = Duration::from_millis(50);

/// Gathers packets until a batch is full, or its first packet has waited for long enough.
pub(super) struct Batcher {
    closing: Closing,
    gathered: usize,
    first: Option<Instant>,
}

/// What came of a look.
pub(super) enum Look {
    /// A batch, and when its first packet was received.
    Batch(Batch, Instant),
    /// A batch is not full yet: it is closed at this time.
    Until(Instant),
    /// Nothing has come.
    Nothing,
}

impl Batcher {
    pub fn new(closing: Closing) -> Batcher {
        Batcher { closing: Closing { most: closing.most.max(1), ..closing }, gathered: 0, first: None }
    }

    /// Receives what is there. With `last` what there is makes a batch, however little.
    pub fn look(&mut self, receiver: &mut dyn Receiver, last: bool) -> Result<Look, LiveError> {
        let came = receiver.receive(self.closing.most - self.gathered)?;
        if came > 0 {
            self.gathered += came;
            self.first.get_or_insert_with(Instant::now);
        }
        let Some(first) = self.first else { return Ok(Look::Nothing) };
        let until = first + self.closing.delay;
        if !last && self.gathered < self.closing.most && Instant::now() < until {
            return Ok(Look::Until(until));
        }
        self.gathered = 0;
        self.first = None;
        Ok(receiver.close().map_or(Look::Nothing, |batch| Look::Batch(batch, first)))
    }
}
