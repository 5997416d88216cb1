//! Driver of live runs, shared by AF_XDP, NFQUEUE and DPDK: prepares filter and device, drops
//! privileges, runs the lanes, and reports how they ended.

use std::io::{IsTerminal, stderr};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use portcullis::auto::Settings;
use portcullis::device::{CancelToken, Device, DeviceError, DeviceKind, Dispatch, LoadOptions, Session, WithFallback};
use portcullis::devices::{self, Selector};
use portcullis::packet_io::live::Lane;
use portcullis::pipeline::live::local_socket::LocalSocket;
use portcullis::pipeline::live::metrics::Trap;
use portcullis::pipeline::live::metrics::server::{Address, AddressError, MetricsListener, Server};
use portcullis::pipeline::live::{
    BatchPolicy, LaneError, LaneStats, LiveLane, LiveOptions, RunStats, RunSummary, metrics, run_live,
};
use portcullis::pipeline::{Broadcasts, Event, Observer};
use portcullis::program::Program;
use portcullis::reason;
use rustix::thread::{CpuSet, sched_getaffinity};
use tracing::Span;

use super::control::{self, LaneStatus, Live};
use super::lane_sessions::{import, show_copies, warm_up};
use super::privileges::{self, Admin};
use super::report::{Balance, ExtraReport};
use super::stats::{OutputFormat, Source, Stats};
use super::{log, report};
use crate::device_choice::DeviceChoice;
use crate::failure::{FAILED, Failure, INTERRUPTED};
use crate::run::interrupt::Interrupt;
use crate::run::map_args::MapNotice;
use crate::run::maps::{Maps, lock};
use crate::run::output_conflicts;
use crate::run::traps::{Place, SharedAborts, TrapCount, TrapRecorder};
use crate::run::{Args, BatchSize};
use crate::{explain, out};

/// Expected number of packets in a batch, unless `--batch` gives one. Small, because live packets
/// are not to wait.
const EXPECTED_LIVE: usize = 1024;

/// Everything that a live run opens before it changes the network: filter, device, maps, metrics
/// and control sockets.
pub struct Prepared {
    /// The filter.
    pub program: Arc<Program>,
    device: WithFallback,
    options: LoadOptions,
    dispatch: Dispatch,
    /// Tracing span of the run's events.
    pub span: Span,
    maps: Maps,
    /// Initial memory of the maps, by number; empty if no map has initial entries.
    words: Vec<(usize, Vec<u32>)>,
    interrupt: Interrupt,
    metrics: Option<MetricsListener>,
    control: Option<LocalSocket>,
    /// Time without packets after which the run ends.
    pub idle_exit: Option<Duration>,
}

/// A finished run.
pub struct FinishedRun {
    device: WithFallback,
    summary: RunSummary,
    error: Option<LaneError>,
    saved: Result<(), Failure>,
    /// Whether maps could not be written because the session that owned them is gone.
    maps_are_gone: bool,
    /// Packets that a failed device had, or that waited for it.
    abandoned: u64,
    /// Results that only some filters have.
    extra: ExtraReport,
}

