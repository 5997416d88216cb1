//! What captures and live packets have in common: batches go into a session, and come out of it with their verdicts.
//!
//! ```text
//! Ends::next ──► Ends::boundary, submit … complete ──► Ends::done
//!                  as many in flight as the session takes
//! ```
//!
//! Submitting and completing are one thread's, for a session is a queue that only one has. Where batches come from, and
//! where they go, may have threads of their own behind [`Endpoints`].

use std::collections::VecDeque;
use std::time::Instant;

use portcullis_core::device::{Completion, DeviceError, Session};
use portcullis_core::packet::Batch;

use super::completion_estimator::CompletionEstimator;

/// What came of asking for a batch.
pub(super) enum NextBatch<T> {
    /// A batch, and what is to be known of it when it comes back.
    Ready(Batch, T),
    /// There is none yet.
    Pending,
    /// There will be none any more.
    End,
}

/// Where a session is.
pub(super) trait SessionSlot {
    /// It.
    fn session(&mut self) -> &mut dyn Session;
}

impl SessionSlot for &mut dyn Session {
    fn session(&mut self) -> &mut dyn Session {
        &mut **self
    }
}

impl SessionSlot for &mut Box<dyn Session> {
    fn session(&mut self) -> &mut dyn Session {
        &mut ***self
    }
}

/// Where batches come from and where they go, with a device in between.
pub(super) trait Endpoints<S> {
    /// What is to be known of a batch while it is in flight.
    type Tag;
    /// What may go wrong.
    type Error: From<DeviceError>;

    /// The next batch. Where nothing is in flight (`idle`) it is waited for, though not for ever: what else there is to be
    /// done, is done in between.
    fn next_batch(&mut self, is_idle: bool) -> Result<NextBatch<Self::Tag>, Self::Error>;

    /// A batch of so many packets is about to be submitted; or none has come for a while, and none is in flight.
    fn on_batch_boundary(&mut self, session: &mut dyn Session, coming: usize) -> Result<(), DeviceError>;

    /// A batch has come back from the session, and will be [`done`](Ends::done) next: for what is to be read of maps for it.
    fn inspect_completed(&mut self, session: &mut dyn Session, done: &Completion) -> Result<(), DeviceError> {
        let _ = (session, done);
        Ok(())
    }

    /// A batch has come back; where it is `by_fallback`, from the session's relief, and maybe before others that went in before it.
    fn deliver(&mut self, done: Completion, tag: Self::Tag, by_fallback: bool) -> Result<(), Self::Error>;

    /// Does what others want done with the session between two batches. Gives false where that has to wait until nothing is
    /// in flight (`idle`): then nothing is submitted before.
    fn run_commands(&mut self, slot: &mut S, idle: bool) -> Result<bool, DeviceError> {
        let _ = (slot, idle);
        Ok(true)
    }

