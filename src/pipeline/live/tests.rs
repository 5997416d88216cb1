use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use portcullis_core::device::{Completion, Device, LoadOptions, Session};
use portcullis_core::interp::InterpDevice;
use portcullis_core::packet::{Action, Batch, ResizeRoom, VerdictCounts};
use portcullis_core::program::Program;
use portcullis_io::live::{ExecutedCounts, Executor, Loss, ReceivedCounts, Receiver};

use super::assembler::{BatchAssembler, PollOutcome};
use super::*;
use crate::pipeline::Event;

mod devices;
mod measured;

/// One step of a scripted receiver.
enum Step {
    /// This many packets are queued.
    Packets(usize),
    /// No packet is queued, and none comes during one wait.
    Pause,
    /// No packet is queued for one poll.
    Nothing,
    /// Packets are queued, but there is no memory for them for this many polls of a millisecond
    /// each.
    Full(usize),
    /// No packet comes any more; the ring could hold this many.
    EndOfTraffic(usize),
    /// The run is told to stop.
    Stop(CancelToken),
    /// Another thread queues a command.
    Command(Arc<LaneCommands>, LaneCommand),
    Fail,
}

/// Supplies packets by a script. The first four bytes of each packet are its number.
struct ScriptedReceiver {
    script: VecDeque<Step>,
    received: Vec<[u8; 60]>,
    next: u32,
    waits: Arc<Mutex<Vec<Duration>>>,
    ring_capacity: usize,
    /// Maximum number of packets in a batch.
    room: usize,
}

impl ScriptedReceiver {
    fn new(script: Vec<Step>) -> ScriptedReceiver {
        ScriptedReceiver {
            script: script.into(),
            received: vec![],
            next: 0,
            waits: Arc::default(),
            ring_capacity: 0,
            room: 1000,
        }
    }
}

impl Receiver for ScriptedReceiver {
    fn backlog_capacity(&self) -> usize {
        match self.script.front() {
            Some(Step::EndOfTraffic(ring_capacity)) => *ring_capacity,
            _ => self.ring_capacity,
        }
    }

    fn receive(&mut self, most: usize) -> Result<usize, LiveError> {
        let count = match self.script.front_mut() {
            Some(Step::Packets(left)) => {
                let count = most.min(*left).min(self.room - self.received.len());
                *left -= count;
                if *left == 0 {
                    self.script.pop_front();
                }
                count
            }
            Some(Step::Stop(stop)) => {
                stop.cancel();
                self.script.pop_front();
                0
            }
            Some(Step::Nothing) => {
                self.script.pop_front();
                0
            }
            Some(Step::Full(left)) => {
                thread::sleep(Duration::from_millis(1));
                *left -= 1;
                if *left == 0 {
                    self.script.pop_front();
                    return self.receive(most);
                }
                0
            }
            Some(Step::Command(..)) => {
                if let Some(Step::Command(commands, command)) = self.script.pop_front() {
                    commands.push(command);
                }
                0
            }
            Some(Step::Fail) => return Err(LiveError::Gone { interface: "eth7".into() }),
            Some(Step::Pause | Step::EndOfTraffic(_)) | None => 0,
        };
        for _ in 0..count {
            let mut packet = [0; 60];
            packet[..4].copy_from_slice(&self.next.to_be_bytes());
            self.received.push(packet);
            self.next += 1;
        }
        Ok(count)
    }

