//! What every backend looks like: a [`Device`] loads a [`Program`] and gives a [`Session`], into
//! which batches go and out of which they come, in order, with their verdicts.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::map::layout::Layout;
use crate::packet::{Batch, BatchError, DeviceView, Span, Verdicts};
use crate::program::Program;

pub mod chunk;
mod dispatch;
mod fallback;
mod flow_session;
mod host_maps;
pub mod launch_budget;
pub mod noop;
pub mod offload;
pub mod record_kernel;
mod synthetic_work;
mod transfer;
pub mod transfer_planner;

pub use dispatch::{Dispatch, SingleDispatch, UnknownDispatch};
pub use fallback::WithFallback;
pub use flow_session::{FlowSession, OrderedSession};
pub use host_maps::HostMaps;
pub use synthetic_work::MAX_SYNTHETIC_WORK;
pub use transfer::{Clock, Stages, Transfer, TransferCounts, UnknownTransfer};
pub use transfer_planner::{TransferCosts, TransferPlan};

/// What a device is made of, as far as it matters for choosing one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// The host's processor, running native code.
    Cpu,
    /// A GPU with memory of its own.
    DiscreteGpu,
    /// A GPU that shares the host's memory.
    IntegratedGpu,
    /// A GPU as a virtual machine sees it.
    VirtualGpu,
    /// A GPU driver that runs on the processor (lavapipe). Never chosen by `auto`.
    Software,
    /// The reference interpreter and the device that does nothing. Never chosen by `auto`.
    Reference,
}

impl DeviceKind {
    /// Whether it is a real GPU.
    pub fn is_gpu(self) -> bool {
        matches!(self, DeviceKind::DiscreteGpu | DeviceKind::IntegratedGpu | DeviceKind::VirtualGpu)
    }

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            DeviceKind::Cpu => "CPU",
            DeviceKind::DiscreteGpu => "discrete GPU",
            DeviceKind::IntegratedGpu => "integrated GPU",
            DeviceKind::VirtualGpu => "virtual GPU",
            DeviceKind::Software => "software GPU",
            DeviceKind::Reference => "reference",
        }
    }
}

/// The name of a limit that a device has on which no filter can be loaded; its value is the reason. Such a device is
/// listed, and never chosen by `auto`.
pub const RUNS_NO_FILTER: &str = "runs no filter";

/// The name of a limit that says whether a device reaches packets in the host's memory itself, where the driver lets it
/// ([`Session::import`]), or gets copies of them.
pub const READS_IN_PLACE: &str = "reads host memory in place";

/// A device in words and numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// What `--device` takes: `cpu`, `wgpu:0`, `interp`.
    pub id: String,
    /// What it calls itself: `llvmpipe (LLVM 15.0.6, 256 bits)`.
    pub name: String,
    /// What it is made of.
    pub kind: DeviceKind,
    /// The driver or code generator, with its version.
    pub driver: String,
    /// How batches can be handed to it; the first is what it does when nobody asks.
    pub dispatch: &'static [Dispatch],
    /// Limits worth knowing, each a name and a value with its unit.
    pub limits: Vec<(&'static str, String)>,
}

/// Tells work in flight to stop early; cheap to clone, shared by all clones.
#[derive(Debug, Clone, Default)]
pub struct CancelToken(Arc<Cancel>);

#[derive(Debug, Default)]
struct Cancel {
    cancelled: AtomicBool,
    /// Held by those who are about to wait, and by those who wake them.
    waiting: Mutex<()>,
    woken: Condvar,
}

impl CancelToken {
    /// A token that nobody has cancelled.
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// Asks for an end. Safe in a signal handler's thread; asking twice changes nothing.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Relaxed);
        // Whoever has looked before waits by now, and is woken.
        drop(self.0.waiting.lock());
        self.0.woken.notify_all();
    }

    /// Whether an end was asked for.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Relaxed)
    }

    /// Waits until an end is asked for.
    pub fn wait(&self) {
        while !self.wait_for(Duration::MAX) {}
    }

    /// Waits until an end is asked for, for this long at most; says whether it was.
    pub fn wait_for(&self, most: Duration) -> bool {
        let waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let woken = self.0.woken.wait_timeout_while(waiting, most, |()| !self.is_cancelled());
        drop(woken.unwrap_or_else(PoisonError::into_inner));
        self.is_cancelled()
    }
}

