//! Measures the tables.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis_core::device::record_kernel::{HostMemory, RecordKernel};
use portcullis_core::device::{CancelToken, Device, DeviceError, LoadOptions};
use portcullis_core::program::Program;

use super::ours::{self, PacketRunner};
use super::published;
use super::records::{ACTION, Fields, Record, SIZE, traffic};
use super::tables::{Cell, Row, Source, Table};
#[cfg(any(feature = "opencl", feature = "cuda"))]
use super::workloads::KERNELS;
use super::workloads::{WORKLOADS, Workload};
use crate::run::OVERTIME;
use crate::statistics::median;

/// Records that go to a device at a time, as in its own tables.
const CHUNK: usize = 100_000;

/// Fewer rounds than this say nothing.
const LEAST: usize = 7;

/// More rounds than this say nothing more.
const MOST: usize = 1001;

/// Why a column is left out.
const LATE: &str = "the time was used up; give it more with --time";

/// No side of a column gains by more.
const ENOUGH: Duration = Duration::from_secs(2);

/// How records are driven on a device: opens a kernel of [`KERNELS`] by its name, for so many
/// records in chunks.
pub type OpenRecords =
    dyn Fn(&Workload, HostMemory, usize, usize) -> Result<Box<dyn RecordKernel>, DeviceError> + Send + Sync;

/// A device to be measured.
pub struct Side {
    /// Ours on it.
    pub device: Arc<dyn Device>,
    /// XDP-on-GPU's method on the same device, if the device has a language for it:
    /// [`open_records`].
    pub records: Option<Box<OpenRecords>>,
}

impl Side {
    /// Both ways on a device.
    pub fn of(device: Arc<dyn Device>) -> Side {
        let records = open_records(&device.info().id);
        Side { device, records }
    }
}

/// Options of the comparison.
pub struct Options {
    /// Packets of a call, in ascending order.
    pub sizes: Vec<usize>,
    /// For all of it, about: what it leaves for each side of a column is used, but for at least
    /// seven rounds. A column that is not begun soon after that is left out, as cells of other
    /// tables are.
    pub time: Duration,
    /// Of intervals, as 0.95.
    pub confidence: f64,
    /// Whether where the host's memory is, sizes of chunks and single calls are measured as well.
    pub all: bool,
    /// Ends it between two rounds.
    pub cancel: CancelToken,
}

impl Options {
    /// How many columns [`run`] measures: it tells its progress after each.
    pub fn columns(&self) -> usize {
        let all = if self.all { self.memory_sizes().count() + published::CHUNKS.len() + 1 } else { 0 };
        WORKLOADS.len() * self.sizes.len() + all
    }

    fn memory_sizes(&self) -> impl Iterator<Item = usize> {
        self.sizes.iter().copied().filter(|&size| size <= 1_000_000)
    }
}

/// Measures every table on every device; what there is, where it is cancelled. A device that fails
/// has its reason in its cells. `progress` is called after each column.
pub fn run(sides: &[Side], options: &Options, progress: &mut dyn FnMut(&str)) -> Vec<Table> {
    let mut run = Run { options, began: Instant::now(), left: options.columns(), progress };
    let mut tables: Vec<Table> = WORKLOADS.iter().map(|workload| of_workload(workload, sides, &mut run)).collect();
    if options.all {
        tables.push(by_memory(sides, &mut run));
        tables.push(by_chunk(sides, &mut run));
        tables.push(single_calls(sides, &mut run));
    }
    tables
}

/// A run while it is under way.
struct Run<'a> {
    options: &'a Options,
    began: Instant,
    /// Columns that are not done.
    left: usize,
    progress: &'a mut dyn FnMut(&str),
}