    fn wait(&mut self, most: Duration) -> Result<(), LiveError> {
        self.waits.lock().unwrap().push(most);
        match self.script.front() {
            Some(Step::Pause) => {
                self.script.pop_front();
                thread::sleep(most);
            }
            Some(Step::EndOfTraffic(_)) => thread::sleep(most),
            _ => {}
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.received.len() == self.room || matches!(self.script.front(), Some(Step::Full(_)))
    }

    fn take_batch(&mut self) -> Option<Batch> {
        let packets = std::mem::take(&mut self.received);
        (!packets.is_empty()).then(|| Batch::in_frames(&packets).unwrap())
    }

    fn received(&mut self) -> ReceivedCounts {
        ReceivedCounts { packets: self.next.into(), bytes: u64::from(self.next) * 60, ..ReceivedCounts::default() }
    }
}

/// Number and verdict of each packet, by batch.
type Batches = Vec<Vec<(u32, Action)>>;

/// Added to a counter by `finish`, to see that its result is read.
const LAST: u64 = 1 << 32;

/// Records the batches that it is to execute.
#[derive(Default)]
struct RecordingExecutor {
    batches: Arc<Mutex<Batches>>,
    executed: ExecutedCounts,
    fails_at: Option<usize>,
}

impl Executor for RecordingExecutor {
    fn execute(&mut self, done: Completion) -> Result<(), LiveError> {
        let mut batches = self.batches.lock().unwrap();
        if self.fails_at == Some(batches.len()) {
            return Err(LiveError::Gone { interface: "eth8".into() });
        }
        let packets = (0..done.batch.len()).map(|index| {
            let number = u32::from_be_bytes(done.batch.packet(index)[..4].try_into().unwrap());
            (number, done.verdicts.get(index).action())
        });
        let packets: Vec<_> = packets.collect();
        packets.iter().for_each(|(_, action)| self.executed.add(*action, 60));
        batches.push(packets);
        Ok(())
    }

    fn poll(&mut self) -> Result<(), LiveError> {
        // A counter that is known only after polling.
        self.executed.checksums = self.batches.lock().unwrap().len() as u64;
        Ok(())
    }

    fn finish(&mut self) -> Result<(), LiveError> {
        self.executed.checksums += LAST;
        Ok(())
    }

    fn is_busy(&self) -> bool {
        false
    }

    fn executed(&self) -> &ExecutedCounts {
        &self.executed
    }
}

/// Passes packets with odd numbers and drops the others.
fn program() -> Arc<Program> {
    compiled("fn xdp_filter(pkt: u32) -> u32 { return select(XDP_DROP, XDP_PASS, (load_u8(pkt, 3u) & 1u) == 1u); }")
}

fn compiled(text: &str) -> Arc<Program> {
    crate::Filter::wgsl(text).compile().unwrap()
}

fn load_options(dispatch: Dispatch) -> LoadOptions {
    LoadOptions::default().with_threads(NonZeroUsize::new(1)).with_dispatch(dispatch)
}

/// Loads a program into the interpreter.
fn interpreted(program: &Arc<Program>, dispatch: Dispatch) -> Box<dyn Session> {
    InterpDevice::new().load(program, &load_options(dispatch)).unwrap()
}

/// A lane that receives by a script and records what it executes.
fn scripted_lane(number: usize, receiver: ScriptedReceiver, executor: RecordingExecutor) -> Lane {
    let (receiver, executor) = (Box::new(receiver), Box::new(executor));
    Lane { name: format!("lane {number}"), memory: None, receiver, executor }
}

struct LaneResults {
    /// Batches of each lane.
    batches: Vec<Batches>,
    waits: Vec<Vec<Duration>>,
    stats: Vec<Snapshot>,
    /// Number of lanes returned.
    returned: usize,
    error: Option<LaneError>,
}

impl LaneResults {
    fn sizes(&self, lane: usize) -> Vec<usize> {
        self.batches[lane].iter().map(Vec::len).collect()
    }

