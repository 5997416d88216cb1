//! The batch loop that captures and live lanes share: submits batches to a session and delivers
//! them, with their verdicts, once they are complete.
//!
//! ```text
//! next_batch ──► on_batch_boundary, submit … complete ──► inspect_completed, deliver
//!                up to Session::depth batches in flight
//! ```
//!
//! A session is used by one thread, so one thread both submits and completes. [`Endpoints`] supply
//! and take the batches and may run threads of their own.
//!
//! A session with a fallback (`--overload`) gets batches filtered by that while it is full and its
//! oldest batch is not due. If the session's device fails, the fallback takes its place.

use std::collections::VecDeque;
use std::time::Instant;

use portcullis_core::device::{Completion, DeviceError, FallbackSession, Session};
use portcullis_core::packet::Batch;

use super::completion_estimator::CompletionEstimator;

/// Result of asking the endpoints for a batch.
pub(super) enum NextBatch<T> {
    /// A batch, and the tag to deliver it with.
    Ready(Batch, T),
    /// No batch is available yet.
    Pending,
    /// There will be no more batches.
    End,
}

/// A place that holds a session. Commands between batches may replace the session in it.
pub(super) trait SessionSlot {
    /// Returns the session that is in the slot now.
    fn session(&mut self) -> &mut dyn Session;

    /// Returns that session's fallback, if it has one.
    fn fallback(&mut self) -> Option<&mut dyn Session> {
        None
    }

    /// Replaces that session by its fallback. Returns false if it has none.
    fn fail_over(&mut self) -> bool {
        false
    }

    /// Whether that session is the fallback of one whose device has failed.
    fn has_failed_over(&self) -> bool {
        false
    }
}

impl SessionSlot for &mut dyn Session {
    fn session(&mut self) -> &mut dyn Session {
        &mut **self
    }
}

impl SessionSlot for &mut FallbackSession {
    fn session(&mut self) -> &mut dyn Session {
        *self
    }

    fn fallback(&mut self) -> Option<&mut dyn Session> {
        FallbackSession::fallback(self)
    }

    fn fail_over(&mut self) -> bool {
        FallbackSession::fail_over(self)
    }

    fn has_failed_over(&self) -> bool {
        FallbackSession::has_failed_over(self)
    }
}

/// Source and destination of the batches that go through a session.
pub(super) trait Endpoints<S> {
    /// Data kept with each batch while it is in flight.
    type Tag;
    /// Error that ends the run.
    type Error: From<DeviceError>;

    /// Returns the next batch. If nothing is in flight (`is_idle`), waits for one, but only for a
    /// short time so that the driver can poll.
    fn next_batch(&mut self, is_idle: bool) -> Result<NextBatch<Self::Tag>, Self::Error>;

    /// Called before a batch of `packets` is submitted, and with 0 if none came for a while and
    /// none is in flight.
    fn on_batch_boundary(&mut self, session: &mut dyn Session, packets: usize) -> Result<(), DeviceError>;

    /// Called with each completed batch before [`deliver`](Endpoints::deliver), while the session's
    /// maps can be read for it.
    fn inspect_completed(&mut self, session: &mut dyn Session, done: &Completion) -> Result<(), DeviceError> {
        let _ = (session, done);
        Ok(())
    }

    /// Takes a warning of the session.
    fn on_session_warning(&mut self, warning: String);

    /// Takes the error of a device that its fallback has replaced, and the number of packets that
    /// were lost with it.
    fn on_fail_over(&mut self, error: &DeviceError, lost: usize) {
        let _ = (error, lost);
    }

    /// Takes a completed batch. With `by_fallback` the session's fallback filtered it, possibly
    /// ahead of batches submitted before.
    fn deliver(&mut self, done: Completion, tag: Self::Tag, by_fallback: bool) -> Result<(), Self::Error>;

    /// Runs what other threads want done with the session between two batches. Returns false if a
    /// command has to wait until no batch is in flight (`is_idle`); then nothing is submitted
    /// before it has run.
    fn run_commands(&mut self, slot: &mut S, is_idle: bool) -> Result<bool, DeviceError> {
        let _ = (slot, is_idle);
        Ok(true)
    }

