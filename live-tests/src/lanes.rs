//! Runs AF_XDP lanes with a function as the filter.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use portcullis_core::device::{Completion, StageTimes};
use portcullis_core::packet::{Action, Batch, ResizeRoom, Verdicts};
use portcullis_io::af_xdp::{self, AfXdp, FrameCounts, Options, PortInfo, Steering};
use portcullis_io::live::{ExecutedCounts, Losses, ReceivedCounts};

use crate::frames::EXPERIMENTAL_ETHERTYPE;
use crate::namespace::Namespace;

/// Maximum number of packets in a batch.
const BATCH: usize = 64;

/// Time limit for opening ports.
const OPEN_TIMEOUT: Duration = Duration::from_secs(20);

/// Returns options for ports (`eth0:0-3`) that receive only frames of [`EXPERIMENTAL_ETHERTYPE`],
/// as kernels exchange frames of their own. Packets have resize room, lanes deliver metadata, and
/// no packet is passed to the stack.
///
/// # Panics
/// If a text names no port.
pub fn lane_options(ports: &[&str]) -> Options {
    let ports = ports.iter().map(|port| port.parse().unwrap_or_else(|e| panic!("{port}: {e}"))).collect();
    Options::new(ports)
        .with_steer(Steering::Only(format!("ethertype/{EXPERIMENTAL_ETHERTYPE:#x}").parse().expect("a rule")))
        .with_room(ResizeRoom::Both)
        .with_metadata(true)
        .with_frames(512)
}

/// Counters of a finished run.
#[derive(Debug)]
pub struct FinishedRun {
    /// Packets received, by lane.
    pub received: Vec<ReceivedCounts>,
    /// Verdicts executed, by lane.
    pub executed: Vec<ExecutedCounts>,
    /// Where the frames of all lanes were at the end.
    pub frames: FrameCounts,
}

impl FinishedRun {
    /// Number of packets whose verdict was executed, over all lanes.
    pub fn of(&self, action: Action) -> u64 {
        self.sum(|it| it.of(action))
    }

    /// Sums a counter over all lanes.
    pub fn sum(&self, counter: impl Fn(&ExecutedCounts) -> u64) -> u64 {
        self.executed.iter().map(counter).sum()
    }

    /// Number of packets received, over all lanes.
    pub fn packets(&self) -> u64 {
        self.received.iter().map(|it| it.packets).sum()
    }

    /// Sums a loss counter over all lanes.
    pub fn lost(&self, counter: impl Fn(&Losses) -> u64) -> u64 {
        self.sum(|it| counter(&it.losses))
    }
}

/// Runs the lanes of `options` in a namespace, all on one thread, while `meanwhile` runs with what
/// was opened of each port. The filter returns one return value for each packet.
///
/// # Panics
/// If the ports cannot be opened, if a lane fails, or if packets or frames are unaccounted for at
/// the end.
pub fn run_lanes<T>(
    namespace: &Namespace,
    options: &Options,
    filter: impl Fn(&mut Batch) -> Vec<u32> + Sync,
    meanwhile: impl FnOnce(&[PortInfo]) -> T,
) -> (T, FinishedRun) {
    /// Stops the lanes even if `meanwhile` panics.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let (ready, is_ready) = channel();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            namespace.run(|| {
                let mut run = af_xdp::open(options).unwrap_or_else(|error| panic!("{error}"));
                println!("{:?}", run.ports);
                ready.send(std::mem::take(&mut run.ports)).expect("the caller waits for the ports");
                drive(&mut run, &filter, &stop);
                let received = run.lanes.iter_mut().map(|lane| lane.receiver.received()).collect();
                let executed = run.lanes.iter().map(|lane| *lane.executor.executed()).collect();
                FinishedRun { received, executed, frames: run.frame_audit.frames() }
            })
        });
        let guard = Stop(&stop);
        let ports = is_ready.recv_timeout(OPEN_TIMEOUT).expect("the ports are open");
        let result = meanwhile(&ports);
        drop(guard);
        let ended = match run.join() {
            Ok(ended) => ended,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        assert_eq!(ended.frames.in_batches(), 0, "{:?}", ended.frames);
        assert_eq!(ended.packets(), ended.sum(ExecutedCounts::all), "every packet is counted once");
        (result, ended)
    })
}

/// Receives, filters and executes verdicts until `stop` is set and no packet arrives.
fn drive(run: &mut AfXdp, filter: &(impl Fn(&mut Batch) -> Vec<u32> + Sync), stop: &AtomicBool) {
    let failed = |error| panic!("{error}");
    loop {
        let is_last = stop.load(Ordering::Relaxed);
        if is_last {
            run.detach();
        }
        let mut packets = 0;
        for lane in &mut run.lanes {
            packets += lane.receiver.receive(BATCH).unwrap_or_else(failed);
            if let Some(mut batch) = lane.receiver.take_batch() {
                let returns = filter(&mut batch);
                let verdicts = Verdicts::from_returns(&returns, true);
                let done = Completion { batch, verdicts, times: StageTimes::default() };
                lane.executor.execute(done).unwrap_or_else(|error| panic!("{error}"));
            }
            lane.executor.poll().unwrap_or_else(|error| panic!("{error}"));
        }
        match packets {
            0 if is_last => return,
            // Waiting on one lane is enough: the others are polled again within 500 µs.
            0 => run.lanes[0].receiver.wait(Duration::from_micros(500)).unwrap_or_else(|error| panic!("{error}")),
            _ => {}
        }
    }
}
