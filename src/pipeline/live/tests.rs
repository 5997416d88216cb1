use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use portcullis_core::device::{Completion, Device, LoadOptions};
use portcullis_core::diagnostics::Source;
use portcullis_core::interp::InterpDevice;
use portcullis_core::packet::{Action, Batch};
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_io::live::{ExecutedCounts, Executor, Loss, ReceivedCounts, Receiver};
use portcullis_wgsl as wgsl;

use super::assembler::{BatchAssembler, PollOutcome};
use super::*;
use crate::pipeline::Event;

mod devices;
mod measured;

/// What a receiver is to do when it is asked.
enum Script {
    /// This many packets are there.
    Packets(usize),
    /// There is nothing, and nothing comes while one waits.
    Pause,
    /// There is nothing this once.
    Nothing,
    /// There is no memory for what is there, for so many milliseconds.
    Full(usize),
    /// Nothing comes any more, however long one waits, and if it did there would be room for so many.
    Quiet(usize),
    /// Somebody wants an end.
    Stop(CancelToken),
    /// Somebody leaves an order.
    LaneCommand(Arc<LaneCommands>, LaneCommand),
    Fail,
}

/// Gives packets by a script; each has its number as its first four bytes.
struct Scripted {
    script: VecDeque<Script>,
    gathered: Vec<[u8; 60]>,
    next: u32,
    waits: Arc<Mutex<Vec<Duration>>>,
    holds: usize,
    /// How many packets a batch has memory for.
    room: usize,
}

impl Scripted {
    fn new(script: Vec<Script>) -> Scripted {
        Scripted { script: script.into(), gathered: vec![], next: 0, waits: Arc::default(), holds: 0, room: 1000 }
    }
}

impl Receiver for Scripted {
    fn backlog_capacity(&self) -> usize {
        match self.script.front() {
            Some(Script::Quiet(holds)) => *holds,
            _ => self.holds,
        }
    }

    fn receive(&mut self, most: usize) -> Result<usize, LiveError> {
        let count = match self.script.front_mut() {
            Some(Script::Packets(left)) => {
                let count = most.min(*left).min(self.room - self.gathered.len());
                *left -= count;
                if *left == 0 {
                    self.script.pop_front();
                }
                count
            }
            Some(Script::Stop(stop)) => {
                stop.cancel();
                self.script.pop_front();
                0
            }
            Some(Script::Nothing) => {
                self.script.pop_front();
                0
            }
            Some(Script::Full(left)) => {
                thread::sleep(Duration::from_millis(1));
                *left -= 1;
                if *left == 0 {
                    self.script.pop_front();
                    return self.receive(most);
                }
                0
            }
            Some(Script::LaneCommand(..)) => {
                if let Some(Script::LaneCommand(mailbox, order)) = self.script.pop_front() {
                    mailbox.push(order);
                }
                0
            }
            Some(Script::Fail) => return Err(LiveError::Gone { interface: "eth7".into() }),
            Some(Script::Pause | Script::Quiet(_)) | None => 0,
        };
        for _ in 0..count {
            let mut packet = [0; 60];
            packet[..4].copy_from_slice(&self.next.to_be_bytes());
            self.gathered.push(packet);
            self.next += 1;
        }
        Ok(count)
    }

    fn wait(&mut self, most: Duration) -> Result<(), LiveError> {
        self.waits.lock().unwrap().push(most);
        match self.script.front() {
            Some(Script::Pause) => {
                self.script.pop_front();
                thread::sleep(most);
            }
            Some(Script::Quiet(_)) => thread::sleep(most),
            _ => {}
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.gathered.len() == self.room || matches!(self.script.front(), Some(Script::Full(_)))
    }

    fn take_batch(&mut self) -> Option<Batch> {
        let packets = std::mem::take(&mut self.gathered);
        (!packets.is_empty()).then(|| Batch::in_frames(&packets).unwrap())
    }

    fn received(&mut self) -> ReceivedCounts {
        ReceivedCounts { packets: self.next.into(), bytes: u64::from(self.next) * 60, ..ReceivedCounts::default() }
    }
}

/// The packets' numbers and verdicts, of each batch.
type Batches = Vec<Vec<(u32, Action)>>;

/// What is found out in the end.
const LAST: u64 = 1 << 32;

/// Notes what it is to carry out.
#[derive(Default)]
struct Noting {
    batches: Arc<Mutex<Batches>>,
    carried: ExecutedCounts,
    fails_at: Option<usize>,
}

impl Executor for Noting {
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
        packets.iter().for_each(|(_, action)| self.carried.add(*action, 60));
        batches.push(packets);
        Ok(())
    }

