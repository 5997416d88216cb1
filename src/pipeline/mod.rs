//! Runs packets from a source through a device to sinks, with several batches in flight.
//!
//! ```text
//! reader thread ──2 batches──► driver: submit … complete ──2 batches──► writer thread
//!    Source                       Session (its depth in flight)            Outputs
//! ```
//!
//! The driver is shared with live lanes (`live`). Every stage keeps the packets' order. Both queues
//! are bounded and a source hands out arenas of a fixed size, so memory does not grow with the
//! capture. The driver counts, so that it can report progress; the writer thread exists only if
//! packets are written.

mod broadcast;
mod builder;
mod completion_estimator;
mod driver;
#[cfg(all(target_os = "linux", feature = "live"))]
pub mod live;
mod outputs;
mod totals;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use portcullis_core::device::{CancelToken, Completion, DeviceError, DeviceKind, Session};
use portcullis_core::packet::{Batch, ResizeRoom};
use portcullis_core::program::Program;
use portcullis_core::reason;
use portcullis_io::{Progress, RedirectGroups, SinkError, Source, SourceError, SourceOptions, Warning};

pub use broadcast::Broadcasts;
pub use builder::Pipeline;
use driver::{Driver, Endpoints, NextBatch};
pub use outputs::Outputs;
pub use totals::{MAX_TARGETS, TargetCounts, Times, Totals};

/// Capacity of the queues between stages, in batches.
const QUEUE_DEPTH: usize = 2;

/// How often a driver that waits for the reader checks whether it is to stop.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Notification to an [`Observer`] while packets flow.
#[derive(Debug)]
pub enum Event<'a> {
    /// A problem in the source that does not end the run.
    Warning(Warning),
    /// A warning of the session; see
    /// [`Instrumented::take_warnings`](portcullis_core::device::Instrumented::take_warnings).
    SessionWarning(String),
    /// A batch has been completed.
    Batch {
        /// Totals of the run up to and including this batch.
        totals: &'a Totals,
        /// Position of the source when it made this batch.
        progress: Progress,
    },
}

/// Follows a run, and may access the filter's maps between batches. A closure that takes an
/// [`Event`] is an observer.
pub trait Observer {
    /// Called for each event.
    fn on_event(&mut self, event: Event<'_>);

    /// Called before a batch of `packets` is submitted. Changes made to the session's maps here
    /// take effect for this batch and later ones, and for none before. Also called with 0 from time
    /// to time while no batch comes and none is in flight.
    ///
    /// # Errors
    /// An error of the session ends the run.
    fn on_batch_boundary(&mut self, session: &mut dyn Session, packets: usize) -> Result<(), DeviceError> {
        let _ = (session, packets);
        Ok(())
    }
}

impl<F: FnMut(Event<'_>)> Observer for F {
    fn on_event(&mut self, event: Event<'_>) {
        self(event);
    }
}

/// Why a run ended before its source did.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// The source failed. Packets before the failure went through to the sinks.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The device failed; the batches in flight are lost.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A sink failed.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// A thread of the pipeline could not be started, or panicked.
    #[error("the {thread} thread {problem}")]
    Thread {
        /// Name of the thread.
        thread: &'static str,
        /// Predicate that says how the thread failed.
        problem: String,
    },
}

impl PipelineError {
    /// Whether the reader of an output pipe closed it (SIGPIPE), which deserves no message.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, PipelineError::Sink(error) if error.is_broken_pipe())
    }
}

/// Options for a source that feeds `program` on a device of this kind. `written` says whether
/// packets go to sinks.
pub fn source_options(program: &Program, kind: DeviceKind, written: bool) -> SourceOptions {
    let facts = program.facts();
    // A kernel launch costs as much as reading many packets, so GPUs get larger batches; a CPU
    // wants a batch that fits its cache.
    let blocks = if kind.is_gpu() || kind == DeviceKind::Software { 4 } else { 1 };
    SourceOptions::default()
        .with_max_packets(max_ring_packets(program).unwrap_or(usize::MAX))
        .with_room(if facts.changes_length { ResizeRoom::Both } else { ResizeRoom::None })
        .with_metadata(written || facts.uses_metadata || Broadcasts::needs_ingress_port(program))
        .with_block_size(blocks * SourceOptions::BLOCK_SIZE)
}

