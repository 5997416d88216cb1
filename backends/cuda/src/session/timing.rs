//! Device time of each stage of a chunk, measured by events around its copies and launches.

use std::sync::Arc;
use std::time::Duration;

use portcullis_core::device::StageTimes;

use crate::driver::ErrorCode;
use crate::driver::context::Context;
use crate::driver::stream::{Event, Stream};

/// Activity of the device during a span of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Upload,
    Kernel,
    Download,
}

/// Times the stages of one chunk. Events are reused, since creating one is a driver call.
#[derive(Debug)]
pub(crate) struct StageTimer {
    context: Arc<Context>,
    spans: Vec<StageSpan>,
    /// Number of spans that the current chunk uses.
    used: usize,
}

#[derive(Debug)]
struct StageSpan {
    stage: Stage,
    start: Event,
    end: Event,
}

impl StageTimer {
    pub fn new(context: &Arc<Context>) -> StageTimer {
        StageTimer { context: context.clone(), spans: Vec::new(), used: 0 }
    }

    /// Starts over, for the next chunk.
    pub fn reset(&mut self) {
        self.used = 0;
    }

    /// Begins a span when everything queued in the stream so far has completed.
    pub fn begin(&mut self, stage: Stage, stream: &Stream) -> Result<(), ErrorCode> {
        if self.used == self.spans.len() {
            let (start, end) = (Event::with_timing(&self.context)?, Event::with_timing(&self.context)?);
            self.spans.push(StageSpan { stage, start, end });
        }
        let span = &mut self.spans[self.used];
        span.stage = stage;
        span.start.record(stream)
    }

    /// Ends the span that was begun last, in the same stream.
    pub fn end(&mut self, stream: &Stream) -> Result<(), ErrorCode> {
        self.spans[self.used].end.record(stream)?;
        self.used += 1;
        Ok(())
    }

    /// Queues commands in a stream, timed if there is a timer.
    pub fn measure(
        timer: Option<&mut StageTimer>,
        stage: Stage,
        stream: &Stream,
        enqueue: impl FnOnce() -> Result<(), ErrorCode>,
    ) -> Result<(), ErrorCode> {
        let Some(timer) = timer else { return enqueue() };
        timer.begin(stage, stream)?;
        enqueue()?;
        timer.end(stream)
    }

    /// Sums up the times by stage, once the chunk has completed.
    pub fn times(&self) -> Result<StageTimes, ErrorCode> {
        let mut times = StageTimes::default();
        for StageSpan { stage, start, end } in &self.spans[..self.used] {
            let time = Duration::from_secs_f64(f64::from(end.elapsed_ms_since(start)?.max(0.0)) / 1e3);
            match stage {
                Stage::Upload => times.upload += time,
                Stage::Kernel => times.kernel += time,
                Stage::Download => times.download += time,
            }
        }
        Ok(times)
    }
}
