//! `portcullis bench`: measures filters on devices, prints earlier results, or compares two runs.

mod compare;
mod filters;
mod table;

use std::num::{NonZeroU16, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::builder::PathBufValueParser;
use portcullis::auto::calibration::CalibrationStore;
use portcullis::auto::{AutoDevice, CalibrationMode, Settings};
use portcullis::device::{Device, Dispatch};
use portcullis::devices::{self, Selector};
use portcullis::packet_io::{create_error_reason, same_destination, same_file};
use portcullis_bench::csv::csv;
use portcullis_bench::results::{Bar, Cell, Missing, Outcome, Results};
use portcullis_bench::run::{self, BATCHES, BenchDevice, Extent, PacketOrigin, QUICK_BATCHES, RunPlan, StopTokens};
use portcullis_bench::traffic::Packets;
use portcullis_bench::xdp_on_gpu::Table;
use portcullis_bench::{bars, report};

use super::failure::{FAILED, Failure, INTERRUPTED};
use super::out;
use super::progress_bar;
use super::run::duration;
use super::run::interrupt::Interrupt;
use super::run::replace::Destination;
use filters::FilterArgs;

/// Benchmark filters on each device, or compare two benchmark results
///
/// Measures combinations of filter, batch size, packet mix, transfer and dispatch method. Verdicts,
/// and packets if the filter writes them, are checked against the reference interpreter; a device
/// that differs is marked WRONG and gets no rate. Without --full the run takes less than two
/// minutes: every batch size with the first packet mix, the other mixes at one size.
///
/// On the first Ctrl-C it finishes the current measurement and writes the results so far.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Exit codes: 0 done, 1 a device is wrong or something failed (with --compare: something is slower \
beyond noise, or no longer measured), 2 wrong usage, 130 interrupted (the results so far are written), 141 the reader \
closed the pipe (SIGPIPE)."
)]
pub struct Args {
    #[command(flatten)]
    filters: FilterArgs,
    /// Measure this device; `cpu@1` is the CPU with one thread
    ///
    /// Default: every device found, `cpu@1`, and `auto` if it has a choice. May be repeated.
    #[arg(long, value_name = "DEVICE[@THREADS]", help_heading = "Devices")]
    device: Vec<DeviceRequest>,
    /// Fail if one of these devices is missing, for example cpu,wgpu,opencl
    #[arg(long, value_name = "DEVICES", value_delimiter = ',', help_heading = "Devices", hide_short_help = true)]
    require: Vec<Selector>,
    /// Measure the most important combinations, in less than two minutes (the default)
    #[arg(long, conflicts_with = "full", help_heading = "Matrix", hide_short_help = true)]
    quick: bool,
    /// Measure every combination, and two more filters; takes an hour, or --time
    ///
    /// The additional filters are a stateful one and one that writes packets.
    #[arg(long, help_heading = "Matrix")]
    full: bool,
    /// Time budget for the whole run, for example 60s or 4m
    ///
    /// Includes compiling filters and probing devices. If it is too short for the measurements, a
    /// note at the start says how long the run takes. Default: 75s, with --full 1h.
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = "Matrix")]
    time: Option<Duration>,
    /// Packets per batch; a list, may be repeated
    #[arg(long, value_name = "PACKETS", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=100_000_000), help_heading = "Matrix")]
    batch: Vec<u32>,
    /// Packet size in bytes, or `imix`; a list, may be repeated
    #[arg(long, value_name = "BYTES", value_delimiter = ',', help_heading = "Matrix")]
    packets: Vec<Packets>,
    /// How packets reach the device: auto, whole, window, imported or resident
    ///
    /// `resident` measures packets that are in the device's memory already. May be repeated.
    #[arg(long, value_name = "TRANSFER", help_heading = "Matrix", hide_short_help = true)]
    transfer: Vec<PacketOrigin>,
    /// Dispatch method: inline, pipelined, persistent, waitvalue or graph; may be repeated
    #[arg(long, value_name = "METHOD", help_heading = "Matrix", hide_short_help = true)]
    dispatch: Vec<Dispatch>,
    /// Also measure XDP-on-GPU's workloads, by its method and by Portcullis
    ///
    /// Shows the project's published figures beside them. --full includes this.
    #[arg(long = "seeds", visible_alias = "xdp-on-gpu", help_heading = "Matrix", hide_short_help = true)]
    xdp_on_gpu: bool,
    /// Write the report with plots to this file, as one HTML page; `-` is standard output
    #[arg(long, value_name = "FILE", value_parser = PathBufValueParser::new(), help_heading = "Output")]
    report: Option<PathBuf>,
    /// Write the results to this file as JSON; `-` is standard output
    #[arg(long, value_name = "FILE", value_parser = PathBufValueParser::new(), help_heading = "Output")]
    json: Option<PathBuf>,
    /// Write the measurements to this file as CSV, one per line; `-` is standard output
    #[arg(long, value_name = "FILE", value_parser = PathBufValueParser::new(), help_heading = "Output")]
    csv: Option<PathBuf>,
    /// Add the targets that other benchmarks measured, from this file
    ///
    /// The file that PORTCULLIS_BARS named for them, or a JSON list like `bars` in a file of
    /// --json.
    #[arg(long, value_name = "FILE", value_parser = PathBufValueParser::new(), help_heading = "Output", hide_short_help = true)]
    bars: Option<PathBuf>,
    /// Measure nothing: print and write the results in this file of --json
    #[arg(long, value_name = "FILE", value_parser = PathBufValueParser::new(), help_heading = "Earlier results",
          conflicts_with_all = ["quick", "full", "device", "require", "filter", "expr", "batch", "packets", "transfer", "dispatch",
                                "xdp_on_gpu", "time"])]
    from: Option<PathBuf>,
    /// Measure nothing: compare two files of --json, the older one first
    #[arg(long, num_args = 2, value_names = ["BEFORE", "AFTER"], value_parser = PathBufValueParser::new(), help_heading = "Earlier results",
          conflicts_with_all = ["quick", "full", "device", "require", "filter", "expr", "batch", "packets", "transfer", "dispatch",
                                "xdp_on_gpu", "time", "json", "csv", "report", "bars", "from"])]
    compare: Option<Vec<PathBuf>>,
}

