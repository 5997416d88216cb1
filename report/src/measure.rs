//! Measures a filter on several devices over the same batches, in alternation, so that drift and
//! other load of the machine affect all of them alike.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis_core::device::transfer_planner::MemoryReach;
use portcullis_core::device::{
    CancelToken, Completion, Device, DeviceError, Dispatch, LoadOptions, MeasureOptions, Session, Stages, Transfer,
};
use portcullis_core::program::Program;

use super::oracle::Expected;
use super::results::{self, AUTO, Estimate, Latency, Load, RESIDENT, StopReason};
use super::statistics::{Latencies, median};
use super::traffic::{Pool, RING, Ring, RingError};
use portcullis_conformance::state;

/// Maximum number of batches in flight.
const DEPTH: usize = 3;

/// Minimum duration of a repetition; far longer than reading the clock takes.
const REPETITION: Duration = Duration::from_millis(4);

/// Maximum batches of a repetition.
const MAX_BATCHES: usize = 4096;

/// Time that a cell may take to its first interval, whatever its budget.
const MAX_FIRST_INTERVAL_TIME: Duration = Duration::from_secs(20);

/// Maximum repetitions of a cell.
const MAX_REPETITIONS: usize = 1000;

/// Minimum latency samples of a cell; few, since large batches take long.
const MIN_LATENCIES: u64 = 5;

/// Maximum latency samples of a cell; enough for p99.9.
const MAX_LATENCIES: u64 = 20_000;

/// Offered loads, as shares of the measured rate.
pub const LOADS: [f64; 5] = [0.1, 0.3, 0.5, 0.7, 0.9];

/// A configuration to measure: a device, and how packets and batches reach it.
#[derive(Clone)]
pub struct Contender {
    /// The device.
    pub device: Arc<dyn Device>,
    /// Id of the contender: `cpu@1` for a CPU restricted to one thread.
    pub id: String,
    /// Number of threads, if not all.
    pub threads: Option<NonZeroUsize>,
    /// How packets reach the device.
    pub transfer: Transfer,
    /// Whether packets stay in the device's memory between repetitions; moving them there is not
    /// measured.
    pub resident: bool,
    /// Dispatch method of batches.
    pub dispatch: Dispatch,
}

impl std::fmt::Debug for Contender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let transfer = if self.resident { "resident" } else { self.transfer.name() };
        write!(f, "{} {transfer} {}", self.id, self.dispatch)
    }
}

impl Contender {
    fn load(
        &self,
        program: &Arc<Program>,
        clocks: bool,
        cancel: &CancelToken,
    ) -> Result<Box<dyn Session>, DeviceError> {
        let options = LoadOptions::default()
            .with_threads(self.threads)
            .with_depth(DEPTH)
            .with_dispatch(self.dispatch)
            .with_transfer(self.transfer)
            .with_measure(MeasureOptions::default().with_resident(self.resident).with_record_stages(clocks))
            .with_cancel(cancel.clone());
        self.device.load(program, &options)
    }
}

/// Limits and options of measuring a cell.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Confidence level of intervals.
    pub confidence: f64,
    /// Width of the median's interval at which the cell has converged, as a share of the median.
    pub width: f64,
    /// Minimum repetitions of a cell.
    pub least: usize,
    /// Approximate time for the repetitions of a cell.
    pub budget: Duration,
    /// When the whole run should be over: no lane and no repetition starts after it.
    pub deadline: Instant,
    /// Whether to measure latency against load.
    pub loads: bool,
    /// Ends measuring after the current repetition.
    pub stop: CancelToken,
    /// Ends measuring at once and cancels batches in flight.
    pub give_up: CancelToken,
}

/// Result of measuring one cell.
#[derive(Debug)]
pub enum CellOutcome {
    /// The measured figures.
    Figures(Box<Figures>),
    /// The device's results differ from the interpreter's; how they differ first.
    Mismatch(String),
    /// The measurement failed, with the reason.
    Failed(String),
    /// The cell was left out, with the reason: the device lacks this transfer, or time ran out.
    Absent(String),
    /// Equal to another contender that was also requested by name.
    Same,
    /// The run was interrupted before the cell had an interval.
    Dropped,
}