impl Prepared {
    /// Compiles the filter, opens the device, and checks everything that can be checked before the
    /// network is changed.
    pub fn new(args: &Args) -> Result<Prepared, Failure> {
        log::start(&args.live)?;
        let metrics = args.live.metrics.as_deref().map(Address::try_from).transpose();
        let metrics = metrics.map_err(|error: AddressError| Failure::Usage(format!("--metrics: {error}")))?;
        check_processors(&args.live.pin)?;
        let program = Arc::new(args.filter.load()?);
        let interrupt = Interrupt::default();
        // With netfilter queues, the thread that sends a verdict does the rest of the kernel's work
        // on the packet, so a second thread pays off (docs/performance.md, "Live packets").
        let is_alone = std::thread::available_parallelism().is_ok_and(|processors| processors.get() == 1);
        let inline = (args.live.nfqueue.is_empty() || is_alone).then_some(Dispatch::Inline);
        // If packets are in a GPU's memory, or the CPU is the fallback of a GPU, only that GPU runs
        // the filter.
        let choice = match args.live.mempool.mempool == "gpu" || args.live.overload == "cpu" {
            true if args.device == Selector::Auto => DeviceChoice::first()?,
            _ => {
                let expected = args.expected(EXPECTED_LIVE);
                let settings = Settings::default().with_expected_packets(expected).with_cpu_dispatch(inline);
                DeviceChoice::open(&args.device, settings)?
            }
        };
        let mut device = WithFallback::from(choice.device.clone());
        Maps::check(&args.maps, &program, device.info())?;
        let is_cpu = device.info().kind == DeviceKind::Cpu || device.info().kind == DeviceKind::Reference;
        let load = LoadOptions::default()
            // Batches are small, and each queue has a thread of its own.
            .with_threads(args.threads.map_or(NonZeroUsize::new(1), |n| NonZeroUsize::new(n.into())))
            .with_idle_spin(args.idle_spin())
            .with_dispatch(args.dispatch.or(inline.filter(|_| is_cpu)))
            .with_cancel(interrupt.give_up.clone());
        // Load now: whether the device accepts the filter has to be known before the network is
        // changed, and its cost may have to be measured.
        let loaded = device.load(&program, &load);
        choice.warn();
        let mut session = loaded?;
        if args.explain {
            out::note(choice.explain().trim_end());
            explain::note(&[explain::transfer_of_filter(&program)]);
        }
        // An impossible fallback is an error, because the user asked for it and not for the CPU
        // alone.
        if args.live.overload == "cpu" {
            device = with_cpu_fallback(choice.device.clone(), &load)?;
            session = device.load(&program, &load)?;
        }
        // Also before the network is changed: map files, and addresses that may be in use. This
        // session is dropped again, since its threads have all the capabilities that this thread
        // still has.
        let mut maps = Maps::load(&args.maps, &program, &mut session)?;
        output_conflicts::check(args)?;
        maps.open_outputs(&interrupt.stop)?;
        let numbers = if args.maps.has_initial_entries() { 0..program.maps().len() } else { 0..0 };
        let words = numbers.map(|number| Ok((number, session.map_words(number)?)));
        let words = words.collect::<Result<_, DeviceError>>()?;
        drop(session);
        let metrics = metrics.map(|address| MetricsListener::open(&address)).transpose();
        let metrics = metrics.map_err(|error| Failure::Error(format!("--metrics: {error}")))?;
        let control = args.live.control.as_deref().map(LocalSocket::listen).transpose();
        let control = control.map_err(|error| Failure::Error(format!("--control: {error}")))?;
        // From here on there are resources to release in order.
        interrupt.listen_always();
        interrupt.begin();
        let dispatch = Dispatch::select(device.info(), &load)?;
        let span = tracing::error_span!(target: "portcullis", "run", device = %device.info().id, %dispatch);
        Ok(Prepared {
            program,
            device,
            options: load,
            dispatch,
            span,
            maps,
            words,
            interrupt,
            metrics,
            control,
            idle_exit: None,
        })
    }

    /// Properties of the device.
    #[cfg(feature = "dpdk")]
    pub fn device(&self) -> &portcullis::device::DeviceInfo {
        self.device.info()
    }
}

/// Refuses CPUs that threads cannot be pinned to.
pub fn check_processors(wanted: &[u16]) -> Result<(), Failure> {
    // If the system does not report the CPUs, pinning itself will fail.
    let Ok(mine) = sched_getaffinity(None) else { return Ok(()) };
    let is_mine = |cpu: u16| usize::from(cpu) < CpuSet::MAX_CPU && mine.is_set(cpu.into());
    match wanted.iter().find(|cpu| !is_mine(**cpu)) {
        None => Ok(()),
        Some(cpu) => {
            let count = mine.count();
            let what = format!(
                "there is no processor {cpu} for this process, which may use {count} (`taskset -p $$` tells which)"
            );
            Err(Failure::Usage(format!("--pin: {what}")))
        }
    }
}

