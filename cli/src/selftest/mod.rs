//! `portcullis selftest`: conformance of devices and of network interfaces.

#[cfg(all(target_os = "linux", feature = "af-xdp"))]
mod af_xdp;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::builder::{NonEmptyStringValueParser, PathBufValueParser};
use portcullis::device::{Device, Dispatch, SingleDispatch};
use portcullis::devices::{self, Selector};
use portcullis_conformance::corpora::{self, Depth};
use portcullis_conformance::filters::Language;
use portcullis_conformance::{self, MissingDevice, Report, filters};

use super::failure::{FAILED, Failure};
use super::out;
use super::run::duration;

/// Run the conformance suite on each device
///
/// The built-in suite runs the stock filters in each language, and one probe for each rule of the
/// filter semantics, over packets that cover all boundary cases, in batches of several sizes and
/// layouts. A device fails if a verdict, length, packet byte or final map entry differs from the
/// reference interpreter's.
///
/// With --af-xdp it tests a network interface instead: which AF_XDP modes it supports, and whether
/// they work.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Test only this device; may be repeated
    #[arg(long, value_name = "DEVICE", help_heading = "Devices")]
    device: Vec<Selector>,
    /// Fail if one of these devices is missing, for example cpu,wgpu,opencl
    #[arg(long, value_name = "DEVICES", value_delimiter = ',', help_heading = "Devices")]
    require: Vec<Selector>,
    /// Use this dispatch method instead of each device's default; may be repeated
    #[arg(long, value_name = "METHOD", help_heading = "Devices")]
    dispatch: Vec<Dispatch>,
    /// Run only this filter of the suite; may be repeated
    #[arg(long, value_name = "NAME", help_heading = "Devices")]
    filter: Vec<String>,
    /// Use a subset of the packets; debug builds always do
    #[arg(long, help_heading = "Devices")]
    quick: bool,
    /// Write devices, drivers and results to this JSON file; `-` is standard output
    #[arg(long, value_name = "FILE", value_parser = PathBufValueParser::new(), help_heading = "Output")]
    json: Option<PathBuf>,
    #[command(flatten)]
    link: LinkArgs,
}

/// Arguments for testing a network interface.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Network interface")]
struct LinkArgs {
    /// Test the AF_XDP modes of this interface, on all queues or those given (eth0:0-3,8)
    ///
    /// Opens a socket for each queue in each mode of the driver, and checks that every frame is
    /// accounted for. Receives only frames of the experimental EtherType 0x88b5 and sends nothing,
    /// unless the options below say otherwise.
    #[arg(long, value_name = "IFACE[:QUEUES]", value_parser = NonEmptyStringValueParser::new(),
          conflicts_with_all = ["device", "require", "dispatch", "filter", "quick"])]
    af_xdp: Option<String>,
    /// Receive packets that match these rules and return them to the kernel's stack
    ///
    /// The rules are those of `run --only`.
    #[arg(long, value_name = "RULES", requires = "af_xdp", conflicts_with = "all")]
    only: Option<String>,
    /// Receive all packets and return them to the kernel's stack
    #[arg(long, requires = "af_xdp")]
    all: bool,
    /// Send 64 frames of EtherType 0x88b5 from each queue to the interface's own MAC address
    #[arg(long, requires = "af_xdp")]
    send: bool,
    /// How long to receive in each mode
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "2s", requires = "af_xdp")]
    duration: Duration,
}

/// Tests devices or an interface, and prints or writes the report.
pub fn run(args: Args) -> Result<(), Failure> {
    match &args.link.af_xdp {
        None => test_devices(&args),
        #[cfg(all(target_os = "linux", feature = "af-xdp"))]
        Some(interface) => af_xdp::run(&args, interface),
        #[cfg(not(all(target_os = "linux", feature = "af-xdp")))]
        Some(_) => Err(super::run::missing("--af-xdp", "af-xdp")),
    }
}

