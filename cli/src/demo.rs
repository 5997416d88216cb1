//! `portcullis` with no arguments: a look around.

use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;

use portcullis::device::{CancelToken, Device, LoadOptions};
use portcullis::devices::backends;
use portcullis::diagnostics;
use portcullis::frontend::wgsl;
use portcullis::packet_io::capture;
use portcullis::pipeline::{self, Event, Outputs, Totals};
use portcullis::program::{Program, ProgramOptions};
use portcullis::stock;

use super::failure::Failure;
use super::out;

const FILTER: &str = "shaders/http_only.wgsl";
const SAMPLE: &str = "samples/mixed.pcap";

/// Runs the sample filter on every device that is found, and says what to try next.
pub fn run() -> Result<(), Failure> {
    let program = wgsl::compile(
        &diagnostics::Source::new(FILTER, stock::wgsl("http_only").expect("a stock filter")),
        &ProgramOptions::default(),
    )?;
    let program = Arc::new(program);
    out::print(format!("Portcullis {}\n\n{} over {}:\n\n", env!("CARGO_PKG_VERSION"), FILTER, SAMPLE))?;
    let mut rows = vec![["device", "packets", "pass", "drop", "Mpps", ""].map(String::from).to_vec()];
    // The device that does nothing would only raise questions here.
    for backend in backends().iter().filter(|backend| backend.name != "noop") {
        match backend.probe() {
            Ok(devices) => {
                for device in devices {
                    let info = device.info();
                    rows.push(match try_on(&*device, &program) {
                        Ok(totals) => vec![
                            info.id.clone(),
                            out::grouped(totals.packets),
                            out::grouped(totals.verdicts.pass),
                            out::grouped(totals.verdicts.drop),
                            format!("{:.2}", totals.mpps()),
                            format!("{}, {}", info.kind.name(), info.name),
                        ],
                        Err(error) => missing(&info.id, &error),
                    });
                }
            }
            Err(reason) => rows.push(missing(backend.name, &reason.to_string())),
        }
    }
    out::print(out::table(rows, &[1, 2, 3, 4]))?;
    out::print(next_steps())
}

fn missing(id: &str, reason: &str) -> Vec<String> {
    vec![id.into(), "-".into(), "-".into(), "-".into(), "-".into(), reason.into()]
}

fn try_on(device: &dyn Device, program: &Arc<Program>) -> Result<Totals, String> {
    let mut session = device.load(program, &LoadOptions::default()).map_err(|error| error.to_string())?;
    let (name, bytes) = (SAMPLE, stock::SAMPLE_CAPTURE);
    let options = pipeline::source_options(program, device.info().kind, false);
    let source = capture::read(name, Some(bytes.len() as u64), Box::new(Cursor::new(bytes)), &options);
    let source = source.map_err(|error| error.to_string())?;
    let finished =
        pipeline::run(source, &mut *session, Outputs::default(), &CancelToken::new(), &mut |_: Event<'_>| {});
    match finished.error {
        Some(error) => Err(error.to_string()),
        None => Ok(finished.totals),
    }
}

/// Commands that work where we stand.
fn next_steps() -> String {
    // Set by cargo for what it runs.
    let us = if std::env::var_os("CARGO").is_some() { "cargo run --release --" } else { "portcullis" };
    let here = Path::new(FILTER).exists() && Path::new(SAMPLE).exists();
    let (run, check) = if here {
        (format!("{us} run {} --read {} --write passed.pcap", FILTER, SAMPLE), format!("{us} check {}", FILTER))
    } else {
        let filter = "echo 'fn xdp_filter(pkt: u32) -> u32 { return XDP_PASS; }'";
        (
            format!("{filter} | {us} run - --read synth:packets=100000 --write passed.pcap"),
            format!("{filter} | {us} check -"),
        )
    };
    format!("\nNext:\n  {run}\n  {check}\n  {us} selftest\n")
}
