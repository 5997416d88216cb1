//! From a source through a device to sinks, with several batches under way at once.
//!
//! ```text
//! reader thread ──2 batches──► driver: submit … complete ──2 batches──► writer thread
//!    Source                       Session (its depth in flight)            Outputs
//! ```
//!
//! Every stage keeps the packets' order. Both queues are bounded and a source hands out arenas of
//! a fixed size, so memory does not grow with the capture. Counting is done by the driver, so that
//! it can tell how far it is; the writer thread is there only when something is to be written.

#[cfg(all(target_os = "linux", feature = "live"))]
pub mod live;
mod outputs;
mod totals;

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use portcullis_core::device::{CancelToken, DeviceError, DeviceKind, Done, Session};
use portcullis_core::packet::{Batch, Room};
use portcullis_core::program::Program;
use portcullis_core::reason;
use portcullis_io::{Progress, SinkError, Source, SourceError, SourceOptions, Warning};

pub use outputs::Outputs;
pub use totals::{MAX_TARGETS, TargetCounts, Times, Totals};

/// Batches that wait between two stages.
const QUEUE: usize = 2;

/// How long the driver sleeps before it looks again whether it is to stop.
const PATIENCE: Duration = Duration::from_millis(50);

/// What the caller is told while packets flow.
#[derive(Debug)]
pub enum Event<'a> {
    /// The source met something odd.
    Warning(Warning),
    /// A batch is done.
    Batch {
        /// What has come through so far.
        totals: &'a Totals,
        /// How far the source had come when it made this batch.
        progress: Progress,
    },
}

/// Who is told what happens, and may look after the filter's maps between batches. A closure that takes an [`Event`] is one.
pub trait Observer {
    /// Something happens.
    fn event(&mut self, event: Event<'_>);

    /// A batch is about to be submitted: what is done to the session's maps now is there for this batch and all behind it,
    /// and for none before it.
    ///
    /// # Errors
    /// Those of the session: they end the run.
    fn boundary(&mut self, session: &mut dyn Session) -> Result<(), DeviceError> {
        let _ = session;
        Ok(())
    }
}

impl<F: FnMut(Event<'_>)> Observer for F {
    fn event(&mut self, event: Event<'_>) {
        self(event);
    }
}

/// Why a run ended before its source did.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// The source failed. What came before went through to the sinks.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The device failed; the batches in flight are lost.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A sink failed.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// A thread of the pipeline could not be started, or died: a fault of the system or of ours.
    #[error("the {thread} thread {what}")]
    Thread {
        /// Which.
        thread: &'static str,
        /// What happened to it.
        what: String,
    },
}

impl PipelineError {
    /// Whether the reader of an output pipe went away, which is no fault worth a message.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, PipelineError::Sink(error) if error.is_broken_pipe())
    }
}

/// How a source shall make batches for `program` on a device of this kind; `written` says whether
/// its packets go to sinks.
pub fn source_options(program: &Program, kind: DeviceKind, written: bool) -> SourceOptions {
    let facts = program.facts();
    // Launching a kernel costs as much as reading a good many packets, so GPUs get longer batches;
    // a processor wants its batch in the cache.
    let blocks = if kind.is_gpu() || kind == DeviceKind::Software { 4 } else { 1 };
    SourceOptions {
        room: if facts.changes_length { Room::Both } else { Room::None },
        metadata: written || facts.uses_metadata,
        block_size: blocks * SourceOptions::BLOCK_SIZE,
        ..SourceOptions::default()
    }
}

/// How a run ended.
#[derive(Debug)]
pub struct Finished {
    /// What came through, up to the end or the error.
    pub totals: Totals,
    /// Whether it was told to stop before the source was empty.
    pub stopped: bool,
    /// What went wrong, if something did. The sinks were finished all the same where they could be.
    pub error: Option<PipelineError>,
}

/// What the reader thread sends.
enum FromReader {
    Batch {
        batch: Batch,
        progress: Progress,
        took: Duration,
    },
    Warning(Warning),
    /// No more will come.
    End(Option<SourceError>),
}

