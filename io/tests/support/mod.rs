//! Driving DPDK ports with a function as the filter.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use portcullis_core::device::{Completion, StageTimes};
use portcullis_core::packet::{Action, Batch, ResizeRoom, Verdicts};
use portcullis_io::dpdk::{Dpdk, Options, PortSpec, open};
use portcullis_io::live::{ExecutedCounts, Lane, Loss, ReceivedCounts};
use portcullis_io::synth::sample;
use portcullis_io::{CaptureFormat, SourceOptions, create};

pub const TIMEOUT: Duration = Duration::from_secs(20);

pub fn options(ports: &[&str]) -> Options {
    let ports = ports.iter().map(|port| port.parse::<PortSpec>().unwrap()).collect();
    Options::new(ports).with_room(ResizeRoom::Both).with_metadata(true).with_packets(4096)
}

pub struct RunResult {
    pub received: Vec<ReceivedCounts>,
    pub carried: Vec<ExecutedCounts>,
}

impl RunResult {
    pub fn lost(&self, loss: Loss) -> u64 {
        self.carried.iter().map(|carried| carried.losses.of(loss)).sum()
    }

    pub fn of(&self, action: Action) -> u64 {
        self.carried.iter().map(|carried| carried.of(action)).sum()
    }
}

/// Drives all lanes until `count` packets are executed or lost in total. The filter gets the lane
/// number.
pub fn drive(options: &Options, count: u64, filter: impl FnMut(usize, &mut Batch) -> Vec<u32>) -> RunResult {
    drive_run(open(options).unwrap_or_else(|error| panic!("{error}")), count, filter)
}

/// Drives an open run like [`drive`].
pub fn drive_run(mut run: Dpdk, count: u64, mut filter: impl FnMut(usize, &mut Batch) -> Vec<u32>) -> RunResult {
    let begun = Instant::now();
    let through = |run: &Dpdk| run.lanes.iter().map(|lane| lane.executor.executed().all()).sum::<u64>();
    while through(&run) < count {
        let received: Vec<ReceivedCounts> = run.lanes.iter_mut().map(|lane| lane.receiver.received()).collect();
        assert!(begun.elapsed() < TIMEOUT, "{received:?}");
        for (index, lane) in run.lanes.iter_mut().enumerate() {
            drive_once(lane, |batch| filter(index, batch));
        }
    }
    let ended = RunResult {
        received: run.lanes.iter_mut().map(|lane| lane.receiver.received()).collect(),
        carried: run.lanes.iter().map(|lane| *lane.executor.executed()).collect(),
    };
    close_and_check(run);
    ended
}

pub fn drive_once(lane: &mut Lane, filter: impl FnOnce(&mut Batch) -> Vec<u32>) {
    if lane.receiver.receive(64).unwrap() == 0 {
        lane.receiver.wait(Duration::from_millis(1)).unwrap();
        return;
    }
    let mut batch = lane.receiver.take_batch().unwrap();
    let verdicts = Verdicts::from_returns(&filter(&mut batch), true);
    lane.executor.execute(Completion { batch, verdicts, times: StageTimes::default() }).unwrap();
}

/// Drives the single lane of a run with batches of maximum size, several in flight, transmitting
/// all packets.
pub fn drive_pipelined(options: &Options, count: u64) -> RunResult {
    const IN_FLIGHT: usize = 2;
    let mut run = open(options).unwrap_or_else(|error| panic!("{error}"));
    let Lane { receiver, executor, .. } = &mut run.lanes[0];
    let (begun, mut in_flight) = (Instant::now(), VecDeque::new());
    while executor.executed().all() < count {
        assert!(begun.elapsed() < TIMEOUT, "{:?}", receiver.received());
        for _ in 0..16 {
            receiver.receive(256).unwrap();
            if receiver.is_full() {
                break;
            }
        }
        let came = receiver.take_batch();
        let is_all = came.is_none();
        in_flight.extend(came);
        if (is_all || in_flight.len() > IN_FLIGHT)
            && let Some(batch) = in_flight.pop_front()
        {
            let verdicts = Verdicts::from_returns(&vec![Action::Tx as u32; batch.len()], true);
            executor.execute(Completion { batch, verdicts, times: StageTimes::default() }).unwrap();
        }
    }
    let ended = RunResult { received: vec![receiver.received()], carried: vec![*executor.executed()] };
    close_and_check(run);
    ended
}

/// Closes the run and checks that all mbufs are free.
pub fn close_and_check(run: Dpdk) {
    let packets = run.close();
    assert_eq!(packets.total, packets.free, "an mbuf is missing");
}

/// The filter result for redirecting a packet.
pub fn redirect(target: u32) -> u32 {
    Action::Redirect as u32 | target << 8
}

/// Writes a capture of these packets.
pub fn capture(path: &Path, packets: &[Vec<u8>]) {
    let mut sink = create(path.to_str().unwrap(), &CaptureFormat::default()).unwrap();
    let batch = Batch::from_packets(packets).unwrap();
    sink.write(&batch, &(0..packets.len() as u32).collect::<Vec<_>>()).unwrap();
    sink.finish().unwrap();
}

/// Packets of these lengths with distinct contents.
pub fn numbered(lengths: impl IntoIterator<Item = usize>) -> Vec<Vec<u8>> {
    let lengths = lengths.into_iter().enumerate();
    lengths.map(|(number, length)| (0..length).map(|at| (number * 31 + at * 7) as u8).collect()).collect()
}

/// Writes a capture of mixed traffic to `path`.
pub fn write_mixed_capture(path: &Path) {
    sample::write(&sample::sample(), path).unwrap();
}

pub fn packets(path: &Path) -> Vec<Vec<u8>> {
    let mut source = portcullis_io::open(path.to_str().unwrap(), &SourceOptions::default()).unwrap();
    let mut packets = Vec::new();
    while let Some(batch) = source.next_batch().unwrap() {
        packets.extend(batch.packets().map(<[u8]>::to_vec));
    }
    packets
}
