//! The interface between filters and backends: a [`Device`] compiles a [`Program`] and returns a
//! [`Session`], a first-in, first-out queue that takes batches and returns them with their
//! verdicts.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::map::layout::Layout;
use crate::packet::{Batch, BatchError, DeviceView, Span, Verdicts};
use crate::program::Program;

pub mod chunk;
pub mod descriptor_format;
mod dispatch;
mod fallback;
mod flow_session;
mod host_maps;
pub(crate) mod host_threads;
pub mod launch_budget;
mod map_entry;
mod map_handle;
pub mod metadata_format;
pub mod noop;
pub mod offload;
pub mod record_kernel;
mod synthetic_work;
mod transfer;
pub mod transfer_planner;

pub use dispatch::{Dispatch, SingleDispatch, UnknownDispatch};
pub use fallback::{FallbackSession, WithFallback};
pub use flow_session::{FlowSession, OrderedSession};
pub use host_maps::HostMaps;
pub use map_entry::{EntryAccess, EntryUpdate};
pub use map_handle::{MapHandle, OpenError, Snapshot, UpdateError};
pub use offload::has_abandoned_work;
pub use synthetic_work::MAX_SYNTHETIC_WORK;
pub use transfer::{Clock, Stages, Transfer, TransferCounts, UnknownTransfer};
pub use transfer_planner::{TransferCosts, TransferPlan};

/// The class of hardware that a device is, as far as choosing a device depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// The host's processor, running native code.
    Cpu,
    /// A GPU with its own memory.
    DiscreteGpu,
    /// A GPU that shares the host's memory.
    IntegratedGpu,
    /// A GPU as the guest of a virtual machine sees it.
    VirtualGpu,
    /// A GPU driver that runs on the processor (lavapipe). `auto` never chooses it.
    Software,
    /// The reference interpreter and the no-op device. `auto` never chooses them.
    Reference,
}

impl DeviceKind {
    /// Whether this is GPU hardware, as opposed to a processor or a software driver.
    pub fn is_gpu(self) -> bool {
        matches!(self, DeviceKind::DiscreteGpu | DeviceKind::IntegratedGpu | DeviceKind::VirtualGpu)
    }

    /// The name for people.
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

/// A limit or property of a device worth showing, as a name and a value.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceLimit {
    /// No filter can be loaded on the device, for this reason. Such a device is listed, and `auto`
    /// never chooses it.
    RunsNoFilter(String),
    /// Whether the device accesses packets in host memory directly ([`Session::import`]) or works
    /// on copies.
    ReadsInPlace(InPlaceReads),
    /// A limit that is only shown.
    Other {
        /// The name: `memory`.
        name: &'static str,
        /// The value with its unit: `16384 MiB`.
        value: String,
    },
}

impl DeviceLimit {
    /// Creates a limit that is only shown.
    pub fn new(name: &'static str, value: impl Into<String>) -> DeviceLimit {
        DeviceLimit::Other { name, value: value.into() }
    }

    /// The name for people.
    pub fn name(&self) -> &'static str {
        match self {
            DeviceLimit::RunsNoFilter(_) => "runs no filter",
            DeviceLimit::ReadsInPlace(_) => "reads host memory in place",
            DeviceLimit::Other { name, .. } => name,
        }
    }

    /// The value for people, with its unit.
    pub fn value(&self) -> &str {
        match self {
            DeviceLimit::RunsNoFilter(reason) => reason,
            DeviceLimit::ReadsInPlace(reads) => reads.name(),
            DeviceLimit::Other { value, .. } => value,
        }
    }
}

/// Whether a device accesses packets in host memory without a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InPlaceReads {
    /// No dispatch method reads packets in place: the device works on copies.
    Never,
    /// Some dispatch methods read packets in place, or all do if the memory allows it, as this text
    /// says.
    Sometimes(&'static str),
    /// Every dispatch method reads packets in place.
    Always,
}

impl InPlaceReads {
    /// The value for people.
    pub fn name(self) -> &'static str {
        match self {
            InPlaceReads::Never => "no",
            InPlaceReads::Sometimes(condition) => condition,
            InPlaceReads::Always => "yes",
        }
    }
}

impl From<bool> for InPlaceReads {
    fn from(always: bool) -> InPlaceReads {
        if always { InPlaceReads::Always } else { InPlaceReads::Never }
    }
}