/// Returns the most packets of a batch whose events fit the program's event rings, which only XDP
/// objects have. Rings are drained between batches, so each must hold the events of several.
fn max_ring_packets(program: &Program) -> Option<usize> {
    #[cfg(feature = "xdp")]
    if let Some(object) = portcullis_xdp::ObjectInfo::of(program) {
        return object.rings.iter().map(|ring| (ring.packet_capacity() as usize / 4).max(256)).min();
    }
    let _ = program;
    None
}

/// Result of a run.
#[derive(Debug)]
pub struct RunOutcome {
    /// Totals up to the end or the error.
    pub totals: Totals,
    /// Whether the run was told to stop before the source ended.
    pub stopped: bool,
    /// The error that ended the run. Sinks were still finished as far as possible.
    pub error: Option<PipelineError>,
}

/// Messages from the reader thread.
enum ReaderMessage {
    Batch {
        batch: Batch,
        progress: Progress,
        read_time: Duration,
    },
    Warning(Warning),
    /// The source has ended, possibly with an error. Nothing follows.
    End(Option<SourceError>),
}

/// Runs all packets of `source` through `session` and writes them to `outputs` by their verdicts.
///
/// Unless the device or a sink failed, no batch is in flight on return, so the session's maps can
/// be read.
///
/// When `stop` is cancelled, no more batches are read, those in flight are completed, and the sinks
/// are finished. To give up work in flight as well, cancel the session's own token
/// ([`LoadOptions`](portcullis_core::device::LoadOptions)).
pub fn run(
    source: Box<dyn Source>,
    session: &mut dyn Session,
    outputs: Outputs,
    stop: &CancelToken,
    observer: &mut dyn Observer,
) -> RunOutcome {
    let started = Instant::now();
    let (totals, result) = run_stages(source, session, outputs, stop, observer);
    let (stopped, error) = match result {
        Ok(stopped) => (stopped, None),
        Err(error) => (stop.is_cancelled(), Some(error)),
    };
    RunOutcome { totals: Totals { elapsed: started.elapsed(), ..totals }, stopped, error }
}

/// Starts the threads, drives the session, and joins the threads. Returns whether the run was
/// stopped.
fn run_stages(
    source: Box<dyn Source>,
    session: &mut dyn Session,
    mut outputs: Outputs,
    stop: &CancelToken,
    observer: &mut dyn Observer,
) -> (Totals, Result<bool, PipelineError>) {
    let broadcasts = outputs.broadcasts.take();
    let (batches, from_reader) = sync_channel(QUEUE_DEPTH);
    let reader = {
        let stop = stop.clone();
        spawn("reader", move || run_reader(source, &batches, &stop))
    };
    let reader = match reader {
        Ok(reader) => reader,
        Err(error) => return (Totals::default(), Err(error)),
    };
    let writer = match (!outputs.is_empty()).then(|| Writer::start(outputs)).transpose() {
        Ok(writer) => writer,
        Err(error) => return (Totals::default(), Err(error)),
    };
    let endpoints = CaptureEndpoints {
        reader: from_reader,
        writer,
        stop,
        observer,
        totals: Totals::default(),
        source_error: None,
        broadcasts,
        redirect_groups: None,
    };
    let mut driver = Driver::new(session, endpoints);
    let drive_result = driver.drive();
    let CaptureEndpoints { reader: from_reader, writer, mut totals, source_error, .. } = driver.endpoints;
    let drive_result = drive_result.and(source_error.map_or(Ok(stop.is_cancelled()), |error| Err(error.into())));
    // Dropping the queue ends the reader at its next batch. After a stop or an error it is not
    // joined while it waits for input, which may never come.
    drop(from_reader);
    if ((drive_result.is_ok() && !stop.is_cancelled()) || reader.is_finished()) && reader.join().is_err() {
        return (totals, Err(thread_panicked("reader")));
    }
    // Batches completed before an error are still written.
    let written = writer.map(Writer::finish);
    let result = drive_result.and_then(|stopped| {
        totals.times.write = written.transpose()?.unwrap_or_default();
        Ok(stopped)
    });
    (totals, result)
}

