//! Measures the tables of the XDP-on-GPU comparison.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis_core::device::record_kernel::{HostMemory, RecordKernel};
use portcullis_core::device::{CancelToken, Device, DeviceError, LoadOptions};
use portcullis_core::program::Program;
use rayon::prelude::*;

use super::packet_runner::{self, PacketRunner};
use super::published;
use super::records::{ACTION, Fields, Record, SIZE, traffic};
#[cfg(any(feature = "opencl", feature = "cuda"))]
use super::workloads::KERNELS;
use super::workloads::{WORKLOADS, Workload};
use crate::comparison_tables::{Cell, Row, Source, Table};
use crate::measure::TIME_USED_UP;
use crate::statistics::median;

/// Records per chunk sent to a device, as in XDP-on-GPU's tables.
const CHUNK: usize = 100_000;

/// Minimum records that a thread parses at a time.
const MIN_PARSED: usize = 1024;

/// Minimum rounds for a figure.
const MIN_ROUNDS: usize = 7;

/// Maximum rounds.
const MAX_ROUNDS: usize = 1001;

/// Maximum time for a side of a column.
const MAX_SIDE_TIME: Duration = Duration::from_secs(2);

/// Opens a workload's kernel on a device, for a number of records and a chunk size.
pub type OpenRecords =
    dyn Fn(&Workload, HostMemory, usize, usize) -> Result<Box<dyn RecordKernel>, DeviceError> + Send + Sync;

/// A device to measure.
pub struct Side {
    /// Device for Portcullis.
    pub device: Arc<dyn Device>,
    /// XDP-on-GPU's method on the same device, if it can run the kernels: [`open_records`].
    pub records: Option<Box<OpenRecords>>,
}

impl Side {
    /// Measures both methods on a device.
    pub fn new(device: Arc<dyn Device>) -> Side {
        let records = open_records(&device.info().id);
        Side { device, records }
    }
}

/// Options of the comparison.
pub struct Options {
    /// Packets per call, in ascending order.
    pub sizes: Vec<usize>,
    /// Time budget, shared among the sides of all columns; each gets at least seven rounds.
    pub time: Duration,
    /// How long after `time` columns may still start; later ones are left out.
    pub grace: Duration,
    /// Confidence of intervals, as 0.95.
    pub confidence: f64,
    /// Whether to measure kinds of host memory, chunk sizes and single calls as well.
    pub all: bool,
    /// Ends the comparison between two rounds.
    pub cancel: CancelToken,
}

impl Options {
    /// Number of columns that [`run`] measures and reports as progress.
    pub fn columns(&self) -> usize {
        let all = if self.all { self.memory_sizes().count() + published::CHUNKS.len() + 1 } else { 0 };
        WORKLOADS.len() * self.sizes.len() + all
    }

    fn memory_sizes(&self) -> impl Iterator<Item = usize> {
        self.sizes.iter().copied().filter(|&size| size <= 1_000_000)
    }
}

/// Measures every table on every device; if cancelled, returns what there is. The cells of a device
/// that fails hold the reason. `progress` is called after each column.
pub fn run(sides: &[Side], options: &Options, progress: &mut dyn FnMut(&str)) -> Vec<Table> {
    let mut run = Run { options, began: Instant::now(), left: options.columns(), progress };
    let mut tables: Vec<Table> = WORKLOADS.iter().map(|workload| measure_workload(workload, sides, &mut run)).collect();
    if options.all {
        tables.push(measure_host_memory(sides, &mut run));
        tables.push(measure_chunk_sizes(sides, &mut run));
        tables.push(measure_single_calls(sides, &mut run));
    }
    tables
}