impl Run<'_> {
    fn load(&self, threads: Option<usize>) -> LoadOptions {
        let threads = threads.and_then(NonZeroUsize::new);
        LoadOptions::default().with_threads(threads).with_cancel(self.options.cancel.clone())
    }

    fn is_cancelled(&self) -> bool {
        self.options.cancel.is_cancelled()
    }

    /// Whether too little time is left for another column.
    fn is_late(&self) -> bool {
        self.began.elapsed() > self.options.time + OVERTIME
    }

    /// Returns the time left for measuring this many sides of the column; preparing them takes
    /// about as long again.
    fn budget(&self, sides: usize) -> Duration {
        let left = self.options.time.saturating_sub(self.began.elapsed()) / self.left.max(1) as u32;
        (left / 2).min(ENOUGH * sides as u32)
    }

    /// A column is done.
    fn done(&mut self, now: &str) {
        self.left = self.left.saturating_sub(1);
        (self.progress)(now);
    }
}

/// What a side does once: all packets, or all calls.
type Once<'a> = Box<dyn FnMut() -> Result<(), DeviceError> + 'a>;

/// A side that is ready, or what its cell says in place of a time.
type Opened<'a> = Result<Once<'a>, Cell>;

/// What a device's failure is in a cell.
fn failed(error: DeviceError) -> Cell {
    Cell::None { reason: Some(error.to_string()) }
}

/// One side of a column, ready to be timed.
struct Runner<'a> {
    /// Of the table.
    row: usize,
    /// Once over all packets.
    once: Once<'a>,
}

/// A table as it is filled.
struct TableBuilder {
    table: Table,
}

impl TableBuilder {
    fn new(title: String, note: &str, across: &str, columns: impl IntoIterator<Item = usize>) -> TableBuilder {
        let columns = columns.into_iter().map(|column| column as u64).collect();
        let (note, across) = (note.to_owned(), across.to_owned());
        TableBuilder { table: Table { title, note, across, columns, rows: Vec::new() } }
    }

    /// The row of a side, new where there is none yet.
    fn row(&mut self, of: &str, side: String, source: Source) -> usize {
        let found = self.table.rows.iter().position(|row| row.side == side && row.source == source && row.of == of);
        found.unwrap_or_else(|| {
            let cells = vec![Cell::None { reason: None }; self.table.columns.len()];
            self.table.rows.push(Row { of: of.to_owned(), side, source, cells });
            self.table.rows.len() - 1
        })
    }

    /// A row of published figures, which are means of calls.
    fn published(&mut self, of: &str, side: &str, figures: &[published::Published], packets: Option<u64>) {
        let row = self.row(of, side.to_owned(), Source::Published);
        for &(at, mean_ns) in figures {
            if let Some(column) = self.table.columns.iter().position(|&column| column == at as u64) {
                let packets = packets.unwrap_or(at as u64);
                self.table.rows[row].cells[column] = Cell::Published { packets, mean_ns };
            }
        }
    }

    fn set(&mut self, row: usize, column: usize, cell: Cell) {
        self.table.rows[row].cells[column] = cell;
    }