    fn poll(&mut self) -> Result<(), LiveError> {
        // What is found out only now.
        self.carried.checksums = self.batches.lock().unwrap().len() as u64;
        Ok(())
    }

    fn finish(&mut self) -> Result<(), LiveError> {
        self.carried.checksums += LAST;
        Ok(())
    }

    fn is_busy(&self) -> bool {
        false
    }

    fn executed(&self) -> &ExecutedCounts {
        &self.carried
    }
}

/// Odd numbers pass.
fn program() -> Arc<Program> {
    compiled("fn xdp_filter(pkt: u32) -> u32 { return select(XDP_DROP, XDP_PASS, (load_u8(pkt, 3u) & 1u) == 1u); }")
}

fn compiled(text: &str) -> Arc<Program> {
    let program = wgsl::compile(&Source::new("f.wgsl", text), &ProgramOptions::default());
    Arc::new(program.unwrap_or_else(|e| panic!("{}", e.render())))
}

struct Ran {
    /// Of each lane.
    batches: Vec<Batches>,
    waits: Vec<Vec<Duration>>,
    stats: Vec<Snapshot>,
    error: Option<LaneError>,
}

impl Ran {
    fn sizes(&self, lane: usize) -> Vec<usize> {
        self.batches[lane].iter().map(Vec::len).collect()
    }

    /// Of the first lane's packets, each that was not carried out is among those lost.
    fn accounts_for_what_failed(&self) {
        let Snapshot { received, carried, .. } = &self.stats[0];
        let lost = received.packets - self.batches[0].concat().len() as u64;
        assert!(lost > 0);
        assert_eq!((carried.losses.of(Loss::Failed), carried.all()), (lost, received.packets));
    }
}

fn run(
    scripts: Vec<Vec<Script>>,
    dispatch: Dispatch,
    batching: BatchPolicy,
    stop: &CancelToken,
    fails: Option<usize>,
) -> Ran {
    let mailboxes = scripts.iter().map(|_| Arc::default()).collect();
    run_with(mailboxes, &program(), scripts, dispatch, batching, stop, fails)
}

