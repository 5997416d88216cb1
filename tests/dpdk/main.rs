//! `portcullis run --dpdk` as users meet it, without a network card, huge pages and, but where networks are made, root.
#![cfg(target_os = "linux")]

mod ports;
mod stock;
#[allow(dead_code, reason = "it is shared with other tests, and none of them needs all of it")]
#[path = "../cli/support.rs"]
mod support;

use support::{Place, Ran};

/// A port that captures come in by and go out of.
fn pcap_port(number: u32, arguments: &str) -> String {
    format!("net_pcap{number},{arguments}")
}

/// `portcullis run FILTER --dpdk PORT --json` with these arguments beside, on the CPU if they name no other device.
fn run(place: &Place, filter: &str, port: &str, more: &[&str]) -> Ran {
    let device: &[&str] = if more.contains(&"--device") { &[] } else { &["--device", "cpu"] };
    place.run(&[&["run", filter, "--dpdk", port, "--json"], device, more].concat())
}
