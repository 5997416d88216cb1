//! The device's own clock: events around the copies and launches of a part.

use std::sync::Arc;
use std::time::Duration;

use portcullis_core::device::offload::DeviceTimes;

use crate::api::Code;
use crate::context::Context;
use crate::device::{Event, Stream};

/// What a stretch of time is spent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Upload,
    Kernel,
    Download,
}

/// The stretches of a part. Their events are used again and again: making one is a call of the driver's.
#[derive(Debug)]
pub(crate) struct Clock {
    context: Arc<Context>,
    stretches: Vec<Stretch>,
    /// How many of them are this part's.
    taken: usize,
}

#[derive(Debug)]
struct Stretch {
    stage: Stage,
    from: Event,
    to: Event,
}

impl Clock {
    pub fn new(context: &Arc<Context>) -> Clock {
        Clock { context: context.clone(), stretches: Vec::new(), taken: 0 }
    }

    /// Begins with a part.
    pub fn start(&mut self) {
        self.taken = 0;
    }

    /// Begins a stretch when what is queued in a stream now has ended.
    pub fn begin(&mut self, stage: Stage, stream: &Stream) -> Result<(), Code> {
        if self.taken == self.stretches.len() {
            let (from, to) = (Event::timed(&self.context)?, Event::timed(&self.context)?);
            self.stretches.push(Stretch { stage, from, to });
        }
        let stretch = &mut self.stretches[self.taken];
        stretch.stage = stage;
        stretch.from.record(stream)
    }

    /// Ends the stretch that was begun last, in the same stream.
    pub fn end(&mut self, stream: &Stream) -> Result<(), Code> {
        self.stretches[self.taken].to.record(stream)?;
        self.taken += 1;
        Ok(())
    }

    /// Queues something in a stream, and has the time of it taken where there is a clock.
    pub fn around(
        clock: Option<&mut Clock>,
        stage: Stage,
        stream: &Stream,
        queue: impl FnOnce() -> Result<(), Code>,
    ) -> Result<(), Code> {
        let Some(clock) = clock else { return queue() };
        clock.begin(stage, stream)?;
        queue()?;
        clock.end(stream)
    }

    /// What they say; the device is done with the part.
    pub fn times(&self) -> Result<DeviceTimes, Code> {
        let mut times = DeviceTimes::default();
        for Stretch { stage, from, to } in &self.stretches[..self.taken] {
            let time = Duration::from_secs_f64(f64::from(to.since(from)?.max(0.0)) / 1e3);
            match stage {
                Stage::Upload => times.upload += time,
                Stage::Kernel => times.kernel += time,
                Stage::Download => times.download += time,
            }
        }
        Ok(times)
    }
}