/// State of the comparison.
struct Run<'a> {
    options: &'a Options,
    began: Instant,
    /// Columns left to measure.
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

    /// Whether no further column may start.
    fn is_late(&self) -> bool {
        self.began.elapsed() > self.options.time + self.options.grace
    }

    /// Returns the time left for measuring this many sides of the column; preparing them takes
    /// about as long again.
    fn budget(&self, sides: usize) -> Duration {
        let left = self.options.time.saturating_sub(self.began.elapsed()) / self.left.max(1) as u32;
        (left / 2).min(MAX_SIDE_TIME * sides as u32)
    }

    /// Counts a column as done and reports progress.
    fn finish_column(&mut self, now: &str) {
        self.left = self.left.saturating_sub(1);
        (self.progress)(now);
    }
}

/// Runs a side once: over all packets, or all calls.
type Runnable<'a> = Box<dyn FnMut() -> Result<(), DeviceError> + 'a>;

/// A side that is ready to run, or the cell that says why not.
type OpenedSide<'a> = Result<Runnable<'a>, Cell>;

/// Returns the cell for a device failure.
fn failed(error: DeviceError) -> Cell {
    Cell::None { reason: Some(error.to_string()) }
}

/// One side of a column, ready to be timed.
struct Runner<'a> {
    /// Row of the table.
    row: usize,
    /// Runs once over all packets.
    once: Runnable<'a>,
}

/// A table under construction.
struct TableBuilder {
    table: Table,
}

impl TableBuilder {
    fn new(title: String, note: &str, across: &str, columns: impl IntoIterator<Item = usize>) -> TableBuilder {
        let columns = columns.into_iter().map(|column| column as u64).collect();
        let (note, across) = (note.to_owned(), across.to_owned());
        TableBuilder { table: Table { title, note, across, columns, rows: Vec::new() } }
    }

    /// Returns the row of a side, adding it if it is new.
    fn row(&mut self, of: &str, side: String, source: Source) -> usize {
        let found = self.table.rows.iter().position(|row| row.side == side && row.source == source && row.of == of);
        found.unwrap_or_else(|| {
            let cells = vec![Cell::None { reason: None }; self.table.columns.len()];
            self.table.rows.push(Row { of: of.to_owned(), side, source, cells });
            self.table.rows.len() - 1
        })
    }

    /// Adds a row of published figures, which are means over calls.
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

