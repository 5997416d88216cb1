//! Measuring a filter on several devices over the same batches, one after the other and again:
//! whatever else the machine does hits each of them alike.

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
use super::results::{self, Estimate, Latency, Load, RESIDENT, StopReason};
use super::run::AUTO;
use super::statistics::{Latencies, median};
use super::traffic::{Pool, RING, Ring};
use portcullis_conformance::state;

/// Batches in flight.
const DEPTH: usize = 3;

/// How long a repetition takes at least: far longer than looking at the clock.
const REPETITION: Duration = Duration::from_millis(4);

/// Batches of a repetition, at most.
const MOST_BATCHES: usize = 4096;

/// How long a cell may take until there is an interval, whatever its share of the time is.
const PATIENCE: Duration = Duration::from_secs(20);

/// Repetitions of a cell, at most.
const MOST_REPETITIONS: usize = 1000;

/// Latencies of a cell, at least: large batches take long.
const LEAST_LATENCIES: u64 = 5;

/// Latencies of a cell, at most: enough for the thousandth of them.
const MOST_LATENCIES: u64 = 20_000;

/// The loads that are offered, as shares of the measured rate.
pub const LOADS: [f64; 5] = [0.1, 0.3, 0.5, 0.7, 0.9];

/// A way of filtering: a device, and how batches get there.
#[derive(Clone)]
pub struct Contender {
    /// The device.
    pub device: Arc<dyn Device>,
    /// Id of the contender: `cpu@1` for a CPU restricted to one thread.
    pub id: String,
    /// Number of threads, if not all.
    pub threads: Option<NonZeroUsize>,
    /// How packets get there.
    pub transfer: Transfer,
    /// Packets stay at the device from one time to the next, and how they got there is not
    /// measured.
    pub resident: bool,
    /// How batches are handed over.
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

/// How a cell is measured.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Confidence of intervals.
    pub confidence: f64,
    /// A cell whose median's interval is as narrow as this share of it is repeated no more.
    pub width: f64,
    /// Repetitions of a cell, at least.
    pub least: usize,
    /// Time for the repetitions of a cell, about.
    pub budget: Duration,
    /// Measure latency against load.
    pub loads: bool,
    /// Measure no more.
    pub stop: CancelToken,
    /// Give up what is under way as well.
    pub give_up: CancelToken,
}

/// Result of measuring one cell.
#[derive(Debug)]
pub enum CellOutcome {
    /// The measured figures.
    Figures(Box<Figures>),
    /// The device is wrong, and how.
    Wrong(String),
    /// The measurement failed, with the reason.
    Failed(String),
    /// There is no such cell: the device does not have this way.
    Absent(String),
    /// Equal to another contender that was also requested by name.
    Same,
    /// The run was interrupted before there was anything to tell.
    Dropped,
}

/// Figures of one cell.
#[derive(Debug)]
pub struct Figures {
    /// Seconds a packet.
    pub packet: Estimate,
    /// Times that it was measured.
    pub repetitions: u64,
    /// Why no more.
    pub ended: StopReason,
    /// Packets compared.
    pub compared: u64,
    /// Latencies of single batches, and how many.
    pub latency: (Latency, u64),
    /// Latencies under load.
    pub loads: Vec<Load>,
    /// Time by stage, in seconds a packet, and bytes copied a packet, where the device can tell.
    pub stages: Option<(results::Stages, f64)>,
    /// How packets came to the device.
    pub transfer: &'static str,
}

/// A way with what is kept of it from cell to cell.
pub struct Lane {
    /// The way.
    pub way: Contender,
    session: Option<Box<dyn Session>>,
    clocked: Option<Box<dyn Session>>,
}

impl Lane {
    /// With nothing loaded yet.
    pub fn new(way: Contender) -> Lane {
        Lane { way, session: None, clocked: None }
    }

    /// Forgets what is loaded: for another filter.
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
    /// Packets that are under way in turn, about.
    pub around: usize,
    /// Bytes that batches may take.
    pub memory: u64,
}

/// A cell while it is measured.
#[derive(Default)]
struct Running {
    found: Option<CellOutcome>,
    samples: Vec<f64>,
    spent: Duration,
    /// Batches of a repetition.
    batches: usize,
    compared: u64,
    estimate: Option<Estimate>,
    ended: StopReason,
    transfer: &'static str,
}

impl Running {
    fn is_done(&self, settings: &Settings) -> bool {
        self.found.is_some()
            || self.samples.len() >= MOST_REPETITIONS
            || self.ended == StopReason::Narrow
            || self.is_late(settings)
    }

