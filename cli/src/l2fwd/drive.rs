//! One mode after the other.

use portcullis::diagnostics::Source;
use portcullis::frontend::wgsl;
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use portcullis::device::{
    CancelToken, Device, DeviceError, DeviceInfo, Dispatch, LoadOptions, MAX_SYNTHETIC_WORK, Session,
};
use portcullis::io::dpdk::{self, DpdkError, Options, PortInfo};
use portcullis::io::live::Lane;
use portcullis::pipeline::Event;
use portcullis::pipeline::live::{
    BatchPolicy, LaneError, LaneStats, LiveLane, LiveOptions, MeasurementWindow, OverloadPolicy, RunStats, Snapshot,
    Summary, run_live,
};
use portcullis::program::{Program, ProgramOptions};
use portcullis::{devices, gpudev};

use super::Args;
use super::plan::{self, Mode, Workload};
use super::report::{Numbers, Report, Row, StopReason, Through};
use super::untouched::NullSession;
use crate::failure::{Failure, INTERRUPTED, WRONG};
use crate::filter::FilterArgs;
use crate::out;
use crate::run::interrupt::Interrupt;
use crate::run::live::dpdk as ports;
use crate::run::live::{CaptureRequirements, drive, mempool};

/// Stock filter used when none is given; l2fwd-nv does the same.
const MAC_SWAP: &str = "mac_swap";

/// Packets of a warm-up, if nobody says otherwise.
const WARM_UP: u64 = 1_000_000;

/// Packets that a pipeline has memory for at least.
const PACKETS: u32 = 16384;

/// Bursts that may wait for a pipeline's sending thread.
const BURSTS: usize = 4096;

/// Packets in a ring of a port's, about.
const RING: usize = 1024;

/// How soon a Ctrl-C is seen.
const SEEN: Duration = Duration::from_millis(10);

/// What all modes have in common.
struct Common<'a> {
    args: &'a Args,
    program: Arc<Program>,
    options: Options,
    gpu: Option<gpudev::GpuChoice>,
    idle_exit: Option<Duration>,
    warm_up: u64,
    interrupt: Interrupt,
}

/// Why a mode was not measured.
enum Refused {
    /// This machine, or the device, has no such thing.
    Lacking(String),
    /// No mode could be.
    Failed(Failure),
}

impl From<DeviceError> for Refused {
    fn from(error: DeviceError) -> Refused {
        Refused::Lacking(error.to_string())
    }
}

/// A device for a mode's work, or none.
type Worker = Option<(Arc<dyn Device>, LoadOptions)>;

