//! Lanes on every device of this machine with each of its dispatch methods, and on slow or failing
//! sessions.

use std::sync::atomic::AtomicU64;
use std::time::Instant;

use portcullis_core::device::{
    DeviceError, FallbackSession, Imported, Instrumented, Session, SubmitError, WithFallback,
};
use portcullis_core::packet::Span;

use super::*;
use crate::devices;

/// Number of packets in a script.
const PACKETS: u32 = 2000;

/// Runs a lane on this session until its packets end.
fn run_lane(session: impl Into<FallbackSession>, dispatch: Dispatch) -> LaneResults {
    let stop = CancelToken::new();
    let script = vec![Step::Packets(PACKETS as usize), Step::Stop(stop.clone())];
    let lanes = vec![(script, Arc::default(), session.into())];
    run_on(lanes, dispatch, BatchPolicy::fixed(10, Duration::ZERO), &stop, None)
}

/// Asserts that each packet was executed once with the right verdict, and in order if so required.
fn assert_all_executed(results: &LaneResults, what: &str, must_be_ordered: bool) {
    assert!(results.error.is_none(), "{what}: {:?}", results.error);
    let mut packets = results.batches[0].concat();
    if !must_be_ordered {
        packets.sort_by_key(|packet| packet.0);
    }
    let want = |number| (number, if number % 2 == 1 { Action::Pass } else { Action::Drop });
    assert!(packets.iter().copied().eq((0..PACKETS).map(want)), "{what}: {} packets", packets.len());
    let stats = &results.stats[0];
    assert_eq!((stats.received.packets, stats.executed.all()), (PACKETS.into(), PACKETS.into()), "{what}");
    assert_eq!((stats.batches, stats.latency.len()), (results.batches[0].len() as u64, PACKETS.into()), "{what}");
}

