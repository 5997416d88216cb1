//! Runs the modes of `portcullis l2fwd`, one after the other.

use portcullis::diagnostics::Source;
use portcullis::frontend::wgsl;
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use portcullis::device::{
    CancelToken, Device, DeviceError, DeviceInfo, Dispatch, LoadOptions, MAX_SYNTHETIC_WORK, MeasureOptions, Session,
};
use portcullis::packet_io::dpdk::{self, DpdkError, Options, PortInfo};
use portcullis::packet_io::live::Lane;
use portcullis::pipeline::Event;
use portcullis::pipeline::live::{
    BatchPolicy, LaneError, LaneStats, LiveLane, LiveOptions, MeasurementWindow, OverloadPolicy, RunStats, Snapshot,
    Summary, run_live,
};
use portcullis::program::{Program, ProgramOptions};
use portcullis::{devices, gpudev};

use super::Args;
use super::null_session::NullSession;
use super::plan::{self, Mode, Workload};
use super::report::{Measurements, Report, Row, StopReason, Throughput};
use crate::failure::{FAILED, Failure, INTERRUPTED};
use crate::filter::FilterArgs;
use crate::out;
use crate::run::interrupt::Interrupt;
use crate::run::live::dpdk as ports;
use crate::run::live::{CaptureRequirements, drive, lane_sessions, mempool};

/// Stock filter used when none is given; l2fwd-nv does the same.
const MAC_SWAP: &str = "mac_swap";

/// Default warm-up, in packets.
const DEFAULT_WARM_UP: u64 = 1_000_000;

/// Minimum number of packet buffers of a pipeline.
const MIN_BUFFERS: u32 = 16384;

/// Maximum number of bursts queued for a pipeline's sending thread.
const MAX_QUEUED_BURSTS: usize = 4096;

/// Approximate number of packets in a port's ring.
const RING_SIZE: usize = 1024;

/// Interval at which Ctrl-C is checked.
const INTERRUPT_POLL: Duration = Duration::from_millis(10);

/// State that all modes share.
struct Benchmark<'a> {
    args: &'a Args,
    program: Arc<Program>,
    options: Options,
    gpu: Option<gpudev::GpuChoice>,
    idle_exit: Option<Duration>,
    warm_up: u64,
    interrupt: Interrupt,
    /// Warnings that were printed.
    warnings: Mutex<Vec<String>>,
}

/// Reason why a mode was not measured.
enum NotMeasured {
    /// This machine or device cannot run the mode.
    Unavailable(String),
    /// No mode could run.
    Failed(Failure),
}

impl From<DeviceError> for NotMeasured {
    fn from(error: DeviceError) -> NotMeasured {
        NotMeasured::Unavailable(error.to_string())
    }
}

/// Device that runs the filter and its options; `None` for workload `none`.
type Worker = Option<(Arc<dyn Device>, LoadOptions)>;