/// How a program is loaded.
#[derive(Clone)]
pub struct LoadOptions {
    /// Threads for devices that run on the host's processor; all cores when `None`.
    pub threads: Option<std::num::NonZeroUsize>,
    /// Batches that may be in flight at once, at least 1.
    pub depth: usize,
    /// How batches are handed to the device; its own choice when `None`. One that it does not have
    /// ([`DeviceInfo::dispatch`]) is an error.
    pub dispatch: Option<Dispatch>,
    /// For a filter with flows on a GPU: the device that takes batches most of whose packets are of one flow, which a GPU
    /// would filter one after the other on one of its lanes. The filter's maps move there, and back. With `None` all
    /// batches stay. Devices that gain nothing by it do not look at this.
    pub elephant_flow_device: Option<Arc<dyn Device>>,
    /// For benches: how long each packet keeps its lane or thread beside the filter's own time, at least; [`MAX_SYNTHETIC_WORK`] at
    /// most. The CPU and CUDA devices do so, others refuse.
    pub synthetic_work: Option<Duration>,
    /// How packets get to the device. One that the device does not have for the filter is an error, here or, where it
    /// depends on the batch's memory, of [`Session::submit`].
    pub transfer: Transfer,
    /// What moving bytes costs, by which `auto` chooses a transfer; measured, or known from before, where it is `None`.
    pub costs: Option<TransferCosts>,
    /// For benches: a batch stays at the device, and one that comes again with the same packets in the same place is filtered there
    /// without being brought anew. Its bytes may not have changed. A device that has copies made of packets refuses filters that change them,
    /// look at their metadata, or have maps, and dispatch methods that cannot; the CPU, which filters packets where they
    /// are, does not look at this.
    pub resident: bool,
    /// Takes note of what becomes of time and bytes ([`Session::stages`]). It costs some looks at the clock a batch, and on
    /// devices with clocks of their own two of those a launch or copy.
    pub record_stages: bool,
    /// Gives work up. It is looked at between the pieces that a session cuts its work into, and while
    /// the host waits for a device. [`Session::complete`] then ends with [`DeviceError::Cancelled`]
    /// within a second or two, and so do [`Session::submit`], which gives a batch back of which nothing is
    /// at the device yet, and [`Device::load`], where they have to wait for a GPU. What a device is still
    /// busy with is left to itself: dropping the session does not wait for it either.
    pub cancel: CancelToken,
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions {
            threads: None,
            depth: 3,
            dispatch: None,
            elephant_flow_device: None,
            synthetic_work: None,
            transfer: Transfer::Auto,
            costs: None,
            resident: false,
            record_stages: false,
            cancel: CancelToken::new(),
        }
    }
}

impl fmt::Debug for LoadOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadOptions")
            .field("threads", &self.threads)
            .field("depth", &self.depth)
            .field("dispatch", &self.dispatch)
            .field("elephant_flow_device", &self.elephant_flow_device.as_ref().map(|device| &device.info().id))
            .field("synthetic_work", &self.synthetic_work)
            .field("transfer", &self.transfer)
            .field("costs", &self.costs)
            .field("resident", &self.resident)
            .field("record_stages", &self.record_stages)
            .field("cancel", &self.cancel)
            .finish()
    }
}

/// Why a device could not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// No such device on this machine; the text says what to install or load.
    #[error("{0}")]
    Missing(String),
    /// The device has no way to run this program; the text says what it lacks.
    #[error("{device} cannot run this filter: {reason}")]
    Unsupported {
        /// The device's id.
        device: String,
        /// What it lacks.
        reason: String,
    },
    /// The device has no such way of taking batches.
    #[error("{device} has no dispatch method `{asked}`; it has {known}")]
    NoDispatch {
        /// The device's id.
        device: String,
        /// What was asked for.
        asked: Dispatch,
        /// What there is.
        known: String,
    },
    /// A batch is larger than the device takes, or lacks room that the filter needs.
    #[error("batch refused: {0}")]
    Refused(String),
    /// The driver gave up: out of memory, device lost, a timeout. The batches in flight are lost.
    #[error("{device}: {reason}")]
    Failed {
        /// The device's id.
        device: String,
        /// The driver's words.
        reason: String,
    },
    /// A device returned what it must not: a fault of ours or of its driver.
    #[error("{device} returned an impossible packet: {error}")]
    InvalidResult {
        /// The device's id.
        device: String,
        /// What was wrong with it.
        error: BatchError,
    },
    /// The [`CancelToken`] was used. The batches in flight are lost.
    #[error("cancelled")]
    Cancelled,
}

/// A batch that a session did not take, given back untouched.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct SubmitError {
    /// The batch, as it was.
    pub batch: Box<Batch>,
    /// Why.
    #[source]
    pub error: DeviceError,
}

/// Time that a batch spent in each stage. Stages may overlap those of other batches; a device
/// leaves at zero what it does not have or cannot tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StageTimes {
    /// Bringing packets to the device.
    pub upload: Duration,
    /// Running the filter.
    pub kernel: Duration,
    /// Bringing verdicts and changed bytes back.
    pub download: Duration,
}