/// Identity and properties of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The argument of `--device`: `cpu`, `wgpu:0`, `interp`.
    pub id: String,
    /// The name that the device or its driver reports: `llvmpipe (LLVM 15.0.6, 256 bits)`.
    pub name: String,
    /// The class of hardware.
    pub kind: DeviceKind,
    /// The driver or code generator, with its version.
    pub driver: String,
    /// The supported dispatch methods; the first is the default.
    pub dispatch: &'static [Dispatch],
    /// Limits and properties worth showing, in the order of display.
    pub limits: Vec<DeviceLimit>,
}

impl DeviceInfo {
    /// Why no filter can be loaded on the device; `None` if filters can.
    pub fn runs_no_filter(&self) -> Option<&str> {
        self.limits.iter().find_map(|limit| match limit {
            DeviceLimit::RunsNoFilter(reason) => Some(reason.as_str()),
            _ => None,
        })
    }

    /// Whether the device accesses packets in host memory without a copy.
    pub fn in_place_reads(&self) -> InPlaceReads {
        let reads = self.limits.iter().find_map(|limit| match limit {
            DeviceLimit::ReadsInPlace(reads) => Some(*reads),
            _ => None,
        });
        reads.unwrap_or(InPlaceReads::Never)
    }

    /// Replaces what [`DeviceInfo::in_place_reads`] returns.
    pub fn set_in_place_reads(&mut self, reads: InPlaceReads) {
        self.limits.retain(|limit| !matches!(limit, DeviceLimit::ReadsInPlace(_)));
        self.limits.push(DeviceLimit::ReadsInPlace(reads));
    }
}

/// Cancels work in flight. Clones share one state.
#[derive(Debug, Clone, Default)]
pub struct CancelToken(Arc<Cancel>);

#[derive(Debug, Default)]
struct Cancel {
    cancelled: AtomicBool,
    /// Locked by waiters before they wait and by the canceller before it notifies, so that no
    /// wake-up is lost.
    waiting: Mutex<()>,
    woken: Condvar,
}

impl CancelToken {
    /// Creates a token that is not cancelled.
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// Requests cancellation; idempotent, and safe on a signal-handling thread.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Relaxed);
        // A waiter that read the flag as unset holds the lock until it waits, so it gets this
        // notification.
        drop(self.0.waiting.lock());
        self.0.woken.notify_all();
    }

    /// Whether cancellation was requested.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Relaxed)
    }

    /// Blocks until cancellation is requested.
    pub fn wait(&self) {
        while !self.wait_for(Duration::MAX) {}
    }

    /// Blocks until cancellation is requested, at most for `timeout`. Returns whether it was.
    pub fn wait_for(&self, timeout: Duration) -> bool {
        let waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let woken = self.0.woken.wait_timeout_while(waiting, timeout, |()| !self.is_cancelled());
        drop(woken.unwrap_or_else(PoisonError::into_inner));
        self.is_cancelled()
    }
}

/// Options for [`Device::load`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LoadOptions {
    /// Number of threads for devices that run on the host's processor, and for the host's part of
    /// large batches on others; one per core if `None`.
    pub threads: Option<NonZeroUsize>,
    /// How long a thread of a device on the host's processor polls for more work before it sleeps,
    /// and the calling thread for a batch's result; [`DEFAULT_IDLE_SPIN`] by default. A sleeping
    /// thread takes tens of microseconds to wake. One that polls uses its core, unless other
    /// threads want it. With zero, threads sleep at once.
    pub idle_spin: Duration,
    /// Maximum number of batches in flight, at least 1.
    pub depth: usize,
    /// The dispatch method; the device's default if `None`. Loading fails if
    /// [`DeviceInfo::dispatch`] lacks it.
    pub dispatch: Option<Dispatch>,
    /// Device that takes over batches dominated by one (elephant) flow. A GPU filters the packets
    /// of a flow one after another on a single lane, so such a batch is faster elsewhere. The
    /// filter's maps move to that device and back. Used by GPU devices for filters with flows only;
    /// if `None`, all batches stay on the GPU.
    pub elephant_flow_device: Option<Arc<dyn Device>>,
    /// How packets reach the device. If the device cannot do that for the filter, loading fails, or
    /// [`Session::submit`] does if it depends on the batch's memory.
    pub transfer: Transfer,
    /// Cancels the session's work. Sessions check it between chunks and while the host waits for
    /// the device. [`Session::complete`] then fails with [`DeviceError::Cancelled`] within a second
    /// or two. So do [`Session::submit`], which returns the batch if none of it has reached the
    /// device, and [`Device::load`] if it has to wait for a GPU. Work that the device has begun is
    /// abandoned: dropping the session does not wait for it.
    pub cancel: CancelToken,
    /// Measurement, for benchmarks; the default measures nothing.
    pub measure: MeasureOptions,
}

