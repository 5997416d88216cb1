//! `portcullis bench`

mod compare;
mod filters;
mod progress;
mod table;

use std::num::{NonZeroU16, NonZeroUsize};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use portcullis::auto::calibration::CalibrationStore;
use portcullis::auto::{AutoDevice, CalibrationMode, Settings};
use portcullis::device::{Device, Dispatch};
use portcullis::devices::{self, Selector};
use portcullis::packet_io::{create_error_reason, same_destination, same_file};
use portcullis_bench::csv::csv;
use portcullis_bench::results::{Bar, Cell, Missing, Outcome, Results};
use portcullis_bench::run::{self, BATCHES, Chosen, Extent, Order, QUICK_BATCHES, RunGuard, Start};
use portcullis_bench::seeds::Table;
use portcullis_bench::traffic::Packets;
use portcullis_bench::{bars, report};

use super::failure::{Failure, INTERRUPTED, WRONG};
use super::out;
use super::run::duration;
use super::run::interrupt::Interrupt;
use super::run::replace::Replacement;
use filters::FilterArgs;
use progress::Progress;

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
beyond noise, or no longer measured), 2 wrong usage, 130 interrupted (what there is has been written), 141 nobody reads \
the output any more."
)]
pub struct Args {
    /// Measure the most important part, in less than two minutes (the default)
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Measure everything with everything, and a stateful and a writing filter too; about an hour,
    /// or as long as --time says
    #[arg(long)]
    full: bool,
    /// Measure this device; may be given several times. `cpu@1` is the CPU with one thread. Without
    /// it: every device found, cpu@1, and auto where it has a choice
    #[arg(long, value_name = "DEVICE[@THREADS]")]
    device: Vec<DeviceRequest>,
    /// Fail when one of these is missing, for example cpu,wgpu,opencl
    #[arg(long, value_name = "DEVICES", value_delimiter = ',')]
    require: Vec<Selector>,
    #[command(flatten)]
    filters: FilterArgs,
    /// Packets in a batch; may be given several times, or as a list
    #[arg(long, value_name = "PACKETS", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    batch: Vec<u32>,
    /// Bytes of a packet, or `imix`; may be given several times, or as a list
    #[arg(long, value_name = "BYTES", value_delimiter = ',')]
    packets: Vec<Packets>,
    /// How packets come to devices: auto, whole, window or imported; or resident: they are there
    /// already. May be given several times
    #[arg(long, value_name = "TRANSFER")]
    transfer: Vec<Start>,
    /// How batches are handed to devices; may be given several times
    #[arg(long, value_name = "METHOD")]
    dispatch: Vec<Dispatch>,
    /// Measure XDP-on-GPU's workloads as well, its way and ours, beside what it publishes; --full
    /// does so in any case
    #[arg(long)]
    seeds: bool,
    /// How long all of it may take, about
    #[arg(long, value_name = "TIME", value_parser = duration)]
    time: Option<Duration>,
    /// Write everything to this file as JSON; `-` is standard output
    #[arg(long, value_name = "FILE", value_parser = NonEmptyStringValueParser::new())]
    json: Option<String>,
    /// Write a line a measurement to this file as CSV; `-` is standard output
    #[arg(long, value_name = "FILE", value_parser = NonEmptyStringValueParser::new())]
    csv: Option<String>,
    /// Write a report with plots to this file, as one HTML page; `-` is standard output
    #[arg(long, value_name = "FILE", value_parser = NonEmptyStringValueParser::new())]
    report: Option<String>,
    /// Put what other benchmarks have measured among the bars: what they write to the file that
    /// PORTCULLIS_BARS names, or a JSON list like `bars` in a file that --json has written
    #[arg(long, value_name = "FILE", value_parser = NonEmptyStringValueParser::new())]
    bars: Option<String>,
    /// Measure nothing: make the table and the other files of a file that --json has written
    #[arg(long, value_name = "FILE", value_parser = NonEmptyStringValueParser::new(),
          conflicts_with_all = ["quick", "full", "device", "require", "filter", "expr", "batch", "packets", "transfer", "dispatch",
                                "seeds", "time"])]
    from: Option<String>,
    /// Compare two files that --json has written, the older one first, and measure nothing
    #[arg(long, num_args = 2, value_names = ["BEFORE", "AFTER"],
          conflicts_with_all = ["quick", "full", "device", "require", "filter", "expr", "batch", "packets", "transfer", "dispatch",
                                "seeds", "time", "json", "csv", "report", "bars", "from"])]
    compare: Option<Vec<String>>,
}

/// A device as it is asked for.
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
                // As many as `run --threads` takes.
                let threads: NonZeroU16 =
                    threads.parse().map_err(|_| "behind the @ comes a number of threads, as in cpu@1".to_owned())?;
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

/// How long runs may take.
const QUICK: Duration = Duration::from_secs(75);
const FULL: Duration = Duration::from_secs(3600);