/// Figures of one cell.
#[derive(Debug)]
pub struct Figures {
    /// Seconds per packet.
    pub packet: Estimate,
    /// Number of repetitions.
    pub repetitions: u64,
    /// Why the cell was not repeated further.
    pub ended: StopReason,
    /// Packets compared with the interpreter's.
    pub compared: u64,
    /// Latencies of single batches, and the number of samples.
    pub latency: (Latency, u64),
    /// Latencies under load.
    pub loads: Vec<Load>,
    /// Time by stage, in seconds per packet, and bytes copied per packet, if the device reports
    /// them.
    pub stages: Option<(results::Stages, f64)>,
    /// How packets reached the device.
    pub transfer: &'static str,
    /// Warnings of the session.
    pub warnings: Vec<String>,
}

/// A contender with the sessions that are kept from cell to cell.
pub struct Lane {
    /// The contender.
    pub contender: Contender,
    session: Option<Box<dyn Session>>,
    clocked: Option<Box<dyn Session>>,
}

impl Lane {
    /// Creates a lane without a loaded filter.
    pub fn new(contender: Contender) -> Lane {
        Lane { contender, session: None, clocked: None }
    }

    /// Drops the loaded sessions, before another filter is loaded.
    pub fn unload(&mut self) {
        (self.session, self.clocked) = (None, None);
    }
}

/// One filter, its packets and the expected results.
#[derive(Debug, Clone, Copy)]
pub struct MeasuredFilter<'a> {
    /// The filter.
    pub program: &'a Arc<Program>,
    /// The packets.
    pub pool: &'a Pool,
    /// Expected results for the packets.
    pub expected: &'a Expected,
    /// Approximate number of packets in rotation.
    pub rotation: usize,
    /// Maximum memory for batches, in bytes.
    pub memory: u64,
}

/// State of a cell during measurement.
#[derive(Default)]
struct CellState {
    found: Option<CellOutcome>,
    samples: Vec<f64>,
    spent: Duration,
    /// Batches per repetition.
    batches: usize,
    compared: u64,
    estimate: Option<Estimate>,
    ended: StopReason,
    transfer: &'static str,
}

/// Why a cell is left out once the deadline has passed.
pub const TIME_USED_UP: &str = "the time was used up; give it more with --time";

impl Settings {
    fn is_past_deadline(&self) -> bool {
        Instant::now() >= self.deadline
    }
}

impl CellState {
    fn is_done(&self, settings: &Settings) -> bool {
        self.found.is_some()
            || self.samples.len() >= MAX_REPETITIONS
            || self.ended == StopReason::Narrow
            || self.is_late(settings)
    }

    fn is_late(&self, settings: &Settings) -> bool {
        if settings.is_past_deadline() {
            return true;
        }
        let few = self.samples.len() < settings.least;
        if self.estimate.is_none() {
            // Without an interval there is no figure, but the wait for one is bounded.
            return self.spent > MAX_FIRST_INTERVAL_TIME.max(settings.budget * 3);
        }
        self.spent > settings.budget * if few { 3 } else { 1 }
    }
}