/// Options for measuring a session, part of [`LoadOptions`].
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct MeasureOptions {
    /// Record time and bytes per stage ([`Instrumented::stages`]). Costs a few clock reads per
    /// batch, and on devices with timestamps two per launch and copy.
    pub record_stages: bool,
    /// Minimum time that each packet occupies its lane or thread beyond the filter's own, at most
    /// [`MAX_SYNTHETIC_WORK`]. Only the CPU and CUDA devices support it; the others refuse to load.
    pub synthetic_work: Option<Duration>,
    /// Costs of moving bytes, from which `auto` chooses a transfer; measured or taken from the
    /// cache if `None`.
    pub costs: Option<TransferCosts>,
    /// Batches stay resident on the device. A batch that is submitted again, with the same packets
    /// at the same place and unchanged bytes, is filtered there without another upload. Devices
    /// that copy packets refuse filters that write packets, read metadata or have maps, and
    /// dispatch methods that cannot keep uploads. The CPU filters packets in place and ignores
    /// this.
    pub resident: bool,
}

/// Default of [`LoadOptions::idle_spin`]: about what waking a thread costs, so that polling never
/// costs more than twice as much as the better of polling and sleeping.
pub const DEFAULT_IDLE_SPIN: Duration = Duration::from_micros(50);

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions {
            threads: None,
            idle_spin: DEFAULT_IDLE_SPIN,
            depth: 3,
            dispatch: None,
            elephant_flow_device: None,
            transfer: Transfer::Auto,
            cancel: CancelToken::new(),
            measure: MeasureOptions::default(),
        }
    }
}

impl LoadOptions {
    /// Sets [`LoadOptions::threads`].
    #[must_use]
    pub fn with_threads(self, threads: impl Into<Option<NonZeroUsize>>) -> LoadOptions {
        LoadOptions { threads: threads.into(), ..self }
    }

    /// Sets [`LoadOptions::idle_spin`].
    #[must_use]
    pub fn with_idle_spin(self, idle_spin: Duration) -> LoadOptions {
        LoadOptions { idle_spin, ..self }
    }

    /// Sets [`LoadOptions::depth`].
    #[must_use]
    pub fn with_depth(self, depth: usize) -> LoadOptions {
        LoadOptions { depth, ..self }
    }

    /// Sets [`LoadOptions::dispatch`].
    #[must_use]
    pub fn with_dispatch(self, dispatch: impl Into<Option<Dispatch>>) -> LoadOptions {
        LoadOptions { dispatch: dispatch.into(), ..self }
    }

    /// Sets [`LoadOptions::elephant_flow_device`].
    #[must_use]
    pub fn with_elephant_flow_device(self, device: impl Into<Option<Arc<dyn Device>>>) -> LoadOptions {
        LoadOptions { elephant_flow_device: device.into(), ..self }
    }

    /// Sets [`LoadOptions::transfer`].
    #[must_use]
    pub fn with_transfer(self, transfer: Transfer) -> LoadOptions {
        LoadOptions { transfer, ..self }
    }

    /// Sets [`LoadOptions::cancel`].
    #[must_use]
    pub fn with_cancel(self, cancel: CancelToken) -> LoadOptions {
        LoadOptions { cancel, ..self }
    }

    /// Sets [`LoadOptions::measure`].
    #[must_use]
    pub fn with_measure(self, measure: MeasureOptions) -> LoadOptions {
        LoadOptions { measure, ..self }
    }
}

impl MeasureOptions {
    /// Sets [`MeasureOptions::record_stages`].
    #[must_use]
    pub fn with_record_stages(self, record_stages: bool) -> MeasureOptions {
        MeasureOptions { record_stages, ..self }
    }