/// Measures, or compares.
pub fn run(args: &Args) -> Result<(), Failure> {
    if let Some([before, after]) = args.compare.as_deref() {
        return compare::run(before, after);
    }
    let files = Files::new(args)?;
    let elsewhere = args.bars.as_deref().map(bars_of).transpose()?;
    let mut results = match &args.from {
        Some(file) => compare::load(file)?,
        None => measure(args)?,
    };
    bars::add(&mut results.bars, elsewhere.unwrap_or_default());
    files.write(&results)?;

    let is_wrong = |cell: &Cell| !matches!(cell.outcome, Outcome::Measured(_));
    if results.cells.iter().any(is_wrong) || results.seeds.iter().any(Table::is_wrong) {
        return Err(Failure::Silent(WRONG));
    }
    if results.run.interrupted && args.from.is_none() {
        return Err(Failure::Silent(INTERRUPTED));
    }
    if results.cells.is_empty() {
        return Err(Failure::Wrong("nothing was measured: see what was left out".into()));
    }
    Ok(())
}

/// What other benchmarks have measured.
fn bars_of(file: &str) -> Result<Vec<Bar>, Failure> {
    let wrong = |what: String| Failure::Wrong(format!("{file}: {what}"));
    let text = std::fs::read(file).map_err(|error| wrong(create_error_reason(Path::new(file), &error)))?;
    bars::read(&text).map_err(|error| wrong(format!("these are no bars: {error}")))
}

fn measure(args: &Args) -> Result<Results, Failure> {
    let filters = args.filters.all(args.full)?;
    let (devices, missing, required) = devices(args)?;
    if devices.is_empty() {
        let reasons: Vec<_> = missing.iter().map(|it| format!("{}: {}", it.device, it.reason)).collect();
        return Err(Failure::Wrong(format!("there is no device to measure\n{}", reasons.join("\n"))));
    }
    if !required.is_empty() {
        return Err(Failure::Wrong(required.join("\n")));
    }
    let chosen = |is_chosen: bool| if is_chosen { "chosen" } else { "quick" };
    let by_hand = !(args.device.is_empty()
        && args.filters.is_usual()
        && args.batch.is_empty()
        && args.packets.is_empty()
        && args.transfer.is_empty()
        && args.dispatch.is_empty());
    let batches: Vec<usize> = args.batch.iter().map(|&batch| batch as usize).collect();
    let or = |asked: Vec<usize>, usual: &[usize]| if asked.is_empty() { usual.to_vec() } else { asked };
    let order = Order {
        extent: if args.full { Extent::Full } else { Extent::Quick },
        matrix: if by_hand || !args.full { chosen(by_hand) } else { "full" },
        filters,
        devices,
        missing,
        batches: or(batches, if args.full { &BATCHES } else { &QUICK_BATCHES }),
        packets: if args.packets.is_empty() { Packets::ALL.to_vec() } else { args.packets.clone() },
        transfers: args.transfer.clone(),
        dispatches: args.dispatch.clone(),
        time: args.time.unwrap_or(if args.full { FULL } else { QUICK }),
        seeds: args.seeds || args.full,
        commands: vec![command()],
        reference: devices::open("interp")?,
    };

    let interrupt = Interrupt::default();
    interrupt.listen();
    interrupt.begin();
    let ends = RunGuard { stop: interrupt.stop.clone(), give_up: interrupt.give_up.clone() };
    let mut progress = Progress::new();
    let results = run::run(&order, &ends, &mut |step| progress.show(&step));
    progress.clear();
    Ok(results)
}

/// The command as it was typed, with what a shell would take apart in quotes.
fn command() -> String {
    let plain =
        |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_=./:,@+%".contains(c));
    let quoted = |text: &str| if plain(text) { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) };
    let arguments = std::env::args_os().skip(1).map(|argument| quoted(&argument.to_string_lossy()));
    std::iter::once("portcullis".to_owned()).chain(arguments).collect::<Vec<_>>().join(" ")
}