    /// Opens a side unless it is too late; adds its runner, or enters why there is none.
    fn open_side<'a>(
        &mut self,
        (column, row): (usize, usize),
        run: &Run<'_>,
        open: impl FnOnce() -> OpenedSide<'a>,
        into: &mut Vec<Runner<'a>>,
    ) {
        if run.is_cancelled() {
            return;
        }
        if run.is_late() {
            return self.set(row, column, Cell::None { reason: Some(TIME_USED_UP.into()) });
        }
        match open() {
            // Cancelling the run is not a failure of the device.
            Err(Cell::None { .. }) if run.is_cancelled() => {}
            Ok(once) => into.push(Runner { row, once }),
            Err(cell) => self.set(row, column, cell),
        }
    }

    /// Times all sides of a column in alternation.
    fn time(&mut self, column: usize, packets: u64, mut runners: Vec<Runner<'_>>, run: &mut Run<'_>) {
        let mut samples: Vec<Vec<f64>> = vec![Vec::new(); runners.len()];
        let began = Instant::now();
        let budget = run.budget(runners.len());
        for round in 0..=MAX_ROUNDS {
            if run.is_cancelled() || round > MIN_ROUNDS && began.elapsed() > budget {
                break;
            }
            for (runner, samples) in runners.iter_mut().zip(&mut samples) {
                let start = Instant::now();
                let ran = (runner.once)();
                let took = start.elapsed();
                match ran {
                    // The first round warms up caches and clock frequencies.
                    Ok(()) if round > 0 => samples.push(took.as_secs_f64() * 1e9),
                    Ok(()) => {}
                    // Samples taken before the cancellation count.
                    Err(_) if run.is_cancelled() => break,
                    Err(error) => {
                        samples.clear();
                        self.table.rows[runner.row].cells[column] = Cell::None { reason: Some(error.to_string()) };
                        // A failed side does not run again.
                        runner.once = Box::new(|| Err(DeviceError::Cancelled));
                    }
                }
            }
        }
        for (runner, samples) in runners.iter().zip(samples) {
            if samples.len() < MIN_ROUNDS {
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

/// Opens XDP-on-GPU's method, fills its records and checks the first results against the rule. With
/// `per_call` 1 the side makes one call for each record, otherwise one for all of them.
fn open_record_kernel<'a>(
    open: &OpenRecords,
    workload: &'a Workload,
    memory: HostMemory,
    count: usize,
    chunk: usize,
    per_call: usize,
) -> OpenedSide<'a> {
    let mut records = open(workload, memory, count, chunk).map_err(failed)?;
    fill(records.host(), workload, count);
    records.run(count, chunk).map_err(failed)?;
    if let Some(reason) = first_wrong(records.host(), workload, count) {
        return Err(Cell::Mismatch { reason });
    }
    if per_call == 1 {
        return Ok(Box::new(move || (0..count).try_for_each(|_| records.run(1, 1))));
    }
    Ok(Box::new(move || records.run(count, chunk)))
}

/// Writes the records of the workload's traffic.
fn fill(host: &mut [u8], workload: &Workload, count: usize) {
    let (records, _) = host.as_chunks_mut::<SIZE>();
    for ((record, fields), time) in records.iter_mut().zip(traffic(workload.traffic, count)).zip(0..) {
        *record = fields.to_record(time);
        // A value that no rule returns.
        record[ACTION] = 0xff;
    }
}

/// Describes the first record whose action differs from the rule's.
fn first_wrong(host: &[u8], workload: &Workload, count: usize) -> Option<String> {
    let (records, _) = host.as_chunks::<SIZE>();
    let wrong =
        records[..count].iter().position(|record| record[ACTION] != (workload.rule)(Fields::from_record(record)))?;
    let (given, fields) = (records[wrong][ACTION], Fields::from_record(&records[wrong]));
    Some(format!("record {wrong} got {given:#x} where {:#x} is right", (workload.rule)(fields)))
}

/// Lays out the workload's packets, [`packet_runner::LENGTH`] bytes each, without gaps.
fn raw_packets(workload: &Workload, count: usize) -> Vec<u8> {
    let mut packets = vec![0; count * packet_runner::LENGTH];
    let slots = packets.chunks_exact_mut(packet_runner::LENGTH);
    slots.zip(traffic(workload.traffic, count)).for_each(|(packet, fields)| fields.write_packet(packet));
    packets
}

/// XDP-on-GPU's method from raw packets: the host parses them into records, which the device then
/// filters.
struct ParsedRecords<'a> {
    records: Box<dyn RecordKernel>,
    packets: &'a [u8],
    /// Whether all threads parse, or one.
    is_parallel: bool,
}

impl ParsedRecords<'_> {
    fn run(&mut self) -> Result<(), DeviceError> {
        let parse = |(record, packet): (&mut Record, &[u8; packet_runner::LENGTH])| {
            *record = Fields::parse(packet).to_record(0);
        };
        let (packets, _) = self.packets.as_chunks();
        let (records, _) = self.records.host().as_chunks_mut();
        if self.is_parallel {
            records.par_iter_mut().zip(packets).with_min_len(MIN_PARSED).for_each(parse);
        } else {
            records.iter_mut().zip(packets).for_each(parse);
        }
        self.records.run(packets.len(), CHUNK)
    }
}

/// Opens XDP-on-GPU's method from raw packets and checks the first results against the rule.
fn open_parsed_records<'a>(
    open: &OpenRecords,
    workload: &Workload,
    packets: &'a [u8],
    is_parallel: bool,
) -> OpenedSide<'a> {
    let count = packets.len() / packet_runner::LENGTH;
    let records = open(workload, HostMemory::Pinned, count, CHUNK).map_err(failed)?;
    let mut parsed = ParsedRecords { records, packets, is_parallel };
    parsed.run().map_err(failed)?;
    match first_wrong(parsed.records.host(), workload, count) {
        Some(reason) => Err(Cell::Mismatch { reason }),
        None => Ok(Box::new(move || parsed.run())),
    }
}

