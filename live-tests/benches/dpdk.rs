//! DPDK's ports: packets from a device that makes them (net_null) by the program's own pipeline, on one processor, against
//! `dpdk-testpmd` on the same device.
//!
//! `cargo bench -p portcullis-live-tests --features bench,dpdk --bench dpdk`, with Debian's packages libdpdk-dev and dpdk-dev; behind
//! `--` one of its parts (`io`, `mac`).

mod support;

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use portcullis::device::{CancelToken, Dispatch};
use portcullis::packet::Room;
use portcullis::pipeline::live::{Closing, LaneStats, LiveOptions};
use portcullis_io::dpdk::{Mempool, Options, open};
use support::testpmd::Testpmd;
use support::{Side, compare, is_wanted, rate};

const ROUNDS: usize = 7;

/// Packets that are received at a time.
const BURST: u16 = 64;

fn main() {
    if !support::begin() {
        return;
    }
    for (part, forward, filter) in [("io", "io", "minimal"), ("mac", "mac", "mac_swap")] {
        if !is_wanted(part) {
            continue;
        }
        let theirs = || {
            let testpmd = Testpmd::at(Command::new("stdbuf"), "net_null0", forward, BURST);
            let mut testpmd = testpmd.unwrap_or_else(|error| panic!("{error}"));
            rate(&mut || testpmd.received())
        };
        let mut number = 0;
        let mut sides = [
            Side::new(if part == "io" { "testpmd io" } else { "testpmd mac" }, theirs),
            Side::new(filter, || {
                number += 1;
                ours(filter, &format!("net_null{part}{number}"))
            }),
        ];
        compare("packets of 64 bytes", ROUNDS, 1, &mut sides);
    }
}

fn ours(filter: &str, port: &str) -> f64 {
    let options = Options {
        ports: vec![port.parse().expect("a port")],
        queues: 1,
        one_lane: false,
        redirect: vec![],
        pass_to: None,
        eal: vec![],
        room: Room::None,
        metadata: false,
        rewrites: filter == "mac_swap",
        packets: Options::PACKETS,
        mempool: Mempool::Host,
        split: None,
        items: Options::ITEMS,
    };
    let session = support::session(filter, Dispatch::Inline);
    let stats = Arc::new(LaneStats::default());
    let stop = CancelToken::new();
    let closing = Closing::at(BURST.into(), Duration::ZERO);
    let live = LiveOptions { processors: vec![1], ..LiveOptions::new(closing, Dispatch::Inline) };
    let mut run = open(&options).unwrap_or_else(|error| panic!("{error}"));
    let lane = run.lanes.remove(0);
    let rate = std::thread::scope(|scope| {
        let (stop, stats) = (&stop, &stats);
        let ran = scope.spawn(move || support::drive(lane, session, &live, stats, stop, || ()));
        let rate = rate(&mut || stats.snapshot().carried.all());
        stop.cancel();
        ran.join().unwrap();
        rate
    });
    let packets = run.close();
    assert_eq!(packets.all, packets.home, "a packet is missing");
    rate
}