/// Measures a filter in all lanes, in batches of `batch` packets. `observe` gets the id of each
/// contender before its filter is loaded. Returns an outcome for each lane.
///
/// # Errors
/// [`RingError`] if no batches of this size can be laid out.
pub fn measure(
    lanes: &mut [Lane],
    filter: MeasuredFilter<'_>,
    batch: usize,
    settings: &Settings,
    observe: &mut dyn FnMut(&str),
) -> Result<Vec<CellOutcome>, RingError> {
    let lay_out = || Ring::lay_out(filter.pool, filter.program, batch, filter.rotation, filter.memory);
    let mut ring = lay_out()?;
    let mut running: Vec<CellState> = lanes.iter().map(|_| CellState::default()).collect();
    let stopped = || settings.stop.is_cancelled();

    for index in 0..lanes.len() {
        if stopped() {
            break;
        }
        if settings.is_past_deadline() {
            running[index].found = Some(CellOutcome::Absent(TIME_USED_UP.into()));
            continue;
        }
        observe(&lanes[index].contender.id);
        let result = prepare(&mut lanes[index], &mut running[index], &mut ring, filter, settings);
        record_error(result, &mut lanes[index], &mut running[index]);
        if ring.is_broken() {
            ring = lay_out()?;
        }
        // A transfer that `auto` resolves to one measured already is not measured again; neither
        // are transfers of a filter that reads no packet bytes, which are all the same.
        let contender = &lanes[index].contender;
        let may_be_same = contender.transfer == Transfer::Auto || running[index].transfer == NO_TRANSFER;
        let same = |other: usize| {
            let it = &lanes[other].contender;
            other != index
                && it.id == contender.id
                && it.resident == contender.resident
                && it.dispatch == contender.dispatch
                && running[other].transfer == running[index].transfer
        };
        if may_be_same && running[index].found.is_none() && (0..index).any(same) {
            running[index].found = Some(CellOutcome::Same);
        }
    }

    // Rounds start with a different lane each, so that none is always first.
    let mut round = 0;
    while !stopped() && !running.iter().all(|cell| cell.is_done(settings)) {
        for turn in 0..lanes.len() {
            let index = (turn + round) % lanes.len();
            if running[index].is_done(settings) || stopped() {
                continue;
            }
            let result = repetition(&mut lanes[index], &mut running[index], &mut ring, filter, settings);
            record_error(result, &mut lanes[index], &mut running[index]);
            if ring.is_broken() {
                ring = lay_out()?;
            }
        }
        round += 1;
    }

    let mut all = Vec::with_capacity(lanes.len());
    for (lane, mut cell) in lanes.iter_mut().zip(running) {
        let result = if cell.found.is_none() { finish(lane, &mut cell, &mut ring, filter, settings) } else { Ok(()) };
        record_error(result, lane, &mut cell);
        if ring.is_broken() {
            ring = lay_out()?;
        }
        all.push(cell.found.unwrap_or(CellOutcome::Dropped));
    }
    Ok(all)
}

/// Turns a device error into the outcome of a cell.
fn record_error(result: Result<(), DeviceError>, lane: &mut Lane, cell: &mut CellState) {
    let Err(error) = result else { return };
    lane.unload();
    cell.found = Some(match error {
        DeviceError::Cancelled => CellOutcome::Dropped,
        DeviceError::Unsupported { .. } | DeviceError::Refused(_) | DeviceError::NoDispatch { .. }
            if lane.contender.transfer != Transfer::Auto || lane.contender.resident =>
        {
            CellOutcome::Absent(error.to_string())
        }
        error => CellOutcome::Failed(error.to_string()),
    });
}

/// Loads the filter, compares all results, and determines the batches of a repetition.
fn prepare(
    lane: &mut Lane,
    cell: &mut CellState,
    ring: &mut Ring,
    filter: MeasuredFilter<'_>,
    settings: &Settings,
) -> Result<(), DeviceError> {
    if lane.session.is_none() {
        lane.session = Some(lane.contender.load(filter.program, false, &settings.give_up)?);
    }
    let Some(session) = lane.session.as_deref_mut() else { return Ok(()) };
    session.finish_background_work();
    compare(session, cell, ring, filter)?;
    cell.transfer = transfer(&lane.contender, &*session);
    if cell.found.is_some() {
        return Ok(());
    }
    // Warm up first: allocation, page faults and the choice of code are not measured.
    let (began, mut batches) = (Instant::now(), DEPTH.min(ring.count));
    loop {
        ring.restore(filter.pool);
        let took = send(session, ring, batches)?;
        let enough = took >= REPETITION || batches >= MAX_BATCHES;
        if enough && (began.elapsed() > settings.budget / 10 || took > settings.budget / 10) {
            cell.batches = batches;
            return Ok(());
        }
        if !enough {
            let more = REPETITION.as_secs_f64() / took.as_secs_f64().max(1e-9) * 1.2;
            batches = ((batches as f64 * more).ceil() as usize).clamp(batches + 1, MAX_BATCHES);
        }
        if settings.stop.is_cancelled() {
            return Err(DeviceError::Cancelled);
        }
    }
}