/// A value of `--device`: a device, and the number of threads after an `@`.
#[derive(Debug, Clone)]
struct DeviceRequest {
    selector: Selector,
    threads: Option<NonZeroUsize>,
}

impl FromStr for DeviceRequest {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceRequest, String> {
        let (device, threads) = match text.split_once('@') {
            Some((device, threads)) => {
                // The same limit as that of `run --threads`.
                let threads: NonZeroU16 =
                    threads.parse().map_err(|_| "expected a number of threads after the @, as in cpu@1".to_owned())?;
                (device, Some(threads.into()))
            }
            None => (text, None),
        };
        let selector: Selector = device.parse().map_err(|error: devices::UnknownDevice| error.to_string())?;
        let is_cpu = matches!(selector, Selector::Backend { backend: "cpu" | "interp", .. });
        if threads.is_some() && !is_cpu {
            return Err("only the CPU has threads to choose, as in cpu@1".into());
        }
        Ok(DeviceRequest { selector, threads })
    }
}

/// Default time budget of a quick run.
const QUICK: Duration = Duration::from_secs(75);

/// Default time budget of a full run.
const FULL: Duration = Duration::from_secs(3600);

/// Measures filters, or compares results.
pub fn run(args: &Args) -> Result<(), Failure> {
    if let Some([before, after]) = args.compare.as_deref() {
        return compare::run(before, after);
    }
    let files = Files::new(args)?;
    let other_bars = args.bars.as_deref().map(read_bars).transpose()?;
    let mut results = match &args.from {
        Some(file) => compare::load(file)?,
        None => measure(args)?,
    };
    bars::add(&mut results.bars, other_bars.unwrap_or_default());
    files.write(&results)?;

    let is_wrong = |cell: &Cell| !matches!(cell.outcome, Outcome::Measured(_));
    if results.cells.iter().any(is_wrong) || results.xdp_on_gpu.iter().any(Table::is_wrong) {
        return Err(Failure::Silent(FAILED));
    }
    if results.run.interrupted && args.from.is_none() {
        return Err(Failure::Silent(INTERRUPTED));
    }
    if results.cells.is_empty() {
        return Err(Failure::Error("nothing was measured: see what was left out".into()));
    }
    Ok(())
}

/// Reads the targets that other benchmarks measured.
fn read_bars(file: &Path) -> Result<Vec<Bar>, Failure> {
    let wrong = |what: String| Failure::Error(format!("{}: {what}", file.display()));
    let text = std::fs::read(file).map_err(|error| wrong(create_error_reason(file, &error)))?;
    bars::read(&text).map_err(|error| wrong(format!("not a file of bars: {error}")))
}

