//! Lanes on every device there is, by every method that it has, and on one that is slow.

use std::sync::atomic::AtomicU64;
use std::time::Instant;

use portcullis_core::device::{DeviceError, Imported, SubmitError, WithFallback};
use portcullis_core::packet::Span;

use super::*;
use crate::devices;

/// Packets of a script.
const PACKETS: u32 = 2000;

/// Runs a lane on this session, to the end of its packets.
fn lane(session: Box<dyn Session>, dispatch: Dispatch) -> Ran {
    let stop = CancelToken::new();
    let script = vec![Script::Packets(PACKETS as usize), Script::Stop(stop.clone())];
    let (receiver, executor) = (Scripted::new(script), Noting::default());
    let (batches, waits, stats) = (executor.batches.clone(), receiver.waits.clone(), Arc::new(LaneStats::default()));
    let lane = Lane { name: "a lane".into(), memory: None, receiver: Box::new(receiver), executor: Box::new(executor) };
    let lanes = vec![LiveLane::new(lane, session)];
    let options = LiveOptions::new(BatchPolicy::fixed(10, Duration::ZERO), dispatch);
    let (_, error) = run_live(lanes, std::slice::from_ref(&stats), &options, &stop, || (), &mut |_: Event<'_>| {});
    Ran {
        batches: vec![batches.lock().unwrap().clone()],
        waits: vec![waits.lock().unwrap().clone()],
        stats: vec![stats.snapshot()],
        error,
    }
}

/// Every packet came through once, with its verdict; in order, where that is so.
fn check(ran: &Ran, what: &str, in_order: bool) {
    assert!(ran.error.is_none(), "{what}: {:?}", ran.error);
    let mut packets = ran.batches[0].concat();
    if !in_order {
        packets.sort_by_key(|packet| packet.0);
    }
    let want = |number| (number, if number % 2 == 1 { Action::Pass } else { Action::Drop });
    assert!(packets.iter().copied().eq((0..PACKETS).map(want)), "{what}: {} packets", packets.len());
    let stats = &ran.stats[0];
    assert_eq!((stats.received.packets, stats.carried.all()), (PACKETS.into(), PACKETS.into()), "{what}");
    assert_eq!((stats.batches, stats.latency.len()), (ran.batches[0].len() as u64, PACKETS.into()), "{what}");
}

/// Every device that filters; the others are named with the reason.
fn filtering() -> Vec<Arc<dyn Device>> {
    let backends = devices::backends().iter().filter(|backend| backend.name != "noop");
    let found = backends.filter_map(|backend| match backend.probe() {
        Ok(devices) => Some(devices),
        Err(reason) => {
            println!("skipped on {}: {reason}", backend.name);
            None
        }
    });
    found.flatten().collect()
}

fn options(dispatch: Dispatch) -> LoadOptions {
    LoadOptions { threads: NonZeroUsize::new(1), dispatch: Some(dispatch), ..LoadOptions::default() }
}

#[test]
fn every_method_of_every_device_takes_live_packets() {
    let program = program();
    for device in filtering() {
        for &dispatch in device.info().dispatch {
            let ran = lane(device.load(&program, &options(dispatch)).unwrap(), dispatch);
            check(&ran, &format!("{} {dispatch}", device.info().id), true);
            assert_eq!(ran.stats[0].fallback_packets, 0);
        }
    }
}

#[test]
fn any_device_can_be_relieved() {
    let program = program();
    for device in filtering() {
        let id = device.info().id.clone();
        let fallback_packets = WithFallback::new(device, Arc::new(InterpDevice::new()));
        for &dispatch in fallback_packets.info().dispatch {
            let ran = lane(fallback_packets.load(&program, &options(dispatch)).unwrap(), dispatch);
            check(&ran, &format!("{id} {dispatch}"), dispatch == Dispatch::Inline);
        }
    }
}

/// A session that takes its time for each batch, whoever waits.
struct Slow {
    session: Box<dyn Session>,
    takes: Duration,
    ready: VecDeque<Instant>,
    packets: Arc<AtomicU64>,
    fallback: Option<Box<dyn Session>>,
}

impl Session for Slow {
    fn import(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError> {
        self.session.import(span)
    }

    fn submit(&mut self, batch: Batch) -> Result<(), SubmitError> {
        let begins = self.ready.back().copied().unwrap_or_else(Instant::now).max(Instant::now());
        self.packets.fetch_add(batch.len() as u64, Ordering::Relaxed);
        self.session.submit(batch)?;
        self.ready.push_back(begins + self.takes);
        Ok(())
    }

    fn complete(&mut self) -> Result<Option<Completion>, DeviceError> {
        if let Some(ready) = self.ready.pop_front() {
            thread::sleep(ready.saturating_duration_since(Instant::now()));
        }
        self.session.complete()
    }

    fn in_flight(&self) -> usize {
        self.session.in_flight()
    }

    fn depth(&self) -> usize {
        self.session.depth()
    }

    fn fallback(&mut self) -> Option<&mut dyn Session> {
        self.fallback.as_mut().map(|fallback| &mut **fallback as _)
    }
}

/// On a device that takes so long for a batch; also how many packets were its own.
fn slow(takes: Duration, fallback_packets: bool) -> (Ran, u64) {
    let load = |dispatch| InterpDevice::new().load(&program(), &options(dispatch)).unwrap();
    let packets = Arc::new(AtomicU64::new(0));
    let session = Slow {
        session: load(Dispatch::Pipelined),
        takes,
        ready: VecDeque::new(),
        packets: packets.clone(),
        fallback: fallback_packets.then(|| load(Dispatch::Inline)),
    };
    let ran = lane(Box::new(session), Dispatch::Pipelined);
    (ran, packets.load(Ordering::Relaxed))
}

#[test]
fn a_slow_device_has_all_packets_where_nothing_relieves_it() {
    let (ran, own) = slow(Duration::from_millis(1), false);
    check(&ran, "slow", true);
    assert_eq!((own, ran.stats[0].fallback_packets), (PACKETS.into(), 0));
}

#[test]
fn a_slow_device_is_relieved_and_nothing_is_lost() {
    let (ran, own) = slow(Duration::from_millis(50), true);
    check(&ran, "slow, relieved", false);
    let fallback_packets = ran.stats[0].fallback_packets;
    assert_eq!(own + fallback_packets, u64::from(PACKETS));
    // It takes ten seconds for all of them; what comes in its first two batches' time alone is not so many.
    assert!(own > 0 && fallback_packets > own, "{fallback_packets} of {PACKETS}");
}

/// A relief that fails.
#[test]
fn a_relief_that_fails_ends_the_lane_with_its_error() {
    struct Failing;
    impl Session for Failing {
        fn import(&mut self, _: &Arc<Span>) -> Result<Imported, DeviceError> {
            Ok(Imported::Copied)
        }
        fn submit(&mut self, batch: Batch) -> Result<(), SubmitError> {
            Err(SubmitError { batch: Box::new(batch), error: DeviceError::Cancelled })
        }
        fn complete(&mut self) -> Result<Option<Completion>, DeviceError> {
            Ok(None)
        }
        fn in_flight(&self) -> usize {
            0
        }
        fn depth(&self) -> usize {
            1
        }
    }
    let session = Slow {
        session: InterpDevice::new().load(&program(), &options(Dispatch::Pipelined)).unwrap(),
        takes: Duration::from_millis(20),
        ready: VecDeque::new(),
        packets: Arc::default(),
        fallback: Some(Box::new(Failing)),
    };
    let ran = lane(Box::new(session), Dispatch::Pipelined);
    assert!(matches!(ran.error, Some(LaneError::Device(DeviceError::Cancelled))), "{:?}", ran.error);
    // What the device had is carried out all the same, and what the relief had is lost.
    assert!(!ran.batches[0].is_empty());
    ran.accounts_for_what_failed();
}

/// A session that dies of its first batch.
struct Dying;

impl Session for Dying {
    fn import(&mut self, _: &Arc<Span>) -> Result<Imported, DeviceError> {
        Ok(Imported::Copied)
    }

    fn submit(&mut self, _: Batch) -> Result<(), SubmitError> {
        panic!("as it is to be");
    }

    fn complete(&mut self) -> Result<Option<Completion>, DeviceError> {
        Ok(None)
    }

    fn in_flight(&self) -> usize {
        0
    }

    fn depth(&self) -> usize {
        1
    }
}

#[test]
fn a_lane_that_dies_ends_the_others_and_what_came_to_them_is_carried_out() {
    for dispatch in BOTH {
        for dying in [0, 1] {
            let (error, batches, back) = in_time(move || {
                let (stop, mut lanes, mut batches) = (CancelToken::new(), vec![], vec![]);
                for number in 0..2 {
                    let (receiver, executor) = (Scripted::new(vec![Script::Packets(50)]), Noting::default());
                    batches.push(executor.batches.clone());
                    let session: Box<dyn Session> = match number == dying {
                        true => Box::new(Dying),
                        false => InterpDevice::new().load(&program(), &options(dispatch)).unwrap(),
                    };
                    let (receiver, executor) = (Box::new(receiver), Box::new(executor));
                    let lane = Lane { name: format!("lane {number}"), memory: None, receiver, executor };
                    lanes.push(LiveLane::new(lane, session));
                }
                let stats = [Arc::default(), Arc::default()];
                let options = LiveOptions::new(BatchPolicy::fixed(10, Duration::ZERO), dispatch);
                let (back, error) = run_live(lanes, &stats, &options, &stop, || (), &mut |_: Event<'_>| {});
                (error, batches, back.len())
            });
            let error = error.expect("a lane has died");
            assert!(matches!(error, LaneError::Thread { .. }), "{error}");
            assert!(error.to_string().starts_with(&format!("lane {dying}: the driver thread died")), "{error}");
            assert_eq!(batches[1 - dying].lock().unwrap().concat().len(), 50, "{dispatch}, {dying}");
            assert_eq!(back, 1);
        }
    }
}