    /// Gets a side ready, unless it is too late: a runner, or why there is none.
    fn ready<'a>(
        &mut self,
        (column, row): (usize, usize),
        run: &Run<'_>,
        open: impl FnOnce() -> Opened<'a>,
        into: &mut Vec<Runner<'a>>,
    ) {
        if run.is_cancelled() {
            return;
        }
        if run.is_late() {
            return self.set(row, column, Cell::None { reason: Some(LATE.into()) });
        }
        match open() {
            // What the run itself has ended is no failure.
            Err(Cell::None { .. }) if run.is_cancelled() => {}
            Ok(once) => into.push(Runner { row, once }),
            Err(cell) => self.set(row, column, cell),
        }
    }

    /// Times all sides of a column in turn.
    fn time(&mut self, column: usize, packets: u64, mut runners: Vec<Runner<'_>>, run: &mut Run<'_>) {
        let mut samples: Vec<Vec<f64>> = vec![Vec::new(); runners.len()];
        let began = Instant::now();
        let budget = run.budget(runners.len());
        for round in 0..=MOST {
            if run.is_cancelled() || round > LEAST && began.elapsed() > budget {
                break;
            }
            for (runner, samples) in runners.iter_mut().zip(&mut samples) {
                let start = Instant::now();
                let ran = (runner.once)();
                let took = start.elapsed();
                match ran {
                    // The first round warms caches and clocks.
                    Ok(()) if round > 0 => samples.push(took.as_secs_f64() * 1e9),
                    Ok(()) => {}
                    // What was measured before stays.
                    Err(_) if run.is_cancelled() => break,
                    Err(error) => {
                        samples.clear();
                        self.table.rows[runner.row].cells[column] = Cell::None { reason: Some(error.to_string()) };
                        // It is not asked again, and has no samples.
                        runner.once = Box::new(|| Err(DeviceError::Cancelled));
                    }
                }
            }
        }
        for (runner, samples) in runners.iter().zip(samples) {
            if samples.len() < LEAST {
                continue;
            }
            let Some(time) = median(&samples, run.options.confidence) else { continue };
            let cell = Cell::Measured {
                packets,
                median_ns: time.median,
                low_ns: time.low,
                high_ns: time.high,
                samples: samples.len() as u64,
            };
            self.set(runner.row, column, cell);
        }
    }
}

/// Opens XDP-on-GPU's method, fills its records and checks one result against the rule.
fn its_way<'a>(
    open: &OpenRecords,
    workload: &'a Workload,
    memory: HostMemory,
    count: usize,
    chunk: usize,
    each: usize,
) -> Opened<'a> {
    let mut records = open(workload, memory, count, chunk).map_err(failed)?;
    fill(records.host(), workload, count);
    records.run(count, chunk).map_err(failed)?;
    if let Some(reason) = first_wrong(records.host(), workload, count) {
        return Err(Cell::Wrong { reason });
    }
    if each == 1 {
        return Ok(Box::new(move || (0..count).try_for_each(|_| records.run(1, 1))));
    }
    Ok(Box::new(move || records.run(count, chunk)))
}

/// Writes the workload's traffic.
fn fill(host: &mut [u8], workload: &Workload, count: usize) {
    let (records, _) = host.as_chunks_mut::<SIZE>();
    for ((record, fields), time) in records.iter_mut().zip(traffic(workload.traffic, count)).zip(0..) {
        *record = fields.to_record(time);
        // No rule gives this.
        record[ACTION] = 0xff;
    }
}

/// The first record whose action is not the rule's.
fn first_wrong(host: &[u8], workload: &Workload, count: usize) -> Option<String> {
    let (records, _) = host.as_chunks::<SIZE>();
    let wrong = records[..count].iter().position(|record| record[ACTION] != (workload.rule)(Fields::of(record)))?;
    let (given, fields) = (records[wrong][ACTION], Fields::of(&records[wrong]));
    Some(format!("record {wrong} got {given:#x} where {:#x} is right", (workload.rule)(fields)))
}

/// Opens XDP-on-GPU's loop over records on one CPU thread.
fn its_loop<'a>(workload: &'a Workload, count: usize) -> Opened<'a> {
    let mut records: Vec<Record> =
        traffic(workload.traffic, count).zip(0..).map(|(fields, time)| fields.to_record(time)).collect();
    Ok(Box::new(move || {
        (workload.on_processor)(std::hint::black_box(&mut records));
        Ok(())
    }))
}

