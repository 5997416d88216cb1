//! A whole benchmark: the matrix, and one cell of it after the other.

use std::num::NonZeroUsize;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis_core::device::{CancelToken, Device, Dispatch, Transfer, UnknownTransfer};
use portcullis_core::program::Program;

use super::bars;
use super::ceilings;
use super::machine;
use super::measure::{CellOutcome, Contender, Figures, Lane, MeasuredFilter, Settings, measure};
use super::oracle::Expected;
use super::results::*;
use super::seeds;
use super::traffic::{POOL, Packets, Pool, RING};

/// A filter.
#[derive(Debug, Clone)]
pub struct Filter {
    /// Name of the filter.
    pub name: String,
    /// Compiled filter.
    pub program: Arc<Program>,
}

/// A device that is measured.
#[derive(Clone)]
pub struct Chosen {
    /// Device to measure.
    pub device: Arc<dyn Device>,
    /// Number of threads, if not all.
    pub threads: Option<NonZeroUsize>,
}

impl Chosen {
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
pub enum Start {
    /// In the host's memory, from where they come to the device like this.
    Host(Transfer),
    /// In the device's memory already: `resident`.
    Device,
}

impl FromStr for Start {
    type Err = String;

    fn from_str(text: &str) -> Result<Start, String> {
        match text {
            "resident" => Ok(Start::Device),
            _ => text.parse().map(Start::Host).map_err(|error: UnknownTransfer| format!("{error}, and resident")),
        }
    }
}

/// The id of the device that is several.
pub const AUTO: &str = "auto";

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Batches of each size; transfers, dispatch methods, packets' sizes and loads at one size of
    /// batch each.
    Quick,
    /// Everything with everything.
    Full,
}

/// Plan of a run: filters, devices, traffic and batch sizes.
#[derive(Clone)]
pub struct Order {
    /// How much.
    pub extent: Extent,
    /// `quick`, `full` or `chosen`.
    pub matrix: &'static str,
    /// Filters.
    pub filters: Vec<Filter>,
    /// Devices.
    pub devices: Vec<Chosen>,
    /// Backends without any.
    pub missing: Vec<Missing>,
    /// Packets in a batch.
    pub batches: Vec<usize>,
    /// Packets.
    pub packets: Vec<Packets>,
    /// Where packets are, and how they come to devices; by the extent's choice where there is none.
    pub transfers: Vec<Start>,
    /// Dispatch methods; by the extent's choice where there is none.
    pub dispatches: Vec<Dispatch>,
    /// Time for all of it, about, XDP-on-GPU's workloads included.
    pub time: Duration,
    /// Measure XDP-on-GPU's workloads, its way and ours, after all else.
    pub seeds: bool,
    /// The commands as they were typed.
    pub commands: Vec<String>,
    /// The reference.
    pub reference: Arc<dyn Device>,
}

/// Packets in a batch, from the smallest on that anybody would send to a device.
pub const BATCHES: [usize; 9] = [64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576, 10_000_000];

/// Batch sizes of a quick run, in packets.
pub const QUICK_BATCHES: [usize; 5] = [64, 1024, 16_384, 131_072, 1_048_576];

/// The batch at which a quick run measures everything else.
const STAR: usize = 16_384;

/// Time beyond what was asked for, in which no measurement is begun any more: each takes what an
/// interval needs, and on a busy machine that is more than its share.
pub(super) const OVERTIME: Duration = Duration::from_secs(25);

/// Confidence of intervals.
const CONFIDENCE: f64 = 0.95;

/// Repetitions, at least.
const LEAST: usize = 10;

/// An interval narrower than this share of the median is narrow enough.
const WIDTH: f64 = 0.03;

/// Cells measured together, in alternation: one filter, batch size and traffic on several
/// contenders.
#[derive(Debug, Clone)]
struct Group {
    filter: usize,
    packets: Packets,
    batch: usize,
    /// Places among the ways.
    ways: Vec<usize>,
    loads: bool,
    /// Packets that are under way in turn, about.
    around: usize,
}