    /// Sets [`MeasureOptions::synthetic_work`].
    #[must_use]
    pub fn with_synthetic_work(self, synthetic_work: impl Into<Option<Duration>>) -> MeasureOptions {
        MeasureOptions { synthetic_work: synthetic_work.into(), ..self }
    }

    /// Sets [`MeasureOptions::costs`].
    #[must_use]
    pub fn with_costs(self, costs: impl Into<Option<TransferCosts>>) -> MeasureOptions {
        MeasureOptions { costs: costs.into(), ..self }
    }

    /// Sets [`MeasureOptions::resident`].
    #[must_use]
    pub fn with_resident(self, resident: bool) -> MeasureOptions {
        MeasureOptions { resident, ..self }
    }
}

impl fmt::Debug for dyn Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.info().id, f)
    }
}

/// Errors of devices and sessions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The machine has no such device; the text says what to install or load.
    #[error("{0}")]
    Missing(String),
    /// The device cannot run this program.
    #[error("{device} cannot run this filter: {reason}")]
    Unsupported {
        /// The device's id.
        device: String,
        /// The feature that it lacks.
        reason: String,
    },
    /// The device does not support the dispatch method.
    #[error("{device} has no dispatch method `{requested}`; it has {supported}")]
    NoDispatch {
        /// The device's id.
        device: String,
        /// The requested method.
        requested: Dispatch,
        /// The supported methods, for the message.
        supported: String,
    },
    /// The batch was not accepted: it is too large, or lacks the headroom and tailroom that the
    /// filter needs.
    #[error("batch refused: {0}")]
    Refused(String),
    /// The driver failed: out of memory, device lost, timeout. The batches in flight are lost.
    #[error("{device}: {reason}")]
    Failed {
        /// The device's id.
        device: String,
        /// The driver's message.
        reason: String,
    },
    /// The device returned an invalid result: a bug of ours or of its driver.
    #[error("{device} returned an invalid result: {error}")]
    InvalidResult {
        /// The device's id.
        device: String,
        /// The rule that the result breaks.
        error: BatchError,
    },
    /// The [`CancelToken`] was triggered. The batches in flight are lost.
    #[error("cancelled")]
    Cancelled,
}

/// Error of [`Session::submit`], with the batch that was not accepted.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct SubmitError {
    /// The batch, unchanged.
    pub batch: Box<Batch>,
    /// The reason.
    #[source]
    pub error: DeviceError,
}

/// Time that one batch spent in each stage. Stages of different batches may overlap. Stages that a
/// device does not have, or cannot tell apart, are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StageTimes {
    /// Copying packets to the device.
    pub upload: Duration,
    /// Running the filter.
    pub kernel: Duration,
    /// Copying verdicts and changed bytes back.
    pub download: Duration,
}

impl std::ops::AddAssign for StageTimes {
    fn add_assign(&mut self, other: Self) {
        self.upload += other.upload;
        self.kernel += other.kernel;
        self.download += other.download;
    }
}

/// A completed batch.
#[derive(Debug)]
pub struct Completion {
    /// The batch, with packets rewritten and resized by the filter.
    pub batch: Batch,
    /// One verdict per packet.
    pub verdicts: Verdicts,
    /// Time spent per stage.
    pub times: StageTimes,
}

/// How a device accesses a span of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Imported {
    /// The device accesses the memory directly, without a copy on the way in.
    InPlace,
    /// The device gets a copy of the bytes it needs of each batch.
    Copied,
}

/// A device that filters can be loaded on.
pub trait Device: Send + Sync {
    /// The device's identity and properties.
    fn info(&self) -> &DeviceInfo;

    /// Compiles `program` for the device and returns a session that takes batches.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] if the device lacks a feature, [`DeviceError::Failed`] if its
    /// compiler or driver fails.
    fn load(&self, program: &Arc<Program>, options: &LoadOptions) -> Result<Box<dyn Session>, DeviceError>;
}

