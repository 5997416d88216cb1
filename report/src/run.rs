//! A whole benchmark run: plans the matrix and measures its cells in turn.

use std::num::NonZeroUsize;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis_core::device::{CancelToken, Device, DeviceError, Dispatch, Transfer, UnknownTransfer};
use portcullis_core::program::Program;

use super::bars;
use super::ceilings;
use super::machine;
use super::measure::{CellOutcome, Contender, Figures, Lane, MeasuredFilter, Settings, TIME_USED_UP, measure};
use super::oracle::Expected;
use super::results::*;
use super::traffic::{POOL, Packets, Pool, RING};
use super::xdp_on_gpu;

/// A filter to measure.
#[derive(Debug, Clone)]
pub struct Filter {
    /// Name of the filter.
    pub name: String,
    /// Compiled filter.
    pub program: Arc<Program>,
}

/// A device to measure.
#[derive(Clone)]
pub struct BenchDevice {
    /// Device to measure.
    pub device: Arc<dyn Device>,
    /// Number of threads, if not all.
    pub threads: Option<NonZeroUsize>,
}

impl BenchDevice {
    /// Returns the contender's id: `cpu@1` with one thread.
    pub fn id(&self) -> String {
        let id = &self.device.info().id;
        self.threads.map_or_else(|| id.clone(), |threads| format!("{id}@{threads}"))
    }

    /// Whether the contender is `auto`, which chooses a device per batch.
    fn is_auto(&self) -> bool {
        self.device.info().id == AUTO
    }

    /// Whether the device filters packets in place, without a driver.
    fn is_in_place(&self) -> bool {
        let id = &self.device.info().id;
        ["cpu", "interp", "noop"].iter().any(|backend| id.starts_with(backend))
    }
}

/// Where packets are before they are filtered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketOrigin {
    /// Packets are in host memory, and moved to the device by this transfer.
    Host(Transfer),
    /// Packets are in the device's memory (`resident`).
    Device,
}

/// Error for the name of a transfer that does not exist.
#[derive(Debug, thiserror::Error)]
#[error("{0}, and resident")]
pub struct UnknownOrigin(#[from] UnknownTransfer);

impl FromStr for PacketOrigin {
    type Err = UnknownOrigin;

    fn from_str(text: &str) -> Result<PacketOrigin, UnknownOrigin> {
        if text == "resident" { Ok(PacketOrigin::Device) } else { Ok(PacketOrigin::Host(text.parse()?)) }
    }
}

/// How much of the matrix is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Every batch size with one packet size; other packet sizes, transfers, dispatch methods and
    /// loads at one batch size.
    Quick,
    /// All combinations of batch size, packet size, transfer, dispatch method and load.
    Full,
}

/// Plan of a run: filters, devices, traffic and batch sizes.
#[derive(Clone)]
pub struct RunPlan {
    /// Which combinations to measure.
    pub extent: Extent,
    /// `quick`, `full` or `chosen`.
    pub matrix: &'static str,
    /// Filters to measure.
    pub filters: Vec<Filter>,
    /// Devices to measure.
    pub devices: Vec<BenchDevice>,
    /// Backends without a device.
    pub missing: Vec<Missing>,
    /// Batch sizes, in packets.
    pub batches: Vec<usize>,
    /// Packet sizes.
    pub packets: Vec<Packets>,
    /// Where packets start and how they reach devices; empty for the extent's default.
    pub transfers: Vec<PacketOrigin>,
    /// Dispatch methods; empty for the extent's default.
    pub dispatches: Vec<Dispatch>,
    /// When the run started, before filters were compiled and devices probed: the time budget
    /// includes both.
    pub start: Instant,
    /// Time budget for the whole run, XDP-on-GPU's workloads included. [`expected_time`] says
    /// whether it suffices.
    pub time: Duration,
    /// Measure XDP-on-GPU's workloads last, by its method and by Portcullis.
    pub xdp_on_gpu: bool,
    /// Command lines of the run.
    pub commands: Vec<String>,
    /// Reference interpreter.
    pub reference: Arc<dyn Device>,
}

/// Batch sizes of a full run, in packets.
pub const BATCHES: [usize; 9] = [64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576, 10_000_000];

/// Batch sizes of a quick run, in packets.
pub const QUICK_BATCHES: [usize; 5] = [64, 1024, 16_384, 131_072, 1_048_576];

/// Batch size, in packets, at which a quick run measures the other dimensions.
const BASE_BATCH: usize = 16_384;