    /// Asserts that each packet of the first lane that was not executed is counted as lost.
    fn assert_failed_packets_are_counted(&self) {
        let Snapshot { received, executed, .. } = &self.stats[0];
        let lost = received.packets - self.batches[0].concat().len() as u64;
        assert!(lost > 0);
        assert_eq!((executed.losses.of(Loss::Failed), executed.all()), (lost, received.packets));
    }
}

fn run(
    scripts: Vec<Vec<Step>>,
    dispatch: Dispatch,
    batching: BatchPolicy,
    stop: &CancelToken,
    fails: Option<usize>,
) -> LaneResults {
    let command_queues = scripts.iter().map(|_| Arc::default()).collect();
    run_with(command_queues, &program(), scripts, dispatch, batching, stop, fails)
}

fn run_with(
    command_queues: Vec<Arc<LaneCommands>>,
    program: &Arc<Program>,
    scripts: Vec<Vec<Step>>,
    dispatch: Dispatch,
    batching: BatchPolicy,
    stop: &CancelToken,
    fails: Option<usize>,
) -> LaneResults {
    let lanes = scripts.into_iter().zip(command_queues);
    let lanes = lanes.map(|(script, commands)| (script, commands, interpreted(program, dispatch).into()));
    run_on(lanes.collect(), dispatch, batching, stop, fails)
}

/// Runs lanes by these scripts on these sessions.
fn run_on(
    scripts: Vec<(Vec<Step>, Arc<LaneCommands>, FallbackSession)>,
    dispatch: Dispatch,
    batching: BatchPolicy,
    stop: &CancelToken,
    fails: Option<usize>,
) -> LaneResults {
    let (mut lanes, mut batches, mut waits, mut stats) = (vec![], vec![], vec![], vec![]);
    for (number, (script, commands, session)) in scripts.into_iter().enumerate() {
        let executor = RecordingExecutor { fails_at: fails, ..RecordingExecutor::default() };
        let receiver = ScriptedReceiver::new(script);
        batches.push(executor.batches.clone());
        waits.push(receiver.waits.clone());
        stats.push(Arc::new(LaneStats::default()));
        let lane = scripted_lane(number, receiver, executor);
        lanes.push(LiveLane { lane, session, commands, broadcasts: None });
    }
    let options = LiveOptions::new(batching, dispatch);
    let ended = AtomicBool::new(false);
    let (lanes, error) =
        run_live(lanes, &stats, &options, stop, || ended.store(true, Ordering::Relaxed), &mut |_: Event<'_>| {});
    let returned = lanes.len();
    drop(lanes);
    assert!(ended.into_inner(), "at_stop was called");
    LaneResults {
        batches: batches.iter().map(|it| it.lock().unwrap().clone()).collect(),
        waits: waits.iter().map(|it| it.lock().unwrap().clone()).collect(),
        stats: stats.iter().map(|it| it.snapshot()).collect(),
        returned,
        error,
    }
}

const BOTH: [Dispatch; 2] = [Dispatch::Inline, Dispatch::Pipelined];

#[test]
fn every_packet_is_executed_once_and_in_order() {
    for dispatch in BOTH {
        let stop = CancelToken::new();
        let script = vec![Step::Packets(1), Step::Packets(700), Step::Packets(40), Step::Stop(stop.clone())];
        let results = run(vec![script], dispatch, BatchPolicy::fixed(100, Duration::ZERO), &stop, None);
        assert!(results.error.is_none(), "{:?}", results.error);
        let packets: Vec<_> = results.batches[0].concat();
        let want = |number| (number, if number % 2 == 1 { Action::Pass } else { Action::Drop });
        assert_eq!(packets, (0..741).map(want).collect::<Vec<_>>(), "{dispatch}");
        assert!(results.sizes(0).iter().all(|size| *size <= 100), "{:?}", results.sizes(0));
        let stats = &results.stats[0];
        assert_eq!(
            (stats.received.packets, stats.executed.all(), stats.batches),
            (741, 741, results.sizes(0).len() as u64)
        );
        assert_eq!(stats.verdicts, VerdictCounts { drop: 371, pass: 370, ..VerdictCounts::default() });
        assert_eq!(stats.executed.checksums, stats.batches + LAST, "counters of finish are included");
        assert_eq!(stats.latency.len(), 741);
        assert_eq!(stats.sizing, None);
    }
}

#[test]
fn a_live_pipeline_filters_each_lane_by_a_session_of_its_own() {
    let device = crate::Device::open("interp").unwrap();
    let stop = CancelToken::new();
    let scripts = [vec![Step::Packets(300)], vec![Step::Packets(40), Step::Pause, Step::Stop(stop.clone())]];
    let mut batches = Vec::new();
    let lanes = (0..).zip(scripts).map(|(number, script)| {
        let executor = RecordingExecutor::default();
        batches.push(executor.batches.clone());
        scripted_lane(number, ScriptedReceiver::new(script), executor)
    });
    let pipeline = LivePipeline::new(lanes.collect());
    let snapshot = pipeline.run(&program(), &device, &stop).unwrap();
    let counts: Vec<_> = snapshot.lanes.iter().map(|(name, lane)| (&**name, lane.verdicts)).collect();
    let half = |packets: u64| VerdictCounts { drop: packets / 2, pass: packets / 2, ..VerdictCounts::default() };
    assert_eq!(counts, [("lane 0", half(300)), ("lane 1", half(40))]);
    assert_eq!(batches.iter().map(|it| it.lock().unwrap().concat().len()).collect::<Vec<_>>(), [300, 40]);
}

#[test]
fn a_filter_needs_room_and_metadata_only_if_it_uses_them() {
    let needs = |text: &str| LaneRequirements::of(&compiled(text), false);
    let reads = needs("fn xdp_filter(pkt: u32) -> u32 { return load_u8(pkt, 3u) % 5u; }");
    assert!(!reads.rewrites() && !reads.metadata && reads.room == ResizeRoom::None);
    assert!(needs("fn xdp_filter(pkt: u32) -> u32 { store_u8(pkt, 3u, 1u); return XDP_TX; }").rewrites());
    let grows = needs("fn xdp_filter(pkt: u32) -> u32 { _ = adjust_head(pkt, -4); return XDP_TX; }");
    assert!(grows.rewrites() && grows.room == ResizeRoom::Both);
    assert!(needs("fn xdp_filter(pkt: u32) -> u32 { return redirect(pkt_port(pkt)); }").metadata);
    let any = LaneRequirements::of(&program(), true);
    assert!(any.rewrites() && any.metadata);
}

#[test]
fn adaptive_batch_sizes_are_reported() {
    for dispatch in BOTH {
        let stop = CancelToken::new();
        let script = vec![Step::Packets(1), Step::Nothing, Step::Packets(3000), Step::Stop(stop.clone())];
        let batching = BatchPolicy { max_packets: 300, ..BatchPolicy::adaptive() };
        let results = run(vec![script], dispatch, batching, &stop, None);
        assert!(results.error.is_none(), "{:?}", results.error);
        assert_eq!(
            results.batches[0].concat().iter().map(|it| it.0).collect::<Vec<_>>(),
            (0..3001).collect::<Vec<_>>()
        );
        assert!(results.sizes(0).iter().all(|size| *size <= 300), "{dispatch}: {:?}", results.sizes(0));
        let sizing = results.stats[0].sizing.expect("sizing is reported");
        assert!((1..=300).contains(&sizing.batch) && sizing.rate > 0.0, "{dispatch}: {sizing:?}");
        assert!(sizing.fixed.as_nanos() as f64 + sizing.packet_ns > 0.0, "{dispatch}: {sizing:?}");
    }
}

#[test]
fn a_batch_is_closed_when_it_is_full_or_its_first_packet_has_waited() {
    for dispatch in BOTH {
        let stop = CancelToken::new();
        // A full batch does not wait for its delay of one hour.
        let script = vec![Step::Packets(7), Step::Packets(3), Step::Packets(10), Step::Stop(stop.clone())];
        let batching = BatchPolicy::fixed(10, Duration::from_secs(3600));
        let results = run(vec![script], dispatch, batching, &stop, None);
        assert_eq!(results.sizes(0), [10, 10], "{dispatch}");

        // A batch that is not full waits for its delay and no longer; a stop closes it at once.
        let stop = CancelToken::new();
        let script = vec![Step::Packets(3), Step::Pause, Step::Nothing, Step::Packets(2), Step::Stop(stop.clone())];
        let batching = BatchPolicy::fixed(10, Duration::from_millis(30));
        let results = run(vec![script], dispatch, batching, &stop, None);
        assert_eq!(results.sizes(0), [3, 2], "{dispatch}");
        assert!(results.waits[0].iter().all(|wait| *wait <= Duration::from_millis(50)), "{:?}", results.waits);
    }
}

/// Runs a function that must return, and fails if it takes too long.
fn returning_in_time<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(what()));
    told.recv_timeout(Duration::from_secs(30)).expect("it returns in time")
}

