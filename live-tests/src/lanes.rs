//! Lanes of AF_XDP sockets at work, with a function as the filter.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use portcullis_core::device::{Completion, StageTimes};
use portcullis_core::packet::{Action, Batch, ResizeRoom, Verdicts};
use portcullis_io::af_xdp::{self, AfXdp, CopyMode, FrameCounts, LaneLayout, Options, PortInfo, Steering};
use portcullis_io::live::{ExecutedCounts, Losses, ReceivedCounts};

use crate::frames::EXPERIMENT;
use crate::namespace::Namespace;

/// Packets of a batch, at most.
const BATCH: usize = 64;

/// How long ports may take to be opened.
const OPENED: Duration = Duration::from_secs(20);

/// Options for ports (`eth0:0-3`) that take frames of [`EXPERIMENT`] alone, as kernels have things
/// to say to each other, too. Packets have room, and their lanes metadata; none gets into the
/// stack.
///
/// # Panics
/// When a text names no port.
pub fn lane_options(ports: &[&str]) -> Options {
    Options {
        ports: ports.iter().map(|port| port.parse().unwrap_or_else(|e| panic!("{port}: {e}"))).collect(),
        by_interface: false,
        redirect: Vec::new(),
        stack: None,
        lanes: LaneLayout::PerQueue,
        steer: Steering::Only(format!("ethertype/{EXPERIMENT:#x}").parse().expect("a rule")),
        mode: None,
        copying: CopyMode::Auto,
        busy_poll: None,
        huge_pages: false,
        room: ResizeRoom::Both,
        metadata: true,
        rewrites: false,
        frames: 512,
    }
}

/// How a run ended.
#[derive(Debug)]
pub struct FinishedRun {
    /// By lane.
    pub received: Vec<ReceivedCounts>,
    /// By lane.
    pub carried: Vec<ExecutedCounts>,
    /// Where frames were.
    pub frames: FrameCounts,
}

impl FinishedRun {
    /// Packets whose verdict was carried out, in all lanes.
    pub fn of(&self, action: Action) -> u64 {
        self.sum(|it| it.of(action))
    }

    /// Something of all lanes.
    pub fn sum(&self, of: impl Fn(&ExecutedCounts) -> u64) -> u64 {
        self.carried.iter().map(of).sum()
    }

    /// Packets that were received, in all lanes.
    pub fn packets(&self) -> u64 {
        self.received.iter().map(|it| it.packets).sum()
    }

    /// Packets that were lost, in all lanes.
    pub fn lost(&self, of: impl Fn(&Losses) -> u64) -> u64 {
        self.sum(|it| of(&it.losses))
    }
}

/// Runs lanes in a namespace, all on one thread, with a filter that gives what a filter returns for
/// each packet, while something else happens that is told what was got of each port.
///
/// # Panics
/// When they cannot be opened, when one ends before its time, and when packets or frames are
/// missing in the end.
pub fn run_lanes<T>(
    namespace: &Namespace,
    options: &Options,
    filter: impl Fn(&mut Batch) -> Vec<u32> + Sync,
    meanwhile: impl FnOnce(&[PortInfo]) -> T,
) -> (T, FinishedRun) {
    /// Also when what happens meanwhile panics.
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
                ready.send(std::mem::take(&mut run.ports)).expect("somebody waits for it");
                drive(&mut run, &filter, &stop);
                let received = run.lanes.iter_mut().map(|lane| lane.receiver.received()).collect();
                let carried = run.lanes.iter().map(|lane| *lane.executor.executed()).collect();
                FinishedRun { received, carried, frames: run.frame_audit.frames() }
            })
        });
        let guard = Stop(&stop);
        let ports = is_ready.recv_timeout(OPENED).expect("the ports are open");
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

/// Receives, filters and carries out, until an end is wanted and nothing more comes.
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
            // One of them: the others are looked at soon enough.
            0 => run.lanes[0].receiver.wait(Duration::from_micros(500)).unwrap_or_else(|error| panic!("{error}")),
            _ => {}
        }
    }
}