/// Our way: loaded, and held to the rule.
fn our_way<'a>(
    device: &dyn Device,
    program: &Arc<Program>,
    workload: &Workload,
    count: usize,
    batch: usize,
    options: &LoadOptions,
) -> Opened<'a> {
    let mut ours = PacketRunner::open(device, program, workload, count, batch, options).map_err(failed)?;
    let mut expected = traffic(workload.traffic, count).map(|fields| ours::expected(workload, fields)).enumerate();
    let mut wrong = None;
    ours.run(|verdicts| {
        for (verdict, (index, right)) in verdicts.iter().zip(&mut expected) {
            if wrong.is_none() && verdict.to_return() != right {
                wrong = Some(format!("packet {index} got {:#x} where {right:#x} is right", verdict.to_return()));
            }
        }
    })
    .map_err(failed)?;
    if let Some(reason) = wrong.or_else(|| expected.next().map(|(index, _)| format!("packet {index} got no verdict"))) {
        return Err(Cell::Wrong { reason });
    }
    if batch == 1 {
        return Ok(Box::new(move || ours.run_one_by_one()));
    }
    Ok(Box::new(move || {
        ours.run(|verdicts| {
            std::hint::black_box(verdicts);
        })
    }))
}

/// How a device is called in a table.
fn name(device: &dyn Device, extra: &str) -> String {
    format!("{}{extra}", device.info().id)
}

fn of_workload(workload: &Workload, sides: &[Side], run: &mut Run<'_>) -> Table {
    let options = run.options;
    let mut filling = TableBuilder::new(
        workload.name.to_owned(),
        "Its way: records of 40 bytes in pinned memory to the device and back, 100,000 at a time. Ours: raw packets of 64 bytes, from the call to the last verdict.",
        "packets",
        options.sizes.iter().copied(),
    );
    let program = ours::program(workload);
    for (column, &count) in options.sizes.iter().enumerate() {
        let mut runners = Vec::new();
        for side in sides {
            if let Some(open) = &side.records {
                let row = filling.row(workload.name, name(&*side.device, ", pinned"), Source::LikeForLike);
                let open = || its_way(open, workload, HostMemory::Pinned, count, CHUNK, CHUNK);
                filling.ready((column, row), run, open, &mut runners);
            }
        }
        let row = filling.row(workload.name, "one thread".into(), Source::Loop);
        filling.ready((column, row), run, || its_loop(workload, count), &mut runners);
        for side in sides {
            let is_cpu = side.device.info().id == "cpu";
            for number in if is_cpu { &[Some(1), None][..] } else { &[None] } {
                let extra = if *number == Some(1) { ", one thread" } else { "" };
                let row = filling.row(workload.name, name(&*side.device, extra), Source::Ours);
                let load = run.load(*number);
                let open = || our_way(&*side.device, &program, workload, count, ours::BATCH, &load);
                filling.ready((column, row), run, open, &mut runners);
            }
        }
        filling.time(column, count as u64, runners, run);
        run.done(workload.name);
    }
    let published = published::WORKLOADS.iter().find(|published| published.workload == workload.name);
    if let Some(published) = published {
        filling.published(workload.name, "its GPU, pinned", published.gpu, None);
        filling.published(workload.name, "its processor, one thread", published.processor, None);
    }
    filling.table
}

fn by_memory(sides: &[Side], run: &mut Run<'_>) -> Table {
    let title = "where the host has its records (simple filter)";
    let workload = &WORKLOADS[0];
    let options = run.options;
    let mut filling = TableBuilder::new(
        title.to_owned(),
        "Its way, 100,000 records at a time. Imported is what it calls zero-copy: kernels reach the host's memory.",
        "packets",
        options.memory_sizes(),
    );
    for (column, count) in options.memory_sizes().enumerate() {
        let mut runners = Vec::new();
        for side in sides {
            let Some(open) = &side.records else { continue };
            for memory in [HostMemory::Pageable, HostMemory::Pinned, HostMemory::Imported] {
                let row = filling.row(memory.name(), name(&*side.device, ""), Source::LikeForLike);
                let open = || its_way(open, workload, memory, count, CHUNK, CHUNK);
                filling.ready((column, row), run, open, &mut runners);
            }
        }
        filling.time(column, count as u64, runners, run);
        run.done(title);
    }
    for (memory, figures) in published::MEMORY {
        filling.published(memory, "its GPU", figures, None);
    }
    filling.table
}