/// Runs all packets of `source` through `session` and gives them to `outputs` by their verdicts. Unless the device or a
/// sink failed, no batch is in flight when it ends, so that the session's maps can be looked at.
///
/// When `stop` is cancelled the source is asked for no more, what is in flight comes home, and the
/// sinks are finished. A session that should give up its work in flight has a token of its own
/// ([`LoadOptions`](portcullis_core::device::LoadOptions)).
pub fn run(
    source: Box<dyn Source>,
    session: &mut dyn Session,
    outputs: Outputs,
    stop: &CancelToken,
    observe: &mut dyn Observer,
) -> Finished {
    let begun = Instant::now();
    let mut driver = Driver { session, totals: Totals::default(), queued: Default::default(), observe };
    let (stopped, error) = match driver.start(source, outputs, stop) {
        Ok(stopped) => (stopped, None),
        Err(error) => (stop.is_cancelled(), Some(error)),
    };
    let mut totals = driver.totals;
    totals.elapsed = begun.elapsed();
    Finished { totals, stopped, error }
}

struct Driver<'a> {
    session: &'a mut dyn Session,
    totals: Totals,
    /// The source's progress at each batch in flight.
    queued: std::collections::VecDeque<Progress>,
    observe: &'a mut dyn Observer,
}

impl Driver<'_> {
    /// Starts the threads, drives, and ends them. True when it was stopped.
    fn start(&mut self, source: Box<dyn Source>, outputs: Outputs, stop: &CancelToken) -> Result<bool, PipelineError> {
        let (batches, from_reader) = sync_channel(QUEUE);
        let reader = {
            let stop = stop.clone();
            spawn("reader", move || read(source, &batches, &stop))?
        };
        let mut writer = if outputs.is_empty() { None } else { Some(Writer::start(outputs)?) };
        let driven = self.drive(from_reader, &mut writer, stop);
        // The driver has dropped its end of the queue, so the reader stops at its next batch. One
        // that still waits for input after a stop or an error is left behind: it may wait for ever.
        if (driven.is_ok() && !stop.is_cancelled()) || reader.is_finished() {
            reader.join().map_err(|_| died("reader"))?;
        }
        // Even after an error, what has come so far belongs in the files.
        let written = writer.map(Writer::finish);
        let stopped = driven?;
        if let Some(written) = written {
            self.totals.times.write = written?;
        }
        Ok(stopped)
    }

    fn drive(
        &mut self,
        reader: Receiver<FromReader>,
        writer: &mut Option<Writer>,
        stop: &CancelToken,
    ) -> Result<bool, PipelineError> {
        let mut ended = None;
        loop {
            if ended.is_none() && self.session.in_flight() < self.session.depth() {
                match next(&reader, self.session.in_flight() == 0, writer, stop) {
                    Next::Some(FromReader::Batch { batch, progress, took }) => {
                        self.totals.times.read += took;
                        self.observe.boundary(self.session)?;
                        self.session.submit(batch).map_err(|refused| refused.error)?;
                        self.queued.push_back(progress);
                        continue;
                    }
                    Next::Some(FromReader::Warning(warning)) => {
                        self.observe.event(Event::Warning(warning));
                        continue;
                    }
                    Next::Some(FromReader::End(error)) => {
                        ended = Some(error);
                        continue;
                    }
                    Next::Stopped => {
                        ended = Some(None);
                        continue;
                    }
                    Next::Died => return Err(died("reader")),
                    Next::HungUp => return Err(hung_up(writer)),
                    // Nothing to submit yet: take what is done meanwhile.
                    Next::NotYet => {}
                }
            }
            match self.session.complete()? {
                Some(done) => self.done(done, writer)?,
                None if ended.is_some() => break,
                None => {}
            }
        }
        match ended.flatten() {
            Some(error) => Err(error.into()),
            None => Ok(stop.is_cancelled()),
        }
    }

    fn done(&mut self, done: Done, writer: &mut Option<Writer>) -> Result<(), PipelineError> {
        self.totals.add(&done);
        let progress = self.queued.pop_front().unwrap_or_default();
        self.observe.event(Event::Batch { totals: &self.totals, progress });
        match writer {
            Some(thread) if thread.queue.send(done).is_err() => Err(hung_up(writer)),
            _ => Ok(()),
        }
    }
}