    /// Called if no batch came and none is in flight.
    fn poll(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// The loop that keeps a session supplied with batches.
pub(super) struct Driver<S, E: Endpoints<S>> {
    slot: S,
    pub endpoints: E,
    /// Batches in flight, oldest first.
    in_flight: VecDeque<InFlight<E::Tag>>,
    estimator: CompletionEstimator,
}

/// A batch in flight.
struct InFlight<T> {
    /// When it was submitted, if the session has a fallback.
    submitted: Option<Instant>,
    packets: usize,
    tag: T,
}

impl<S: SessionSlot, E: Endpoints<S>> Driver<S, E> {
    /// Creates a driver for a session with no batch in flight.
    pub fn new(slot: S, endpoints: E) -> Driver<S, E> {
        Driver { slot, endpoints, in_flight: VecDeque::new(), estimator: CompletionEstimator::new(Instant::now()) }
    }

    /// Submits batches and delivers completed ones until the source ends and nothing is in flight.
    pub fn drive(&mut self) -> Result<(), E::Error> {
        let mut is_ended = false;
        loop {
            self.run_commands()?;
            let mut may_submit = !is_ended;
            while may_submit && self.has_capacity() {
                let is_idle = self.slot.session().in_flight() == 0;
                match self.endpoints.next_batch(is_idle)? {
                    NextBatch::Ready(batch, tag) => self.submit(batch, tag)?,
                    NextBatch::Pending => may_submit = false,
                    NextBatch::End => (is_ended, may_submit) = (true, false),
                }
            }
            if may_submit && self.can_use_fallback() {
                match self.endpoints.next_batch(false)? {
                    NextBatch::Ready(batch, tag) => {
                        self.run_on_fallback(batch, tag)?;
                        continue;
                    }
                    NextBatch::Pending => {}
                    NextBatch::End => is_ended = true,
                }
            }
            match self.complete()? {
                true => {}
                false if is_ended => return Ok(()),
                false => {
                    // Maps follow their files without traffic, too: someone may read them
                    // meanwhile.
                    self.endpoints.on_batch_boundary(self.slot.session(), 0)?;
                    self.endpoints.poll()?;
                }
            }
        }
    }

    /// Completes and delivers all batches in flight.
    #[cfg(all(target_os = "linux", feature = "live"))]
    pub fn drain(&mut self) -> Result<(), E::Error> {
        while self.complete()? {}
        Ok(())
    }

    fn has_capacity(&mut self) -> bool {
        let session = self.slot.session();
        session.in_flight() < session.depth()
    }

    /// Runs pending commands, completing batches first if a command needs an idle session.
    fn run_commands(&mut self) -> Result<(), E::Error> {
        loop {
            let is_idle = self.slot.session().in_flight() == 0;
            if self.endpoints.run_commands(&mut self.slot, is_idle)? {
                return Ok(());
            }
            self.complete()?;
        }
    }

    fn submit(&mut self, batch: Batch, tag: E::Tag) -> Result<(), E::Error> {
        // Commands queued before this batch arrived must take effect on it.
        self.run_commands()?;
        self.endpoints.on_batch_boundary(self.slot.session(), batch.len())?;
        let packets = batch.len();
        if let Err(refused) = self.slot.session().submit(batch) {
            self.fail_over(refused.error)?;
            self.slot.session().submit(*refused.batch).map_err(|refused| refused.error)?;
        }
        let submitted = self.slot.fallback().is_some().then(Instant::now);
        self.in_flight.push_back(InFlight { submitted, packets, tag });
        Ok(())
    }

    /// Waits for the oldest batch in flight and delivers it. Returns false if none is in flight.
    fn complete(&mut self) -> Result<bool, E::Error> {
        let done = match self.slot.session().complete() {
            Ok(Some(done)) => done,
            Ok(None) => return Ok(false),
            Err(error) => {
                self.fail_over(error)?;
                return Ok(true);
            }
        };
        self.take_warnings();
        self.endpoints.inspect_completed(self.slot.session(), &done)?;
        // Sessions complete batches in the order of submission.
        if let Some(InFlight { submitted, tag, .. }) = self.in_flight.pop_front() {
            if let Some(submitted) = submitted {
                self.estimator.record_completion(submitted, Instant::now());
            }
            self.endpoints.deliver(done, tag, self.slot.has_failed_over())?;
        }
        Ok(true)
    }

    /// Replaces the session, whose device has failed, by its fallback. The packets in flight are
    /// lost: the device may still use their memory.
    ///
    /// # Errors
    /// The device's error, if there is no fallback, or the device has not failed.
    fn fail_over(&mut self, error: DeviceError) -> Result<(), E::Error> {
        let has_failed = matches!(error, DeviceError::Failed { .. } | DeviceError::InvalidResult { .. });
        if !has_failed || !self.slot.fail_over() {
            return Err(error.into());
        }
        let lost = self.in_flight.drain(..).map(|batch| batch.packets).sum();
        self.endpoints.on_fail_over(&error, lost);
        Ok(())
    }

    fn take_warnings(&mut self) {
        for warning in self.slot.session().take_warnings() {
            self.endpoints.on_session_warning(warning);
        }
    }

    /// Whether the session has a fallback that can filter a batch before the oldest batch in flight
    /// is due.
    fn can_use_fallback(&mut self) -> bool {
        let oldest = self.in_flight.front().and_then(|batch| batch.submitted);
        self.slot.fallback().is_some() && oldest.is_some_and(|oldest| !self.estimator.is_due(oldest, Instant::now()))
    }

    /// Filters a batch by the session's fallback.
    fn run_on_fallback(&mut self, batch: Batch, tag: E::Tag) -> Result<(), E::Error> {
        self.run_commands()?;
        if !batch.span().is_on_host() {
            // The fallback device cannot reach this device's memory, so the batch waits for its own
            // device.
            self.complete()?;
            return self.submit(batch, tag);
        }
        let done = match self.slot.fallback() {
            Some(fallback) => fallback.run(batch)?,
            None => return self.submit(batch, tag),
        };
        self.take_warnings();
        self.endpoints.deliver(done, tag, true)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portcullis_core::device::{Device, Imported, Instrumented, LoadOptions, StageTimes, SubmitError};
    use portcullis_core::interp::InterpDevice;
    use portcullis_core::packet::{Descriptor, DeviceView, ResizeRoom, Span, Verdicts};

    use super::*;

    /// A session of depth 1 that takes batches in any memory.
    struct SingleBatchSession {
        batch: Option<Batch>,
    }

    impl Instrumented for SingleBatchSession {}

    impl Session for SingleBatchSession {
        fn import(&mut self, _: &Arc<Span>) -> Result<Imported, DeviceError> {
            Ok(Imported::InPlace)
        }

        fn submit(&mut self, batch: Batch) -> Result<(), SubmitError> {
            assert!(self.batch.replace(batch).is_none(), "the depth is 1");
            Ok(())
        }

        fn complete(&mut self) -> Result<Option<Completion>, DeviceError> {
            Ok(self.batch.take().map(|batch| {
                let verdicts = Verdicts::from_columns(vec![2; batch.len()], Vec::new());
                Completion { batch, verdicts, times: StageTimes::default() }
            }))
        }

        fn in_flight(&self) -> usize {
            usize::from(self.batch.is_some())
        }

        fn depth(&self) -> usize {
            1
        }
    }

    /// Records the tag of each delivered batch and whether the fallback filtered it, and how many
    /// packets each failed device lost.
    #[derive(Default)]
    struct RecordingEndpoints {
        delivered: Vec<(u32, bool)>,
        lost: Vec<usize>,
    }

    impl<S> Endpoints<S> for RecordingEndpoints {
        type Tag = u32;
        type Error = DeviceError;

        fn next_batch(&mut self, _: bool) -> Result<NextBatch<u32>, DeviceError> {
            Ok(NextBatch::End)
        }

        fn on_batch_boundary(&mut self, _: &mut dyn Session, _: usize) -> Result<(), DeviceError> {
            Ok(())
        }

        fn on_session_warning(&mut self, _: String) {}

        fn on_fail_over(&mut self, _: &DeviceError, lost: usize) {
            self.lost.push(lost);
        }

        fn deliver(&mut self, _: Completion, tag: u32, by_fallback: bool) -> Result<(), DeviceError> {
            self.delivered.push((tag, by_fallback));
            Ok(())
        }
    }

    /// A batch of one packet in the memory of a device that does not exist.
    #[expect(unsafe_code, reason = "device memory is given by its address")]
    fn device_resident_batch() -> Batch {
        let view = DeviceView { device: "cuda:0".into(), address: 1 << 40 };
        // SAFETY: nothing accesses the memory or the packet.
        unsafe {
            let span = Span::from_views(None, Some(view), 4096, 8192, Box::new(())).unwrap();
            let packet = Descriptor { offset: 128, length: 60 };
            Batch::from_frames(span, vec![packet], Vec::new(), ResizeRoom::Both, Box::new(())).unwrap()
        }
    }

    /// A session of depth 3 that fails with its second submission, or with its first completion.
    struct LostSession {
        batches: Vec<Batch>,
        fails_at_submission: bool,
        error: DeviceError,
    }

    impl Instrumented for LostSession {}

    impl Session for LostSession {
        fn import(&mut self, _: &Arc<Span>) -> Result<Imported, DeviceError> {
            Ok(Imported::InPlace)
        }

        fn submit(&mut self, batch: Batch) -> Result<(), SubmitError> {
            if self.fails_at_submission && !self.batches.is_empty() {
                return Err(SubmitError { batch: Box::new(batch), error: self.error.clone() });
            }
            self.batches.push(batch);
            Ok(())
        }

        fn complete(&mut self) -> Result<Option<Completion>, DeviceError> {
            Err(self.error.clone())
        }

        fn in_flight(&self) -> usize {
            self.batches.len()
        }

        fn depth(&self) -> usize {
            3
        }
    }

    #[test]
    fn the_fallback_replaces_a_session_that_fails() {
        let lost = DeviceError::Failed { device: "lost".into(), reason: "gone".into() };
        let batch = |packets| Batch::from_packets(&vec![[0; 60]; packets]).unwrap();
        let filter = crate::Filter::wgsl("fn xdp_filter(pkt: u32) -> u32 { return XDP_DROP; }");
        let program = filter.compile().unwrap();
        for (fails_at_submission, packets_lost, delivered) in
            [(true, 10, vec![(2, true), (3, true)]), (false, 30, vec![(3, true)])]
        {
            let fallback = InterpDevice::new().load(&program, &LoadOptions::default()).unwrap();
            let session = LostSession { batches: Vec::new(), fails_at_submission, error: lost.clone() };
            let mut session = FallbackSession::new(Box::new(session), fallback);
            let mut driver = Driver::new(&mut session, RecordingEndpoints::default());
            driver.submit(batch(10), 1).unwrap();
            driver.submit(batch(20), 2).unwrap();
            if !fails_at_submission {
                driver.complete().unwrap();
            }
            driver.submit(batch(1), 3).unwrap();
            driver.drive().unwrap();
            assert_eq!(driver.endpoints.delivered, delivered);
            assert_eq!(driver.endpoints.lost, [packets_lost]);
        }
        // An error that is not the device's, or without a fallback, ends the run.
        for (error, has_fallback) in [(DeviceError::Cancelled, true), (lost, false)] {
            let fallback = InterpDevice::new().load(&program, &LoadOptions::default()).unwrap();
            let session = LostSession { batches: Vec::new(), fails_at_submission: false, error: error.clone() };
            let mut session = match has_fallback {
                true => FallbackSession::new(Box::new(session), fallback),
                false => FallbackSession::from(Box::new(session) as Box<dyn Session>),
            };
            let mut driver = Driver::new(&mut session, RecordingEndpoints::default());
            driver.submit(batch(10), 1).unwrap();
            assert_eq!(driver.complete().unwrap_err(), error);
        }
    }

    #[test]
    fn packets_in_device_memory_wait_for_their_device_and_others_use_the_fallback() {
        let filter = crate::Filter::wgsl("fn xdp_filter(pkt: u32) -> u32 { return load_u8(pkt, 0u); }");
        let program = filter.compile().unwrap();
        let fallback = InterpDevice::new().load(&program, &LoadOptions::default()).unwrap();
        // The fallback reaches host memory only.
        let mut session = FallbackSession::new(Box::new(SingleBatchSession { batch: None }), fallback);
        let mut driver = Driver::new(&mut session, RecordingEndpoints::default());
        driver.submit(device_resident_batch(), 1).unwrap();
        driver.run_on_fallback(Batch::from_packets(&[[0; 60]]).unwrap(), 2).unwrap();
        driver.run_on_fallback(device_resident_batch(), 3).unwrap();
        assert_eq!(driver.endpoints.delivered, [(2, true), (1, false)]);
        driver.drive().unwrap();
        assert_eq!(driver.endpoints.delivered, [(2, true), (1, false), (3, false)]);
    }
}