impl std::ops::AddAssign for StageTimes {
    fn add_assign(&mut self, other: Self) {
        self.upload += other.upload;
        self.kernel += other.kernel;
        self.download += other.download;
    }
}

/// A batch that came back.
#[derive(Debug)]
pub struct Completion {
    /// The batch, its packets rewritten and resized as the filter left them.
    pub batch: Batch,
    /// One verdict a packet.
    pub verdicts: Verdicts,
    /// Where the time went.
    pub times: StageTimes,
}

/// Whether a device reads a span of memory in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Imported {
    /// The device reaches the memory itself: nothing is copied on the way in.
    InPlace,
    /// The device gets a copy of what it needs of each batch.
    Copied,
}

/// A device that filters can be loaded on.
pub trait Device: Send + Sync {
    /// What it is.
    fn info(&self) -> &DeviceInfo;

    /// Compiles `program` for the device and gets ready to take batches.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where the device lacks something, [`DeviceError::Failed`]
    /// where its compiler or driver gave up.
    fn load(&self, program: &Arc<Program>, options: &LoadOptions) -> Result<Box<dyn Session>, DeviceError>;
}

/// A program loaded on a device: a first-in, first-out queue of batches.
pub trait Session: Send {
    /// Announces memory that batches will come from, so that the device can map it once. Calling
    /// it is never necessary: a session meets unknown memory in [`Session::submit`] too.
    ///
    /// # Errors
    /// Only where the driver is lost: memory that cannot be imported is [`Imported::Copied`].
    fn import(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError>;

    /// Queues a batch and does not wait for it. At most [`LoadOptions::depth`] may be in flight. A
    /// device may start on it now, or leave the filtering of a small one to [`Session::complete`]. The
    /// batch may be one that came back, from this session or another, as long as the room that the
    /// filter needs is there ([`Batch::room`]).
    ///
    /// # Errors
    /// Gives the batch back where it cannot be taken: the queue is full, the packets have no room
    /// and the filter changes lengths, the batch is larger than the device takes.
    fn submit(&mut self, batch: Batch) -> Result<(), SubmitError>;

    /// Waits for the oldest batch in flight, or filters it on the caller's thread where the device left
    /// that until now; `None` when there is none.
    ///
    /// # Errors
    /// [`DeviceError::Failed`], [`DeviceError::InvalidResult`] or [`DeviceError::Cancelled`]; the session
    /// is of no more use then.
    fn complete(&mut self) -> Result<Option<Completion>, DeviceError>;

    /// A copy of the memory of a map of the filter's, by its number ([`crate::map`] reads it), as the batches submitted
    /// before leave it: this waits until they have been filtered. They stay in flight, to be completed.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] where there is no such map; [`DeviceError::Unsupported`] where the device has no maps;
    /// those of [`Session::complete`], after which the session is of no more use.
    fn map_words(&mut self, map: usize) -> Result<Vec<u32>, DeviceError> {
        Err(DeviceError::Unsupported { device: "the device".into(), reason: format!("it has no map {map}") })
    }

    /// Some words of a map's memory, from word `at` on: for who needs few of them, where a device need not copy all.
    ///
    /// # Errors
    /// As [`Session::map_words`]; [`DeviceError::Refused`] also where the map ends before the words do.
    fn map_words_at(&mut self, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        let all = self.map_words(map)?;
        let asked = at.checked_add(words).and_then(|end| all.get(at..end));
        asked.map(<[u32]>::to_vec).ok_or_else(|| beyond(map, at, words, all.len()))
    }

    /// Writes words of a map's memory, from word `at` on ([`crate::map::Table`] makes them): all batches
    /// submitted after this see them, and none submitted before, for which this waits.
    ///
    /// # Errors
    /// As [`Session::map_words`]; [`DeviceError::Refused`] also where the map ends before the words do.
    fn set_map_words(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        let _ = (at, words);
        Err(DeviceError::Unsupported { device: "the device".into(), reason: format!("it has no map {map}") })
    }

    /// Has done now, and waits for, what the session would do beside filtering to get faster, like compiling more code: for
    /// measurements. What is to be learnt of the traffic still is, from the batches that follow.
    fn finish_background_work(&mut self) {}

    /// Batches in flight now.
    fn in_flight(&self) -> usize;

    /// Batches that may be in flight at once.
    fn depth(&self) -> usize;

    /// What became of time and bytes in the batches that are complete; `None` where nobody asked for it when the filter was
    /// loaded ([`LoadOptions::record_stages`]), or the device cannot tell.
    fn stages(&self) -> Option<Stages> {
        None
    }

    /// How the packets of the batch before came to the device, and why; `None` where nothing was decided.
    fn transfer_plan(&self) -> Option<TransferPlan> {
        None
    }

    /// A session of the same filter on another device, for batches that would have to wait since this one has all that it
    /// takes ([`WithFallback`]); `None` where there is none.
    fn fallback(&mut self) -> Option<&mut dyn Session> {
        None
    }

    /// Submits one batch and waits for it. For tests and small programs: nothing else may be in
    /// flight.
    ///
    /// # Errors
    /// As [`Session::submit`] and [`Session::complete`].
    fn run(&mut self, batch: Batch) -> Result<Completion, DeviceError> {
        assert_eq!(self.in_flight(), 0, "run needs an idle session");
        self.submit(batch).map_err(|refused| refused.error)?;
        Ok(self.complete()?.expect("one batch is in flight"))
    }
}

/// The layout of a map of a filter's, by its number.
///
/// # Errors
/// [`DeviceError::Refused`] where there is no such map.
pub fn map_layout(program: &Program, map: usize) -> Result<Layout, DeviceError> {
    let declared = program.maps().get(map).map(Layout::of);
    let all = program.maps().len();
    declared.ok_or_else(|| DeviceError::Refused(format!("there is no map {map}: the filter has {all}, counted from 0")))
}

/// Refuses words that do not all lie in a map's memory.
///
/// # Errors
/// [`DeviceError::Refused`].
pub fn check_map_range(program: &Program, map: usize, at: usize, words: usize) -> Result<(), DeviceError> {
    let all = map_layout(program, map)?.words();
    if at <= all && words <= all - at {
        return Ok(());
    }
    Err(beyond(map, at, words, all))
}

fn beyond(map: usize, at: usize, words: usize, all: usize) -> DeviceError {
    DeviceError::Refused(format!("words {at} to {} of map {map}, which has {all}", at.saturating_add(words)))
}

/// Refuses a batch that no session of `program` may take: the check that every session makes first, whose device reaches
/// the host's memory alone.
///
/// # Errors
/// As [`check_host_memory`] and [`check_batch`].
pub fn check_submission(program: &Program, batch: &Batch, in_flight: usize, depth: usize) -> Result<(), DeviceError> {
    check_host_memory(batch.span())?;
    check_batch(program, batch, in_flight, depth)
}

/// Refuses memory that the host does not reach.
///
/// # Errors
/// [`DeviceError::Refused`] where it is another device's.
pub fn check_host_memory(span: &Span) -> Result<(), DeviceError> {
    match span.device_view() {
        Some(DeviceView { device: owner, .. }) if !span.is_on_host() => Err(DeviceError::Refused(format!(
            "its packets are in the memory of {owner}, which this device does not reach; run the filter on {owner}, or have \
             packets in the host's memory"
        ))),
        _ => Ok(()),
    }
}

/// The same for devices that reach the batch's packets wherever they are.
///
/// # Errors
/// [`DeviceError::Refused`] where the queue is full or the filter needs room that is not there.
pub fn check_batch(program: &Program, batch: &Batch, in_flight: usize, depth: usize) -> Result<(), DeviceError> {
    if in_flight >= depth {
        return Err(DeviceError::Refused(format!("{in_flight} batches are in flight already, complete one first")));
    }
    if program.facts().changes_length && batch.room() == crate::packet::ResizeRoom::None && !batch.is_empty() {
        return Err(DeviceError::Refused(
            "the filter changes packet lengths, and the packets have no room for it (Room::Both), or have used it up"
                .into(),
        ));
    }
    Ok(())
}

/// A session of a program whose maps hold what they hold from the beginning: the last that a device does to load it.
///
/// # Errors
/// Those of [`Session::set_map_words`].
pub fn load_initial_maps(program: &Program, mut session: Box<dyn Session>) -> Result<Box<dyn Session>, DeviceError> {
    for initial in program.initial_map_words() {
        session.set_map_words(initial.map, initial.offset, &initial.words)?;
    }
    Ok(session)
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Instant;

    use super::*;

    #[test]
    fn who_waits_for_an_end_is_woken_by_it() {
        let token = CancelToken::new();
        assert!(!token.wait_for(Duration::ZERO) && !token.wait_for(Duration::from_millis(1)));
        thread::scope(|scope| {
            let waiting: Vec<_> = (0..4).map(|_| scope.spawn(|| token.wait())).collect();
            let long = scope.spawn(|| token.wait_for(Duration::from_secs(3600)));
            token.cancel();
            waiting.into_iter().for_each(|it| it.join().unwrap());
            assert!(long.join().unwrap());
        });
        let begun = Instant::now();
        token.wait();
        assert!(token.wait_for(Duration::MAX) && begun.elapsed() < Duration::from_secs(1000));
    }
}