/// Where results go.
struct Files<'a> {
    json: Option<(&'a str, Option<Replacement>)>,
    csv: Option<(&'a str, Option<Replacement>)>,
    report: Option<(&'a str, Option<Replacement>)>,
}

impl<'a> Files<'a> {
    /// Sees whether they can be written, before anything is measured.
    fn new(args: &'a Args) -> Result<Files<'a>, Failure> {
        let asked = [&args.json, &args.csv, &args.report];
        if asked.iter().filter(|file| file.as_deref() == Some("-")).count() > 1 {
            return Err(Failure::Usage("only one of --json, --csv and --report can be standard output".into()));
        }
        let named: Vec<_> = asked.iter().filter_map(|file| file.as_deref()).filter(|file| *file != "-").collect();
        for (nth, name) in named.iter().enumerate() {
            if named[..nth].iter().any(|other| same_destination(Path::new(other), Path::new(name))) {
                return Err(Failure::Usage(format!(
                    "{name}: two of --json, --csv and --report would be written there"
                )));
            }
            if let Some((_, what)) = args.filters.files().find(|(file, _)| same_file(file, Path::new(name))) {
                return Err(Failure::Usage(format!("{name}: this is {what}; choose another name")));
            }
        }
        let of = |file: &'a Option<String>| -> Result<_, Failure> {
            Ok(match file.as_deref() {
                None => None,
                Some("-") => Some(("-", None)),
                Some(name) => Some((name, Some(Replacement::new(name)?))),
            })
        };
        Ok(Files { json: of(&args.json)?, csv: of(&args.csv)?, report: of(&args.report)? })
    }

    /// Writes them, and the table where standard output is free. Files first: they are whole then
    /// even where nobody reads the table. What cannot be written keeps nothing else from being:
    /// measuring it again takes long.
    fn write(self, results: &Results) -> Result<(), Failure> {
        let wrong =
            |what: &str, error: &dyn std::fmt::Display| Failure::Wrong(format!("the {what} cannot be made: {error}"));
        let mut for_stdout = None;
        let mut put = |to: Option<(&str, Option<Replacement>)>, make: &dyn Fn() -> Result<String, Failure>| {
            match to {
                Some((_, Some(file))) => {
                    let text = make()?;
                    file.write(|out| out.write_all(text.as_bytes()))?;
                }
                Some((_, None)) => for_stdout = Some(make()?),
                None => {}
            }
            Ok::<(), Failure>(())
        };
        let json = || Ok(serde_json::to_string_pretty(results).map_err(|error| wrong("JSON", &error))? + "\n");
        let mut ends = vec![
            put(self.json, &json),
            put(self.csv, &|| csv(results).map_err(|error| wrong("CSV", &error))),
            put(self.report, &|| report::html(results).map_err(|error| wrong("report", &error))),
        ];
        ends.push(out::print(for_stdout.unwrap_or_else(|| table::text(results))));
        let mut failures: Vec<Failure> = ends.into_iter().filter_map(Result::err).collect();
        let Some(last) = failures.pop() else { return Ok(()) };
        // The last one tells the exit code.
        failures.into_iter().for_each(|failure| _ = failure.report());
        Err(last)
    }
}

/// What `run --device auto` has, by a calibration that is made in this run and not kept.
fn auto(candidates: Vec<Arc<dyn Device>>) -> Chosen {
    let measure = if candidates.len() > 1 { CalibrationMode::Always } else { CalibrationMode::Never };
    let settings = Settings { store: CalibrationStore::disabled(), mode: measure, ..Settings::default() };
    Chosen { device: Arc::new(AutoDevice::new(candidates, settings)), threads: None }
}

/// Devices, backends without any, and what was demanded and is missing.
type ProbedDevices = (Vec<Chosen>, Vec<Missing>, Vec<String>);

/// The devices to measure.
fn devices(args: &Args) -> Result<ProbedDevices, Failure> {
    let mut found: Vec<Chosen> = Vec::new();
    let mut missing: Vec<Missing> = Vec::new();
    let mut required = Vec::new();
    let mut add = |chosen: Chosen, missing: &mut Vec<Missing>| {
        let info = chosen.device.info();
        if let Some(reason) = info.runs_no_filter() {
            missing.push(Missing { device: chosen.id(), reason: reason.to_owned() });
        } else if !found.iter().any(|other| other.id() == chosen.id()) {
            found.push(chosen);
        }
    };
    for DeviceRequest { selector, threads } in &args.device {
        if *selector == Selector::Auto {
            add(auto(devices::candidates()?), &mut missing);
            continue;
        }
        add(Chosen { device: selector.open()?, threads: *threads }, &mut missing);
    }
    if args.device.is_empty() {
        for backend in devices::backends().iter().filter(|backend| !matches!(backend.name, "noop" | "interp")) {
            match backend.probe() {
                Ok(devices) => {
                    for device in devices {
                        add(Chosen { device: device.clone(), threads: None }, &mut missing);
                        if backend.name == "cpu" {
                            add(Chosen { device, threads: NonZeroUsize::new(1) }, &mut missing);
                        }
                    }
                }
                Err(error) => missing.push(Missing { device: backend.name.into(), reason: error.to_string() }),
            }
        }
        // Where it has nothing to choose from it is the device that is there already.
        if let Some(candidates) = devices::candidates().ok().filter(|candidates| candidates.len() > 1) {
            add(auto(candidates), &mut missing);
        }
    }
    for selector in &args.require {
        match selector.open() {
            Ok(device) => add(Chosen { device, threads: None }, &mut missing),
            Err(error) => required.push(format!("{selector} is required, and missing: {error}")),
        }
    }
    Ok((found, missing, required))
}