/// A program loaded on a device: a first-in, first-out queue of batches.
pub trait Session: Instrumented + Send {
    /// Registers memory that batches will come from, so that the device maps it once. Optional:
    /// [`Session::submit`] accepts memory that was not registered.
    ///
    /// # Errors
    /// If the driver is lost. Memory that cannot be imported is [`Imported::Copied`].
    fn import(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError>;

    /// Queues a batch without waiting for it. At most [`LoadOptions::depth`] batches may be in
    /// flight. A device may start at once, or defer a small batch to [`Session::complete`]. A
    /// completed batch, of this session or another, may be submitted again as long as it has the
    /// room that the filter needs ([`Batch::room`]).
    ///
    /// # Errors
    /// Returns the batch if it cannot be accepted: the queue is full, the filter changes lengths
    /// and the packets have no room, or the batch is too large for the device.
    fn submit(&mut self, batch: Batch) -> Result<(), SubmitError>;

    /// Waits for the oldest batch in flight, or filters it on the caller's thread if the device
    /// deferred it. Returns `None` if no batch is in flight.
    ///
    /// # Errors
    /// [`DeviceError::Failed`], [`DeviceError::InvalidResult`] or [`DeviceError::Cancelled`]; the
    /// session is unusable afterwards.
    fn complete(&mut self) -> Result<Option<Completion>, DeviceError>;

    /// Returns a copy of map `map`'s memory ([`crate::map`] interprets it) after all batches
    /// submitted so far: waits until they are filtered. They stay in flight until completed.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] if there is no such map; [`DeviceError::Unsupported`] if the device
    /// has no maps; the errors of [`Session::complete`], after which the session is unusable.
    fn map_words(&mut self, map: usize) -> Result<Vec<u32>, DeviceError> {
        Err(DeviceError::Unsupported { device: "the device".into(), reason: format!("it has no map {map}") })
    }

    /// Returns `words` words of a map's memory from word `at` on, which saves a device from copying
    /// the whole map.
    ///
    /// # Errors
    /// As [`Session::map_words`]; also [`DeviceError::Refused`] if the range exceeds the map.
    fn map_words_at(&mut self, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        let all = self.map_words(map)?;
        let range = at.checked_add(words).and_then(|end| all.get(at..end));
        range.map(<[u32]>::to_vec).ok_or_else(|| out_of_map(map, at, words, all.len()))
    }

    /// Returns where the device has map `map`'s memory, for other kernels of this process, such as
    /// the consumer of a buffer that the filter fills. `None` if no such address exists: the map is
    /// in host memory, the device's API has no addresses, or there is no such map. The memory lives
    /// as long as the session. Batches that were completed have written it, and others may be
    /// writing it. Other kernels must not: the filter may read it through caches that do not see
    /// their writes. With a device for elephant flows, the map and its address may change from
    /// batch to batch.
    ///
    /// # Errors
    /// The errors of [`Session::complete`], after which the session is unusable.
    fn map_device_view(&mut self, map: usize) -> Result<Option<DeviceView>, DeviceError> {
        let _ = map;
        Ok(None)
    }

    /// Writes words of a map's memory from word `at` on ([`crate::map::Table`] produces them).
    /// Waits for the batches submitted before; only batches submitted afterwards see the new words.
    ///
    /// # Errors
    /// As [`Session::map_words`]; also [`DeviceError::Refused`] if the range exceeds the map.
    fn set_map_words(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        let _ = (at, words);
        Err(DeviceError::Unsupported { device: "the device".into(), reason: format!("it has no map {map}") })
    }

    /// Number of batches in flight.
    fn in_flight(&self) -> usize;

    /// Maximum number of batches in flight.
    fn depth(&self) -> usize;

    /// Submits one batch and waits for it. For tests and small programs.
    ///
    /// # Errors
    /// As [`Session::submit`] and [`Session::complete`].
    ///
    /// # Panics
    /// If another batch is in flight.
    fn run(&mut self, batch: Batch) -> Result<Completion, DeviceError> {
        assert_eq!(self.in_flight(), 0, "`run` needs a session without batches in flight");
        self.submit(batch).map_err(|refused| refused.error)?;
        Ok(self.complete()?.expect("one batch is in flight"))
    }
}

/// Measurements and warnings of a session. Filtering does not need them, so each method does
/// nothing by default.
pub trait Instrumented {
    /// Runs pending background optimisation, such as compiling more code, to its end. What depends
    /// on the traffic is still learnt from later batches.
    fn finish_background_work(&mut self) {}