/// Sends all packets and compares the results with the interpreter's. A filter with maps starts
/// from its initial maps and gets each packet of the pool once.
fn compare(
    session: &mut dyn Session,
    cell: &mut CellState,
    ring: &mut Ring,
    filter: MeasuredFilter<'_>,
) -> Result<(), DeviceError> {
    ring.restore(filter.pool);
    let has_maps = !filter.program.maps().is_empty();
    if !has_maps {
        let batches = ring.count;
        let compared = &mut cell.compared;
        let mut differs = None;
        pass(session, ring, batches, &mut |first, done| {
            *compared += done.verdicts.len() as u64;
            if differs.is_none() {
                differs = filter.expected.differs(first, done);
            }
        })?;
        cell.found = differs.map(CellOutcome::Mismatch);
        return Ok(());
    }
    state::reset(session, filter.program, &[])?;
    let pool = filter.pool;
    let own = Ring::lay_out(pool, filter.program, ring.batch.min(pool.len()), RING, filter.memory)
        .map_err(|error| DeviceError::Refused(error.to_string()))?;
    for (first, mut batch) in own.batches.into_iter().take_while(|(first, _)| *first < pool.len()) {
        batch.truncate(pool.len() - first);
        let done = session.run(batch)?;
        cell.compared += done.verdicts.len() as u64;
        if let Some(detail) = filter.expected.differs(first, &done) {
            cell.found = Some(CellOutcome::Mismatch(detail));
            return Ok(());
        }
    }
    cell.found = filter.expected.maps_differ(session, filter.program)?.map(CellOutcome::Mismatch);
    Ok(())
}

/// Measures one repetition.
fn repetition(
    lane: &mut Lane,
    cell: &mut CellState,
    ring: &mut Ring,
    filter: MeasuredFilter<'_>,
    settings: &Settings,
) -> Result<(), DeviceError> {
    let Some(session) = lane.session.as_deref_mut() else { return Ok(()) };
    ring.restore(filter.pool);
    let took = send(session, ring, cell.batches)?;
    cell.spent += took;
    cell.samples.push(took.as_secs_f64() / (cell.batches * ring.batch) as f64);
    cell.estimate = median(&cell.samples, settings.confidence);
    if cell.samples.len() >= settings.least && cell.estimate.is_some_and(|it| it.width() <= settings.width) {
        cell.ended = StopReason::Narrow;
    }
    Ok(())
}

/// Compares once more, and measures latencies, loads and stages.
fn finish(
    lane: &mut Lane,
    cell: &mut CellState,
    ring: &mut Ring,
    filter: MeasuredFilter<'_>,
    settings: &Settings,
) -> Result<(), DeviceError> {
    let stopped = settings.stop.is_cancelled();
    let Some((packet, session)) = cell.estimate.zip(lane.session.as_deref_mut()) else {
        cell.found = Some(if stopped {
            CellOutcome::Dropped
        } else if settings.is_past_deadline() {
            CellOutcome::Absent(TIME_USED_UP.into())
        } else {
            let (times, took) = (cell.samples.len(), cell.spent.as_secs_f64());
            CellOutcome::Failed(format!(
                "too slow to be measured: {times} repetitions took {took:.1} s; give it more --time"
            ))
        });
        return Ok(());
    };
    if stopped && cell.ended == StopReason::Time {
        cell.ended = StopReason::Interrupted;
    }
    // A device may become wrong while it is timed.
    compare(session, cell, ring, filter)?;
    if cell.found.is_some() {
        return Ok(());
    }
    let latencies = latencies(session, ring, filter, settings)?;
    let loads = match settings.loads && !stopped && !settings.is_past_deadline() {
        true => loads(session, ring, filter, settings, packet)?,
        false => Vec::new(),
    };
    let warnings = session.take_warnings();
    let stages = if stopped { None } else { stages(lane, cell.batches, ring, filter, settings)? };
    cell.found = Some(CellOutcome::Figures(Box::new(Figures {
        packet,
        repetitions: cell.samples.len() as u64,
        ended: cell.ended,
        compared: cell.compared,
        latency: (latencies.quantiles(), latencies.count()),
        loads,
        stages,
        transfer: cell.transfer,
        warnings,
    })));
    Ok(())
}