fn by_chunk(sides: &[Side], run: &mut Run<'_>) -> Table {
    let title = "how many go at a time, of a million (simple filter)";
    const COUNT: usize = 1_000_000;
    let workload = &WORKLOADS[0];
    let program = ours::program(workload);
    let sizes = || published::CHUNKS.iter().map(|&(size, _)| size);
    let mut filling = TableBuilder::new(
        title.to_owned(),
        "Its way from pinned memory, chunks in flight on four queues; ours with four batches in flight. Both are timed until the last verdict is back, not until the work is queued.",
        "packets at a time",
        sizes(),
    );
    for (column, chunk) in sizes().enumerate() {
        let mut runners = Vec::new();
        for side in sides {
            if let Some(open) = &side.records {
                let row = filling.row("", name(&*side.device, ", pinned"), Source::LikeForLike);
                let open = || its_way(open, workload, HostMemory::Pinned, COUNT, chunk, chunk);
                filling.ready((column, row), run, open, &mut runners);
            }
            let row = filling.row("", name(&*side.device, ""), Source::Ours);
            let load = run.load(None);
            let open = || our_way(&*side.device, &program, workload, COUNT, chunk, &load);
            filling.ready((column, row), run, open, &mut runners);
        }
        filling.time(column, COUNT as u64, runners, run);
        run.done(title);
    }
    filling.published("", "its GPU, pinned", published::CHUNKS, Some(COUNT as u64));
    filling.table
}

fn single_calls(sides: &[Side], run: &mut Run<'_>) -> Table {
    let title = "single calls (simple filter)";
    let workload = &WORKLOADS[0];
    let program = ours::program(workload);
    let (calls, _) = published::SINGLE_CALLS;
    let note = "A thousand calls of one packet each, every one waited for.";
    let mut filling = TableBuilder::new(title.to_owned(), note, "calls", [calls]);
    let mut runners = Vec::new();
    for side in sides {
        if let Some(open) = &side.records {
            let row = filling.row("", name(&*side.device, ", pinned"), Source::LikeForLike);
            let open = || its_way(open, workload, HostMemory::Pinned, calls, CHUNK, 1);
            filling.ready((0, row), run, open, &mut runners);
        }
        let row = filling.row("", name(&*side.device, ""), Source::Ours);
        let load = run.load(None);
        let open = || our_way(&*side.device, &program, workload, calls, 1, &load);
        filling.ready((0, row), run, open, &mut runners);
    }
    filling.time(0, calls as u64, runners, run);
    run.done(title);
    filling.published("", "its GPU", &[published::SINGLE_CALLS], None);
    filling.table
}

/// How records are driven on a device of this build, where it has a language for that.
pub fn open_records(id: &str) -> Option<Box<OpenRecords>> {
    let (backend, _) = id.split_once(':').unwrap_or((id, ""));
    match backend {
        #[cfg(feature = "opencl")]
        "opencl" => {
            let device = portcullis_opencl::probe().ok()?.into_iter().find(|device| device.info().id == id)?;
            Some(Box::new(move |workload, memory, count, chunk| {
                let (text, entry, per_item) = (KERNELS, workload.kernel, workload.records_per_item);
                use portcullis_opencl::measure::OpenClRecords;
                let records = OpenClRecords::open(&device, text, entry, memory, count, chunk, SIZE, per_item)?;
                Ok(Box::new(records))
            }))
        }
        #[cfg(feature = "cuda")]
        "cuda" => {
            let device = portcullis_cuda::probe().ok()?.into_iter().find(|device| device.info().id == id)?;
            Some(Box::new(move |workload, memory, count, chunk| {
                let (text, entry, per_item) = (KERNELS, workload.kernel, workload.records_per_item);
                use portcullis_cuda::measure::CudaRecords;
                let records = CudaRecords::open(&device, text, entry, memory, count, chunk, SIZE, per_item)?;
                Ok(Box::new(records))
            }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