    /// Time and bytes of the completed batches, per stage; `None` if
    /// [`MeasureOptions::record_stages`] was not set, or the device cannot tell.
    fn stages(&self) -> Option<Stages> {
        None
    }

    /// How the packets of the previous batch reached the device, and why; `None` if there was
    /// nothing to decide.
    fn transfer_plan(&self) -> Option<TransferPlan> {
        None
    }

    /// Takes what the user should know about the session and what does not end it, such as a
    /// fallback to a slower transfer: each once, as a sentence with the next step.
    fn take_warnings(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// Returns the memory layout of map `map` of a program.
///
/// # Errors
/// [`DeviceError::Refused`] if there is no such map.
pub fn map_layout(program: &Program, map: usize) -> Result<Layout, DeviceError> {
    let declared = program.maps().get(map).map(Layout::of);
    let all = program.maps().len();
    declared.ok_or_else(|| DeviceError::Refused(format!("there is no map {map}: the filter has {all}, counted from 0")))
}

/// Checks that `words` words from word `at` on lie inside a map's memory.
///
/// # Errors
/// [`DeviceError::Refused`] if they do not, or there is no such map.
pub fn check_map_range(program: &Program, map: usize, at: usize, words: usize) -> Result<(), DeviceError> {
    let all = map_layout(program, map)?.words();
    if at <= all && words <= all - at {
        return Ok(());
    }
    Err(out_of_map(map, at, words, all))
}

fn out_of_map(map: usize, at: usize, words: usize, all: usize) -> DeviceError {
    DeviceError::Refused(format!(
        "words {at}..{} lie outside map {map}, which has {all} words",
        at.saturating_add(words)
    ))
}

/// The checks that every session makes first in [`Session::submit`] if its device accesses host
/// memory only.
///
/// # Errors
/// As [`check_host_memory`] and [`check_batch`].
pub fn check_submission(program: &Program, batch: &Batch, in_flight: usize, depth: usize) -> Result<(), DeviceError> {
    check_host_memory(batch.span())?;
    check_batch(program, batch, in_flight, depth)
}

/// Checks that the host can access the memory.
///
/// # Errors
/// [`DeviceError::Refused`] if only a device can.
pub fn check_host_memory(span: &Span) -> Result<(), DeviceError> {
    match span.device_view() {
        Some(DeviceView { device: owner, .. }) if !span.is_on_host() => Err(DeviceError::Refused(format!(
            "its packets are in the memory of {owner}, which this device does not reach; run the filter on {owner}, or \
             receive packets into host memory"
        ))),
        _ => Ok(()),
    }
}

/// The checks of [`check_submission`] without that for host memory, for devices that access packets
/// in device memory too.
///
/// # Errors
/// [`DeviceError::Refused`] if the queue is full, or the packets lack the room that the filter
/// needs.
pub fn check_batch(program: &Program, batch: &Batch, in_flight: usize, depth: usize) -> Result<(), DeviceError> {
    if in_flight >= depth {
        return Err(DeviceError::Refused(format!("{in_flight} batches are in flight already, complete one first")));
    }
    if program.facts().changes_length && batch.room() == crate::packet::ResizeRoom::None && !batch.is_empty() {
        return Err(DeviceError::Refused(
            "the filter changes packet lengths, but the packets have no headroom and tailroom (`ResizeRoom::Both`), or \
             have used it up"
                .into(),
        ));
    }
    Ok(())
}

/// Writes the initial contents of the program's maps: the last step of [`Device::load`].
///
/// # Errors
/// As [`Session::set_map_words`].
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
    fn cancelling_wakes_all_waiters() {
        let token = CancelToken::new();
        assert!(!token.wait_for(Duration::ZERO) && !token.wait_for(Duration::from_millis(1)));
        thread::scope(|scope| {
            let waiting: Vec<_> = (0..4).map(|_| scope.spawn(|| token.wait())).collect();
            let long = scope.spawn(|| token.wait_for(Duration::from_secs(3600)));
            token.cancel();
            waiting.into_iter().for_each(|it| it.join().unwrap());
            assert!(long.join().unwrap());
        });
        let start = Instant::now();
        token.wait();
        assert!(token.wait_for(Duration::MAX) && start.elapsed() < Duration::from_secs(1000));
    }
}