fn run_with(
    mailboxes: Vec<Arc<LaneCommands>>,
    program: &Arc<Program>,
    scripts: Vec<Vec<Script>>,
    dispatch: Dispatch,
    batching: BatchPolicy,
    stop: &CancelToken,
    fails: Option<usize>,
) -> Ran {
    let options = LoadOptions { threads: NonZeroUsize::new(1), dispatch: Some(dispatch), ..LoadOptions::default() };
    let (mut lanes, mut batches, mut waits, mut stats) = (vec![], vec![], vec![], vec![]);
    for (number, (script, commands)) in scripts.into_iter().zip(mailboxes).enumerate() {
        let executor = Noting { fails_at: fails, ..Noting::default() };
        let receiver = Scripted::new(script);
        batches.push(executor.batches.clone());
        waits.push(receiver.waits.clone());
        stats.push(Arc::new(LaneStats::default()));
        let (receiver, executor) = (Box::new(receiver), Box::new(executor));
        let session = InterpDevice::new().load(program, &options).unwrap();
        let lane = Lane { name: format!("lane {number}"), memory: None, receiver, executor };
        lanes.push(LiveLane { lane, session, commands, broadcasts: None });
    }
    let options = LiveOptions::new(batching, dispatch);
    let ended = AtomicBool::new(false);
    let (lanes, error) =
        run_live(lanes, &stats, &options, stop, || ended.store(true, Ordering::Relaxed), &mut |_: Event<'_>| {});
    drop(lanes);
    assert!(ended.into_inner(), "it is said that an end is wanted");
    Ran {
        batches: batches.iter().map(|it| it.lock().unwrap().clone()).collect(),
        waits: waits.iter().map(|it| it.lock().unwrap().clone()).collect(),
        stats: stats.iter().map(|it| it.snapshot()).collect(),
        error,
    }
}

const BOTH: [Dispatch; 2] = [Dispatch::Inline, Dispatch::Pipelined];

#[test]
fn every_packet_is_carried_out_once_and_in_order() {
    for dispatch in BOTH {
        let stop = CancelToken::new();
        let script = vec![Script::Packets(1), Script::Packets(700), Script::Packets(40), Script::Stop(stop.clone())];
        let ran = run(vec![script], dispatch, BatchPolicy::fixed(100, Duration::ZERO), &stop, None);
        assert!(ran.error.is_none(), "{:?}", ran.error);
        let packets: Vec<_> = ran.batches[0].concat();
        let want = |number| (number, if number % 2 == 1 { Action::Pass } else { Action::Drop });
        assert_eq!(packets, (0..741).map(want).collect::<Vec<_>>(), "{dispatch}");
        assert!(ran.sizes(0).iter().all(|size| *size <= 100), "{:?}", ran.sizes(0));
        let stats = &ran.stats[0];
        assert_eq!((stats.received.packets, stats.carried.all(), stats.batches), (741, 741, ran.sizes(0).len() as u64));
        assert_eq!(stats.verdicts, [0, 371, 370, 0, 0]);
        assert_eq!(stats.carried.checksums, stats.batches + LAST, "what came out after the last batch is told, too");
        assert_eq!(stats.latency.len(), 741);
        assert_eq!(stats.sizing, None);
    }
}

#[test]
fn batches_find_their_size_and_it_is_told() {
    for dispatch in BOTH {
        let stop = CancelToken::new();
        let script = vec![Script::Packets(1), Script::Nothing, Script::Packets(3000), Script::Stop(stop.clone())];
        let batching = BatchPolicy { max_packets: 300, ..BatchPolicy::adaptive() };
        let ran = run(vec![script], dispatch, batching, &stop, None);
        assert!(ran.error.is_none(), "{:?}", ran.error);
        assert_eq!(ran.batches[0].concat().iter().map(|it| it.0).collect::<Vec<_>>(), (0..3001).collect::<Vec<_>>());
        assert!(ran.sizes(0).iter().all(|size| *size <= 300), "{dispatch}: {:?}", ran.sizes(0));
        let sizing = ran.stats[0].sizing.expect("it is told");
        assert!((1..=300).contains(&sizing.batch) && sizing.rate > 0.0, "{dispatch}: {sizing:?}");
        assert!(sizing.fixed.as_nanos() as f64 + sizing.packet_ns > 0.0, "{dispatch}: {sizing:?}");
    }
}

#[test]
fn a_batch_is_closed_when_it_is_full_or_its_first_packet_has_waited() {
    for dispatch in BOTH {
        let stop = CancelToken::new();
        // An hour would be too long for anybody to wait here: what is full does not wait.
        let script = vec![Script::Packets(7), Script::Packets(3), Script::Packets(10), Script::Stop(stop.clone())];
        let batching = BatchPolicy::fixed(10, Duration::from_secs(3600));
        let ran = run(vec![script], dispatch, batching, &stop, None);
        assert_eq!(ran.sizes(0), [10, 10], "{dispatch}");

        // What is not full waits, for its delay and no longer; a stop makes it go at once.
        let stop = CancelToken::new();
        let script =
            vec![Script::Packets(3), Script::Pause, Script::Nothing, Script::Packets(2), Script::Stop(stop.clone())];
        let batching = BatchPolicy::fixed(10, Duration::from_millis(30));
        let ran = run(vec![script], dispatch, batching, &stop, None);
        assert_eq!(ran.sizes(0), [3, 2], "{dispatch}");
        assert!(ran.waits[0].iter().all(|wait| *wait <= Duration::from_millis(50)), "{:?}", ran.waits);
    }
}

/// Does what must come to an end, and fails where it does not.
fn in_time<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(what()));
    told.recv_timeout(Duration::from_secs(30)).expect("it comes to an end")
}