/// How far a run is.
#[derive(Debug, Clone)]
pub struct Step<'a> {
    /// How much is done, or given up: a cell is one, a column of XDP-on-GPU's workloads may be
    /// more.
    pub done: usize,
    /// How much there is in all.
    pub all: usize,
    /// Description of the current step.
    pub now: &'a str,
}

/// Ends a run.
#[derive(Debug, Clone, Default)]
pub struct RunGuard {
    /// After the repetition that is under way.
    pub stop: CancelToken,
    /// At once.
    pub give_up: CancelToken,
}

/// Measures all of it. Interrupted, it gives what it has.
pub fn run(order: &Order, ends: &RunGuard, observe: &mut dyn FnMut(Step<'_>)) -> Results {
    let (began, clock) = (machine::now(), Instant::now());
    let ways = ways(order);
    let groups = groups(order, &ways);
    let mut results = empty(order, began);
    let stopped = || ends.stop.is_cancelled();
    let cells: usize = groups.iter().map(|group| group.ways.len()).sum();
    // XDP-on-GPU's workloads have the last third, and what the cells leave.
    let seeds = order.seeds.then(|| seeds_of(order, ends));
    let columns = seeds.as_ref().map_or(0, |(_, options)| options.columns());
    let each = if columns > 0 { (cells / 2).div_ceil(columns).max(1) } else { 0 };
    let all = cells + columns * each;
    let time = if columns > 0 { order.time * 2 / 3 } else { order.time };
    observe(Step { done: 0, all, now: "what memory and buses can do" });
    let share = time / 20;
    results.ceilings = ceilings::host(CONFIDENCE, share, &stopped);
    for chosen in &order.devices {
        results.ceilings.extend(ceilings::of_device(&chosen.id(), CONFIDENCE, share, &stopped));
    }

    let mut done = 0;
    let mut lanes: Vec<Lane> = ways.iter().cloned().map(Lane::new).collect();
    let mut pool: Option<Pool> = None;
    // Of a filter and the packets before.
    let mut expected: Option<(usize, Packets, Result<Expected, String>)> = None;
    let memory = machine::memory_to_take();
    for group in &groups {
        if stopped() {
            break;
        }
        let filter = &order.filters[group.filter];
        let place = format!("{}, {} packets in batches of {}", filter.name, group.packets, group.batch);
        if clock.elapsed() > time + OVERTIME {
            left_out(&mut results, &place, "the time was used up; give it more with --time");
            done += group.ways.len();
            continue;
        }
        observe(Step { done, all, now: &place });
        if pool.as_ref().is_none_or(|pool| pool.packets != group.packets) {
            pool = Some(Pool::new(group.packets, POOL));
        }
        let Some(pool) = &pool else { continue };
        if !matches!(&expected, Some((of, packets, _)) if (*of, *packets) == (group.filter, group.packets)) {
            if expected.as_ref().is_none_or(|(of, ..)| *of != group.filter) {
                lanes.iter_mut().for_each(Lane::unload);
            }
            let answer = Expected::of(&filter.program, pool, &*order.reference).map_err(|error| error.to_string());
            expected = Some((group.filter, group.packets, answer));
        }
        let answer = match &expected {
            Some((.., Ok(answer))) => answer,
            Some((.., Err(error))) => {
                left_out(&mut results, &place, &format!("the interpreter has no answer: {error}"));
                done += group.ways.len();
                continue;
            }
            None => continue,
        };
        // What is left, for what is left: a group that took less leaves more for the others.
        let left = time.saturating_sub(clock.elapsed()).as_secs_f64() / (cells - done).max(1) as f64;
        let settings = Settings {
            confidence: CONFIDENCE,
            width: WIDTH,
            least: LEAST,
            // Loading, comparing, latencies and stages take about as long again.
            budget: Duration::from_secs_f64(left * 0.4).clamp(Duration::from_millis(20), Duration::from_secs(10)),
            loads: group.loads,
            stop: ends.stop.clone(),
            give_up: ends.give_up.clone(),
        };
        let subject = MeasuredFilter { program: &filter.program, pool, expected: answer, around: group.around, memory };
        let mut own: Vec<Lane> = Vec::with_capacity(group.ways.len());
        for &way in &group.ways {
            own.push(std::mem::replace(&mut lanes[way], Lane::new(ways[way].clone())));
        }
        let found = measure(&mut own, subject, group.batch, &settings, &mut |id| {
            observe(Step { done, all, now: &format!("{place}, {id}") });
        });
        for (&way, lane) in group.ways.iter().zip(own) {
            lanes[way] = lane;
        }
        match found {
            Ok(found) => {
                for (&way, found) in group.ways.iter().zip(found) {
                    take(&mut results, &ways[way], filter, pool, group.batch, found);
                }
            }
            Err(why) => left_out(&mut results, &place, &why),
        }
        done += group.ways.len();
    }
    lanes.clear();
    if let Some((sides, mut options)) = seeds.filter(|_| !stopped()) {
        options.time = order.time.saturating_sub(clock.elapsed());
        let mut done = cells;
        observe(Step { done, all, now: "XDP-on-GPU’s workloads" });
        results.seeds = seeds::run(&sides, &options, &mut |now| {
            done += each;
            observe(Step { done, all, now: &format!("XDP-on-GPU’s workloads, {now}") });
        });
    }
    results.run.interrupted = stopped();
    results.bars = bars::judge(&results);
    results.run.seconds = clock.elapsed().as_secs_f64();
    results
}

/// XDP-on-GPU's workloads: on which devices, and which of them.
fn seeds_of(order: &Order, ends: &RunGuard) -> (Vec<seeds::Side>, seeds::Options) {
    // A device once: its own way of using threads is part of what is compared.
    let mut devices: Vec<_> = order.devices.iter().filter(|it| !it.is_auto()).map(|it| it.device.clone()).collect();
    devices.dedup_by_key(|device| device.info().id.clone());
    let sides = devices.into_iter().map(seeds::Side::of).collect();
    let all = order.extent == Extent::Full;
    let sizes = if all { vec![100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000] } else { vec![1_000, 1_000_000] };
    let cancel = ends.stop.clone();
    (sides, seeds::Options { sizes, time: Duration::ZERO, confidence: CONFIDENCE, all, cancel })
}

fn ways(order: &Order) -> Vec<Contender> {
    let mut all = Vec::new();
    for chosen in &order.devices {
        let info = chosen.device.info();
        use Start::Host;
        let usual = [Transfer::Whole, Transfer::Window, Transfer::Imported, Transfer::Auto].map(Host);
        let starts: Vec<Start> = match order.transfers.as_slice() {
            [] if chosen.is_in_place() || chosen.is_auto() => vec![Host(Transfer::Auto)],
            [] => usual.into_iter().chain([Start::Device]).collect(),
            // Where packets are filtered where they lie, the device's memory is the host's.
            asked if chosen.is_in_place() => asked
                .iter()
                .map(|start| if *start == Start::Device { Host(Transfer::Auto) } else { *start })
                .fold(Vec::new(), |all, start| if all.contains(&start) { all } else { [all, vec![start]].concat() }),
            // It chooses by where packets have to come from.
            asked if chosen.is_auto() => asked.iter().copied().filter(|start| *start != Start::Device).collect(),
            asked => asked.to_vec(),
        };
        let dispatches: Vec<Dispatch> = match order.dispatches.as_slice() {
            // Its devices have others.
            [] if chosen.is_auto() => info.dispatch[..1].to_vec(),
            [] => info.dispatch.to_vec(),
            asked => asked.iter().copied().filter(|dispatch| info.dispatch.contains(dispatch)).collect(),
        };
        for &dispatch in &dispatches {
            all.extend(starts.iter().map(|&start| Contender {
                device: chosen.device.clone(),
                id: chosen.id(),
                threads: chosen.threads,
                transfer: if let Host(transfer) = start { transfer } else { Transfer::Whole },
                resident: start == Start::Device,
                dispatch,
            }));
        }
    }
    all
}

fn groups(order: &Order, all_ways: &[Contender]) -> Vec<Group> {
    let mut groups = Vec::new();
    let places = |keep: &dyn Fn(&Contender) -> bool| -> Vec<usize> {
        (0..all_ways.len()).filter(|&way| keep(&all_ways[way])).collect()
    };
    let usual = |way: &Contender| {
        // By its own choice, or by the first that was asked for.
        let dispatch = order.dispatches.iter().find(|asked| way.device.info().dispatch.contains(asked));
        let dispatch = dispatch.or(way.device.info().dispatch.first());
        let is_auto = order.transfers.is_empty() && (way.transfer == Transfer::Auto || way.resident);
        let is_asked = !order.transfers.is_empty();
        dispatch.is_none_or(|dispatch| *dispatch == way.dispatch) && (is_auto || is_asked)
    };
    for filter in 0..order.filters.len() {
        for (nth, &packets) in order.packets.iter().enumerate() {
            for &batch in &order.batches {
                let star = order.batches.iter().min_by_key(|batch| batch.abs_diff(STAR)) == Some(&batch);
                let (ways, loads) = match order.extent {
                    Extent::Full => (places(&|_| true), true),
                    // The first size in batches of every size, and all ways of the first filter at
                    // one size.
                    Extent::Quick if nth == 0 && star && filter == 0 => (places(&|_| true), true),
                    Extent::Quick if nth == 0 => (places(&usual), false),
                    Extent::Quick if star => (places(&usual), false),
                    Extent::Quick => continue,
                };
                // What is at devices already has turns of its own, over fewer packets, as all of
                // them are there at once.
                let (resident, ways): (Vec<usize>, Vec<usize>) =
                    ways.into_iter().partition(|&way| all_ways[way].resident);
                for (ways, loads, around) in [(ways, loads, RING), (resident, false, POOL)] {
                    if !ways.is_empty() {
                        groups.push(Group { filter, packets, batch, ways, loads, around });
                    }
                }
            }
        }
    }
    groups
}

fn empty(order: &Order, began: String) -> Results {
    let devices = order.devices.iter().map(|chosen| {
        let info = chosen.device.info();
        let mut facts: Vec<_> =
            info.limits.iter().map(|limit| (limit.name().to_owned(), limit.value().to_owned())).collect();
        facts.extend(chosen.threads.map(|threads| ("threads used".to_owned(), threads.to_string())));
        let id = chosen.id();
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
            "All ways of filtering the same batches take turns, a repetition each, so that drift hits all of them. A cell is repeated {LEAST} \
             times at least, and then until the interval is narrower than {:.0} % of the median or its time is used up; each cell says which.",
            WIDTH * 100.0
        ),
        "Intervals are by order statistics: nothing is assumed of how times are distributed.".into(),
        "A repetition is as many batches as take 4 ms or more, three in flight where the dispatch method allows; before the first, everything is \
         warmed up. Its time is from the first batch's submission to the last one's verdicts, gathering and copying included."
            .into(),
        format!(
            "Packets are Ethernet frames without check sequence, TCP, UDP and ICMP over IPv4 of 10,000 flows; {POOL} differ, and repeat. Gb/s counts \
             their bytes. imix is 64, 594 and 1518 bytes, 7 : 4 : 1 (simple IMIX). They lie close together, as in a capture; a small batch's next \
             ones are others, from {} packets in all, so small packets may stay in a cache, and a share of a memory ceiling may be above 1.",
            1 << 16
        ),
        "Before and after it is timed, each cell's verdicts, and packets where the filter writes any, are compared with those of the reference \
         interpreter, all of them; where the filter has maps, from empty maps and each packet once, and then the maps' entries as well, if the \
         packets' order does not decide what they are. What a filter has written is made what it was before each repetition, which is not timed."
            .into(),
        "Latencies are of single batches. Under load a batch's begins when it is due, so that one that waits for others is late.".into(),
        "Stages and bytes are of a session of their own, since looking at the clock takes time.".into(),
    ];
    Results {
        schema: SCHEMA,
        run: Run {
            version: env!("CARGO_PKG_VERSION").into(),
            commit: option_env!("PORTCULLIS_COMMIT").map(Into::into),
            began,
            seconds: 0.0,
            commands: order.commands.clone(),
            interrupted: false,
        },
        machine: machine::machine(),
        method: Method {
            matrix: order.matrix.into(),
            confidence: CONFIDENCE,
            least_repetitions: LEAST as u64,
            notes: notes.into(),
        },
        devices: devices.collect(),
        missing: order.missing.clone(),
        ceilings: Vec::new(),
        cells: Vec::new(),
        left_out: Vec::new(),
        bars: Vec::new(),
        seeds: Vec::new(),
    }
}

fn left_out(results: &mut Results, what: &str, why: &str) {
    let left = SkippedCell { what: what.into(), why: why.into() };
    if !results.left_out.contains(&left) {
        results.left_out.push(left);
    }
}

/// Enters what came of a cell.
fn take(results: &mut Results, way: &Contender, filter: &Filter, pool: &Pool, batch: usize, found: CellOutcome) {
    let mut transfer = match way.transfer {
        _ if way.resident => RESIDENT,
        Transfer::Auto => "auto",
        Transfer::Whole => "whole packets",
        Transfer::Window => "read window",
        Transfer::Imported => "imported memory",
    };
    let outcome = match found {
        CellOutcome::Figures(figures) => {
            transfer = figures.transfer;
            Outcome::Measured(Box::new(measured(results, way, filter, pool, *figures)))
        }
        CellOutcome::Wrong(detail) => Outcome::Wrong { detail },
        CellOutcome::Failed(reason) => Outcome::Failed { reason },
        CellOutcome::Absent(why) => return left_out(results, &format!("{}, {transfer}", way.id), &why),
        CellOutcome::Same | CellOutcome::Dropped => return,
    };
    results.cells.push(Cell {
        filter: filter.name.clone(),
        device: way.id.clone(),
        batch: batch as u64,
        packets: pool.packets.to_string(),
        packet_bytes: pool.mean(),
        transfer: transfer.into(),
        dispatch: way.dispatch.name().into(),
        outcome,
    });
}

fn measured(results: &Results, way: &Contender, filter: &Filter, pool: &Pool, figures: Figures) -> Measured {
    let facts = filter.program.facts();
    let mpps = figures.packet.under(1e-6);
    let kind = way.device.info().kind;
    // The lines of 64 bytes that are read and written, a descriptor, and a verdict.
    let lines = |bytes: u32, length: usize| {
        u64::from(bytes.min(length as u32).next_multiple_of(64)).min(length.next_multiple_of(4) as u64)
    };
    let touched = |length: usize| lines(facts.reads.max_bytes(), length) + lines(facts.writes.max_bytes(), length);
    let memory_bytes = pool.mean_of(touched) + 9.0 + if facts.redirects { 4.0 } else { 0.0 };
    let copied_bytes = figures.stages.map(|(_, bytes)| bytes).filter(|bytes| *bytes > 0.0);
    let bus_bytes = if kind.is_gpu() { copied_bytes } else { None };
    let ceiling = |name: &str, device: Option<&str>| {
        results.ceilings.iter().find(|it| it.name == name && it.device.as_deref() == device).cloned()
    };
    let one = way.threads.is_some_and(|threads| threads.get() == 1);
    let (bytes, ceiling) = match bus_bytes {
        Some(_) if way.resident => (memory_bytes, ceiling(ceilings::OWN, Some(&way.id))),
        Some(bytes) => (bytes, ceiling(ceilings::BUS, Some(&way.id))),
        None if kind.is_gpu() => (0.0, None),
        None => (memory_bytes, ceiling(if one { ceilings::MEMORY_ONE } else { ceilings::MEMORY }, None)),
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
