//! A session without a device: sends every packet back out of its port, unread.

use std::sync::Arc;

use portcullis::device::{Completion, DeviceError, Imported, Instrumented, Session, StageTimes, SubmitError};
use portcullis::packet::{Action, Batch, Span, Verdicts};

/// A [`Session`] that gives every packet the verdict TX.
#[derive(Debug, Default)]
pub struct NullSession(Option<Batch>);

impl Session for NullSession {
    fn import(&mut self, _: &Arc<Span>) -> Result<Imported, DeviceError> {
        Ok(Imported::InPlace)
    }

    fn submit(&mut self, batch: Batch) -> Result<(), SubmitError> {
        if self.0.is_some() {
            let error = DeviceError::Refused("one batch is in flight already, complete it first".into());
            return Err(SubmitError { batch: Box::new(batch), error });
        }
        self.0 = Some(batch);
        Ok(())
    }

    fn complete(&mut self) -> Result<Option<Completion>, DeviceError> {
        Ok(self.0.take().map(|batch| Completion {
            verdicts: Verdicts::from_columns(vec![Action::Tx as u8; batch.len()], Vec::new()),
            batch,
            times: StageTimes::default(),
        }))
    }

    fn in_flight(&self) -> usize {
        usize::from(self.0.is_some())
    }

    fn depth(&self) -> usize {
        1
    }
}

impl Instrumented for NullSession {}