    fn is_late(&self, settings: &Settings) -> bool {
        let few = self.samples.len() < settings.least;
        if self.estimate.is_none() {
            // There is nothing to tell then; but nobody waits forever for it.
            return self.spent > PATIENCE.max(settings.budget * 3);
        }
        self.spent > settings.budget * if few { 3 } else { 1 }
    }
}

/// Measures a filter in all of these ways, in batches of one size.
///
/// # Errors
/// Why batches of this size cannot be made.
pub fn measure(
    lanes: &mut [Lane],
    subject: MeasuredFilter<'_>,
    batch: usize,
    settings: &Settings,
    told: &mut dyn FnMut(&str),
) -> Result<Vec<CellOutcome>, String> {
    let lay_out = || Ring::lay_out(subject.pool, subject.program, batch, subject.around, subject.memory);
    let mut ring = lay_out()?;
    let mut running: Vec<Running> = lanes.iter().map(|_| Running::default()).collect();
    let stopped = || settings.stop.is_cancelled();

    for index in 0..lanes.len() {
        if stopped() {
            break;
        }
        told(&lanes[index].way.id);
        let result = prepare(&mut lanes[index], &mut running[index], &mut ring, subject, settings);
        settle(result, &mut lanes[index], &mut running[index]);
        if ring.is_broken() {
            ring = lay_out()?;
        }
        // Asked for by name, it is measured once; and where the filter looks at no packet, all are
        // one.
        let way = &lanes[index].way;
        let may_be_same = way.transfer == Transfer::Auto || running[index].transfer == UNSEEN;
        let same = |other: usize| {
            let it = &lanes[other].way;
            other != index
                && it.id == way.id
                && it.resident == way.resident
                && it.dispatch == way.dispatch
                && running[other].transfer == running[index].transfer
        };
        if may_be_same && running[index].found.is_none() && (0..index).any(same) {
            running[index].found = Some(CellOutcome::Same);
        }
    }

    // Each begins a round in its turn.
    let mut round = 0;
    while !stopped() && !running.iter().all(|cell| cell.is_done(settings)) {
        for turn in 0..lanes.len() {
            let index = (turn + round) % lanes.len();
            if running[index].is_done(settings) || stopped() {
                continue;
            }
            let result = repetition(&mut lanes[index], &mut running[index], &mut ring, subject, settings);
            settle(result, &mut lanes[index], &mut running[index]);
            if ring.is_broken() {
                ring = lay_out()?;
            }
        }
        round += 1;
    }

    let mut all = Vec::with_capacity(lanes.len());
    for (lane, mut cell) in lanes.iter_mut().zip(running) {
        let result = if cell.found.is_none() { finish(lane, &mut cell, &mut ring, subject, settings) } else { Ok(()) };
        settle(result, lane, &mut cell);
        if ring.is_broken() {
            ring = lay_out()?;
        }
        all.push(cell.found.unwrap_or(CellOutcome::Dropped));
    }
    Ok(all)
}

/// What an error means for a cell.
fn settle(result: Result<(), DeviceError>, lane: &mut Lane, cell: &mut Running) {
    let Err(error) = result else { return };
    lane.unload();
    cell.found = Some(match error {
        DeviceError::Cancelled => CellOutcome::Dropped,
        DeviceError::Unsupported { .. } | DeviceError::Refused(_) | DeviceError::NoDispatch { .. }
            if lane.way.transfer != Transfer::Auto || lane.way.resident =>
        {
            CellOutcome::Absent(error.to_string())
        }
        error => CellOutcome::Failed(error.to_string()),
    });
}

/// Loads the filter, compares everything, and finds out how many batches make a repetition.
fn prepare(
    lane: &mut Lane,
    cell: &mut Running,
    ring: &mut Ring,
    subject: MeasuredFilter<'_>,
    settings: &Settings,
) -> Result<(), DeviceError> {
    if lane.session.is_none() {
        lane.session = Some(lane.way.load(subject.program, false, &settings.give_up)?);
    }
    let Some(session) = lane.session.as_deref_mut() else { return Ok(()) };
    session.finish_background_work();
    compare(session, cell, ring, subject)?;
    cell.transfer = transfer(&lane.way, &*session);
    if cell.found.is_some() {
        return Ok(());
    }
    // Buffers are made, pages touched, code is chosen: what that takes is not measured.
    let (began, mut batches) = (Instant::now(), DEPTH.min(ring.count));
    loop {
        ring.restore(subject.pool);
        let took = send(session, ring, batches)?;
        let enough = took >= REPETITION || batches >= MOST_BATCHES;
        if enough && (began.elapsed() > settings.budget / 10 || took > settings.budget / 10) {
            cell.batches = batches;
            return Ok(());
        }
        if !enough {
            let more = REPETITION.as_secs_f64() / took.as_secs_f64().max(1e-9) * 1.2;
            batches = ((batches as f64 * more).ceil() as usize).clamp(batches + 1, MOST_BATCHES);
        }
        if settings.stop.is_cancelled() {
            return Err(DeviceError::Cancelled);
        }
    }
}

