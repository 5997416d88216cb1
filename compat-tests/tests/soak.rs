//! Soak test: the connection-tracking firewall runs at constant memory. Ten million packets by
//! default, which takes seconds; the full test has a hundred million:
//!
//!     PORTCULLIS_SOAK_PACKETS=100000000 cargo test --release -p portcullis-compat-tests \
//!         --test soak -- --nocapture

// Reads the peak memory of the process from /proc.
#![cfg(target_os = "linux")]

use std::time::Instant;

use portcullis_compat_tests::traffic::frame::{ACK, FIN, Frame, PSH, RST, SYN};
use portcullis_compat_tests::{devices, stock, texts};
use portcullis_core::device::{Device, LoadOptions};
use portcullis_core::map::rows;
use portcullis_core::packet::Batch;
use portcullis_cpu::Cpu;

/// Environment variable with the number of packets, which must exceed [`WARM_UP_PACKETS`].
const COUNT: &str = "PORTCULLIS_SOAK_PACKETS";

/// Number of connections that a batch opens; the next batch closes them.
const CONNECTIONS: u32 = 1024;

/// A segment: TCP flags, whether the server sends it, and whether it must pass. Half of the
/// connections end with FINs, the others with a RST, after which no packet passes.
type Segment = (u8, bool, bool);
const OPENING: [Segment; 4] =
    [(SYN, false, true), (SYN | ACK, true, true), (ACK, false, true), (PSH | ACK, false, true)];
const CLOSING: [[Segment; 4]; 2] = [
    [(FIN | ACK, false, true), (FIN | ACK, true, true), (ACK, false, true), (ACK, true, true)],
    [(RST | ACK, true, true), (ACK, false, false), (ACK, true, false), (FIN | ACK, false, false)],
];

/// Number of packets after which the map has evicted entries several times.
const WARM_UP_PACKETS: u64 = 5_000_000;

/// Maximum growth in bytes of the memory in use after that.
const MAX_MEMORY_GROWTH: u64 = 2 << 20;

/// Returns a batch's packets in order: index of the connection in its batch, whether the previous
/// batch opened it, and the segment.
fn plan() -> Vec<(u32, bool, Segment)> {
    let of = |number: u32| {
        let opening = OPENING.map(|segment| (number, false, segment));
        opening.into_iter().chain(CLOSING[number as usize % 2].map(|segment| (number, true, segment)))
    };
    (0..CONNECTIONS).flat_map(of).collect()
}

/// Returns the process's peak resident memory in bytes (`VmHWM`, proc(5)).
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux reports VmHWM");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("VmHWM is a number") << 10
}

#[test]
fn memory_use_stays_constant() {
    let packets = devices::number(COUNT, 10_000_000);
    let (_, text) = stock::STATEFUL_WGSL.iter().find(|(name, _)| *name == "conntrack_fw").expect("a stock filter");
    let program = texts::in_wgsl("conntrack_fw.wgsl", text);
    let mut session = Cpu::new().load(&program, &LoadOptions::default()).unwrap();

    let plan = plan();
    let [client, server] = ["10.0.0.0:40000", "192.0.2.1:443"].map(|end| end.parse().unwrap());
    let frame = |&(_, _, (flags, back, _)): &(u32, bool, Segment)| {
        let (from, to) = if back { (server, client) } else { (client, server) };
        Frame::tcp(from, to, flags, [1, 1], b"").bytes()
    };
    let mut batch = Batch::from_packets(&plan.iter().map(frame).collect::<Vec<_>>()).unwrap();
    let batches = packets.div_ceil(plan.len() as u64);
    let (started, mut settled) = (Instant::now(), 0);
    for round in 0..batches {
        // Every connection has a client address of its own; 10.0.0.0/8 has 16 M.
        let base = 0x0a00_0000 + (round as u32 + 1) * CONNECTIONS;
        for (index, &(number, opened_before, (_, back, _))) in plan.iter().enumerate() {
            let address = base + number - if opened_before { CONNECTIONS } else { 0 };
            let at = if back { 30 } else { 26 };
            batch.packet_mut(index)[at..at + 4].copy_from_slice(&address.to_be_bytes());
        }
        let done = session.run(batch).unwrap();
        for (index, (action, &(number, opened_before, (.., passes)))) in
            done.verdicts.actions().iter().zip(&plan).enumerate()
        {
            // The first batch closes connections that no batch has opened.
            let passes = passes && !(opened_before && round == 0);
            assert_eq!(*action == 2, passes, "packet {index} of batch {round}, connection {number}");
        }
        batch = done.batch;
        if round == WARM_UP_PACKETS / plan.len() as u64 {
            settled = peak_memory();
        }
    }
    assert!(settled > 0, "more than {WARM_UP_PACKETS} packets are needed");
    let (seconds, end) = (started.elapsed().as_secs_f64(), peak_memory());
    let words = session.map_words(0).unwrap();
    let map = &program.maps()[0];
    let connections = rows(map, &words).len();
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "{} packets of {} connections in {seconds:.1} s; {connections} are in the map; peak memory {:.1} MiB, {:.1} after {WARM_UP_PACKETS}",
        batches * plan.len() as u64,
        batches * u64::from(CONNECTIONS),
        mib(end),
        mib(settled)
    );
    assert!(
        end <= settled + MAX_MEMORY_GROWTH,
        "memory grows: {:.1} MiB after {WARM_UP_PACKETS} packets, {:.1} in the end",
        mib(settled),
        mib(end)
    );
    assert!(connections as u32 <= 2 * map.entries, "{connections} connections in the map");
}
