//! Runs of DPDK's ports with a function as the filter.
#![allow(dead_code, reason = "each test has what it needs of it")]

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use portcullis_core::device::{Completion, StageTimes};
use portcullis_core::packet::{Action, Batch, ResizeRoom, Verdicts};
use portcullis_io::dpdk::{Dpdk, Mempool, Options, PortSpec, open};
use portcullis_io::live::{ExecutedCounts, Lane, Loss, ReceivedCounts};
use portcullis_io::{CaptureFormat, SourceOptions, create};

pub const SOON: Duration = Duration::from_secs(20);

pub fn options(ports: &[&str]) -> Options {
    Options {
        ports: ports.iter().map(|port| port.parse::<PortSpec>().unwrap()).collect(),
        queues: 1,
        one_lane: false,
        redirect: vec![],
        pass_to: None,
        eal: vec![],
        room: ResizeRoom::Both,
        metadata: true,
        rewrites: false,
        later: 0,
        packets: 4096,
        mempool: Mempool::Host,
        split: None,
        items: Options::ITEMS,
    }
}

pub struct Ended {
    pub received: Vec<ReceivedCounts>,
    pub carried: Vec<ExecutedCounts>,
}

impl Ended {
    pub fn lost(&self, loss: Loss) -> u64 {
        self.carried.iter().map(|carried| carried.losses.of(loss)).sum()
    }

    pub fn of(&self, action: Action) -> u64 {
        self.carried.iter().map(|carried| carried.of(action)).sum()
    }
}

/// Drives all lanes until so many packets are through in all of them together. The filter is told the lane.
pub fn drive(options: &Options, count: u64, filter: impl FnMut(usize, &mut Batch) -> Vec<u32>) -> Ended {
    drive_run(open(options).unwrap_or_else(|error| panic!("{error}")), count, filter)
}

/// The same of what is open.
pub fn drive_run(mut run: Dpdk, count: u64, mut filter: impl FnMut(usize, &mut Batch) -> Vec<u32>) -> Ended {
    let begun = Instant::now();
    let through = |run: &Dpdk| run.lanes.iter().map(|lane| lane.executor.executed().all()).sum::<u64>();
    while through(&run) < count {
        let received: Vec<ReceivedCounts> = run.lanes.iter_mut().map(|lane| lane.receiver.received()).collect();
        assert!(begun.elapsed() < SOON, "{received:?}");
        for (index, lane) in run.lanes.iter_mut().enumerate() {
            turn(lane, |batch| filter(index, batch));
        }
    }
    let ended = Ended {
        received: run.lanes.iter_mut().map(|lane| lane.receiver.received()).collect(),
        carried: run.lanes.iter().map(|lane| *lane.executor.executed()).collect(),
    };
    end(run);
    ended
}

pub fn turn(lane: &mut Lane, filter: impl FnOnce(&mut Batch) -> Vec<u32>) {
    if lane.receiver.receive(64).unwrap() == 0 {
        lane.receiver.wait(Duration::from_millis(1)).unwrap();
        return;
    }
    let mut batch = lane.receiver.take_batch().unwrap();
    let verdicts = Verdicts::from_returns(&filter(&mut batch), true);
    lane.executor.execute(Completion { batch, verdicts, times: StageTimes::default() }).unwrap();
}

/// Drives the one lane of a run with batches as large as they may be and several on their way, all of whose packets go out again.
pub fn drive_ahead(options: &Options, count: u64) -> Ended {
    const AHEAD: usize = 2;
    let mut run = open(options).unwrap_or_else(|error| panic!("{error}"));
    let Lane { receiver, executor, .. } = &mut run.lanes[0];
    let (begun, mut on_their_way) = (Instant::now(), VecDeque::new());
    while executor.executed().all() < count {
        assert!(begun.elapsed() < SOON, "{:?}", receiver.received());
        for _ in 0..16 {
            receiver.receive(256).unwrap();
            if receiver.is_full() {
                break;
            }
        }
        let came = receiver.take_batch();
        let is_all = came.is_none();
        on_their_way.extend(came);
        if (is_all || on_their_way.len() > AHEAD)
            && let Some(batch) = on_their_way.pop_front()
        {
            let verdicts = Verdicts::from_returns(&vec![Action::Tx as u32; batch.len()], true);
            executor.execute(Completion { batch, verdicts, times: StageTimes::default() }).unwrap();
        }
    }
    let ended = Ended { received: vec![receiver.received()], carried: vec![*executor.executed()] };
    end(run);
    ended
}

/// All memory has come home.
pub fn end(run: Dpdk) {
    let packets = run.close();
    assert_eq!(packets.total, packets.free, "a packet is missing");
}

/// What a filter returns to send a packet out of another port.
pub fn redirect(target: u32) -> u32 {
    Action::Redirect as u32 | target << 8
}

/// A capture of these packets.
pub fn capture(path: &Path, packets: &[Vec<u8>]) {
    let mut sink = create(path.to_str().unwrap(), &CaptureFormat::default()).unwrap();
    let batch = Batch::from_packets(packets).unwrap();
    sink.write(&batch, &(0..packets.len() as u32).collect::<Vec<_>>()).unwrap();
    sink.finish().unwrap();
}

/// Packets of these lengths, each with bytes of its own.
pub fn numbered(lengths: impl IntoIterator<Item = usize>) -> Vec<Vec<u8>> {
    let lengths = lengths.into_iter().enumerate();
    lengths.map(|(number, length)| (0..length).map(|at| (number * 31 + at * 7) as u8).collect()).collect()
}

pub fn packets(path: &Path) -> Vec<Vec<u8>> {
    let mut source = portcullis_io::open(path.to_str().unwrap(), &SourceOptions::default()).unwrap();
    let mut packets = Vec::new();
    while let Some(batch) = source.next_batch().unwrap() {
        packets.extend(batch.packets().map(<[u8]>::to_vec));
    }
    packets
}