fn measure(args: &Args) -> Result<Results, Failure> {
    let start = Instant::now();
    let filters = args.filters.load(args.full)?;
    let (devices, missing, required) = devices(args)?;
    if devices.is_empty() {
        let reasons: Vec<_> = missing.iter().map(|it| format!("{}: {}", it.device, it.reason)).collect();
        return Err(Failure::Error(format!("there is no device to measure\n{}", reasons.join("\n"))));
    }
    if !required.is_empty() {
        return Err(Failure::Error(required.join("\n")));
    }
    let is_customised = !(args.device.is_empty()
        && args.filters.is_default()
        && args.batch.is_empty()
        && args.packets.is_empty()
        && args.transfer.is_empty()
        && args.dispatch.is_empty());
    let batches: Vec<usize> = args.batch.iter().map(|&batch| batch as usize).collect();
    let or_default = |given: Vec<usize>, default: &[usize]| if given.is_empty() { default.to_vec() } else { given };
    let plan = RunPlan {
        extent: if args.full { Extent::Full } else { Extent::Quick },
        matrix: match (is_customised, args.full) {
            (true, _) => "chosen",
            (false, true) => "full",
            (false, false) => "quick",
        },
        filters,
        devices,
        missing,
        batches: or_default(batches, if args.full { &BATCHES } else { &QUICK_BATCHES }),
        packets: if args.packets.is_empty() { Packets::ALL.to_vec() } else { args.packets.clone() },
        transfers: args.transfer.clone(),
        dispatches: args.dispatch.clone(),
        start,
        time: args.time.unwrap_or(if args.full { FULL } else { QUICK }),
        xdp_on_gpu: args.xdp_on_gpu || args.full,
        commands: vec![command()],
        reference: devices::open("interp")?,
    };

    announce(&plan);
    let interrupt = Interrupt::default();
    interrupt.listen();
    interrupt.begin();
    let tokens = StopTokens { stop: interrupt.stop.clone(), give_up: interrupt.give_up.clone() };
    let bar = progress_bar::new(Some(1), "{bar:30} {percent:>3} %  {eta} left  {wide_msg}");
    let results = run::run(&plan, &tokens, &mut |step| {
        bar.set_length(step.all as u64);
        bar.set_position(step.done as u64);
        bar.set_message(step.now.to_owned());
    });
    bar.finish_and_clear();
    Ok(results)
}

/// Says before the run how long it takes, if that is more than its time budget.
fn announce(plan: &RunPlan) {
    let (measurements, expected) = run::expected_time(plan);
    if expected > plan.time {
        out::note(&format!(
            "--time {} s is too short for {measurements} measurements: this takes up to {} s",
            plan.time.as_secs_f64(),
            expected.as_secs_f64().ceil()
        ));
    }
}

/// Returns the command line, quoted as a shell needs it.
fn command() -> String {
    let plain =
        |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_=./:,@+%".contains(c));
    let quoted = |text: &str| if plain(text) { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) };
    let arguments = std::env::args_os().skip(1).map(|argument| quoted(&argument.to_string_lossy()));
    std::iter::once("portcullis".to_owned()).chain(arguments).collect::<Vec<_>>().join(" ")
}

/// The files that results are written to.
struct Files {
    json: Option<Destination>,
    csv: Option<Destination>,
    report: Option<Destination>,
}

impl Files {
    /// Checks that the files can be written, before anything is measured.
    fn new(args: &Args) -> Result<Files, Failure> {
        let given = [&args.json, &args.csv, &args.report].map(Option::as_deref);
        if given.iter().filter(|file| **file == Some(Path::new("-"))).count() > 1 {
            return Err(Failure::Usage("only one of --json, --csv and --report can be standard output".into()));
        }
        let named: Vec<&Path> = given.into_iter().flatten().filter(|file| *file != Path::new("-")).collect();
        for (nth, name) in named.iter().enumerate() {
            let wrong = |what: &str| Err(Failure::Usage(format!("{}: {what}", name.display())));
            if named[..nth].iter().any(|other| same_destination(other, name)) {
                return wrong("two of --json, --csv and --report would be written there");
            }
            if let Some((_, what)) = args.filters.files().find(|(file, _)| same_file(file, name)) {
                return wrong(&format!("this is {what}; choose another name"));
            }
        }
        let open = |file: &Option<PathBuf>| file.as_deref().map(Destination::new).transpose();
        Ok(Files { json: open(&args.json)?, csv: open(&args.csv)?, report: open(&args.report)? })
    }