    /// Nothing came, and nothing is in flight.
    fn poll(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// Drives a session.
pub(super) struct Driver<S, E: Endpoints<S>> {
    slot: S,
    pub endpoints: E,
    /// When each batch in flight was submitted, where the session has a relief, and what is to be known of it.
    in_flight: VecDeque<(Option<Instant>, E::Tag)>,
    estimator: CompletionEstimator,
}

impl<S: SessionSlot, E: Endpoints<S>> Driver<S, E> {
    /// Of a session in which nothing is in flight.
    pub fn new(slot: S, endpoints: E) -> Driver<S, E> {
        Driver { slot, endpoints, in_flight: VecDeque::new(), estimator: CompletionEstimator::new(Instant::now()) }
    }

    /// Submits what comes and hands on what is done, until nothing more comes and nothing is in flight.
    pub fn drive(&mut self) -> Result<(), E::Error> {
        let mut is_ended = false;
        loop {
            self.run_commands()?;
            let mut may_submit = !is_ended;
            while may_submit && self.has_capacity() {
                let idle = self.slot.session().in_flight() == 0;
                match self.endpoints.next_batch(idle)? {
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
                    // Maps follow their files while nothing comes, too: somebody may look.
                    self.endpoints.on_batch_boundary(self.slot.session(), 0)?;
                    self.endpoints.poll()?;
                }
            }
        }
    }

    /// Hands on all that is in flight.
    #[cfg(all(target_os = "linux", feature = "live"))]
    pub fn drain(&mut self) -> Result<(), E::Error> {
        while self.complete()? {}
        Ok(())
    }

    fn has_capacity(&mut self) -> bool {
        let session = self.slot.session();
        session.in_flight() < session.depth()
    }

    /// Does what others want done with the session.
    fn run_commands(&mut self) -> Result<(), E::Error> {
        loop {
            let idle = self.slot.session().in_flight() == 0;
            if self.endpoints.run_commands(&mut self.slot, idle)? {
                return Ok(());
            }
            self.complete()?;
        }
    }

    fn submit(&mut self, batch: Batch, tag: E::Tag) -> Result<(), E::Error> {
        // What was wanted before the batch came is done before it is filtered.
        self.run_commands()?;
        self.endpoints.on_batch_boundary(self.slot.session(), batch.len())?;
        self.slot.session().submit(batch).map_err(|refused| refused.error)?;
        let submitted = self.slot.session().fallback().is_some().then(Instant::now);
        self.in_flight.push_back((submitted, tag));
        Ok(())
    }

    /// Waits for the oldest batch in flight, and hands it on; false where there is none.
    fn complete(&mut self) -> Result<bool, E::Error> {
        let Some(done) = self.slot.session().complete()? else { return Ok(false) };
        self.endpoints.inspect_completed(self.slot.session(), &done)?;
        // A session gives back what it was given, and in that order.
        if let Some((submitted, tag)) = self.in_flight.pop_front() {
            if let Some(submitted) = submitted {
                self.estimator.record_completion(submitted, Instant::now());
            }
            self.endpoints.deliver(done, tag, false)?;
        }
        Ok(true)
    }

    /// Whether the session has all that it takes and a relief, which has time for a batch before the oldest one is done.
    fn can_use_fallback(&mut self) -> bool {
        let oldest = self.in_flight.front().and_then(|(submitted, _)| *submitted);
        self.slot.session().fallback().is_some()
            && oldest.is_some_and(|oldest| !self.estimator.is_due(oldest, Instant::now()))
    }

    fn run_on_fallback(&mut self, batch: Batch, tag: E::Tag) -> Result<(), E::Error> {
        self.run_commands()?;
        if !batch.span().is_on_host() {
            // What relieves is another device, which does not reach it: it waits for its turn.
            self.complete()?;
            return self.submit(batch, tag);
        }
        let session = self.slot.session();
        let done = match session.fallback() {
            Some(fallback) => fallback.run(batch)?,
            None => return self.submit(batch, tag),
        };
        self.endpoints.deliver(done, tag, true)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portcullis_core::device::{Device, Imported, LoadOptions, StageTimes, SubmitError};
    use portcullis_core::diagnostics::Source;
    use portcullis_core::interp::InterpDevice;
    use portcullis_core::packet::{Descriptor, DeviceView, ResizeRoom, Span, Verdicts};
    use portcullis_core::program::ProgramOptions;
    use portcullis_wgsl as wgsl;

    use super::*;

    /// A session with room for one batch, wherever its packets are, and a relief that reaches the host's memory alone.
    struct SingleBatchSession {
        batch: Option<Batch>,
        fallback: Box<dyn Session>,
    }

    impl Session for SingleBatchSession {
        fn import(&mut self, _: &Arc<Span>) -> Result<Imported, DeviceError> {
            Ok(Imported::InPlace)
        }

        fn submit(&mut self, batch: Batch) -> Result<(), SubmitError> {
            assert!(self.batch.replace(batch).is_none(), "there is room for one");
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

        fn fallback(&mut self) -> Option<&mut dyn Session> {
            Some(&mut *self.fallback)
        }
    }

    /// Notes which batches came back, and whether from the relief.
    #[derive(Default)]
    struct RecordingEndpoints(Vec<(u32, bool)>);

    impl<S> Endpoints<S> for RecordingEndpoints {
        type Tag = u32;
        type Error = DeviceError;

        fn next_batch(&mut self, _: bool) -> Result<NextBatch<u32>, DeviceError> {
            Ok(NextBatch::End)
        }

        fn on_batch_boundary(&mut self, _: &mut dyn Session, _: usize) -> Result<(), DeviceError> {
            Ok(())
        }

        fn deliver(&mut self, _: Completion, tag: u32, by_fallback: bool) -> Result<(), DeviceError> {
            self.0.push((tag, by_fallback));
            Ok(())
        }
    }

    /// A packet in the memory of a device that is not there.
    #[expect(unsafe_code, reason = "memory of a device's is named by its address")]
    fn device_resident_batch() -> Batch {
        let view = DeviceView { device: "cuda:0".into(), address: 1 << 40 };
        // SAFETY: nobody looks at the memory, nor at the packet.
        unsafe {
            let span = Span::from_views(None, Some(view), 4096, 8192, Box::new(())).unwrap();
            let packet = Descriptor { offset: 128, length: 60 };
            Batch::from_frames(span, vec![packet], Vec::new(), ResizeRoom::Both, Box::new(())).unwrap()
        }
    }

    #[test]
    fn packets_in_a_devices_memory_wait_for_it_where_others_are_relieved() {
        let program = wgsl::compile(
            &Source::new("f.wgsl", "fn xdp_filter(pkt: u32) -> u32 { return load_u8(pkt, 0u); }"),
            &ProgramOptions::default(),
        );
        let program = Arc::new(program.unwrap_or_else(|e| panic!("{}", e.render())));
        let fallback = InterpDevice::new().load(&program, &LoadOptions::default()).unwrap();
        let mut session = SingleBatchSession { batch: None, fallback };
        let mut driver = Driver::new(&mut session as &mut dyn Session, RecordingEndpoints::default());
        driver.submit(device_resident_batch(), 1).unwrap();
        driver.run_on_fallback(Batch::from_packets(&[[0; 60]]).unwrap(), 2).unwrap();
        driver.run_on_fallback(device_resident_batch(), 3).unwrap();
        assert_eq!(driver.endpoints.0, [(2, true), (1, false)]);
        driver.drive().unwrap();
        assert_eq!(driver.endpoints.0, [(2, true), (1, false), (3, false)]);
    }
}