/// Measures the latency of single batches.
fn latencies(
    session: &mut dyn Session,
    ring: &mut Ring,
    filter: MeasuredFilter<'_>,
    settings: &Settings,
) -> Result<Latencies, DeviceError> {
    let mut latencies = Latencies::new();
    let began = Instant::now();
    let is_late = settings.stop.is_cancelled() || settings.is_past_deadline();
    let time = if is_late { Duration::ZERO } else { settings.budget / 5 };
    while latencies.count() < MIN_LATENCIES || latencies.count() < MAX_LATENCIES && began.elapsed() < time {
        if latencies.count().is_multiple_of(ring.count as u64) {
            ring.restore(filter.pool);
        }
        let Some((first, batch)) = ring.batches.pop_front() else { break };
        let sent = Instant::now();
        let done = session.run(batch)?;
        latencies.add(sent.elapsed());
        ring.batches.push_back((first, done.batch));
        if settings.give_up.is_cancelled() {
            return Err(DeviceError::Cancelled);
        }
    }
    Ok(latencies)
}

/// Measures batches at a steady rate. A batch's latency starts when it is due, so that waiting for
/// a device that is behind counts (no coordinated omission).
fn loads(
    session: &mut dyn Session,
    ring: &mut Ring,
    filter: MeasuredFilter<'_>,
    settings: &Settings,
    packet: Estimate,
) -> Result<Vec<Load>, DeviceError> {
    let time = settings.budget / LOADS.len() as u32;
    let mut all = Vec::with_capacity(LOADS.len());
    for offered in LOADS {
        ring.restore(filter.pool);
        let between = packet.median * ring.batch as f64 / offered;
        let batches = ((time.as_secs_f64() / between) as usize).clamp(10, MAX_LATENCIES as usize);
        let due = |number: usize| Duration::from_secs_f64(between * number as f64);
        let (mut sent, mut back, mut latencies) = (0, 0, Latencies::new());
        let mut in_flight = VecDeque::new();
        let began = Instant::now();
        while back < batches {
            if sent < batches && began.elapsed() >= due(sent) && session.in_flight() < session.depth().min(ring.count) {
                let Some((first, batch)) = ring.batches.pop_front() else { break };
                session.submit(batch).map_err(|refused| refused.error)?;
                in_flight.push_back((first, sent));
                sent += 1;
            } else if let Some((first, number)) = in_flight.pop_front() {
                let Some(done) = session.complete()? else { break };
                latencies.add(began.elapsed().saturating_sub(due(number)));
                ring.batches.push_back((first, done.batch));
                back += 1;
            } else {
                // A sleep could oversleep the shortest intervals.
                std::hint::spin_loop();
            }
            if settings.stop.is_cancelled() && in_flight.is_empty() {
                return Ok(all);
            }
        }
        let mpps = (back * ring.batch) as f64 / began.elapsed().as_secs_f64() / 1e6;
        all.push(Load { offered, mpps, latency: latencies.quantiles() });
    }
    Ok(all)
}