/// Runs all modes and delivers the report.
pub fn run(args: &Args) -> Result<(), Failure> {
    let given = ports::ports("--dpdk", &args.dpdk)?;
    let idle_exit = args.idle_exit.or(ports::default_idle_exit(&given));
    let are_captures = given.iter().all(ports::is_capture);
    let modes = plan::modes(&args.workload, &args.mempool, &args.burst);
    drive::check_processors(&args.pin)?;
    let filter = match (&args.filter, &args.expr) {
        (Some(file), _) => Some(FilterArgs::from_name(file)?.with_parameters(&args.set)),
        (None, Some(expression)) => Some(FilterArgs::from_expression(expression)),
        (None, None) => None,
    };
    let program = Arc::new(match &filter {
        Some(filter) => filter.load()?,
        None => wgsl::compile(
            &Source::new(MAC_SWAP, portcullis::stock::wgsl(MAC_SWAP).expect("a stock filter")),
            &ProgramOptions::default(),
        )?,
    });
    let name = filter.map_or(MAC_SWAP.to_owned(), |filter| filter.name());
    if !program.maps().is_empty() && (args.pipelines > 1 || given.len() > 1) {
        let what = "the filter has maps, which all packets share, and they take one pipeline";
        return Err(Failure::Usage(format!("--filter {name}: {what}")));
    }
    let options = Options::new(given)
        .with_redirect(ports::redirects(&args.redirect)?)
        .with_queues(args.pipelines)
        .with_eal(ports::eal(args.eal.as_deref())?)
        .with_split(args.header_split)
        // DPDK's memory is fragmented by earlier modes, so a mode with more buffers may need fresh
        // memory.
        .with_later(modes.iter().map(|mode| buffers(args, *mode)).collect::<BTreeSet<_>>().into_iter().sum());
    ports::warn_about_truncated_captures(&options);
    let gpu = mempool::gpu(args.gpu.as_deref())?;
    if let Some(work) = args.work.filter(|work| *work > MAX_SYNTHETIC_WORK) {
        return Err(Failure::Usage(format!("--work: {work:?} is more than {MAX_SYNTHETIC_WORK:?}")));
    }
    let interrupt = Interrupt::default();
    interrupt.listen_always();
    interrupt.begin();
    let warm_up = args.warm_up.unwrap_or(if are_captures { 0 } else { DEFAULT_WARM_UP });
    let warnings = Mutex::default();
    let benchmark = Benchmark { args, program, options, gpu, idle_exit, warm_up, interrupt, warnings };

    let mut report = Report::new(name, args);
    let mut failed = None;
    for mode in &modes {
        let row = if benchmark.interrupt.stop.is_cancelled() {
            Row::not_run(*mode, "interrupted earlier".into())
        } else {
            match benchmark.measure(*mode, &mut report) {
                Ok(row) => row,
                Err(NotMeasured::Unavailable(reason)) if modes.len() == 1 => return Err(Failure::Error(reason)),
                Err(NotMeasured::Unavailable(reason)) => Row::not_run(*mode, reason),
                Err(NotMeasured::Failed(failure)) => {
                    failed = Some(failure);
                    break;
                }
            }
        };
        report.rows.push(row);
    }
    benchmark.interrupt.end();
    if report.rows.is_empty() {
        return failed.map_or(Ok(()), Err);
    }
    out::write_report(args.json.as_deref(), report.json(), report.table())?;
    // A mode whose work in flight was cancelled counts as interrupted.
    let was_cancelled = |row: &Row| row.ran.as_ref().is_none_or(|ran| ran.is_cancelled);
    let is_interrupted = report.rows.len() < modes.len() || report.rows.last().is_some_and(was_cancelled);
    let has_no_error = report.rows.iter().filter_map(|row| row.ran.as_ref()).all(|ran| ran.error.is_none());
    match failed {
        Some(failure) => Err(failure),
        None if benchmark.interrupt.stop.is_cancelled() && is_interrupted => Err(Failure::Silent(INTERRUPTED)),
        None if has_no_error && report.rows.iter().any(|row| row.ran.is_some()) => Ok(()),
        None => Err(Failure::Silent(FAILED)),
    }
}