    /// Writes the files, and the table if standard output is free. Files come first: they are
    /// complete even if the reader of the table closes the pipe. A file that cannot be written does
    /// not keep the others from being written, as measuring again takes long.
    fn write(self, results: &Results) -> Result<(), Failure> {
        let wrong =
            |what: &str, error: &dyn std::fmt::Display| Failure::Error(format!("cannot make the {what}: {error}"));
        let mut for_stdout = None;
        let mut put = |to: Option<Destination>, make: &dyn Fn() -> Result<String, Failure>| {
            match to {
                Some(Destination::File(file)) => {
                    let text = make()?;
                    file.write(|out| out.write_all(text.as_bytes()))?;
                }
                Some(Destination::Stdout) => for_stdout = Some(make()?),
                None => {}
            }
            Ok::<(), Failure>(())
        };
        let json = || Ok(serde_json::to_string_pretty(results).map_err(|error| wrong("JSON", &error))? + "\n");
        let mut written = vec![
            put(self.json, &json),
            put(self.csv, &|| csv(results).map_err(|error| wrong("CSV", &error))),
            put(self.report, &|| report::html(results).map_err(|error| wrong("report", &error))),
        ];
        written.push(out::print(for_stdout.unwrap_or_else(|| table::text(results))));
        let mut failures: Vec<Failure> = written.into_iter().filter_map(Result::err).collect();
        let Some(last) = failures.pop() else { return Ok(()) };
        // The last one sets the exit code.
        failures.into_iter().for_each(|failure| _ = out::report_failure(failure));
        Err(last)
    }
}

/// The device of `run --device auto`, calibrated in this run; the calibration is not stored.
fn auto(candidates: Vec<Arc<dyn Device>>) -> BenchDevice {
    let measure = if candidates.len() > 1 { CalibrationMode::Always } else { CalibrationMode::Never };
    let settings = Settings::default().with_store(CalibrationStore::disabled()).with_mode(measure);
    BenchDevice { device: Arc::new(AutoDevice::new(candidates, settings)), threads: None }
}

/// Devices to measure, backends without a device, and errors about required devices.
type ProbedDevices = (Vec<BenchDevice>, Vec<Missing>, Vec<String>);

/// Probes the devices to measure.
fn devices(args: &Args) -> Result<ProbedDevices, Failure> {
    let mut found: Vec<BenchDevice> = Vec::new();
    let mut missing: Vec<Missing> = Vec::new();
    let mut required = Vec::new();
    let mut add = |device: BenchDevice, missing: &mut Vec<Missing>| {
        let info = device.device.info();
        if let Some(reason) = info.runs_no_filter() {
            missing.push(Missing { device: device.id(), reason: reason.to_owned() });
        } else if !found.iter().any(|other| other.id() == device.id()) {
            found.push(device);
        }
    };
    for DeviceRequest { selector, threads } in &args.device {
        if *selector == Selector::Auto {
            add(auto(devices::candidates()?), &mut missing);
            continue;
        }
        add(BenchDevice { device: selector.open()?, threads: *threads }, &mut missing);
    }
    if args.device.is_empty() {
        for backend in devices::backends().iter().filter(|backend| !matches!(backend.name, "noop" | "interp")) {
            match backend.probe() {
                Ok(devices) => {
                    for device in devices {
                        add(BenchDevice { device: device.clone(), threads: None }, &mut missing);
                        if backend.name == "cpu" {
                            add(BenchDevice { device, threads: NonZeroUsize::new(1) }, &mut missing);
                        }
                    }
                }
                Err(error) => missing.push(Missing { device: backend.name.into(), reason: error.to_string() }),
            }
        }
        // With a single candidate, `auto` is that device again.
        if let Some(candidates) = devices::candidates().ok().filter(|candidates| candidates.len() > 1) {
            add(auto(candidates), &mut missing);
        }
    }
    for selector in &args.require {
        match selector.open() {
            Ok(device) => add(BenchDevice { device, threads: None }, &mut missing),
            Err(error) => required.push(format!("{selector} is required but missing: {error}")),
        }
    }
    Ok((found, missing, required))
}
