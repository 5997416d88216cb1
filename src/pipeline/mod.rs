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
mod driver;
mod due;
#[cfg(all(target_os = "linux", feature = "live"))]
pub mod live;
mod outputs;
mod totals;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use portcullis_core::device::{CancelToken, DeviceError, DeviceKind, Done, Session};
use portcullis_core::packet::{Batch, Room};
use portcullis_core::program::Program;
use portcullis_core::reason;
use portcullis_io::{Progress, RedirectGroups, SinkError, Source, SourceError, SourceOptions, Warning};

pub use broadcast::Broadcasts;
use driver::{Driver, Ends, Next};
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

    /// A batch of so many packets is about to be submitted: what is done to the session's maps now is there for this batch and
    /// all behind it, and for none before it. This is also called now and then while no batch comes and none is in flight,
    /// with 0.
    ///
    /// # Errors
    /// Those of the session: they end the run.
    fn boundary(&mut self, session: &mut dyn Session, coming: usize) -> Result<(), DeviceError> {
        let _ = (session, coming);
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
    // What packets tell the host is read between batches: several of them are to find room.
    let rings = program.object().map_or(&[][..], |object| &object.rings);
    let room = rings.iter().map(|ring| (ring.packet_capacity() as usize / 4).max(256)).min();
    SourceOptions {
        max_packets: room.unwrap_or(usize::MAX),
        room: if facts.changes_length { Room::Both } else { Room::None },
        metadata: written || facts.uses_metadata || Broadcasts::need_ports(program),
        block_size: blocks * SourceOptions::BLOCK_SIZE,
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
    let (totals, ended) = start(source, session, outputs, stop, observe);
    let (stopped, error) = match ended {
        Ok(stopped) => (stopped, None),
        Err(error) => (stop.is_cancelled(), Some(error)),
    };
    Finished { totals: Totals { elapsed: begun.elapsed(), ..totals }, stopped, error }
}

/// Starts the threads, drives, and ends them. True when it was stopped.
fn start(
    source: Box<dyn Source>,
    session: &mut dyn Session,
    mut outputs: Outputs,
    stop: &CancelToken,
    observe: &mut dyn Observer,
) -> (Totals, Result<bool, PipelineError>) {
    let broadcasts = outputs.broadcasts.take();
    let (batches, from_reader) = sync_channel(QUEUE);
    let reader = {
        let stop = stop.clone();
        spawn("reader", move || read(source, &batches, &stop))
    };
    let reader = match reader {
        Ok(reader) => reader,
        Err(error) => return (Totals::default(), Err(error)),
    };
    let writer = match (!outputs.is_empty()).then(|| Writer::start(outputs)).transpose() {
        Ok(writer) => writer,
        Err(error) => return (Totals::default(), Err(error)),
    };
    let ends = Captures {
        reader: from_reader,
        writer,
        stop,
        observe,
        totals: Totals::default(),
        failed: None,
        broadcasts,
        several: None,
    };
    let mut driver = Driver::new(session, ends);
    let driven = driver.drive();
    let Captures { reader: from_reader, writer, mut totals, failed, .. } = driver.ends;
    let driven = driven.and(failed.map_or(Ok(stop.is_cancelled()), |error| Err(error.into())));
    // The reader stops at its next batch. One that still waits for input after a stop or an error is left behind: it may
    // wait for ever.
    drop(from_reader);
    if ((driven.is_ok() && !stop.is_cancelled()) || reader.is_finished()) && reader.join().is_err() {
        return (totals, Err(died("reader")));
    }
    // Even after an error, what has come so far belongs in the files.
    let written = writer.map(Writer::finish);
    let ended = driven.and_then(|stopped| {
        totals.times.write = written.transpose()?.unwrap_or_default();
        Ok(stopped)
    });
    (totals, ended)
}

/// A reader and a writer of captures.
struct Captures<'a> {
    reader: Receiver<FromReader>,
    writer: Option<Writer>,
    stop: &'a CancelToken,
    observe: &'a mut dyn Observer,
    totals: Totals,
    /// The error by which the source ended.
    failed: Option<SourceError>,
    broadcasts: Option<Broadcasts>,
    /// What targets stand for in the batch that has just come back, where some stand for several.
    several: Option<Arc<RedirectGroups>>,
}