/// All devices that can filter. Prints why the others are skipped.
fn filtering_devices() -> Vec<Arc<dyn Device>> {
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

#[test]
fn every_dispatch_method_of_every_device_filters_live_packets() {
    let program = program();
    for device in filtering_devices() {
        for &dispatch in device.info().dispatch {
            let results = run_lane(device.load(&program, &load_options(dispatch)).unwrap(), dispatch);
            assert_all_executed(&results, &format!("{} {dispatch}", device.info().id), true);
            assert_eq!(results.stats[0].fallback_packets, 0);
        }
    }
}

#[test]
fn any_device_can_have_a_fallback() {
    let program = program();
    for device in filtering_devices() {
        let id = device.info().id.clone();
        let device_with_fallback = WithFallback::new(device, Arc::new(InterpDevice::new()));
        for &dispatch in device_with_fallback.info().dispatch {
            let results = run_lane(device_with_fallback.load(&program, &load_options(dispatch)).unwrap(), dispatch);
            assert_all_executed(&results, &format!("{id} {dispatch}"), dispatch == Dispatch::Inline);
        }
    }
}

/// A session that takes a fixed time for each batch, and whose device is lost after some.
struct SlowSession {
    session: Box<dyn Session>,
    batch_time: Duration,
    batches_before_loss: usize,
    ready: VecDeque<Instant>,
    packets: Arc<AtomicU64>,
}

impl Session for SlowSession {
    fn import(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError> {
        self.session.import(span)
    }

    fn submit(&mut self, batch: Batch) -> Result<(), SubmitError> {
        let begins = self.ready.back().copied().unwrap_or_else(Instant::now).max(Instant::now());
        self.packets.fetch_add(batch.len() as u64, Ordering::Relaxed);
        self.session.submit(batch)?;
        self.ready.push_back(begins + self.batch_time);
        Ok(())
    }

    fn complete(&mut self) -> Result<Option<Completion>, DeviceError> {
        let Some(ready) = self.ready.pop_front() else { return self.session.complete() };
        thread::sleep(ready.saturating_duration_since(Instant::now()));
        match self.batches_before_loss.checked_sub(1) {
            Some(left) => self.batches_before_loss = left,
            None => return Err(DeviceError::Failed { device: "lost".into(), reason: "gone".into() }),
        }
        self.session.complete()
    }

    fn in_flight(&self) -> usize {
        self.session.in_flight()
    }

    fn depth(&self) -> usize {
        self.session.depth()
    }
}

impl Instrumented for SlowSession {}

/// A session that takes `batch_time` per batch, and the number of packets that it has been given.
fn slow_session(batch_time: Duration, batches_before_loss: usize) -> (Box<dyn Session>, Arc<AtomicU64>) {
    let packets = Arc::new(AtomicU64::new(0));
    let (session, ready) = (interpreted(&program(), Dispatch::Pipelined), VecDeque::new());
    let session = SlowSession { session, batch_time, batches_before_loss, ready, packets: packets.clone() };
    (Box::new(session), packets)
}

/// Runs a lane on a session that takes `batch_time` per batch. Also returns how many packets that
/// session filtered itself.
fn run_on_slow_session(batch_time: Duration, has_fallback: bool) -> (LaneResults, u64) {
    let (session, packets) = slow_session(batch_time, usize::MAX);
    let session = match has_fallback {
        true => FallbackSession::new(session, interpreted(&program(), Dispatch::Inline)),
        false => session.into(),
    };
    let results = run_lane(session, Dispatch::Pipelined);
    (results, packets.load(Ordering::Relaxed))
}

#[test]
fn a_slow_device_without_fallback_filters_all_packets() {
    let (results, own) = run_on_slow_session(Duration::from_millis(1), false);
    assert_all_executed(&results, "slow", true);
    assert_eq!((own, results.stats[0].fallback_packets), (PACKETS.into(), 0));
}

#[test]
fn a_slow_device_with_fallback_loses_no_packets() {
    let (results, own) = run_on_slow_session(Duration::from_millis(50), true);
    assert_all_executed(&results, "slow, with fallback", false);
    let fallback_packets = results.stats[0].fallback_packets;
    assert_eq!(own + fallback_packets, u64::from(PACKETS));
    // The session alone would take ten seconds; during its first two batches fewer packets than
    // this arrive.
    assert!(own > 0 && fallback_packets > own, "{fallback_packets} of {PACKETS}");
}

#[test]
fn a_failing_fallback_ends_the_lane_with_its_error() {
    let (session, _) = slow_session(Duration::from_millis(20), usize::MAX);
    let fallback = FailingSession(|batch| Err(SubmitError { batch: Box::new(batch), error: DeviceError::Cancelled }));
    let session = FallbackSession::new(session, Box::new(fallback));
    let results = run_lane(session, Dispatch::Pipelined);
    assert!(matches!(results.error, Some(LaneError::Device(DeviceError::Cancelled))), "{:?}", results.error);
    // Packets that the device had are still executed; those of the fallback are lost.
    assert!(!results.batches[0].is_empty());
    results.assert_failed_packets_are_counted();
}

#[test]
fn the_fallback_takes_over_from_a_lost_device() {
    const FILTERED: usize = 30;
    let (session, _) = slow_session(Duration::ZERO, FILTERED / 10);
    let depth = session.depth();
    let session = FallbackSession::new(session, interpreted(&program(), Dispatch::Inline));
    let results = run_lane(session, Dispatch::Pipelined);
    assert!(results.error.is_none(), "{:?}", results.error);
    results.assert_failed_packets_are_counted();
    let executed = results.batches[0].concat();
    for (number, action) in &executed {
        assert_eq!(*action, if number % 2 == 1 { Action::Pass } else { Action::Drop });
    }
    let lost = PACKETS as usize - executed.len();
    assert!(lost > 0 && lost <= 10 * depth, "{lost} of {depth} batches");
    // Batches may have gone to the fallback before, while the device was full.
    let by_fallback = results.stats[0].fallback_packets as usize;
    assert_eq!(by_fallback, executed.len() - FILTERED);
}

/// A session whose first batch fails, as this function does.
struct FailingSession(fn(Batch) -> Result<(), SubmitError>);

impl Session for FailingSession {
    fn import(&mut self, _: &Arc<Span>) -> Result<Imported, DeviceError> {
        Ok(Imported::Copied)
    }

    fn submit(&mut self, batch: Batch) -> Result<(), SubmitError> {
        (self.0)(batch)
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

impl Instrumented for FailingSession {}

#[test]
fn a_panicking_lane_ends_the_others_after_executing_their_packets() {
    for dispatch in BOTH {
        for panicking in [0, 1] {
            let results = returning_in_time(move || {
                let lanes = (0..2).map(|number| {
                    let session: Box<dyn Session> = match number == panicking {
                        true => Box::new(FailingSession(|_| panic!("the panic of this test"))),
                        false => interpreted(&program(), dispatch),
                    };
                    (vec![Step::Packets(50)], Arc::default(), session.into())
                });
                let batching = BatchPolicy::fixed(10, Duration::ZERO);
                run_on(lanes.collect(), dispatch, batching, &CancelToken::new(), None)
            });
            let error = results.error.as_ref().expect("a lane has panicked");
            assert!(matches!(error, LaneError::Thread { .. }), "{error}");
            assert!(error.to_string().starts_with(&format!("lane {panicking}: the driver thread panicked")), "{error}");
            assert_eq!(results.batches[1 - panicking].concat().len(), 50, "{dispatch}, {panicking}");
            assert_eq!(results.returned, 1);
        }
    }
}