/// Measures all modes.
pub fn run(args: &Args) -> Result<(), Failure> {
    let given = ports::ports("--dpdk", &args.dpdk)?;
    let idle_exit = args.idle_exit.or(ports::over(&given));
    let are_captures = given.iter().all(ports::is_capture);
    let modes = plan::modes(&args.workload, &args.mempool, &args.burst);
    drive::check_processors(&args.pin)?;
    let filter = match (&args.filter, &args.expr) {
        (Some(file), _) => Some(FilterArgs::from_name(file)?),
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
    let options = Options {
        redirect: ports::redirects(&args.redirect)?,
        queues: args.pipelines,
        eal: ports::eal(args.eal.as_deref())?,
        split: args.header_split,
        // What ports leave in DPDK's memory may be in the middle of what a mode had, so that one
        // which needs more needs it elsewhere.
        later: modes.iter().map(|mode| packets(args, *mode)).collect::<BTreeSet<_>>().into_iter().sum(),
        ..Options::of(given)
    };
    ports::tell_of_damage(&options);
    let gpu = mempool::gpu(args.gpu.as_deref())?;
    if let Some(work) = args.work.filter(|work| *work > MAX_SYNTHETIC_WORK) {
        return Err(Failure::Usage(format!("--work: {work:?} is more than {MAX_SYNTHETIC_WORK:?}")));
    }
    let interrupt = Interrupt::default();
    interrupt.listen_always();
    interrupt.begin();
    let warm_up = args.warm_up.unwrap_or(if are_captures { 0 } else { WARM_UP });
    let common = Common { args, program, options, gpu, idle_exit, warm_up, interrupt };

    let mut report = Report::new(name, args);
    let mut failed = None;
    for mode in &modes {
        let row = if common.interrupt.stop.is_cancelled() {
            Row::not_run(*mode, "interrupted before".into())
        } else {
            match common.measure(*mode, &mut report) {
                Ok(row) => row,
                Err(Refused::Lacking(reason)) if modes.len() == 1 => return Err(Failure::Wrong(reason)),
                Err(Refused::Lacking(reason)) => Row::not_run(*mode, reason),
                Err(Refused::Failed(failure)) => {
                    failed = Some(failure);
                    break;
                }
            }
        };
        report.rows.push(row);
    }
    common.interrupt.end();
    if report.rows.is_empty() {
        return failed.map_or(Ok(()), Err);
    }
    out::deliver(args.json.as_deref(), report.json(), report.table())?;
    // Also in the middle of a mode that did not come to an end by itself soon enough.
    let is_cut = |row: &Row| row.ran.as_ref().is_none_or(|ran| ran.is_cancelled);
    let is_interrupted = report.rows.len() < modes.len() || report.rows.last().is_some_and(is_cut);
    let was_well = report.rows.iter().filter_map(|row| row.ran.as_ref()).all(|ran| ran.error.is_none());
    match failed {
        Some(failure) => Err(failure),
        None if common.interrupt.stop.is_cancelled() && is_interrupted => Err(Failure::Silent(INTERRUPTED)),
        None if was_well && report.rows.iter().any(|row| row.ran.is_some()) => Ok(()),
        None => Err(Failure::Silent(WRONG)),
    }
}

impl Common<'_> {
    /// Measures one mode.
    fn measure(&self, mode: Mode, report: &mut Report) -> Result<Row, Refused> {
        let (worker, dispatch) = self.worker(mode.workload)?;
        let burst = usize::from(mode.burst);
        let packets = packets(self.args, mode);
        let mut options = Options { packets, ..self.options.clone() };
        if worker.is_some() {
            let needs = CaptureRequirements::of(&self.program, false);
            (options.room, options.metadata, options.rewrites) = (needs.room, needs.metadata, needs.rewrites());
            if let Some(bytes) = options.split {
                dpdk::check_split(bytes, self.program.facts()).map_err(|error| Refused::Lacking(error.to_string()))?;
            }
        }
        let gpu = self.gpu(mode.mempool)?;
        if let Some(gpu) = gpu {
            options.mempool = gpu.mempool(mode.mempool == plan::Mempool::Gpu).map_err(Refused::Lacking)?;
            // So many bursts as memory has packets for: more would be of no use.
            options.items =
                (2 * packets / u32::from(mode.burst)).next_power_of_two().clamp(Options::ITEMS, BURSTS as u32);
        }
        options.one_lane = !self.program.maps().is_empty();
        // Before there are packets, which a device's compiler would have wait.
        let lanes = if options.one_lane { 1 } else { options.ports.len() * usize::from(options.queues) };
        let mut sessions = (0..lanes).map(|_| self.session(&worker)).collect::<Result<Vec<_>, _>>()?;

        let mut run = dpdk::open(&options).map_err(|error| match (mode.mempool, &error) {
            // Another mode may need less memory.
            (_, DpdkError::Pool { .. } | DpdkError::TooMuchMemory { .. }) => Refused::Lacking(error.to_string()),
            // There is nothing about this one that the first had not.
            (plan::Mempool::Host, _) if options.split.is_none() && !report.has_run() => {
                Refused::Failed(ports::failure(error))
            }
            // Without a GPU's memory there may be others.
            _ => Refused::Lacking(error.to_string()),
        })?;
        report.opened(&run.info);
        let lanes: Vec<Lane> = std::mem::take(&mut run.lanes);
        let info = worker.as_ref().map(|(device, _)| device.info());
        if let Some(lacking) = info.and_then(|info| out_of_reach(&lanes, info)) {
            return Err(Refused::Lacking(lacking));
        }
        let gpu = gpu.map(|gpu| gpu.to_string());
        let mut row = Row { device: info.map(Into::into), gpu, ..Row::new(mode) };
        announce(&row, &run.info);
        row.is_copied = self.meet(&lanes, &mut sessions, info)?;
        let lanes: Vec<LiveLane> =
            lanes.into_iter().zip(sessions).map(|(lane, session)| LiveLane::new(lane, session)).collect();
        let live = LiveOptions {
            processors: self.args.pin.iter().map(|cpu| (*cpu).into()).collect(),
            overload: backlog(&self.args.overload, burst, packets as usize),
            ..LiveOptions::new(BatchPolicy::fixed(burst, self.args.flush), dispatch)
        };
        let (lanes, numbers, given_up) = self.drive(lanes, live, || run.stop());
        drop(lanes);
        let written = run.written();
        let buffers = ports::balance(run.close()).given_up(given_up);
        let cut_short = written.iter().find_map(|written| written.check().err());
        let is_cancelled = numbers.is_cancelled && cut_short.is_none();
        row.ran = Some(Numbers { buffers, is_cancelled, error: numbers.error.or(cut_short), ..numbers }.checked());
        Ok(row)
    }

    /// What works on packets, and how the lanes' threads are dealt.
    fn worker(&self, workload: Workload) -> Result<(Worker, Dispatch), Refused> {
        let (device, dispatch) = match workload {
            // Nobody waits for anybody else: a thread receives, and one sends.
            Workload::None => return Ok((None, Dispatch::Pipelined)),
            Workload::Cpu => (devices::open("cpu")?, Dispatch::Inline),
            Workload::Device(dispatch) => (self.args.device.open()?, dispatch),
        };
        let load = LoadOptions {
            threads: NonZeroUsize::new(1),
            dispatch: Some(dispatch),
            synthetic_work: self.args.work,
            cancel: self.interrupt.give_up.clone(),
            ..LoadOptions::default()
        };
        let dispatch = if workload == Workload::Cpu { Dispatch::Pipelined } else { dispatch };
        Ok((Some((device, load)), dispatch))
    }

    /// The GPU that is to know of packets, or to have them.
    fn gpu(&self, mempool: plan::Mempool) -> Result<Option<gpudev::GpuChoice>, Refused> {
        if self.gpu.is_some() || mempool == plan::Mempool::Host {
            return Ok(self.gpu);
        }
        let device = self.args.device.open()?;
        let chosen = gpudev::GpuChoice::for_device(device.info());
        chosen.map(Some).map_err(|error| Refused::Lacking(format!("--mempool gpu: {error}")))
    }

    fn session(&self, worker: &Worker) -> Result<Box<dyn Session>, DeviceError> {
        match worker {
            None => Ok(Box::new(NullSession::default())),
            Some((device, options)) => device.load(&self.program, options),
        }
    }

    /// Shows sessions the memory that packets come into, and has them filter a packet of ours. Says
    /// whether they get copies.
    fn meet(
        &self,
        lanes: &[Lane],
        sessions: &mut [Box<dyn Session>],
        device: Option<&DeviceInfo>,
    ) -> Result<bool, DeviceError> {
        let copied = drive::import(lanes.iter().map(|lane| &lane.memory).zip(sessions.iter_mut()))?;
        if let Some(device) = device {
            drive::show_copies(copied, device);
        }
        sessions.iter_mut().try_for_each(|session| drive::warm_up(&mut **session, &self.program))?;
        Ok(copied)
    }

    /// Drives lanes until the mode is over. Gives them back, what came of it, and how many packets
    /// a device may still have that was given up.
    fn drive(
        &self,
        lanes: Vec<LiveLane>,
        live: LiveOptions,
        at_stop: impl FnOnce() + Send,
    ) -> (Vec<LiveLane>, Numbers, u64) {
        let stop = CancelToken::new();
        let wanted = (self.args.packets > 0).then_some(self.args.packets);
        let window = Arc::new(MeasurementWindow::new(self.warm_up, wanted, stop.clone()));
        let live = LiveOptions { window: Some(window.clone()), ..live };
        let stats: Vec<Arc<LaneStats>> = lanes.iter().map(|_| Arc::default()).collect();
        let named = lanes.iter().map(|lane| lane.lane.name.clone()).zip(stats.iter().cloned()).collect();
        let run = RunStats::start(String::new(), String::new(), named);
        let (is_idle, is_late) = (AtomicBool::new(false), AtomicBool::new(false));
        let (lanes, error) = thread::scope(|scope| {
            let (stop, run) = (&stop, &run);
            scope.spawn(|| {
                while !stop.wait_for(SEEN) {
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
            let ended = run_live(lanes, &stats, &live, stop, at_stop, &mut |_: Event<'_>| {});
            // The others are waited for.
            stop.cancel();
            ended
        });
        let is_cancelled = matches!(error, Some(LaneError::Device(DeviceError::Cancelled)));
        let ended = match () {
            // What was under way was given up after somebody had wanted an end.
            () if is_cancelled => StopReason::Interrupted,
            () if error.is_some() => StopReason::Failed,
            () if wanted.is_some_and(|wanted| window.received_packets() >= self.warm_up.saturating_add(wanted)) => {
                StopReason::Packets
            }
            () if self.interrupt.stop.is_cancelled() => StopReason::Interrupted,
            () if is_late.into_inner() => StopReason::Duration,
            () if is_idle.into_inner() => StopReason::Idle,
            () => StopReason::Interrupted,
        };
        let given_up = drive::given_up(error.as_ref(), &run);
        let error = error.map(|error| error.to_string());
        let numbers = Numbers { ended, error, is_cancelled, ..self.numbers(&window, &stats) };
        (lanes, numbers, given_up)
    }

    /// Returns the figures of the measurement window, or of the whole run if the warm-up did not
    /// end.
    fn numbers(&self, window: &MeasurementWindow, stats: &[Arc<LaneStats>]) -> Numbers {
        let (is_warm, elapsed) = (window.is_warmed_up(), window.elapsed().filter(|elapsed| !elapsed.is_zero()));
        let mut sum = Snapshot::default();
        for lane in stats {
            // A lane that has not begun to measure has nothing measured.
            match lane.measured_snapshot() {
                Some(measured) if is_warm => sum.add(&measured),
                _ if is_warm => {}
                _ => sum.add(&lane.snapshot()),
            }
        }
        let elapsed = elapsed.filter(|_| is_warm);
        Numbers {
            warm_up: self.warm_up,
            is_warm,
            taken: window.received_packets(),
            through: elapsed.map(|elapsed| Through::of(&sum.executed, elapsed)),
            summary: Summary::new(&sum, elapsed.unwrap_or_default()),
            ..Numbers::default()
        }
    }
}

/// What to do where a device does not reach the memory that packets come into.
fn out_of_reach(lanes: &[Lane], device: &DeviceInfo) -> Option<String> {
    let memory = lanes.iter().find_map(|lane| lane.memory.as_ref().filter(|memory| !memory.is_on_host()))?;
    let owner = &memory.device_view()?.device;
    (device.id != *owner).then(|| {
        let id = &device.id;
        format!(
            "{id} does not reach packets in the memory of {owner}; `--header-split` gives it the first bytes of each"
        )
    })
}

/// Packets that each pipeline of a mode has memory for.
fn packets(args: &Args, mode: Mode) -> u32 {
    args.frames.unwrap_or(PACKETS.max((8 * u32::from(mode.burst)).next_power_of_two()))
}

/// What becomes of packets for which a pipeline has no time. There is memory for those that wait
/// beside a ring's, the burst that is gathered, three at the device, and one that is sent.
fn backlog(overload: &str, burst: usize, packets: usize) -> OverloadPolicy {
    if overload == "wait" {
        return OverloadPolicy::Block;
    }
    OverloadPolicy::Drop { max_batches: BURSTS, max_packets: packets.saturating_sub(RING + 5 * burst).max(burst) }
}

/// Says what is measured now.
fn announce(row: &Row, info: &[PortInfo]) {
    let ports: Vec<&str> = info.iter().map(|port| port.name.as_str()).collect();
    let on = row.device.as_ref().map(|device| format!(" on {}", device.id)).unwrap_or_default();
    let (workload, mempool, burst) = (row.workload, row.mempool, row.burst);
    let ports = out::printable(&ports.join(", "));
    out::note(&format!("{workload}{on}, memory of the {mempool}, bursts of {burst}: {ports}"));
}