#[test]
fn commands_and_stops_are_noticed_while_a_batch_waits() {
    for dispatch in BOTH {
        // The batch waits for packets, or sleeps.
        for ring_capacity in [0, usize::MAX] {
            let results = returning_in_time(move || {
                let (stop, commands) = (CancelToken::new(), Arc::new(LaneCommands::default()));
                let end = stop.clone();
                let command = LaneCommand::access_maps(move |_| {
                    end.cancel();
                    Ok(())
                });
                let script =
                    vec![Step::Packets(3), Step::Command(commands.clone(), command), Step::EndOfTraffic(ring_capacity)];
                let batching = BatchPolicy::fixed(10, Duration::from_secs(3600));
                run_with(vec![commands], &program(), vec![script], dispatch, batching, &stop, None)
            });
            assert!(results.error.is_none(), "{:?}", results.error);
            assert_eq!(results.sizes(0), [3], "{dispatch}, {ring_capacity}");
        }
    }
}

#[test]
fn a_batch_is_closed_when_there_is_no_memory_for_more() {
    for dispatch in BOTH {
        let results = returning_in_time(move || {
            let stop = CancelToken::new();
            let script = vec![Step::Packets(2500), Step::Stop(stop.clone())];
            run(vec![script], dispatch, BatchPolicy::fixed(100_000, Duration::from_secs(3600)), &stop, None)
        });
        assert_eq!(results.sizes(0), [1000, 1000, 500], "{dispatch}");
    }
}