/// Least time that a cell's repetitions get.
const MIN_BUDGET: Duration = Duration::from_millis(20);

/// Time that a cell takes besides its repetitions, as a share of its budget: warming up, latencies
/// of single batches, and stages.
const OVERHEAD_SHARE: f64 = 0.5;

/// Time that latencies under load take, as a share of a cell's budget.
const LOADS_SHARE: f64 = 1.0;

/// Confidence level of intervals.
const CONFIDENCE: f64 = 0.95;

/// Minimum repetitions of a cell.
const MIN_REPETITIONS: usize = 10;

/// Width of an interval at which a cell has converged, as a share of the median.
const CONVERGED_WIDTH: f64 = 0.03;

/// Cells measured together, in alternation: one filter, batch size and traffic on several
/// contenders.
#[derive(Debug, Clone)]
struct Group {
    filter: usize,
    packets: Packets,
    batch: usize,
    /// Indices of the contenders.
    contenders: Vec<usize>,
    loads: bool,
    /// Approximate number of packets in rotation.
    rotation: usize,
}

/// Progress of a run.
#[derive(Debug, Clone)]
pub struct RunProgress<'a> {
    /// Units done or skipped: a cell is one, a column of XDP-on-GPU's workloads may be more.
    pub done: usize,
    /// Units in all.
    pub all: usize,
    /// Description of the current step.
    pub now: &'a str,
}

/// Tokens that end a run.
#[derive(Debug, Clone, Default)]
pub struct StopTokens {
    /// Ends the run after the current repetition.
    pub stop: CancelToken,
    /// Ends the run at once.
    pub give_up: CancelToken,
}