#[test]
fn an_order_is_carried_out_and_an_end_comes_however_long_a_batch_may_wait() {
    for dispatch in BOTH {
        // It waits to be woken, or sleeps.
        for holds in [0, usize::MAX] {
            let ran = in_time(move || {
                let (stop, mailbox) = (CancelToken::new(), Arc::new(LaneCommands::default()));
                let end = stop.clone();
                let order = LaneCommand::access_maps(move |_| {
                    end.cancel();
                    Ok(())
                });
                let script =
                    vec![Script::Packets(3), Script::LaneCommand(mailbox.clone(), order), Script::Quiet(holds)];
                let batching = BatchPolicy::fixed(10, Duration::from_secs(3600));
                run_with(vec![mailbox], &program(), vec![script], dispatch, batching, &stop, None)
            });
            assert!(ran.error.is_none(), "{:?}", ran.error);
            assert_eq!(ran.sizes(0), [3], "{dispatch}, {holds}");
        }
    }
}

#[test]
fn a_batch_is_closed_when_there_is_no_memory_for_more() {
    for dispatch in BOTH {
        let ran = in_time(move || {
            let stop = CancelToken::new();
            let script = vec![Script::Packets(2500), Script::Stop(stop.clone())];
            run(vec![script], dispatch, BatchPolicy::fixed(100_000, Duration::from_secs(3600)), &stop, None)
        });
        assert_eq!(ran.sizes(0), [1000, 1000, 500], "{dispatch}");
    }
}

#[test]
fn what_there_is_no_memory_for_comes_before_the_end() {
    for dispatch in BOTH {
        let stop = CancelToken::new();
        // Longer than an end waits where nothing is left.
        let script = vec![Script::Packets(3), Script::Stop(stop.clone()), Script::Full(80), Script::Packets(4)];
        let ran = run(vec![script], dispatch, BatchPolicy::fixed(100, Duration::ZERO), &stop, None);
        assert!(ran.error.is_none(), "{:?}", ran.error);
        assert_eq!(ran.sizes(0), [3, 4], "{dispatch}");
    }
}

/// How often a receiver that holds so many packets is waited for until a batch is closed to which so many come a second.
fn waits(holds: usize, rate: f64) -> usize {
    let shared = SharedSizing::new();
    let mut receiver = Scripted { holds, ..Scripted::new(vec![Script::Packets(3)]) };
    let mut batcher = BatchAssembler::new(BatchPolicy::fixed(10, Duration::from_millis(5)), &shared, None);
    shared.set_rate(rate);
    loop {
        match batcher.poll(&mut receiver, false).unwrap() {
            PollOutcome::Batch(batch, first) => {
                assert!(batch.len() == 3 && first.at.elapsed() >= Duration::from_millis(5));
                return receiver.waits.lock().unwrap().len();
            }
            PollOutcome::Until(until) => batcher.wait(&mut receiver, until).unwrap(),
            PollOutcome::Nothing => panic!("three packets are there"),
        }
    }
}

#[test]
fn a_batch_sleeps_where_there_is_room_for_what_comes_meanwhile() {
    // At its end there may be less left than a sleep is good for.
    assert!(waits(100_000, 0.0) <= 1);
    assert!(waits(100_000, 1000.0) <= 1);
    // No room is known, or too little, or so much comes that the batch would be full before the end of a sleep.
    for (holds, rate) in [(0, 0.0), (100, 0.0), (100_000, 1e6)] {
        assert!(waits(holds, rate) > 1, "{holds} {rate}");
    }
}

#[test]
fn a_lane_that_fails_ends_the_others_and_what_came_before_is_carried_out() {
    for dispatch in BOTH {
        let stop = CancelToken::new();
        let scripts = vec![vec![Script::Packets(5)], vec![Script::Packets(20), Script::Fail]];
        let ran = run(scripts, dispatch, BatchPolicy::default(), &stop, None);
        assert_eq!(ran.error.unwrap().to_string(), "eth7: the interface is gone");
        assert!(stop.is_cancelled());
        assert_eq!((ran.batches[0].concat().len(), ran.batches[1].concat().len()), (5, 20), "{dispatch}");
    }
}