/// Wraps a device with the CPU as its fallback.
fn with_cpu_fallback(device: Arc<dyn Device>, load: &LoadOptions) -> Result<WithFallback, Failure> {
    let usage = |what: &str| Err(Failure::Usage(format!("--overload cpu: {what}")));
    if device.info().kind == DeviceKind::Cpu {
        return usage("the CPU already runs the filter and has no fallback; use `drop`");
    }
    if Dispatch::select(device.info(), load)? == Dispatch::Inline {
        return usage("`--dispatch inline` has no queue that could be full; choose another method");
    }
    Ok(WithFallback::new(device, devices::open("cpu")?))
}

/// Runs the lanes until the run is stopped; `at_stop` then ends reception. `companion` starts
/// helpers such as link monitors, on threads with the capabilities of the lanes.
pub fn drive<T>(
    args: &Args,
    prepared: Prepared,
    lanes: Vec<Lane>,
    admin: Admin,
    companion: impl FnOnce() -> T + Send,
    at_stop: impl FnOnce() + Send,
) -> Result<FinishedRun, Failure> {
    privileges::drop_capabilities(args, admin)?;
    // Only this thread keeps the capabilities for the end. All others descend from a thread that
    // has dropped them.
    thread::scope(|scope| {
        let span = prepared.span.clone();
        let run = thread::Builder::new().name("run".into()).spawn_scoped(scope, || {
            let _run = span.entered();
            if admin == Admin::AtEnd {
                privileges::drop_net_admin()?;
            }
            let companion = companion();
            let ended = run_lanes(args, prepared, lanes, at_stop);
            drop(companion);
            ended
        });
        let run = run.map_err(|error| Failure::Error(format!("a thread cannot be started: {}", reason(&error))))?;
        run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Runs the lanes and collects the results.
fn run_lanes(
    args: &Args,
    prepared: Prepared,
    lanes: Vec<Lane>,
    at_stop: impl FnOnce() + Send,
) -> Result<FinishedRun, Failure> {
    let Prepared { program, device, options, dispatch, maps, words, interrupt, metrics, control, idle_exit, .. } =
        prepared;
    let load = |lane| {
        let lane = LiveLane::new(lane, device.load(&program, &options)?);
        Ok(LiveLane { broadcasts: Broadcasts::from_program(&program), ..lane })
    };
    let mut lanes: Vec<LiveLane> = lanes.into_iter().map(load).collect::<Result<_, DeviceError>>()?;
    if lanes.is_empty() {
        return Err(Failure::Usage("there is no queue to receive packets from".into()));
    }
    let copied = import(lanes.iter_mut().map(|lane| (&lane.lane.memory, &mut lane.session)))?;
    show_copies(copied, device.info());
    for lane in &mut lanes {
        warm_up(&mut lane.session, &program)?;
    }
    // Filters with maps have a single lane.
    for (number, words) in words {
        lanes[0].session.set_map_words(number, 0, &words)?;
    }
    let names: Vec<String> = lanes.iter().map(|lane| lane.lane.name.clone()).collect();
    let maps = Arc::new(Mutex::new(maps));
    let batching = batch_policy(args);
    let live =
        LiveOptions::new(batching, dispatch).with_processors(args.live.pin.iter().map(|cpu| (*cpu).into()).collect());
    let stats: Vec<Arc<LaneStats>> = lanes.iter().map(|_| Arc::default()).collect();
    if let Some(duration) = args.live.duration {
        let stop = interrupt.stop.clone();
        std::thread::spawn(move || {
            // Ends with the run if that ends earlier.
            if !stop.wait_for(duration) {
                stop.cancel();
            }
        });
    }
    let named = names.into_iter().zip(stats.iter().cloned()).collect();
    let run = Arc::new(RunStats::start(args.filter.name(), device.info().id.clone(), named));
    if let Some(idle) = idle_exit {
        let (run, stop) = (run.clone(), interrupt.stop.clone());
        std::thread::spawn(move || end_when_idle(idle, &run, &stop));
    }
    let aborts = SharedAborts::default();
    // Trap counters are read during the run only if something shows them.
    let is_shown = args.live.stats.is_some() || metrics.is_some();
    let metrics = metrics.map(|listener| serve(listener, &run, &aborts)).transpose()?;
    let format = if args.json {
        OutputFormat::Json { stdout_taken: args.takes_stdout() }
    } else if stderr().is_terminal() {
        OutputFormat::Table
    } else {
        OutputFormat::Line
    };
    let source = Source { run: run.clone(), aborted: aborts.clone() };
    let shown = args.live.stats.map(|every| Stats::start(every, source, format, interrupt.stop.clone())).transpose()?;
    let lane_statuses =
        lanes.iter().map(|lane| LaneStatus { commands: lane.commands.clone(), memory: lane.lane.memory.clone() });
    let live_run = Live {
        args: args.maps.clone(),
        program: program.clone(),
        device: device.clone(),
        options: options.clone(),
        stats: run.clone(),
        maps: maps.clone(),
        lanes: lane_statuses.collect(),
    };
    let server = control.map(|socket| control::Server::start(socket, live_run)).transpose()?;
    // A filter loaded by a reload may have events even if this one has none.
    let follows = args.maps.follows() || args.live.control.is_some() || lock(&maps).events().is_some();
    let trap_recorder = is_shown.then(|| (TrapRecorder::new(aborts), run.clone()));
    let follows = follows || trap_recorder.is_some() && lock(&maps).traps.may_abort();
    let mut observer = MapWatchObserver { maps: maps.clone(), follows, trap_recorder };
    let (lanes, error) = run_live(lanes, &stats, &live, &interrupt.stop, at_stop, &mut observer);
    // Drop the lanes now, except for their sessions, which own the maps: packets left in a queue
    // wait until it is closed.
    let mut sessions: Vec<_> = lanes.into_iter().map(|lane| lane.session).collect();
    if let Some(LaneError::Device(_)) = &error {
        // The state of the maps after a device failure is unknown.
        sessions.clear();
    }
    drop(server);
    drop(shown);
    let reading = run.read();
    drop(metrics);
    let mut maps = lock(&maps);
    let events_written = match sessions.first_mut() {
        Some(session) => maps.last_events(Some(session)),
        None => maps.last_events(None),
    };
    let saved = sessions.first_mut().map_or(Ok(()), |session| maps.write(session)).and(events_written);
    let traps = sessions.first_mut().map_or(Ok(Vec::new()), |session| maps.traps.read(session));
    let (traps, failed) = traps.map_or_else(|error| (Vec::new(), Err(error)), |traps| (traps, Ok(())));
    let summary = run.summary(&reading);
    let extra = ExtraReport::of(&summary, maps.events(), (&maps.traps, traps));
    let saved = saved.and(failed.map_err(Failure::from));
    let maps_are_gone = sessions.is_empty() && maps.writes();
    drop(sessions);
    interrupt.end();
    let abandoned = abandoned_packets(error.as_ref(), &run);
    Ok(FinishedRun { summary, device, error, saved, maps_are_gone, abandoned, extra })
}

/// Number of packets that a device may still hold after it failed.
pub fn abandoned_packets(error: Option<&LaneError>, run: &RunStats) -> u64 {
    let in_flight = match error {
        Some(LaneError::Device(_)) => run.packets_in_flight(),
        _ => 0,
    };
    in_flight + run.lost_with_device()
}

/// Stops the run after `idle` without received packets and without batches in flight; a lane that
/// waits for its device receives nothing, whatever arrives. Returns whether it stopped the run.
pub fn end_when_idle(idle: Duration, run: &RunStats, stop: &CancelToken) -> bool {
    let received = || run.read().lanes.iter().map(|(_, lane)| lane.received.packets).sum::<u64>();
    let every = (idle / 4).clamp(Duration::from_millis(1), Duration::from_millis(250));
    let (mut before, mut since) = (received(), Instant::now());
    while !stop.wait_for(every) {
        let now = received();
        if now != before || run.packets_in_flight() > 0 {
            (before, since) = (now, Instant::now());
        } else if since.elapsed() >= idle {
            stop.cancel();
            return true;
        }
    }
    false
}

/// Starts the metrics server.
fn serve(listener: MetricsListener, run: &Arc<RunStats>, aborts: &SharedAborts) -> Result<Server, Failure> {
    let (run, aborts) = (run.clone(), aborts.clone());
    let traps = move || {
        let all = aborts.read().traps.into_iter();
        let trap = |TrapCount { count, place: Place { instruction, file, line, reason, .. } }| {
            let line = line.map_or_else(String::new, |line| line.to_string());
            Trap { count, instruction, file: file.unwrap_or_default(), line, reason }
        };
        all.map(trap).collect()
    };
    let start = || {
        privileges::drop_net_admin()?;
        let server = Server::start(listener, move || metrics::render(&run, traps()));
        server.map_err(|error| Failure::Error(format!("--metrics: {error}")))
    };
    // Start it from a thread without capabilities, since threads inherit those of their creator.
    let server = std::thread::scope(|scope| scope.spawn(start).join());
    let server = server.unwrap_or_else(|_| Err(Failure::Error("--metrics: its thread died".into())))?;
    out::note(&format!("metrics: {}", server.address()));
    Ok(server)
}

/// Updates maps and trap counters between batches.
struct MapWatchObserver {
    maps: Arc<Mutex<Maps>>,
    /// Whether there is anything to do between batches.
    follows: bool,
    /// Publishes trap counters; the statistics show whether they have changed.
    trap_recorder: Option<(TrapRecorder, Arc<RunStats>)>,
}

impl Observer for MapWatchObserver {
    fn on_event(&mut self, _: Event<'_>) {}

    fn on_batch_boundary(&mut self, session: &mut dyn Session, packets: usize) -> Result<(), DeviceError> {
        if self.follows {
            let mut maps = lock(&self.maps);
            if let Some((trap_recorder, run)) = &mut self.trap_recorder {
                trap_recorder.on_batch_boundary(&maps.traps, || aborted(run), session)?;
            }
            for notice in maps.follow(session, packets)? {
                match &notice {
                    MapNotice::Warning(warning) => out::warn(warning),
                    MapNotice::Note(note) => out::note(note),
                }
            }
        }
        Ok(())
    }
}

/// Returns the number of aborted packets so far.
fn aborted(run: &RunStats) -> u64 {
    run.read().lanes.iter().map(|(_, lane)| lane.verdicts.aborted).sum()
}

/// Returns the policy that decides when a batch is closed.
fn batch_policy(args: &Args) -> BatchPolicy {
    let delay = args.live.max_delay;
    match args.batch {
        Some(BatchSize::Packets(most)) => BatchPolicy::fixed(most as usize, delay.unwrap_or_default()),
        Some(BatchSize::Auto) | None => {
            let auto = BatchPolicy::adaptive();
            // Frames of packets in flight are not available for reception.
            let most = args.live.frames.map_or(auto.max_packets, |frames| (frames as usize / 8).max(1));
            auto.with_max_packets(most).with_delay(delay.unwrap_or(auto.delay))
        }
    }
}

impl FinishedRun {
    /// Prints the results and returns how the run ended. `frames` are those of the run's packet
    /// memory.
    pub fn report(self, args: &Args, frames: Option<Balance>) -> Result<(), Failure> {
        let FinishedRun { device, summary, error, saved, maps_are_gone, abandoned, extra } = self;
        let frames = frames.map(|frames| frames.attribute_to_device(abandoned));
        let text = match args.json {
            true => report::json(&summary, frames, &extra),
            false => report::table(&summary, &device.info().name, frames, &extra),
        };
        // Even if the results cannot be printed, report how the run ended.
        let printed = if args.takes_stdout() {
            out::note(text.trim_end());
            Ok(())
        } else {
            out::print(text)
        };
        let fault = frames.and_then(|frames| frames.fault());
        fault.iter().for_each(|what| out::error(what));
        let accounted = if fault.is_some() { Err(Failure::Silent(FAILED)) } else { Ok(()) };
        let Some(error) = error else { return saved.and(accounted).and(printed) };
        let code = match error {
            // The user asked for the end, which took too long.
            LaneError::Device(DeviceError::Cancelled) => {
                out::warn("the batches in flight took too long and were abandoned; their packets are counted as lost");
                INTERRUPTED
            }
            error => {
                out::error(&error.to_string());
                FAILED
            }
        };
        if maps_are_gone {
            out::warn("no map is written: the batches in flight may have changed only part of them");
        }
        saved.and(accounted).and(Err(Failure::Silent(code)))
    }
}
