//! `portcullis` without arguments: a sample filter on each device.

use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis::device::{CancelToken, Device, DeviceKind, LoadOptions, Session};
use portcullis::devices::backends;
use portcullis::diagnostics;
use portcullis::frontend::wgsl;
use portcullis::packet_io::capture;
use portcullis::pipeline::{self, Event, Outputs, Totals};
use portcullis::program::{Program, ProgramOptions};
use portcullis::stock;

use super::failure::Failure;
use super::out;

/// The stock filter that is run.
const FILTER: &str = "http_only";

/// The sample capture's place in the source tree.
const SAMPLE: &str = "samples/mixed.pcap";

/// Time to run before measuring, so that compilation in the background is over and threads are
/// awake.
const WARM_UP: Duration = Duration::from_millis(50);

/// Target duration of a measured pass; much shorter ones would measure how fast threads wake up.
const PASS: Duration = Duration::from_millis(40);

/// Measured passes per device; the rate is their median.
const PASSES: usize = 5;

/// Maximum copies of the sample in a pass: 100,000 packets.
const MAX_COPIES: u32 = 25;

/// Size of the global header of a classic capture, in bytes.
const HEADER: usize = 24;

/// Runs the sample filter on every device found, and prints commands to try next.
pub fn run() -> Result<(), Failure> {
    let text = stock::wgsl(FILTER).expect("a stock filter");
    let program = wgsl::compile(&diagnostics::Source::new(FILTER, text), &ProgramOptions::default())?;
    let program = Arc::new(program);
    let version = env!("CARGO_PKG_VERSION");
    out::print(format!("Portcullis {version}\n\nThe stock filter {FILTER} over a sample capture:\n\n"))?;
    let mut rows = vec![["device", "packets", "pass", "drop", "Mpps", ""].map(String::from).to_vec()];
    // `noop` runs no filter: its counts would only raise questions.
    for backend in backends().iter().filter(|backend| backend.name != "noop") {
        match backend.probe() {
            Ok(devices) => {
                for device in devices {
                    let info = device.info();
                    rows.push(match measure(&*device, &program) {
                        Ok((totals, mpps)) => vec![
                            info.id.clone(),
                            out::grouped(totals.packets),
                            out::grouped(totals.verdicts.pass),
                            out::grouped(totals.verdicts.drop),
                            format!("{mpps:.2}"),
                            format!("{}, {}", info.kind.name(), info.name),
                        ],
                        Err(error) => unavailable(&info.id, &error),
                    });
                }
            }
            Err(reason) => rows.push(unavailable(backend.name, &reason.to_string())),
        }
    }
    out::print(out::wrapped_table(rows, &[1, 2, 3, 4]))?;
    out::print(format!("\nMpps: median of {PASSES} passes over copies of the sample, once the filter runs.\n"))?;
    out::print(next_steps())
}

fn unavailable(id: &str, reason: &str) -> Vec<String> {
    vec![id.into(), "-".into(), "-".into(), "-".into(), "-".into(), reason.into()]
}

/// Runs the filter over the sample: the counts of one pass, and the rate of a warm device in
/// millions of packets per second.
fn measure(device: &dyn Device, program: &Arc<Program>) -> Result<(Totals, f64), String> {
    let mut session = device.load(program, &LoadOptions::default()).map_err(|error| error.to_string())?;
    let mut pass = |copies| pass(&mut *session, program, device.info().kind, copies);
    let totals = pass(1)?;
    let start = Instant::now();
    let mut last = pass(1)?;
    while start.elapsed() < WARM_UP {
        last = pass(1)?;
    }
    let copies = PASS.as_nanos() / last.elapsed.as_nanos().max(1);
    let copies = copies.clamp(1, MAX_COPIES.into()) as u32;
    let mut rates = (0..PASSES).map(|_| Ok(pass(copies)?.mpps())).collect::<Result<Vec<_>, String>>()?;
    rates.sort_by(f64::total_cmp);
    Ok((totals, rates[PASSES / 2]))
}

/// Runs the pipeline once over this many concatenated copies of the sample.
fn pass(session: &mut dyn Session, program: &Program, kind: DeviceKind, copies: u32) -> Result<Totals, String> {
    let (header, packets) = stock::SAMPLE_CAPTURE.split_at(HEADER);
    let bytes = [header, &packets.repeat(copies as usize)].concat();
    let options = pipeline::source_options(program, kind, false);
    let source = capture::read(SAMPLE, Some(bytes.len() as u64), Box::new(Cursor::new(bytes)), &options);
    let source = source.map_err(|error| error.to_string())?;
    let finished = pipeline::run(source, session, Outputs::default(), &CancelToken::new(), &mut |_: Event<'_>| {});
    match finished.error {
        Some(error) => Err(error.to_string()),
        None => Ok(finished.totals),
    }
}

/// Commands that work in the current directory.
fn next_steps() -> String {
    // cargo sets CARGO for the programs that it runs.
    let us = if std::env::var_os("CARGO").is_some() { "cargo run --release --" } else { "portcullis" };
    let read = if Path::new(SAMPLE).exists() { SAMPLE } else { "synth:packets=100000" };
    format!(
        "\nNext:\n  {us} run {FILTER} -r {read} -w passed.pcap\n  {us} filters\n  {us} check {FILTER}\n  \
         {us} selftest\n"
    )
}
