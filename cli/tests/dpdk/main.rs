//! `portcullis run --dpdk` from the command line. Needs no network card or huge pages, and root
//! only for tests with network namespaces.
#![cfg(target_os = "linux")]

mod errors;
mod fronthaul;
mod gpudev;
mod links;
mod options;
mod ports;
#[allow(dead_code, reason = "shared by several test programs, none of which uses all of it")]
#[path = "../cli/support.rs"]
mod program;
#[allow(dead_code, reason = "shared by several test programs, none of which uses all of it")]
#[path = "../live/support.rs"]
mod running;
mod stock;
mod user;

use std::sync::Arc;

use portcullis::device::Device;
use portcullis::devices::backends;
use portcullis_live_tests::Suite;

use program::{Place, RunOutput};
use running::Running;

/// The CUDA devices, or `None`, recorded by the suite, if there are none.
fn cuda_devices(suite: &Suite) -> Option<Vec<Arc<dyn Device>>> {
    let cuda = backends().iter().find(|backend| backend.name == "cuda");
    let reason = match cuda.map(|backend| backend.probe()) {
        Some(Ok(devices)) => return Some(devices),
        Some(Err(reason)) => reason.to_string(),
        None => "it was built without".into(),
    };
    suite.lacks("cuda", &reason);
    None
}

/// Returns the name of a port that reads and writes captures.
fn pcap_port(number: u32, arguments: &str) -> String {
    format!("net_pcap{number},{arguments}")
}

/// Runs `portcullis run FILTER --dpdk PORT --json` with more arguments, on the CPU unless they name
/// another device.
fn run(place: &Place, filter: &str, port: &str, more: &[&str]) -> RunOutput {
    place.run(&arguments(filter, port, more))
}

/// Starts a run that the caller ends.
fn start(place: &Place, filter: &str, port: &str, more: &[&str]) -> Running {
    Running::start(place.command(&arguments(filter, port, more)))
}

fn arguments<'a>(filter: &'a str, port: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let device: &[&str] = if more.contains(&"--device") { &[] } else { &["--device", "cpu"] };
    [&["run", filter, "--dpdk", port, "--json"], device, more].concat()
}
