//! `portcullis run --dpdk` as users meet it, without a network card, huge pages and, but where
//! networks are made, root.
#![cfg(target_os = "linux")]

mod errors;
mod gpudev;
mod links;
mod options;
mod ports;
#[allow(dead_code, reason = "it is shared with other tests, and none of them needs all of it")]
#[path = "../live/support.rs"]
mod running;
mod stock;
#[allow(dead_code, reason = "it is shared with other tests, and none of them needs all of it")]
#[path = "../cli/support.rs"]
mod support;
mod user;

use std::process::Stdio;

use running::Running;
use support::{Place, RunOutput};

/// A port that captures come in by and go out of.
fn pcap_port(number: u32, arguments: &str) -> String {
    format!("net_pcap{number},{arguments}")
}

/// `portcullis run FILTER --dpdk PORT --json` with these arguments beside, on the CPU if they name
/// no other device.
fn run(place: &Place, filter: &str, port: &str, more: &[&str]) -> RunOutput {
    place.run(&arguments(filter, port, more))
}

/// Starts a run that the caller has to end.
fn start(place: &Place, filter: &str, port: &str, more: &[&str]) -> Running {
    let mut command = place.command(&arguments(filter, port, more));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::start(command)
}

fn arguments<'a>(filter: &'a str, port: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let device: &[&str] = if more.contains(&"--device") { &[] } else { &["--device", "cpu"] };
    [&["run", filter, "--dpdk", port, "--json"], device, more].concat()
}