/// Measures the stages in an instrumented session of its own, since reading clocks takes time.
fn stages(
    lane: &mut Lane,
    batches: usize,
    ring: &mut Ring,
    filter: MeasuredFilter<'_>,
    settings: &Settings,
) -> Result<Option<(results::Stages, f64)>, DeviceError> {
    if lane.clocked.is_none() {
        lane.clocked = Some(lane.contender.load(filter.program, true, &settings.give_up)?);
    }
    let Some(session) = lane.clocked.as_deref_mut() else { return Ok(None) };
    // Warm up before the counted repetition.
    session.finish_background_work();
    ring.restore(filter.pool);
    // Resident packets are all uploaded by the first pass.
    let first = if lane.contender.resident { ring.count } else { DEPTH.min(ring.count) };
    send(session, ring, first)?;
    let Some(before) = session.stages() else { return Ok(None) };
    ring.restore(filter.pool);
    send(session, ring, batches)?;
    let Some(after) = session.stages() else { return Ok(None) };
    Ok(difference(&before, &after))
}

fn difference(before: &Stages, after: &Stages) -> Option<(results::Stages, f64)> {
    let packets = after.packets.checked_sub(before.packets).filter(|packets| *packets > 0)? as f64;
    let of = |before: Duration, after: Duration| after.saturating_sub(before).as_secs_f64() / packets;
    let bytes = |stages: &Stages| stages.bytes_to_device + stages.bytes_to_host;
    let stages = results::Stages {
        gather: of(before.gather, after.gather),
        upload: of(before.upload, after.upload),
        kernel: of(before.kernel, after.kernel),
        download: of(before.download, after.download),
        verdicts: of(before.verdicts, after.verdicts),
    };
    Some((stages, bytes(after).saturating_sub(bytes(before)) as f64 / packets))
}

/// Returns the time for this many batches with the session's depth in flight.
fn send(session: &mut dyn Session, ring: &mut Ring, batches: usize) -> Result<Duration, DeviceError> {
    let began = Instant::now();
    pass(session, ring, batches, &mut |_, done| _ = std::hint::black_box(&done.verdicts))?;
    Ok(began.elapsed())
}

/// Sends this many batches through the session. `on_completion` gets each completion with the
/// number of its first packet.
fn pass(
    session: &mut dyn Session,
    ring: &mut Ring,
    batches: usize,
    on_completion: &mut dyn FnMut(usize, &Completion),
) -> Result<(), DeviceError> {
    let most = session.depth().min(ring.count);
    let (mut sent, mut in_flight) = (0, VecDeque::with_capacity(most));
    while sent < batches || !in_flight.is_empty() {
        while sent < batches && in_flight.len() < most {
            let Some((first, batch)) = ring.batches.pop_front() else { break };
            if let Err(refused) = session.submit(batch) {
                ring.batches.push_front((first, *refused.batch));
                return Err(refused.error);
            }
            in_flight.push_back(first);
            sent += 1;
        }
        let Some(first) = in_flight.pop_front() else { break };
        let Some(done) = session.complete()? else { break };
        on_completion(first, &done);
        ring.batches.push_back((first, done.batch));
    }
    Ok(())
}

/// Transfer of `auto`, which chooses a device for each batch.
const CHOSEN_PER_BATCH: &str = "chosen by batch";

/// Transfer of a filter that reads no packet bytes.
const NO_TRANSFER: &str = "nothing";

/// Describes how the packets of the previous batch reached the device.
fn transfer(contender: &Contender, session: &dyn Session) -> &'static str {
    if contender.resident {
        return RESIDENT;
    }
    if contender.device.info().id == AUTO {
        return CHOSEN_PER_BATCH;
    }
    let Some(plan) = session.transfer_plan() else { return "in place" };
    match (plan.transfer(), plan.reach) {
        (None, _) => NO_TRANSFER,
        (Some(Transfer::Imported), MemoryReach::DeviceLocal) => RESIDENT,
        (Some(Transfer::Imported), _) => "imported memory",
        (Some(Transfer::Window), _) => "read window",
        (Some(Transfer::Whole | Transfer::Auto), _) => "whole packets",
    }
}

#[cfg(test)]
mod tests;