/// Measures everything in the plan. If interrupted, returns the results so far.
pub fn run(plan: &RunPlan, tokens: &StopTokens, observe: &mut dyn FnMut(RunProgress<'_>)) -> Results {
    let (began, clock, load) = (machine::now(), plan.start, machine::LoadSampler::start());
    let contenders = contenders(plan);
    let groups = groups(plan, &contenders);
    let mut results = empty(plan, began);
    let stopped = || tokens.stop.is_cancelled();
    let cells: usize = groups.iter().map(|group| group.contenders.len()).sum();
    // XDP-on-GPU's workloads get the last third, and what the cells leave.
    let xdp_on_gpu = plan.xdp_on_gpu.then(|| plan_xdp_on_gpu(plan, tokens));
    let columns = xdp_on_gpu.as_ref().map_or(0, |(_, options)| options.columns());
    let units_per_column = if columns > 0 { (cells / 2).div_ceil(columns).max(1) } else { 0 };
    let all = cells + columns * units_per_column;
    let time = if columns > 0 { plan.time * 2 / 3 } else { plan.time };
    // A budget below the minimum is not kept, which the caller announces.
    let deadline = clock + time.max(minimum_time(plan, &groups));
    // Time of groups beyond their budgets, and cells that they had.
    let (mut overhead, mut overhead_cells) = (Duration::ZERO, 0);
    observe(RunProgress { done: 0, all, now: "bandwidth of memory and buses" });
    let share = time / 20;
    results.ceilings = ceilings::host(CONFIDENCE, share, &stopped);
    for device in &plan.devices {
        results.ceilings.extend(ceilings::of_device(&device.id(), CONFIDENCE, share, &stopped));
    }

    let mut done = 0;
    let mut lanes: Vec<Lane> = contenders.iter().cloned().map(Lane::new).collect();
    let mut pool: Option<Pool> = None;
    // The interpreter's answer for the filter and packets of the previous group.
    let mut expected: Option<(usize, Packets, Result<Expected, DeviceError>)> = None;
    let memory = machine::memory_to_take();
    for group in &groups {
        if stopped() {
            break;
        }
        let filter = &plan.filters[group.filter];
        let packets = packets_in_words(&group.packets.to_string());
        let place = format!("{}, {packets} in batches of {}", filter.name, group.batch);
        let overhead_per_cell = overhead / overhead_cells.max(1) as u32;
        if Instant::now() + (overhead_per_cell + MIN_BUDGET) * group.contenders.len() as u32 > deadline {
            record_skipped_cell(&mut results, &place, TIME_USED_UP);
            done += group.contenders.len();
            continue;
        }
        let group_start = Instant::now();
        observe(RunProgress { done, all, now: &place });
        if pool.as_ref().is_none_or(|pool| pool.packets != group.packets) {
            pool = Some(Pool::new(group.packets, POOL));
        }
        let Some(pool) = &pool else { continue };
        if !matches!(&expected, Some((of, packets, _)) if (*of, *packets) == (group.filter, group.packets)) {
            if expected.as_ref().is_none_or(|(of, ..)| *of != group.filter) {
                lanes.iter_mut().for_each(Lane::unload);
            }
            let answer = Expected::of(&filter.program, pool, &*plan.reference);
            expected = Some((group.filter, group.packets, answer));
        }
        let answer = match &expected {
            Some((.., Ok(answer))) => answer,
            Some((.., Err(error))) => {
                record_skipped_cell(&mut results, &place, &format!("the interpreter failed: {error}"));
                done += group.contenders.len();
                continue;
            }
            None => continue,
        };
        // Share the remaining time equally: a group that took less leaves more for the others.
        let left = time.saturating_sub(clock.elapsed()) / (cells - done).max(1) as u32;
        let shares = 1.0 + OVERHEAD_SHARE + if group.loads { LOADS_SHARE } else { 0.0 };
        let budget = left.saturating_sub(overhead_per_cell).div_f64(shares);
        let settings = Settings {
            confidence: CONFIDENCE,
            width: CONVERGED_WIDTH,
            least: MIN_REPETITIONS,
            budget: budget.clamp(MIN_BUDGET, Duration::from_secs(10)),
            deadline,
            loads: group.loads,
            stop: tokens.stop.clone(),
            give_up: tokens.give_up.clone(),
        };
        let subject =
            MeasuredFilter { program: &filter.program, pool, expected: answer, rotation: group.rotation, memory };
        let mut own: Vec<Lane> = Vec::with_capacity(group.contenders.len());
        for &contender in &group.contenders {
            own.push(std::mem::replace(&mut lanes[contender], Lane::new(contenders[contender].clone())));
        }
        let found = measure(&mut own, subject, group.batch, &settings, &mut |id| {
            observe(RunProgress { done, all, now: &format!("{place}, {id}") });
        });
        for (&contender, lane) in group.contenders.iter().zip(own) {
            lanes[contender] = lane;
        }
        overhead +=
            group_start.elapsed().saturating_sub(settings.budget.mul_f64(shares) * group.contenders.len() as u32);
        overhead_cells += group.contenders.len();
        match found {
            Ok(found) => {
                for (&contender, found) in group.contenders.iter().zip(found) {
                    record_outcome(&mut results, &contenders[contender], filter, pool, group.batch, found);
                }
            }
            Err(error) => record_skipped_cell(&mut results, &place, &error.to_string()),
        }
        done += group.contenders.len();
    }
    lanes.clear();
    if let Some((sides, mut options)) = xdp_on_gpu.filter(|_| !stopped()) {
        options.time = plan.time.saturating_sub(clock.elapsed());
        options.grace = (clock + expected_time(plan).1).saturating_duration_since(Instant::now() + options.time);
        let mut done = cells;
        observe(RunProgress { done, all, now: "XDP-on-GPU’s workloads" });
        results.xdp_on_gpu = xdp_on_gpu::run(&sides, &options, &mut |now| {
            done += units_per_column;
            observe(RunProgress { done, all, now: &format!("XDP-on-GPU’s workloads, {now}") });
        });
    }
    results.run.interrupted = stopped();
    results.bars = bars::evaluate(&results);
    results.run.seconds = clock.elapsed().as_secs_f64();
    results.run.load = load.load();
    results
}

/// Returns how many measurements a run makes and how long it takes: its time budget, or the minimum
/// for that many measurements if the budget is shorter.
pub fn expected_time(plan: &RunPlan) -> (usize, Duration) {
    let groups = groups(plan, &contenders(plan));
    let cells = groups.iter().map(|group| group.contenders.len()).sum();
    let columns = if plan.xdp_on_gpu { plan_xdp_on_gpu(plan, &StopTokens::default()).1.columns() } else { 0 };
    let minimum = minimum_time(plan, &groups) + MIN_COLUMN_TIME * columns as u32;
    (cells, plan.time.max(minimum))
}

/// Estimates the time that a run takes at least, however short its budget: copies for the
/// bandwidth limits, the interpreter's answer for each filter and packet size, and for each cell
/// loading, comparison and the minimum of repetitions, with slack for slow machines. Unoptimised
/// builds take about ten times as long.
fn minimum_time(plan: &RunPlan, groups: &[Group]) -> Duration {
    const CEILINGS: Duration = Duration::from_secs(1);
    const EXPECTED: Duration = Duration::from_millis(200);
    const CELL: Duration = Duration::from_millis(250);
    const MAX_SLACK: Duration = Duration::from_secs(15);
    let answers = (plan.filters.len() * plan.packets.len()) as u32;
    let cells = groups.iter().map(|group| group.contenders.len() as u32).sum::<u32>();
    let estimate = (CEILINGS + EXPECTED * answers + CELL * cells) * SLOWDOWN;
    // A slow or busy machine takes a multiple of that.
    estimate + (estimate * 3).min(MAX_SLACK)
}

/// Time that a column of XDP-on-GPU's workloads takes at least.
const MIN_COLUMN_TIME: Duration = Duration::from_millis(500).saturating_mul(SLOWDOWN);

/// How much longer everything takes in an unoptimised build.
const SLOWDOWN: u32 = if cfg!(debug_assertions) { 10 } else { 1 };

/// Returns the devices and the options for XDP-on-GPU's workloads.
fn plan_xdp_on_gpu(plan: &RunPlan, tokens: &StopTokens) -> (Vec<xdp_on_gpu::Side>, xdp_on_gpu::Options) {
    // Each device once: how it uses threads is part of what is compared.
    let mut devices: Vec<_> = plan.devices.iter().filter(|it| !it.is_auto()).map(|it| it.device.clone()).collect();
    devices.dedup_by_key(|device| device.info().id.clone());
    let sides = devices.into_iter().map(xdp_on_gpu::Side::new).collect();
    let all = plan.extent == Extent::Full;
    let sizes = if all { vec![100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000] } else { vec![1_000, 1_000_000] };
    let cancel = tokens.stop.clone();
    (
        sides,
        xdp_on_gpu::Options { sizes, time: Duration::ZERO, grace: Duration::ZERO, confidence: CONFIDENCE, all, cancel },
    )
}

fn contenders(plan: &RunPlan) -> Vec<Contender> {
    let mut all = Vec::new();
    for device in &plan.devices {
        let info = device.device.info();
        use PacketOrigin::Host;
        let usual = [Transfer::Whole, Transfer::Window, Transfer::Imported, Transfer::Auto].map(Host);
        let origins: Vec<PacketOrigin> = match plan.transfers.as_slice() {
            [] if device.is_in_place() || device.is_auto() => vec![Host(Transfer::Auto)],
            [] => usual.into_iter().chain([PacketOrigin::Device]).collect(),
            // A device that filters in place has the host's memory as its own.
            asked if device.is_in_place() => asked
                .iter()
                .map(|origin| if *origin == PacketOrigin::Device { Host(Transfer::Auto) } else { *origin })
                .fold(Vec::new(), |all, origin| if all.contains(&origin) { all } else { [all, vec![origin]].concat() }),
            // `auto` chooses by where packets start, which resident packets leave out.
            asked if device.is_auto() => {
                asked.iter().copied().filter(|origin| *origin != PacketOrigin::Device).collect()
            }
            asked => asked.to_vec(),
        };
        let dispatches: Vec<Dispatch> = match plan.dispatches.as_slice() {
            // `auto` dispatches as the chosen device does.
            [] if device.is_auto() => info.dispatch[..1].to_vec(),
            [] => info.dispatch.to_vec(),
            asked => asked.iter().copied().filter(|dispatch| info.dispatch.contains(dispatch)).collect(),
        };
        for &dispatch in &dispatches {
            all.extend(origins.iter().map(|&origin| Contender {
                device: device.device.clone(),
                id: device.id(),
                threads: device.threads,
                transfer: if let Host(transfer) = origin { transfer } else { Transfer::Whole },
                resident: origin == PacketOrigin::Device,
                dispatch,
            }));
        }
    }
    all
}

fn groups(plan: &RunPlan, all_contenders: &[Contender]) -> Vec<Group> {
    let mut groups = Vec::new();
    let places = |keep: &dyn Fn(&Contender) -> bool| -> Vec<usize> {
        (0..all_contenders.len()).filter(|&contender| keep(&all_contenders[contender])).collect()
    };
    let usual = |contender: &Contender| {
        // The device's default, or the first that was asked for.
        let dispatch = plan.dispatches.iter().find(|asked| contender.device.info().dispatch.contains(asked));
        let dispatch = dispatch.or(contender.device.info().dispatch.first());
        let is_auto = plan.transfers.is_empty() && (contender.transfer == Transfer::Auto || contender.resident);
        let is_asked = !plan.transfers.is_empty();
        dispatch.is_none_or(|dispatch| *dispatch == contender.dispatch) && (is_auto || is_asked)
    };
    for filter in 0..plan.filters.len() {
        for (nth, &packets) in plan.packets.iter().enumerate() {
            for &batch in &plan.batches {
                let is_base_batch = plan.batches.iter().min_by_key(|batch| batch.abs_diff(BASE_BATCH)) == Some(&batch);
                let (contenders, loads) = match plan.extent {
                    Extent::Full => (places(&|_| true), true),
                    // The first packet size at every batch size, and all contenders of the first
                    // filter at one batch size.
                    Extent::Quick if nth == 0 && is_base_batch && filter == 0 => (places(&|_| true), true),
                    Extent::Quick if nth == 0 => (places(&usual), false),
                    Extent::Quick if is_base_batch => (places(&usual), false),
                    Extent::Quick => continue,
                };
                // Resident packets form a group of their own with fewer packets in rotation, since
                // the device's memory holds all of them at once.
                let (resident, contenders): (Vec<usize>, Vec<usize>) =
                    contenders.into_iter().partition(|&contender| all_contenders[contender].resident);
                for (contenders, loads, rotation) in [(contenders, loads, RING), (resident, false, POOL)] {
                    if !contenders.is_empty() {
                        groups.push(Group { filter, packets, batch, contenders, loads, rotation });
                    }
                }
            }
        }
    }
    groups
}

fn empty(plan: &RunPlan, began: String) -> Results {
    let devices = plan.devices.iter().map(|device| {
        let info = device.device.info();
        let mut facts: Vec<_> =
            info.limits.iter().map(|limit| (limit.name().to_owned(), limit.value().to_owned())).collect();
        facts.extend(device.threads.map(|threads| ("threads used".to_owned(), threads.to_string())));
        let id = device.id();
        super::results::Device {
            id,
            name: info.name.clone(),
            kind: info.kind.name().into(),
            driver: info.driver.clone(),
            facts,
        }
    });
    let notes = [
        format!(
            "All configurations that filter the same batches take turns, a repetition each, so that drift affects all of them. A cell is repeated {MIN_REPETITIONS} \
             times at least, and then until the interval is narrower than {:.0} % of the median or its time is used up; each cell says which.",
            CONVERGED_WIDTH * 100.0
        ),
        "Intervals are by order statistics: they assume no distribution of times.".into(),
        "A repetition is as many batches as take 4 ms or more, three in flight where the dispatch method allows; before the first, everything is \
         warmed up. Its time is from the first batch's submission to the last one's verdicts, gathering and copying included."
            .into(),
        format!(
            "Packets are Ethernet frames without check sequence, TCP, UDP and ICMP over IPv4 of 10,000 flows; {POOL} differ, and repeat. Gb/s counts \
             their bytes. imix is 64, 594 and 1518 bytes, 7 : 4 : 1 (simple IMIX). They are contiguous in memory, as in a capture. Batches rotate \
             over at least {} packets, so small packets may stay in the CPU’s caches. Their rate can then exceed what memory supplies, and the bandwidth used reads \
             “cached”.",
            1 << 16
        ),
        "Before and after it is timed, each cell's verdicts, and packets where the filter writes any, are compared with those of the reference \
         interpreter, all of them; where the filter has maps, from empty maps and each packet once, and then the maps' entries as well, if the \
         packets' order does not decide what they are. Packets that a filter has written are restored before each repetition, which is not timed."
            .into(),
        "Latencies are of single batches. Under load, a batch's latency starts when it is due, so that time spent waiting for others counts.".into(),
        "Stages and bytes are measured in a separate session, since reading the clock takes time.".into(),
    ];
    Results {
        schema: SCHEMA,
        run: Run {
            version: env!("CARGO_PKG_VERSION").into(),
            commit: option_env!("PORTCULLIS_COMMIT").map(Into::into),
            began,
            seconds: 0.0,
            commands: plan.commands.clone(),
            interrupted: false,
            load: None,
            warnings: Vec::new(),
        },
        machine: machine::machine(),
        method: Method {
            matrix: plan.matrix.into(),
            confidence: CONFIDENCE,
            least_repetitions: MIN_REPETITIONS as u64,
            wanted_width: Some(CONVERGED_WIDTH),
            filters: plan.filters.iter().map(|filter| filter.name.clone()).collect(),
            notes: notes.into(),
        },
        devices: devices.collect(),
        missing: plan.missing.clone(),
        ceilings: Vec::new(),
        cells: Vec::new(),
        left_out: Vec::new(),
        bars: Vec::new(),
        xdp_on_gpu: Vec::new(),
    }
}

fn record_skipped_cell(results: &mut Results, what: &str, why: &str) {
    let left = SkippedCell { what: what.into(), why: why.into() };
    if !results.left_out.contains(&left) {
        results.left_out.push(left);
    }
}

/// Adds the outcome of a cell to the results.
fn record_outcome(
    results: &mut Results,
    contender: &Contender,
    filter: &Filter,
    pool: &Pool,
    batch: usize,
    found: CellOutcome,
) {
    let mut transfer = match contender.transfer {
        _ if contender.resident => RESIDENT,
        Transfer::Auto => "auto",
        Transfer::Whole => "whole packets",
        Transfer::Window => "read window",
        Transfer::Imported => "imported memory",
    };
    let outcome = match found {
        CellOutcome::Figures(mut figures) => {
            transfer = figures.transfer;
            for warning in std::mem::take(&mut figures.warnings) {
                if !results.run.warnings.contains(&warning) {
                    results.run.warnings.push(warning);
                }
            }
            Outcome::Measured(Box::new(summarize_measurement(results, contender, filter, pool, *figures)))
        }
        CellOutcome::Mismatch(detail) => Outcome::Mismatch { detail },
        CellOutcome::Failed(reason) => Outcome::Failed { reason },
        CellOutcome::Absent(why) => {
            return record_skipped_cell(results, &format!("{}, {transfer}", contender.id), &why);
        }
        CellOutcome::Same | CellOutcome::Dropped => return,
    };
    results.cells.push(Cell {
        filter: filter.name.clone(),
        device: contender.id.clone(),
        batch: batch as u64,
        packets: pool.packets.to_string(),
        packet_bytes: pool.mean(),
        transfer: transfer.into(),
        dispatch: contender.dispatch.name().into(),
        outcome,
    });
}

fn summarize_measurement(
    results: &Results,
    contender: &Contender,
    filter: &Filter,
    pool: &Pool,
    figures: Figures,
) -> Measured {
    let facts = filter.program.facts();
    let mpps = figures.packet.under(1e-6);
    let kind = contender.device.info().kind;
    // Cache lines of 64 bytes that are read and written, and a verdict. No descriptors: packets lie
    // at equal distances, so a device need not read them.
    let lines = |bytes: u32, length: usize| {
        u64::from(bytes.min(length as u32).next_multiple_of(64)).min(length.next_multiple_of(4) as u64)
    };
    let touched = |length: usize| lines(facts.reads.max_bytes(), length) + lines(facts.writes.max_bytes(), length);
    let memory_bytes = pool.mean_of(touched) + 1.0 + if facts.redirects { 4.0 } else { 0.0 };
    let copied_bytes = figures.stages.map(|(_, bytes)| bytes).filter(|bytes| *bytes > 0.0);
    let bus_bytes = if kind.is_gpu() { copied_bytes } else { None };
    let ceiling = |name: &str, device: Option<&str>| {
        results.ceilings.iter().find(|it| it.name == name && it.device.as_deref() == device).cloned()
    };
    let one = contender.threads.is_some_and(|threads| threads.get() == 1);
    let (bytes, ceiling) = match bus_bytes {
        Some(_) if contender.resident => (memory_bytes, ceiling(ceilings::DEVICE_MEMORY, Some(&contender.id))),
        Some(bytes) => (bytes, ceiling(ceilings::BUS, Some(&contender.id))),
        None if kind.is_gpu() => (0.0, None),
        None => (memory_bytes, ceiling(if one { ceilings::MEMORY_ONE_THREAD } else { ceilings::MEMORY }, None)),
    };
    let of_ceiling = ceiling.map(|it| (bytes * mpps.median * 1e6 / it.bytes_per_second.median, it.name));
    Measured {
        mpps,
        gbps: mpps.median * pool.mean() * 8.0 / 1e3,
        repetitions: figures.repetitions,
        ended: figures.ended,
        compared: figures.compared,
        latency: figures.latency.0,
        latencies: figures.latency.1,
        loads: figures.loads,
        bus_bytes,
        copied_bytes,
        memory_bytes: Some(memory_bytes),
        stages: figures.stages.map(|(stages, _)| stages),
        of_ceiling,
    }
}