enum Next {
    Some(FromReader),
    NotYet,
    Stopped,
    Died,
    /// The writer has ended before its time.
    HungUp,
}

/// The next message; waits for it only when there is nothing else to do.
fn next(reader: &Receiver<FromReader>, wait: bool, writer: &Option<Writer>, stop: &CancelToken) -> Next {
    if !wait {
        return match reader.try_recv() {
            Ok(message) => Next::Some(message),
            Err(TryRecvError::Empty) => Next::NotYet,
            Err(TryRecvError::Disconnected) => Next::Died,
        };
    }
    let mut stopped_before = false;
    loop {
        match reader.recv_timeout(PATIENCE) {
            Ok(message) => return Next::Some(message),
            Err(RecvTimeoutError::Disconnected) => return Next::Died,
            // A reader that waits for input never sees the token; it had its chance.
            Err(RecvTimeoutError::Timeout) if stopped_before => return Next::Stopped,
            // Nothing will be sent to it that would show it.
            Err(RecvTimeoutError::Timeout) if writer.as_ref().is_some_and(|w| w.thread.is_finished()) => {
                return Next::HungUp;
            }
            Err(RecvTimeoutError::Timeout) => stopped_before = stop.is_cancelled(),
        }
    }
}

/// The reader thread. A driver that hung up wants no more.
fn read(mut source: Box<dyn Source>, to: &SyncSender<FromReader>, stop: &CancelToken) {
    loop {
        if stop.is_cancelled() {
            let _ = to.send(FromReader::End(None));
            return;
        }
        let begun = Instant::now();
        let next = source.next_batch();
        let took = begun.elapsed();
        for warning in source.take_warnings() {
            if to.send(FromReader::Warning(warning)).is_err() {
                return;
            }
        }
        let message = match next {
            Ok(Some(batch)) => FromReader::Batch { batch, progress: source.progress(), took },
            Ok(None) => FromReader::End(None),
            Err(error) => FromReader::End(Some(error)),
        };
        let last = matches!(message, FromReader::End(_));
        if to.send(message).is_err() || last {
            return;
        }
    }
}

/// The thread that writes.
struct Writer {
    queue: SyncSender<Done>,
    thread: JoinHandle<Result<Duration, SinkError>>,
}

impl Writer {
    fn start(mut outputs: Outputs) -> Result<Writer, PipelineError> {
        let (queue, waiting) = sync_channel::<Done>(QUEUE);
        let thread = spawn("writer", move || {
            let mut busy = Duration::ZERO;
            for done in waiting {
                let begun = Instant::now();
                if let Err(error) = outputs.take(&done) {
                    // What the others have is whole all the same; this error came first.
                    let _ = outputs.finish();
                    return Err(error);
                }
                // Freed here, so that this too is counted as the writer's time.
                drop(done);
                busy += begun.elapsed();
            }
            let begun = Instant::now();
            outputs.finish()?;
            Ok(busy + begun.elapsed())
        })?;
        Ok(Writer { queue, thread })
    }

    /// Waits until everything is written; the time that took in all.
    fn finish(self) -> Result<Duration, PipelineError> {
        drop(self.queue);
        Ok(self.thread.join().map_err(|_| died("writer"))??)
    }
}

fn spawn<T: Send + 'static>(
    name: &'static str,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, PipelineError> {
    thread::Builder::new()
        .name(name.into())
        .spawn(body)
        .map_err(|error| PipelineError::Thread { thread: name, what: format!("cannot be started: {}", reason(&error)) })
}

/// The error that made the writer hang up.
fn hung_up(writer: &mut Option<Writer>) -> PipelineError {
    match writer.take().map(Writer::finish) {
        Some(Err(error)) => error,
        _ => died("writer"),
    }
}

fn died(thread: &'static str) -> PipelineError {
    PipelineError::Thread { thread, what: "died (a fault of this program; please report it)".into() }
}