/// Opens XDP-on-GPU's loop over records on one CPU thread.
fn open_record_loop<'a>(workload: &'a Workload, count: usize) -> OpenedSide<'a> {
    let mut records: Vec<Record> =
        traffic(workload.traffic, count).zip(0..).map(|(fields, time)| fields.to_record(time)).collect();
    Ok(Box::new(move || {
        (workload.record_loop)(std::hint::black_box(&mut records));
        Ok(())
    }))
}

/// Opens Portcullis on the workload's packets and checks all verdicts against the rule.
fn open_packet_runner<'a>(
    device: &dyn Device,
    program: &Arc<Program>,
    workload: &Workload,
    count: usize,
    batch: usize,
    options: &LoadOptions,
) -> OpenedSide<'a> {
    let mut ours = PacketRunner::open(device, program, workload, count, batch, options).map_err(failed)?;
    let mut expected =
        traffic(workload.traffic, count).map(|fields| packet_runner::expected(workload, fields)).enumerate();
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
        return Err(Cell::Mismatch { reason });
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

/// Returns the name of a device's row.
fn row_name(device: &dyn Device, extra: &str) -> String {
    format!("{}{extra}", device.info().id)
}

fn measure_workload(workload: &Workload, sides: &[Side], run: &mut Run<'_>) -> Table {
    let options = run.options;
    let mut builder = TableBuilder::new(
        workload.name.to_owned(),
        "XDP-on-GPU’s method: records of 40 bytes in pinned memory to the device and back, 100,000 at a time, from records that the host has parsed already or, as marked, parses first from raw packets. Portcullis: raw packets of 64 bytes, from the call to the last verdict.",
        "packets",
        options.sizes.iter().copied(),
    );
    let program = packet_runner::program(workload);
    for (column, &count) in options.sizes.iter().enumerate() {
        let has_records = sides.iter().any(|side| side.records.is_some());
        let packets = if has_records { raw_packets(workload, count) } else { Vec::new() };
        let mut runners = Vec::new();
        for side in sides {
            let Some(open) = &side.records else { continue };
            let row = builder.row(workload.name, row_name(&*side.device, ", pinned"), Source::LikeForLike);
            let open_records = || open_record_kernel(open, workload, HostMemory::Pinned, count, CHUNK, CHUNK);
            builder.open_side((column, row), run, open_records, &mut runners);
            for (is_parallel, threads) in [(false, "one thread"), (true, "all threads")] {
                let name = row_name(&*side.device, &format!(", pinned, parsed by {threads}"));
                let row = builder.row(workload.name, name, Source::LikeForLike);
                let open_parsed = || open_parsed_records(open, workload, &packets, is_parallel);
                builder.open_side((column, row), run, open_parsed, &mut runners);
            }
        }
        let row = builder.row(workload.name, "one thread".into(), Source::Loop);
        builder.open_side((column, row), run, || open_record_loop(workload, count), &mut runners);
        for side in sides {
            let is_cpu = side.device.info().id == "cpu";
            for number in if is_cpu { &[Some(1), None][..] } else { &[None] } {
                let extra = if *number == Some(1) { ", one thread" } else { "" };
                let row = builder.row(workload.name, row_name(&*side.device, extra), Source::Portcullis);
                let load = run.load(*number);
                let open = || open_packet_runner(&*side.device, &program, workload, count, packet_runner::BATCH, &load);
                builder.open_side((column, row), run, open, &mut runners);
            }
        }
        builder.time(column, count as u64, runners, run);
        run.finish_column(workload.name);
    }
    let published = published::WORKLOADS.iter().find(|published| published.workload == workload.name);
    if let Some(published) = published {
        builder.published(workload.name, "its GPU, pinned", published.gpu, None);
        builder.published(workload.name, "its processor, one thread", published.processor, None);
    }
    builder.table
}