impl Benchmark<'_> {
    /// Runs one mode.
    fn measure(&self, mode: Mode, report: &mut Report) -> Result<Row, NotMeasured> {
        let (worker, dispatch) = self.worker(mode.workload)?;
        let burst = usize::from(mode.burst);
        let packets = buffers(self.args, mode);
        let mut options = self.options.clone().with_packets(packets);
        if worker.is_some() {
            let needs = CaptureRequirements::of(&self.program, false);
            (options.room, options.metadata, options.rewrites) = (needs.room, needs.metadata, needs.rewrites());
            if let Some(bytes) = options.split {
                dpdk::check_split(bytes, self.program.facts())
                    .map_err(|error| NotMeasured::Unavailable(error.to_string()))?;
            }
        }
        let gpu = self.gpu(mode.mempool)?;
        if let Some(gpu) = gpu {
            options.mempool = gpu
                .mempool(mode.mempool == plan::Mempool::Gpu)
                .map_err(|error| NotMeasured::Unavailable(error.to_string()))?;
            // One item for each burst that the buffers suffice for; more would stay unused.
            options.items = (2 * packets / u32::from(mode.burst))
                .next_power_of_two()
                .clamp(Options::ITEMS, MAX_QUEUED_BURSTS as u32);
        }
        options.one_lane = !self.program.maps().is_empty();
        // Before ports open, as packets would wait while a device compiles.
        let lanes = if options.one_lane { 1 } else { options.ports.len() * usize::from(options.queues) };
        let mut sessions = (0..lanes).map(|_| self.session(&worker)).collect::<Result<Vec<_>, _>>()?;

        let mut run = dpdk::open(&options).map_err(|error| match (mode.mempool, &error) {
            // Another mode may need less memory.
            (_, DpdkError::Pool { .. } | DpdkError::TooMuchMemory { .. }) => {
                NotMeasured::Unavailable(error.to_string())
            }
            // The first mode fails on host memory: so would all others.
            (plan::Mempool::Host, _) if options.split.is_none() && !report.has_run() => {
                NotMeasured::Failed(ports::failure(error))
            }
            // Modes without GPU memory may still run.
            _ => NotMeasured::Unavailable(error.to_string()),
        })?;
        report.opened(&run.info);
        let lanes: Vec<Lane> = std::mem::take(&mut run.lanes);
        let info = worker.as_ref().map(|(device, _)| device.info());
        if let Some(reason) = info.and_then(|info| unreachable_memory(&lanes, info)) {
            return Err(NotMeasured::Unavailable(reason));
        }
        let gpu = gpu.map(|gpu| gpu.to_string());
        let mut row = Row { device: info.map(Into::into), gpu, ..Row::new(mode) };
        announce(&row, &run.info);
        row.is_copied = self.prepare_sessions(&lanes, &mut sessions, info)?;
        let lanes: Vec<LiveLane> =
            lanes.into_iter().zip(sessions).map(|(lane, session)| LiveLane::new(lane, session)).collect();
        let live = LiveOptions::new(BatchPolicy::fixed(burst, self.args.flush), dispatch)
            .with_processors(self.args.pin.iter().map(|cpu| (*cpu).into()).collect())
            .with_overload(overload_policy(&self.args.overload, burst, packets as usize));
        let (lanes, measurements, given_up) = self.drive(lanes, live, || run.stop());
        drop(lanes);
        let written = run.written();
        let buffers = ports::balance(run.close()).attribute_to_device(given_up);
        let cut_short = written.iter().find_map(|written| written.check().err()).map(|error| error.to_string());
        let is_cancelled = measurements.is_cancelled && cut_short.is_none();
        row.ran = Some(
            Measurements { buffers, is_cancelled, error: measurements.error.or(cut_short), ..measurements }
                .with_buffer_check(),
        );
        Ok(row)
    }

    /// Prints warnings that no lane and no mode before had.
    fn warn(&self, warnings: impl Iterator<Item = String>) {
        let mut known = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        for warning in warnings {
            if !known.contains(&warning) {
                out::warn(&warning);
                known.push(warning);
            }
        }
    }

    /// Returns the worker of a workload, and how receiving and filtering share threads.
    fn worker(&self, workload: Workload) -> Result<(Worker, Dispatch), NotMeasured> {
        let (device, dispatch) = match workload {
            // Independent threads receive and send.
            Workload::None => return Ok((None, Dispatch::Pipelined)),
            Workload::Cpu => (devices::open("cpu")?, Dispatch::Inline),
            Workload::Device(dispatch) => (self.args.device.open()?, dispatch),
        };
        let load = LoadOptions::default()
            .with_threads(NonZeroUsize::new(1))
            .with_dispatch(dispatch)
            .with_measure(MeasureOptions::default().with_synthetic_work(self.args.work))
            .with_cancel(self.interrupt.give_up.clone());
        let dispatch = if workload == Workload::Cpu { Dispatch::Pipelined } else { dispatch };
        Ok((Some((device, load)), dispatch))
    }

    /// Returns the GPU of `--gpu`, or the device's own if packets are received into a GPU.
    fn gpu(&self, mempool: plan::Mempool) -> Result<Option<gpudev::GpuChoice>, NotMeasured> {
        if self.gpu.is_some() || mempool == plan::Mempool::Host {
            return Ok(self.gpu);
        }
        let device = self.args.device.open()?;
        let chosen = gpudev::GpuChoice::for_device(device.info());
        chosen.map(Some).map_err(|error| NotMeasured::Unavailable(format!("--mempool gpu: {error}")))
    }

    fn session(&self, worker: &Worker) -> Result<Box<dyn Session>, DeviceError> {
        match worker {
            None => Ok(Box::new(NullSession::default())),
            Some((device, options)) => device.load(&self.program, options),
        }
    }

    /// Imports packet memory into the sessions, and warms each up with one packet. Returns whether
    /// devices work on copies.
    fn prepare_sessions(
        &self,
        lanes: &[Lane],
        sessions: &mut [Box<dyn Session>],
        device: Option<&DeviceInfo>,
    ) -> Result<bool, DeviceError> {
        let copied = lane_sessions::import(
            lanes.iter().map(|lane| &lane.memory).zip(sessions.iter_mut().map(|session| &mut **session)),
        )?;
        if let Some(device) = device {
            lane_sessions::show_copies(copied, device);
        }
        sessions.iter_mut().try_for_each(|session| lane_sessions::warm_up(&mut **session, &self.program))?;
        Ok(copied)
    }

    /// Drives lanes until the mode ends. Returns the lanes, the measurements, and the number of
    /// packets that a cancelled device may still hold.
    fn drive(
        &self,
        lanes: Vec<LiveLane>,
        live: LiveOptions,
        at_stop: impl FnOnce() + Send,
    ) -> (Vec<LiveLane>, Measurements, u64) {
        let stop = CancelToken::new();
        let wanted = (self.args.packets > 0).then_some(self.args.packets);
        let window = Arc::new(MeasurementWindow::new(self.warm_up, wanted, stop.clone()));
        let live = live.with_window(window.clone());
        let stats: Vec<Arc<LaneStats>> = lanes.iter().map(|_| Arc::default()).collect();
        let named = lanes.iter().map(|lane| lane.lane.name.clone()).zip(stats.iter().cloned()).collect();
        let run = RunStats::start(String::new(), String::new(), named);
        let (is_idle, is_late) = (AtomicBool::new(false), AtomicBool::new(false));
        let (lanes, error) = thread::scope(|scope| {
            let (stop, run) = (&stop, &run);
            scope.spawn(|| {
                while !stop.wait_for(INTERRUPT_POLL) {
                    if self.interrupt.stop.is_cancelled() {
                        stop.cancel();
                    }
                }
            });
            if let Some(duration) = self.args.duration {
                let (begun, is_late) = (Instant::now(), &is_late);
                scope.spawn(move || {
                    if !stop.wait_for(duration.saturating_sub(begun.elapsed())) {
                        is_late.store(true, Ordering::Relaxed);
                        stop.cancel();
                    }
                });
            }
            if let Some(idle) = self.idle_exit {
                let is_idle = &is_idle;
                scope.spawn(move || is_idle.store(drive::end_when_idle(idle, run, stop), Ordering::Relaxed));
            }
            let result = run_live(lanes, &stats, &live, stop, at_stop, &mut |_: Event<'_>| {});
            // End the waiting threads, which the scope joins.
            stop.cancel();
            result
        });
        self.warn(stats.iter().flat_map(|lane| lane.take_warnings()));
        let is_cancelled = matches!(error, Some(LaneError::Device(DeviceError::Cancelled)));
        let ended = match () {
            // After an interrupt, work in flight was cancelled.
            () if is_cancelled => StopReason::Interrupted,
            () if error.is_some() => StopReason::Failed,
            () if wanted.is_some_and(|wanted| window.received_packets() >= self.warm_up.saturating_add(wanted)) => {
                StopReason::Packets
            }
            () if self.interrupt.stop.is_cancelled() => StopReason::Interrupted,
            () if is_late.into_inner() => StopReason::Duration,
            () if is_idle.into_inner() => StopReason::NoTraffic,
            () => StopReason::Interrupted,
        };
        let given_up = drive::abandoned_packets(error.as_ref(), &run);
        let error = error.map(|error| error.to_string());
        let measurements = Measurements { ended, error, is_cancelled, ..self.measurements(&window, &stats) };
        (lanes, measurements, given_up)
    }

    /// Returns the measurements of the window, or of the whole run if the warm-up did not complete.
    fn measurements(&self, window: &MeasurementWindow, stats: &[Arc<LaneStats>]) -> Measurements {
        let (is_warm, elapsed) = (window.is_warmed_up(), window.elapsed().filter(|elapsed| !elapsed.is_zero()));
        let mut sum = Snapshot::default();
        for lane in stats {
            // A lane that has not started measuring adds nothing.
            match lane.measured_snapshot() {
                Some(measured) if is_warm => sum.add(&measured),
                _ if is_warm => {}
                _ => sum.add(&lane.snapshot()),
            }
        }
        let elapsed = elapsed.filter(|_| is_warm);
        Measurements {
            warm_up: self.warm_up,
            is_warm,
            taken: window.received_packets(),
            through: elapsed.map(|elapsed| Throughput::of(&sum.executed, elapsed)),
            summary: Summary::new(&sum, elapsed.unwrap_or_default()),
            ..Measurements::default()
        }
    }
}

