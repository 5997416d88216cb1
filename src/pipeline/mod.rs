//! From a source through a device to sinks, with several batches under way at once.
//!
//! ```text
//! reader thread ──2 batches──► driver: submit … complete ──2 batches──► writer thread
//!    Source                       Session (its depth in flight)            Outputs
//! ```
//!
//! The driver is that of live packets, too (`live`): it takes batches from where they come, has as many in flight as
//! the session takes, and hands them on. Every stage keeps the packets' order. Both queues are bounded and a source hands out arenas of
//! a fixed size, so memory does not grow with the capture. Counting is done by the driver, so that
//! it can tell how far it is; the writer thread is there only when something is to be written.

mod broadcast;
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
use driver::{Driver, Endpoints, NextBatch};
pub use outputs::Outputs;
pub use totals::{MAX_TARGETS, TargetCounts, Times, Totals};

/// Batches that wait between two stages.
const QUEUE_DEPTH: usize = 2;

/// How long the driver sleeps before it looks again whether it is to stop.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(50);

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
    fn on_event(&mut self, event: Event<'_>);

    /// A batch of so many packets is about to be submitted: what is done to the session's maps now is there for this batch and
    /// all behind it, and for none before it. This is also called now and then while no batch comes and none is in flight,
    /// with 0.
    ///
    /// # Errors
    /// Those of the session: they end the run.
    fn on_batch_boundary(&mut self, session: &mut dyn Session, coming: usize) -> Result<(), DeviceError> {
        let _ = (session, coming);
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
    // What packets tell the host is read between batches: several of them are to find room.
    let rings = portcullis_xdp::ObjectInfo::of(&program).map_or(&[][..], |object| &object.rings);
    let room = rings.iter().map(|ring| (ring.packets() as usize / 4).max(256)).min();
    SourceOptions {
        max_packets: room.unwrap_or(usize::MAX),
        room: if facts.changes_length { ResizeRoom::Both } else { ResizeRoom::None },
        metadata: written || facts.uses_metadata || Broadcasts::needs_ingress_port(program),
        block_size: blocks * SourceOptions::BLOCK_SIZE,
    }
}

/// How a run ended.
#[derive(Debug)]
pub struct RunOutcome {
    /// What came through, up to the end or the error.
    pub totals: Totals,
    /// Whether it was told to stop before the source was empty.
    pub stopped: bool,
    /// What went wrong, if something did. The sinks were finished all the same where they could be.
    pub error: Option<PipelineError>,
}

/// What the reader thread sends.
enum ReaderMessage {
    Batch {
        batch: Batch,
        progress: Progress,
        read_time: Duration,
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
) -> RunOutcome {
    let started = Instant::now();
    let (totals, ended) = run_stages(source, session, outputs, stop, observe);
    let (stopped, error) = match ended {
        Ok(stopped) => (stopped, None),
        Err(error) => (stop.is_cancelled(), Some(error)),
    };
    RunOutcome { totals: Totals { elapsed: started.elapsed(), ..totals }, stopped, error }
}

/// Starts the threads, drives, and ends them. True when it was stopped.
fn run_stages(
    source: Box<dyn Source>,
    session: &mut dyn Session,
    mut outputs: Outputs,
    stop: &CancelToken,
    observe: &mut dyn Observer,
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
        observe,
        totals: Totals::default(),
        source_error: None,
        broadcasts,
        redirect_groups: None,
    };
    let mut driver = Driver::new(session, endpoints);
    let drive_result = driver.drive();
    let CaptureEndpoints { reader: from_reader, writer, mut totals, source_error, .. } = driver.endpoints;
    let drive_result = drive_result.and(source_error.map_or(Ok(stop.is_cancelled()), |error| Err(error.into())));
    // The reader stops at its next batch. One that still waits for input after a stop or an error is left behind: it may
    // wait for ever.
    drop(from_reader);
    if ((drive_result.is_ok() && !stop.is_cancelled()) || reader.is_finished()) && reader.join().is_err() {
        return (totals, Err(thread_died("reader")));
    }
    // Even after an error, what has come so far belongs in the files.
    let written = writer.map(Writer::finish);
    let ended = drive_result.and_then(|stopped| {
        totals.times.write = written.transpose()?.unwrap_or_default();
        Ok(stopped)
    });
    (totals, ended)
}

/// A reader and a writer of captures.
struct CaptureEndpoints<'a> {
    reader: Receiver<ReaderMessage>,
    writer: Option<Writer>,
    stop: &'a CancelToken,
    observe: &'a mut dyn Observer,
    totals: Totals,
    /// The error by which the source ended.
    source_error: Option<SourceError>,
    broadcasts: Option<Broadcasts>,
    /// What targets stand for in the batch that has just come back, where some stand for several.
    redirect_groups: Option<Arc<RedirectGroups>>,
}