/// Sends all packets, and compares what comes back with what is to come. A filter with maps begins
/// anew with them, and gets as many packets as the interpreter has an answer for.
fn compare(
    session: &mut dyn Session,
    cell: &mut Running,
    ring: &mut Ring,
    subject: MeasuredFilter<'_>,
) -> Result<(), DeviceError> {
    ring.restore(subject.pool);
    let has_maps = !subject.program.maps().is_empty();
    if !has_maps {
        let batches = ring.count;
        let compared = &mut cell.compared;
        let mut differs = None;
        pass(session, ring, batches, &mut |first, done| {
            *compared += done.verdicts.len() as u64;
            if differs.is_none() {
                differs = subject.expected.differs(first, done);
            }
        })?;
        cell.found = differs.map(CellOutcome::Wrong);
        return Ok(());
    }
    state::set(session, subject.program, &[])?;
    let pool = subject.pool;
    let own = Ring::lay_out(pool, subject.program, ring.batch.min(pool.len()), RING, subject.memory)
        .map_err(DeviceError::Refused)?;
    for (first, mut batch) in own.batches.into_iter().take_while(|(first, _)| *first < pool.len()) {
        batch.truncate(pool.len() - first);
        let done = session.run(batch)?;
        cell.compared += done.verdicts.len() as u64;
        if let Some(detail) = subject.expected.differs(first, &done) {
            cell.found = Some(CellOutcome::Wrong(detail));
            return Ok(());
        }
    }
    cell.found = subject.expected.maps_differ(session, subject.program)?.map(CellOutcome::Wrong);
    Ok(())
}

/// Measures once.
fn repetition(
    lane: &mut Lane,
    cell: &mut Running,
    ring: &mut Ring,
    subject: MeasuredFilter<'_>,
    settings: &Settings,
) -> Result<(), DeviceError> {
    let Some(session) = lane.session.as_deref_mut() else { return Ok(()) };
    ring.restore(subject.pool);
    let took = send(session, ring, cell.batches)?;
    cell.spent += took;
    cell.samples.push(took.as_secs_f64() / (cell.batches * ring.batch) as f64);
    cell.estimate = median(&cell.samples, settings.confidence);
    if cell.samples.len() >= settings.least && cell.estimate.is_some_and(|it| it.width() <= settings.width) {
        cell.ended = StopReason::Narrow;
    }
    Ok(())
}