#[test]
fn an_executor_that_fails_ends_its_lane() {
    for dispatch in BOTH {
        let stop = CancelToken::new();
        let ran =
            run(vec![vec![Script::Packets(100)]], dispatch, BatchPolicy::fixed(10, Duration::ZERO), &stop, Some(3));
        assert_eq!(ran.error.as_ref().unwrap().to_string(), "eth8: the interface is gone");
        assert_eq!(ran.sizes(0), [10, 10, 10], "{dispatch}");
        ran.accounts_for_what_failed();
    }
}

/// Every packet has a verdict of the one filter or the other, those that came first the old one's.
#[test]
fn a_session_is_swapped_between_two_batches() {
    for dispatch in BOTH {
        let (stop, mailbox) = (CancelToken::new(), Arc::new(LaneCommands::default()));
        let load = LoadOptions { threads: NonZeroUsize::new(1), dispatch: Some(dispatch), ..LoadOptions::default() };
        let next = compiled("fn xdp_filter(pkt: u32) -> u32 { return XDP_TX; }");
        let mut next = InterpDevice::new().load(&next, &load).unwrap();
        let swap = LaneCommand::replace_session(move |session| {
            assert_eq!(session.in_flight(), 0);
            std::mem::swap(session, &mut next);
            Ok(())
        });
        let script = vec![
            Script::Packets(500),
            Script::LaneCommand(mailbox.clone(), swap),
            Script::Packets(500),
            Script::Stop(stop.clone()),
        ];
        let batching = BatchPolicy::fixed(10, Duration::ZERO);
        let ran = run_with(vec![mailbox], &program(), vec![script], dispatch, batching, &stop, None);
        assert!(ran.error.is_none(), "{:?}", ran.error);
        let packets = ran.batches[0].concat();
        assert_eq!(packets.iter().map(|it| it.0).collect::<Vec<_>>(), (0..1000).collect::<Vec<_>>());
        let first = packets.iter().position(|it| it.1 == Action::Tx).expect("the new filter has had packets");
        let old = |number| if number % 2 == 1 { Action::Pass } else { Action::Drop };
        assert!(packets[..first].iter().all(|(number, action)| *action == old(*number)), "{dispatch}");
        assert!(packets[first..].iter().all(|(_, action)| *action == Action::Tx), "{dispatch}");
        match dispatch {
            Dispatch::Inline => assert_eq!(first, 500),
            // The RX thread is a few batches ahead.
            _ => assert!((400..=500).contains(&first), "{first}"),
        }
    }
}

#[test]
fn maps_are_looked_at_while_nothing_comes_and_who_asks_too_late_is_not_left_waiting() {
    for dispatch in BOTH {
        let (stop, mailbox) = (CancelToken::new(), Arc::new(LaneCommands::default()));
        let program = compiled(
            "//! map seen: counter entries=1\nfn xdp_filter(pkt: u32) -> u32 { seen_add(0u, 1u); return XDP_DROP; }",
        );
        let (told, seen) = std::sync::mpsc::channel();
        let (late, never) = std::sync::mpsc::channel::<()>();
        let asker = std::thread::spawn({
            let (mailbox, stop) = (mailbox.clone(), stop.clone());
            move || {
                let mut words = Vec::new();
                while words != [30, 0] {
                    let told = told.clone();
                    mailbox.push(LaneCommand::access_maps(move |session| {
                        let all = session.map_words(0)?;
                        let _ = told.send(all[all.len() - 2..].to_vec());
                        Ok(())
                    }));
                    words = seen.recv().expect("an answer, though no packets come");
                }
                stop.cancel();
            }
        });
        let script = vec![Script::Packets(30)];
        let batching = BatchPolicy::fixed(10, Duration::ZERO);
        let ran = run_with(vec![mailbox.clone()], &program, vec![script], dispatch, batching, &stop, None);
        assert!(ran.error.is_none(), "{:?}", ran.error);
        asker.join().unwrap();
        mailbox.push(LaneCommand::access_maps(move |_| {
            let _ = late.send(());
            Ok(())
        }));
        assert!(never.recv().is_err(), "the lane has ended");
    }
}