impl<S> Endpoints<S> for CaptureEndpoints<'_> {
    /// How far the source had come.
    type Tag = Progress;
    type Error = PipelineError;

    fn next_batch(&mut self, is_idle: bool) -> Result<NextBatch<Progress>, PipelineError> {
        loop {
            match poll_reader(&self.reader, is_idle, &self.writer, self.stop) {
                QueuePoll::Received(ReaderMessage::Batch { batch, progress, read_time }) => {
                    self.totals.times.read += read_time;
                    return Ok(NextBatch::Ready(batch, progress));
                }
                QueuePoll::Received(ReaderMessage::Warning(warning)) => self.observe.on_event(Event::Warning(warning)),
                QueuePoll::Received(ReaderMessage::End(error)) => {
                    self.source_error = error;
                    return Ok(NextBatch::End);
                }
                QueuePoll::Empty => return Ok(NextBatch::Pending),
                QueuePoll::Stopped => return Ok(NextBatch::End),
                QueuePoll::ReaderDied => return Err(thread_died("reader")),
                QueuePoll::WriterEnded => return Err(writer_error(&mut self.writer)),
            }
        }
    }

    fn on_batch_boundary(&mut self, session: &mut dyn Session, coming: usize) -> Result<(), DeviceError> {
        self.observe.on_batch_boundary(session, coming)
    }

    fn inspect_completed(&mut self, session: &mut dyn Session, done: &Completion) -> Result<(), DeviceError> {
        if let Some(broadcasts) = &mut self.broadcasts {
            self.redirect_groups = broadcasts.resolve(session, done)?;
        }
        Ok(())
    }

    fn deliver(&mut self, done: Completion, progress: Progress, _: bool) -> Result<(), PipelineError> {
        let redirect_groups = self.redirect_groups.take();
        self.totals.add_with_broadcasts(&done, redirect_groups.as_deref());
        self.observe.on_event(Event::Batch { totals: &self.totals, progress });
        match &self.writer {
            Some(thread) if thread.queue.send((done, redirect_groups)).is_err() => Err(writer_error(&mut self.writer)),
            _ => Ok(()),
        }
    }
}

/// What the reader's queue gives.
enum QueuePoll {
    Received(ReaderMessage),
    Empty,
    Stopped,
    ReaderDied,
    /// The writer has ended before its time.
    WriterEnded,
}

/// The next message; waits for it only when there is nothing else to do.
fn poll_reader(reader: &Receiver<ReaderMessage>, idle: bool, writer: &Option<Writer>, stop: &CancelToken) -> QueuePoll {
    if !idle {
        return match reader.try_recv() {
            Ok(message) => QueuePoll::Received(message),
            Err(TryRecvError::Empty) => QueuePoll::Empty,
            Err(TryRecvError::Disconnected) => QueuePoll::ReaderDied,
        };
    }
    let mut stopped_before = false;
    loop {
        match reader.recv_timeout(STOP_POLL_INTERVAL) {
            Ok(message) => return QueuePoll::Received(message),
            Err(RecvTimeoutError::Disconnected) => return QueuePoll::ReaderDied,
            // A reader that waits for input never sees the token; it had its chance.
            Err(RecvTimeoutError::Timeout) if stopped_before => return QueuePoll::Stopped,
            // Nothing will be sent to it that would show it.
            Err(RecvTimeoutError::Timeout) if writer.as_ref().is_some_and(|w| w.thread.is_finished()) => {
                return QueuePoll::WriterEnded;
            }
            Err(RecvTimeoutError::Timeout) => stopped_before = stop.is_cancelled(),
        }
    }
}

/// The reader thread. A driver that hung up wants no more.
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
        let last = matches!(message, ReaderMessage::End(_));
        if to.send(message).is_err() || last {
            return;
        }
    }
}

/// The thread that writes.
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
                    // What the others have is whole all the same; this error came first.
                    let _ = outputs.finish();
                    return Err(error);
                }
                // Freed here, so that this too is counted as the writer's time.
                drop(done);
                busy += started.elapsed();
            }
            let started = Instant::now();
            outputs.finish()?;
            Ok(busy + started.elapsed())
        })?;
        Ok(Writer { queue, thread })
    }

    /// Waits until everything is written; the time that took in all.
    fn finish(self) -> Result<Duration, PipelineError> {
        drop(self.queue);
        Ok(self.thread.join().map_err(|_| thread_died("writer"))??)
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
fn writer_error(writer: &mut Option<Writer>) -> PipelineError {
    match writer.take().map(Writer::finish) {
        Some(Err(error)) => error,
        _ => thread_died("writer"),
    }
}

fn thread_died(thread: &'static str) -> PipelineError {
    PipelineError::Thread { thread, what: "died (a fault of this program; please report it)".into() }
}