/// Endpoints of a capture: the reader and writer threads.
struct CaptureEndpoints<'a> {
    reader: Receiver<ReaderMessage>,
    writer: Option<Writer>,
    stop: &'a CancelToken,
    observer: &'a mut dyn Observer,
    totals: Totals,
    /// The error that ended the source.
    source_error: Option<SourceError>,
    broadcasts: Option<Broadcasts>,
    /// Redirect groups of the batch that was just completed, if it has broadcasts.
    redirect_groups: Option<Arc<RedirectGroups>>,
}

impl<S> Endpoints<S> for CaptureEndpoints<'_> {
    /// Position of the source after it read the batch.
    type Tag = Progress;
    type Error = PipelineError;

    fn next_batch(&mut self, is_idle: bool) -> Result<NextBatch<Progress>, PipelineError> {
        loop {
            match poll_reader(&self.reader, is_idle, &self.writer, self.stop) {
                QueuePoll::Received(ReaderMessage::Batch { batch, progress, read_time }) => {
                    self.totals.times.read += read_time;
                    return Ok(NextBatch::Ready(batch, progress));
                }
                QueuePoll::Received(ReaderMessage::Warning(warning)) => self.observer.on_event(Event::Warning(warning)),
                QueuePoll::Received(ReaderMessage::End(error)) => {
                    self.source_error = error;
                    return Ok(NextBatch::End);
                }
                QueuePoll::Empty => return Ok(NextBatch::Pending),
                QueuePoll::Stopped => return Ok(NextBatch::End),
                QueuePoll::ReaderPanicked => return Err(thread_panicked("reader")),
                QueuePoll::WriterEnded => return Err(writer_error(&mut self.writer)),
            }
        }
    }

    fn on_batch_boundary(&mut self, session: &mut dyn Session, packets: usize) -> Result<(), DeviceError> {
        self.observer.on_batch_boundary(session, packets)
    }

    fn inspect_completed(&mut self, session: &mut dyn Session, done: &Completion) -> Result<(), DeviceError> {
        if let Some(broadcasts) = &mut self.broadcasts {
            self.redirect_groups = broadcasts.resolve(session, done)?;
        }
        Ok(())
    }

    fn on_session_warning(&mut self, warning: String) {
        self.observer.on_event(Event::SessionWarning(warning));
    }

    fn deliver(&mut self, done: Completion, progress: Progress, _: bool) -> Result<(), PipelineError> {
        let redirect_groups = self.redirect_groups.take();
        self.totals.add_with_broadcasts(&done, redirect_groups.as_deref());
        self.observer.on_event(Event::Batch { totals: &self.totals, progress });
        match &self.writer {
            Some(thread) if thread.queue.send((done, redirect_groups)).is_err() => Err(writer_error(&mut self.writer)),
            _ => Ok(()),
        }
    }
}

/// Result of polling the reader's queue.
#[expect(clippy::large_enum_variant, reason = "matched where it is returned")]
enum QueuePoll {
    Received(ReaderMessage),
    Empty,
    Stopped,
    ReaderPanicked,
    /// The writer thread has ended although its queue is open.
    WriterEnded,
}