/// Returns what to do if the device cannot access the memory that packets are received into.
fn unreachable_memory(lanes: &[Lane], device: &DeviceInfo) -> Option<String> {
    let memory = lanes.iter().find_map(|lane| lane.memory.as_ref().filter(|memory| !memory.is_on_host()))?;
    let owner = &memory.device_view()?.device;
    (device.id != *owner).then(|| {
        let id = &device.id;
        format!(
            "{id} cannot access packets in the memory of {owner}; `--header-split` receives their first bytes into host memory"
        )
    })
}

/// Returns the number of packet buffers of each pipeline in a mode.
fn buffers(args: &Args, mode: Mode) -> u32 {
    args.frames.unwrap_or(MIN_BUFFERS.max((8 * u32::from(mode.burst)).next_power_of_two()))
}

/// Returns what happens to packets that a pipeline cannot keep up with. Queued packets share the
/// memory with a ring's, the burst being gathered, three at the device, and one being sent.
fn overload_policy(overload: &str, burst: usize, packets: usize) -> OverloadPolicy {
    if overload == "wait" {
        return OverloadPolicy::Block;
    }
    OverloadPolicy::Drop {
        max_batches: MAX_QUEUED_BURSTS,
        max_packets: packets.saturating_sub(RING_SIZE + 5 * burst).max(burst),
    }
}

/// Prints which mode starts.
fn announce(row: &Row, info: &[PortInfo]) {
    let ports: Vec<&str> = info.iter().map(|port| port.name.as_str()).collect();
    let on = row.device.as_ref().map(|device| format!(" on {}", device.id)).unwrap_or_default();
    let (workload, mempool, burst) = (row.workload, row.mempool, row.burst);
    let ports = out::printable(&ports.join(", "));
    out::note(&format!("{workload}{on}, memory of the {mempool}, bursts of {burst}: {ports}"));
}