#[test]
fn packets_that_await_memory_are_received_before_the_end() {
    for dispatch in BOTH {
        let stop = CancelToken::new();
        // Longer than a lane without pending packets takes to end.
        let script = vec![Step::Packets(3), Step::Stop(stop.clone()), Step::Full(80), Step::Packets(4)];
        let results = run(vec![script], dispatch, BatchPolicy::fixed(100, Duration::ZERO), &stop, None);
        assert!(results.error.is_none(), "{:?}", results.error);
        assert_eq!(results.sizes(0), [3, 4], "{dispatch}");
    }
}

/// Number of times that a batch waits until it is closed, on a receiver whose ring holds
/// `ring_capacity` packets at this arrival rate.
fn count_waits(ring_capacity: usize, rate: f64) -> usize {
    let shared = SharedSizing::new();
    let mut receiver = ScriptedReceiver { ring_capacity, ..ScriptedReceiver::new(vec![Step::Packets(3)]) };
    let mut assembler = BatchAssembler::new(BatchPolicy::fixed(10, Duration::from_millis(5)), &shared, None);
    shared.set_rate(rate);
    loop {
        match assembler.poll(&mut receiver, false).unwrap() {
            PollOutcome::Batch(batch, first_packet) => {
                assert!(batch.len() == 3 && first_packet.at.elapsed() >= Duration::from_millis(5));
                return receiver.waits.lock().unwrap().len();
            }
            PollOutcome::Until(until) => assembler.wait(&mut receiver, until).unwrap(),
            PollOutcome::Nothing => panic!("three packets are queued"),
        }
    }
}

#[test]
fn a_batch_sleeps_only_if_the_ring_can_hold_what_arrives_meanwhile() {
    // The time left after a sleep may be too short for another.
    assert!(count_waits(100_000, 0.0) <= 1);
    assert!(count_waits(100_000, 1000.0) <= 1);
    // The ring's size is unknown or too small, or packets would fill the batch before the sleep
    // ends.
    for (ring_capacity, rate) in [(0, 0.0), (100, 0.0), (100_000, 1e6)] {
        assert!(count_waits(ring_capacity, rate) > 1, "{ring_capacity} {rate}");
    }
}

#[test]
fn a_failing_lane_ends_the_others_after_executing_earlier_packets() {
    for dispatch in BOTH {
        let stop = CancelToken::new();
        let scripts = vec![vec![Step::Packets(5)], vec![Step::Packets(20), Step::Fail]];
        let results = run(scripts, dispatch, BatchPolicy::default(), &stop, None);
        assert_eq!(results.error.unwrap().to_string(), "eth7: the interface is gone");
        assert!(stop.is_cancelled());
        assert_eq!((results.batches[0].concat().len(), results.batches[1].concat().len()), (5, 20), "{dispatch}");
    }
}