/// Polls the reader's queue, and waits for a message if nothing is in flight (`is_idle`).
fn poll_reader(
    reader: &Receiver<ReaderMessage>,
    is_idle: bool,
    writer: &Option<Writer>,
    stop: &CancelToken,
) -> QueuePoll {
    if !is_idle {
        return match reader.try_recv() {
            Ok(message) => QueuePoll::Received(message),
            Err(TryRecvError::Empty) => QueuePoll::Empty,
            Err(TryRecvError::Disconnected) => QueuePoll::ReaderPanicked,
        };
    }
    let mut stopped_before = false;
    loop {
        match reader.recv_timeout(STOP_POLL_INTERVAL) {
            Ok(message) => return QueuePoll::Received(message),
            Err(RecvTimeoutError::Disconnected) => return QueuePoll::ReaderPanicked,
            // A reader that blocks on input does not notice the token. It has had one interval to
            // do so.
            Err(RecvTimeoutError::Timeout) if stopped_before => return QueuePoll::Stopped,
            // With nothing to send to the writer, only this check notices that it failed.
            Err(RecvTimeoutError::Timeout) if writer.as_ref().is_some_and(|w| w.thread.is_finished()) => {
                return QueuePoll::WriterEnded;
            }
            Err(RecvTimeoutError::Timeout) => stopped_before = stop.is_cancelled(),
        }
    }
}

/// Body of the reader thread. It returns once the driver drops the queue.
fn run_reader(mut source: Box<dyn Source>, to: &SyncSender<ReaderMessage>, stop: &CancelToken) {
    loop {
        if stop.is_cancelled() {
            let _ = to.send(ReaderMessage::End(None));
            return;
        }
        let started = Instant::now();
        let next = source.next_batch();
        let read_time = started.elapsed();
        for warning in source.take_warnings() {
            if to.send(ReaderMessage::Warning(warning)).is_err() {
                return;
            }
        }
        let message = match next {
            Ok(Some(batch)) => ReaderMessage::Batch { batch, progress: source.progress(), read_time },
            Ok(None) => ReaderMessage::End(None),
            Err(error) => ReaderMessage::End(Some(error)),
        };
        let is_last = matches!(message, ReaderMessage::End(_));
        if to.send(message).is_err() || is_last {
            return;
        }
    }
}

/// The writer thread and its queue.
struct Writer {
    queue: SyncSender<(Completion, Option<Arc<RedirectGroups>>)>,
    thread: JoinHandle<Result<Duration, SinkError>>,
}

impl Writer {
    fn start(mut outputs: Outputs) -> Result<Writer, PipelineError> {
        let (queue, waiting) = sync_channel::<(Completion, Option<Arc<RedirectGroups>>)>(QUEUE_DEPTH);
        let thread = spawn("writer", move || {
            let mut busy = Duration::ZERO;
            for (done, redirect_groups) in waiting {
                let started = Instant::now();
                if let Err(error) = outputs.write_with_broadcasts(&done, redirect_groups.as_deref()) {
                    // Finish the other outputs so that they are complete, but report this error: it
                    // came first.
                    let _ = outputs.finish();
                    return Err(error);
                }
                // Drop inside the timed section: freeing the batch is part of the writer's time.
                drop(done);
                busy += started.elapsed();
            }
            let started = Instant::now();
            outputs.finish()?;
            Ok(busy + started.elapsed())
        })?;
        Ok(Writer { queue, thread })
    }

    /// Waits until everything is written. Returns the time that the thread was busy.
    fn finish(self) -> Result<Duration, PipelineError> {
        drop(self.queue);
        Ok(self.thread.join().map_err(|_| thread_panicked("writer"))??)
    }
}

fn spawn<T: Send + 'static>(
    name: &'static str,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, PipelineError> {
    thread::Builder::new().name(name.into()).spawn(body).map_err(|error| PipelineError::Thread {
        thread: name,
        problem: format!("cannot be started: {}", reason(&error)),
    })
}

/// Joins a writer whose queue is closed and returns its error.
fn writer_error(writer: &mut Option<Writer>) -> PipelineError {
    match writer.take().map(Writer::finish) {
        Some(Err(error)) => error,
        _ => thread_panicked("writer"),
    }
}

fn thread_panicked(thread: &'static str) -> PipelineError {
    PipelineError::Thread { thread, problem: "panicked; this is a bug in portcullis, please report it".into() }
}