impl<S> Ends<S> for Captures<'_> {
    /// How far the source had come.
    type Note = Progress;
    type Error = PipelineError;

    fn next(&mut self, idle: bool) -> Result<Next<Progress>, PipelineError> {
        loop {
            match wait(&self.reader, idle, &self.writer, self.stop) {
                Message::Some(FromReader::Batch { batch, progress, took }) => {
                    self.totals.times.read += took;
                    return Ok(Next::Batch(batch, progress));
                }
                Message::Some(FromReader::Warning(warning)) => self.observe.event(Event::Warning(warning)),
                Message::Some(FromReader::End(error)) => {
                    self.failed = error;
                    return Ok(Next::End);
                }
                Message::NotYet => return Ok(Next::NotYet),
                Message::Stopped => return Ok(Next::End),
                Message::Died => return Err(died("reader")),
                Message::HungUp => return Err(hung_up(&mut self.writer)),
            }
        }
    }

    fn boundary(&mut self, session: &mut dyn Session, coming: usize) -> Result<(), DeviceError> {
        self.observe.boundary(session, coming)
    }

    fn came_back(&mut self, session: &mut dyn Session, done: &Done) -> Result<(), DeviceError> {
        if let Some(broadcasts) = &mut self.broadcasts {
            self.several = broadcasts.read(session, done)?;
        }
        Ok(())
    }

    fn done(&mut self, done: Done, progress: Progress, _: bool) -> Result<(), PipelineError> {
        let several = self.several.take();
        self.totals.add_with(&done, several.as_deref());
        self.observe.event(Event::Batch { totals: &self.totals, progress });
        match &self.writer {
            Some(thread) if thread.queue.send((done, several)).is_err() => Err(hung_up(&mut self.writer)),
            _ => Ok(()),
        }
    }
}

/// What the reader's queue gives.
enum Message {
    Some(FromReader),
    NotYet,
    Stopped,
    Died,
    /// The writer has ended before its time.
    HungUp,
}

/// The next message; waits for it only when there is nothing else to do.
fn wait(reader: &Receiver<FromReader>, idle: bool, writer: &Option<Writer>, stop: &CancelToken) -> Message {
    if !idle {
        return match reader.try_recv() {
            Ok(message) => Message::Some(message),
            Err(TryRecvError::Empty) => Message::NotYet,
            Err(TryRecvError::Disconnected) => Message::Died,
        };
    }
    let mut stopped_before = false;
    loop {
        match reader.recv_timeout(PATIENCE) {
            Ok(message) => return Message::Some(message),
            Err(RecvTimeoutError::Disconnected) => return Message::Died,
            // A reader that waits for input never sees the token; it had its chance.
            Err(RecvTimeoutError::Timeout) if stopped_before => return Message::Stopped,
            // Nothing will be sent to it that would show it.
            Err(RecvTimeoutError::Timeout) if writer.as_ref().is_some_and(|w| w.thread.is_finished()) => {
                return Message::HungUp;
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
    queue: SyncSender<(Done, Option<Arc<RedirectGroups>>)>,
    thread: JoinHandle<Result<Duration, SinkError>>,
}

impl Writer {
    fn start(mut outputs: Outputs) -> Result<Writer, PipelineError> {
        let (queue, waiting) = sync_channel::<(Done, Option<Arc<RedirectGroups>>)>(QUEUE);
        let thread = spawn("writer", move || {
            let mut busy = Duration::ZERO;
            for (done, several) in waiting {
                let begun = Instant::now();
                if let Err(error) = outputs.take_with(&done, several.as_deref()) {
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
