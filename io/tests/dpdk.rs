//! DPDK's ports with a function as the filter. All tests share the process's one DPDK, without huge pages.
#![cfg(all(target_os = "linux", feature = "dpdk"))]

use std::path::Path;
use std::time::{Duration, Instant};

use portcullis_core::device::{Done, StageTimes};
use portcullis_core::packet::{Action, Batch, Room, Verdicts};
use portcullis_io::dpdk::{Options, PortSpec, open};
use portcullis_io::live::{Carried, Received};
use portcullis_io::{Source as _, SourceOptions};

const SOON: Duration = Duration::from_secs(20);

fn options(ports: &[&str]) -> Options {
    Options {
        ports: ports.iter().map(|port| port.parse::<PortSpec>().unwrap()).collect(),
        queues: 1,
        one_lane: false,
        redirect: vec![],
        pass_to: None,
        eal: vec![],
        room: Room::Both,
        metadata: true,
        rewrites: false,
        packets: 4096,
    }
}

struct Ended {
    received: Received,
    carried: Carried,
}

/// Drives the first lane until so many packets are through.
fn drive(options: &Options, count: u64, mut filter: impl FnMut(&mut Batch) -> Vec<u32>) -> Ended {
    let mut run = open(options).unwrap_or_else(|error| panic!("{error}"));
    let lane = &mut run.lanes[0];
    let begun = Instant::now();
    while lane.executor.carried().all() < count {
        assert!(begun.elapsed() < SOON, "{:?}", lane.receiver.received());
        if lane.receiver.receive(64).unwrap() == 0 {
            lane.receiver.wait(Duration::from_millis(1)).unwrap();
            continue;
        }
        let mut batch = lane.receiver.close().unwrap();
        let verdicts = Verdicts::from_returns(&filter(&mut batch), true);
        lane.executor.carry_out(Done { batch, verdicts, times: StageTimes::default() }).unwrap();
    }
    let ended = Ended { received: lane.receiver.received(), carried: *lane.executor.carried() };
    let packets = run.close();
    assert_eq!(packets.all, packets.home, "a packet is missing");
    ended
}

fn packets(path: &Path) -> Vec<Vec<u8>> {
    let mut source = portcullis_io::open(path.to_str().unwrap(), &SourceOptions::default()).unwrap();
    let mut packets = Vec::new();
    while let Some(batch) = source.next_batch().unwrap() {
        packets.extend(batch.packets().map(<[u8]>::to_vec));
    }
    packets
}

#[test]
fn what_a_capture_has_comes_in_and_goes_out() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.pcap");
    let mixed = concat!(env!("CARGO_MANIFEST_DIR"), "/../samples/mixed.pcap");
    let want = packets(Path::new(mixed));
    let port = format!("net_pcap0,rx_pcap={mixed},tx_pcap={}", out.display());
    let ended = drive(&options(&[&port]), want.len() as u64, |batch| vec![Action::Tx as u32; batch.len()]);
    assert_eq!(ended.carried.of(Action::Tx), want.len() as u64);
    assert_eq!(ended.received.bytes, want.iter().map(|packet| packet.len() as u64).sum::<u64>());
    assert_eq!(packets(&out), want);
}