/// Compares once more, and takes what is told beside the rate.
fn finish(
    lane: &mut Lane,
    cell: &mut Running,
    ring: &mut Ring,
    subject: MeasuredFilter<'_>,
    settings: &Settings,
) -> Result<(), DeviceError> {
    let stopped = settings.stop.is_cancelled();
    let Some((packet, session)) = cell.estimate.zip(lane.session.as_deref_mut()) else {
        cell.found = Some(if stopped {
            CellOutcome::Dropped
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
    // What was wrong only under way counts as well.
    compare(session, cell, ring, subject)?;
    if cell.found.is_some() {
        return Ok(());
    }
    let latencies = latencies(session, ring, subject, settings)?;
    let loads = match settings.loads && !stopped {
        true => loads(session, ring, subject, settings, packet)?,
        false => Vec::new(),
    };
    let stages = if stopped { None } else { stages(lane, cell.batches, ring, subject, settings)? };
    cell.found = Some(CellOutcome::Figures(Box::new(Figures {
        packet,
        repetitions: cell.samples.len() as u64,
        ended: cell.ended,
        compared: cell.compared,
        latency: (latencies.quantiles(), latencies.count()),
        loads,
        stages,
        transfer: cell.transfer,
    })));
    Ok(())
}

/// Single batches.
fn latencies(
    session: &mut dyn Session,
    ring: &mut Ring,
    subject: MeasuredFilter<'_>,
    settings: &Settings,
) -> Result<Latencies, DeviceError> {
    let mut latencies = Latencies::new();
    let began = Instant::now();
    let time = if settings.stop.is_cancelled() { Duration::ZERO } else { settings.budget / 5 };
    while latencies.count() < LEAST_LATENCIES || latencies.count() < MOST_LATENCIES && began.elapsed() < time {
        if latencies.count().is_multiple_of(ring.count as u64) {
            ring.restore(subject.pool);
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

/// Batches at a steady rate. A batch's latency begins when it is due: where the device is behind,
/// its waiting counts.
fn loads(
    session: &mut dyn Session,
    ring: &mut Ring,
    subject: MeasuredFilter<'_>,
    settings: &Settings,
    packet: Estimate,
) -> Result<Vec<Load>, DeviceError> {
    let time = settings.budget / LOADS.len() as u32;
    let mut all = Vec::with_capacity(LOADS.len());
    for offered in LOADS {
        ring.restore(subject.pool);
        let between = packet.median * ring.batch as f64 / offered;
        let batches = ((time.as_secs_f64() / between) as usize).clamp(10, MOST_LATENCIES as usize);
        let due = |number: usize| Duration::from_secs_f64(between * number as f64);
        let (mut sent, mut back, mut latencies) = (0, 0, Latencies::new());
        let mut flying = VecDeque::new();
        let began = Instant::now();
        while back < batches {
            if sent < batches && began.elapsed() >= due(sent) && session.in_flight() < session.depth().min(ring.count) {
                let Some((first, batch)) = ring.batches.pop_front() else { break };
                session.submit(batch).map_err(|refused| refused.error)?;
                flying.push_back((first, sent));
                sent += 1;
            } else if let Some((first, number)) = flying.pop_front() {
                let Some(done) = session.complete()? else { break };
                latencies.add(began.elapsed().saturating_sub(due(number)));
                ring.batches.push_back((first, done.batch));
                back += 1;
            } else {
                // Sleeping would wake too late for the shortest.
                std::hint::spin_loop();
            }
            if settings.stop.is_cancelled() && flying.is_empty() {
                return Ok(all);
            }
        }
        let mpps = (back * ring.batch) as f64 / began.elapsed().as_secs_f64() / 1e6;
        all.push(Load { offered, mpps, latency: latencies.quantiles() });
    }
    Ok(all)
}

/// A session that looks at the clock, in turns of its own, since that takes time.
fn stages(
    lane: &mut Lane,
    batches: usize,
    ring: &mut Ring,
    subject: MeasuredFilter<'_>,
    settings: &Settings,
) -> Result<Option<(results::Stages, f64)>, DeviceError> {
    if lane.clocked.is_none() {
        lane.clocked = Some(lane.way.load(subject.program, true, &settings.give_up)?);
    }
    let Some(session) = lane.clocked.as_deref_mut() else { return Ok(None) };
    // Code and buffers first, and then what counts.
    session.finish_background_work();
    ring.restore(subject.pool);
    // What is to be at the device is brought there now, all of it.
    let first = if lane.way.resident { ring.count } else { DEPTH.min(ring.count) };
    send(session, ring, first)?;
    let Some(before) = session.stages() else { return Ok(None) };
    ring.restore(subject.pool);
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

/// How long so many batches take, as many in flight as there may be.
fn send(session: &mut dyn Session, ring: &mut Ring, batches: usize) -> Result<Duration, DeviceError> {
    let began = Instant::now();
    pass(session, ring, batches, &mut |_, done| _ = std::hint::black_box(&done.verdicts))?;
    Ok(began.elapsed())
}

/// So many batches through the session, each shown as it comes back with the number of its first
/// packet.
fn pass(
    session: &mut dyn Session,
    ring: &mut Ring,
    batches: usize,
    see: &mut dyn FnMut(usize, &Completion),
) -> Result<(), DeviceError> {
    let most = session.depth().min(ring.count);
    let (mut sent, mut flying) = (0, VecDeque::with_capacity(most));
    while sent < batches || !flying.is_empty() {
        while sent < batches && flying.len() < most {
            let Some((first, batch)) = ring.batches.pop_front() else { break };
            if let Err(refused) = session.submit(batch) {
                ring.batches.push_front((first, *refused.batch));
                return Err(refused.error);
            }
            flying.push_back(first);
            sent += 1;
        }
        let Some(first) = flying.pop_front() else { break };
        let Some(done) = session.complete()? else { break };
        see(first, &done);
        ring.batches.push_back((first, done.batch));
    }
    Ok(())
}

/// How packets come to devices of which batches choose.
const CHOSEN: &str = "chosen by batch";

/// How packets come to a device whose filter looks at none.
const UNSEEN: &str = "nothing";

/// How the packets of the batch before came to the device, in words.
fn transfer(way: &Contender, session: &dyn Session) -> &'static str {
    if way.resident {
        return RESIDENT;
    }
    if way.device.info().id == AUTO {
        return CHOSEN;
    }
    let Some(plan) = session.transfer_plan() else { return "in place" };
    match (plan.transfer(), plan.reach) {
        (None, _) => UNSEEN,
        (Some(Transfer::Imported), MemoryReach::DeviceLocal) => RESIDENT,
        (Some(Transfer::Imported), _) => "imported memory",
        (Some(Transfer::Window), _) => "read window",
        (Some(Transfer::Whole | Transfer::Auto), _) => "whole packets",
    }
}

#[cfg(test)]
mod tests;