fn measure_host_memory(sides: &[Side], run: &mut Run<'_>) -> Table {
    let title = "by kind of host memory (simple filter)";
    let workload = &WORKLOADS[0];
    let options = run.options;
    let mut builder = TableBuilder::new(
        title.to_owned(),
        "XDP-on-GPU’s method, 100,000 records at a time. Imported is what it calls zero-copy: kernels access host memory.",
        "packets",
        options.memory_sizes(),
    );
    for (column, count) in options.memory_sizes().enumerate() {
        let mut runners = Vec::new();
        for side in sides {
            let Some(open) = &side.records else { continue };
            for memory in [HostMemory::Pageable, HostMemory::Pinned, HostMemory::Imported] {
                let row = builder.row(memory.name(), row_name(&*side.device, ""), Source::LikeForLike);
                let open = || open_record_kernel(open, workload, memory, count, CHUNK, CHUNK);
                builder.open_side((column, row), run, open, &mut runners);
            }
        }
        builder.time(column, count as u64, runners, run);
        run.finish_column(title);
    }
    for (memory, figures) in published::MEMORY {
        builder.published(memory, "its GPU", figures, None);
    }
    builder.table
}

fn measure_chunk_sizes(sides: &[Side], run: &mut Run<'_>) -> Table {
    let title = "a million packets by chunk size (simple filter)";
    const COUNT: usize = 1_000_000;
    let workload = &WORKLOADS[0];
    let program = packet_runner::program(workload);
    let sizes = || published::CHUNKS.iter().map(|&(size, _)| size);
    let mut builder = TableBuilder::new(
        title.to_owned(),
        "XDP-on-GPU’s method from pinned memory, chunks in flight on four queues; Portcullis with four batches in flight. Both are timed until the last verdict is back, not until the work is queued.",
        "packets at a time",
        sizes(),
    );
    for (column, chunk) in sizes().enumerate() {
        let mut runners = Vec::new();
        for side in sides {
            if let Some(open) = &side.records {
                let row = builder.row("", row_name(&*side.device, ", pinned"), Source::LikeForLike);
                let open = || open_record_kernel(open, workload, HostMemory::Pinned, COUNT, chunk, chunk);
                builder.open_side((column, row), run, open, &mut runners);
            }
            let row = builder.row("", row_name(&*side.device, ""), Source::Portcullis);
            let load = run.load(None);
            let open = || open_packet_runner(&*side.device, &program, workload, COUNT, chunk, &load);
            builder.open_side((column, row), run, open, &mut runners);
        }
        builder.time(column, COUNT as u64, runners, run);
        run.finish_column(title);
    }
    builder.published("", "its GPU, pinned", published::CHUNKS, Some(COUNT as u64));
    builder.table
}

fn measure_single_calls(sides: &[Side], run: &mut Run<'_>) -> Table {
    let title = "single calls (simple filter)";
    let workload = &WORKLOADS[0];
    let program = packet_runner::program(workload);
    let (calls, _) = published::SINGLE_CALLS;
    let note = "A thousand calls of one packet each, waiting for each.";
    let mut builder = TableBuilder::new(title.to_owned(), note, "calls", [calls]);
    let mut runners = Vec::new();
    for side in sides {
        if let Some(open) = &side.records {
            let row = builder.row("", row_name(&*side.device, ", pinned"), Source::LikeForLike);
            let open = || open_record_kernel(open, workload, HostMemory::Pinned, calls, CHUNK, 1);
            builder.open_side((0, row), run, open, &mut runners);
        }
        let row = builder.row("", row_name(&*side.device, ""), Source::Portcullis);
        let load = run.load(None);
        let open = || open_packet_runner(&*side.device, &program, workload, calls, 1, &load);
        builder.open_side((0, row), run, open, &mut runners);
    }
    builder.time(0, calls as u64, runners, run);
    run.finish_column(title);
    builder.published("", "its GPU", &[published::SINGLE_CALLS], None);
    builder.table
}

/// Returns how to open record kernels on a device; `None` if its backend cannot run them.
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