#[test]
fn a_failing_executor_ends_its_lane() {
    for dispatch in BOTH {
        let stop = CancelToken::new();
        let results =
            run(vec![vec![Step::Packets(100)]], dispatch, BatchPolicy::fixed(10, Duration::ZERO), &stop, Some(3));
        assert_eq!(results.error.as_ref().unwrap().to_string(), "eth8: the interface is gone");
        assert_eq!(results.sizes(0), [10, 10, 10], "{dispatch}");
        results.assert_failed_packets_are_counted();
    }
}

/// Each packet has a verdict of one filter or the other, and the old filter's come first.
#[test]
fn a_session_is_replaced_between_two_batches() {
    for dispatch in BOTH {
        let (stop, commands) = (CancelToken::new(), Arc::new(LaneCommands::default()));
        let next = compiled("fn xdp_filter(pkt: u32) -> u32 { return XDP_TX; }");
        let mut next = interpreted(&next, dispatch).into();
        let replace = LaneCommand::replace_session(move |session| {
            assert_eq!(session.in_flight(), 0);
            std::mem::swap(session, &mut next);
            Ok(())
        });
        let script = vec![
            Step::Packets(500),
            Step::Command(commands.clone(), replace),
            Step::Packets(500),
            Step::Stop(stop.clone()),
        ];
        let batching = BatchPolicy::fixed(10, Duration::ZERO);
        let results = run_with(vec![commands], &program(), vec![script], dispatch, batching, &stop, None);
        assert!(results.error.is_none(), "{:?}", results.error);
        let packets = results.batches[0].concat();
        assert_eq!(packets.iter().map(|it| it.0).collect::<Vec<_>>(), (0..1000).collect::<Vec<_>>());
        let first = packets.iter().position(|it| it.1 == Action::Tx).expect("the new filter has filtered packets");
        let old = |number| if number % 2 == 1 { Action::Pass } else { Action::Drop };
        assert!(packets[..first].iter().all(|(number, action)| *action == old(*number)), "{dispatch}");
        assert!(packets[first..].iter().all(|(_, action)| *action == Action::Tx), "{dispatch}");
        match dispatch {
            Dispatch::Inline => assert_eq!(first, 500),
            // The RX thread may be a few batches ahead.
            _ => assert!((400..=500).contains(&first), "{first}"),
        }
    }
}

#[test]
fn commands_run_without_traffic_and_are_dropped_after_the_end() {
    for dispatch in BOTH {
        let (stop, commands) = (CancelToken::new(), Arc::new(LaneCommands::default()));
        let program = compiled(
            "//! map seen: counter entries=1\nfn xdp_filter(pkt: u32) -> u32 { seen_add(0u, 1u); return XDP_DROP; }",
        );
        let (told, seen) = std::sync::mpsc::channel();
        let (late, never) = std::sync::mpsc::channel::<()>();
        let asker = std::thread::spawn({
            let (commands, stop) = (commands.clone(), stop.clone());
            move || {
                let mut words = Vec::new();
                while words != [30, 0] {
                    let told = told.clone();
                    commands.push(LaneCommand::access_maps(move |session| {
                        let all = session.map_words(0)?;
                        let _ = told.send(all[all.len() - 2..].to_vec());
                        Ok(())
                    }));
                    words = seen.recv().expect("an answer without traffic");
                }
                stop.cancel();
            }
        });
        let script = vec![Step::Packets(30)];
        let batching = BatchPolicy::fixed(10, Duration::ZERO);
        let results = run_with(vec![commands.clone()], &program, vec![script], dispatch, batching, &stop, None);
        assert!(results.error.is_none(), "{:?}", results.error);
        asker.join().unwrap();
        commands.push(LaneCommand::access_maps(move |_| {
            let _ = late.send(());
            Ok(())
        }));
        assert!(never.recv().is_err(), "the lane has ended");
    }
}