fn test_devices(args: &Args) -> Result<(), Failure> {
    let mut cases = [filters::cases(), filters::stateful()].concat();
    if let Some(unknown) = args.filter.iter().find(|name| !cases.iter().any(|case| case.name == **name)) {
        let mut names: Vec<_> = cases.iter().map(|case| case.name).collect();
        names.sort_unstable();
        names.dedup();
        return Err(Failure::Usage(format!(
            "--filter: the suite has no filter `{unknown}`; it has {}",
            names.join(", ")
        )));
    }
    cases.retain(|case| args.filter.is_empty() || args.filter.iter().any(|name| name == case.name));

    let (devices, missing) = find_devices(args);
    let reference = devices::open("interp")?;
    let depth = if args.quick || cfg!(debug_assertions) { Depth::Quick } else { Depth::Full };
    let show_progress = io::stderr().is_terminal();
    let total = cases.len();
    let mut count = 0;
    let mut report =
        portcullis_conformance::run(&devices, &*reference, &cases, &corpora::corpora(depth), &mut |name| {
            count += 1;
            if show_progress {
                let _ = write!(io::stderr(), "\r\x1b[K{count}/{total} {name}");
            }
        });
    if show_progress {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
    report.missing = missing;

    let json = serde_json::to_string_pretty(&report).expect("a report serialises") + "\n";
    out::write_report(args.json.as_deref(), json, text(&report))?;
    if report.passed() { Ok(()) } else { Err(Failure::Silent(FAILED)) }
}

/// Returns the devices to test, and those that are missing.
fn find_devices(args: &Args) -> (Vec<Arc<dyn Device>>, Vec<MissingDevice>) {
    let mut found: Vec<Arc<dyn Device>> = Vec::new();
    let mut missing: Vec<MissingDevice> = Vec::new();
    let mut add = |device: Arc<dyn Device>| {
        if !found.iter().any(|other| other.info().id == device.info().id) {
            found.push(device);
        }
    };
    for selector in args.device.iter().chain(&args.require) {
        match selector.open() {
            Ok(device) => add(device),
            Err(error) => {
                missing.push(MissingDevice { device: selector.to_string(), reason: error.to_string(), required: true });
            }
        }
    }
    if args.device.is_empty() {
        // `noop` runs no filter and would fail every case.
        for backend in devices::backends().iter().filter(|backend| backend.name != "noop") {
            match backend.probe() {
                Ok(devices) => devices.into_iter().for_each(&mut add),
                Err(_) if missing.iter().any(|m| m.device == backend.name) => {}
                Err(error) => missing.push(MissingDevice {
                    device: backend.name.into(),
                    reason: error.to_string(),
                    required: false,
                }),
            }
        }
    }
    missing.dedup_by(|a, b| a.device == b.device);
    if args.dispatch.is_empty() {
        return (found, missing);
    }
    let mut by_method: Vec<Arc<dyn Device>> = Vec::new();
    for (device, &dispatch) in found.iter().flat_map(|device| args.dispatch.iter().map(move |method| (device, method)))
    {
        match SingleDispatch::new(device, dispatch) {
            Ok(only) => by_method.push(Arc::new(only)),
            Err(error) => missing.push(MissingDevice {
                device: format!("{} {dispatch}", device.info().id),
                reason: error.to_string(),
                // Without `--device`, devices that lack the method are skipped.
                required: !args.device.is_empty(),
            }),
        }
    }
    (by_method, missing)
}

fn text(report: &Report) -> String {
    let mut head = vec!["device".to_owned()];
    head.extend(Language::ALL.map(|language| language.name().to_owned()));
    head.extend(["packets", "name"].map(String::from));
    let mut rows = vec![head];
    for device in &report.devices {
        let mut row = vec![device.id.clone()];
        row.extend(Language::ALL.map(|language| match device.differing(language) {
            (_, 0) => "not run".into(),
            (0, _) => "identical".into(),
            (differing, all) => format!("{differing} of {all} differ"),
        }));
        row.push(out::grouped(device.compared()));
        row.push(format!("{} ({})", device.name, device.driver));
        rows.push(row);
    }
    let mut text = out::table(rows, &[3]);
    for device in &report.devices {
        if let Some(note) = &device.note {
            text += &format!("{}: {note}\n", device.id);
        }
    }
    for missing in &report.missing {
        let what = if missing.required { "required and missing" } else { "unavailable" };
        text += &format!("{}: {what}: {}\n", missing.device, missing.reason);
    }
    let failures = report.failures();
    if !failures.is_empty() {
        text += &format!("\n{failures}");
    }
    text + if report.passed() { "selftest passed\n" } else { "selftest failed\n" }
}
