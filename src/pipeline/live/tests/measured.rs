//! Warm-ups, packet limits, and packets dropped for overload.

use super::*;

/// An executor that blocks on the second batch until all packets have been received.
struct BlockingExecutor {
    executor: RecordingExecutor,
    all_came: CancelToken,
}

impl Executor for BlockingExecutor {
    fn execute(&mut self, done: Completion) -> Result<(), LiveError> {
        if !self.executor.batches.lock().unwrap().is_empty() {
            self.all_came.wait();
        }
        self.executor.execute(done)
    }

    fn poll(&mut self) -> Result<(), LiveError> {
        Ok(())
    }

    fn is_busy(&self) -> bool {
        false
    }

    fn executed(&self) -> &ExecutedCounts {
        self.executor.executed()
    }
}

/// Runs one lane with batches of 100 packets. Returns its statistics and the numbers of the
/// executed packets, by batch.
fn run_one(
    script: Vec<Step>,
    options: impl FnOnce(LiveOptions) -> LiveOptions,
    dispatch: Dispatch,
    (stop, all_came): (CancelToken, CancelToken),
) -> (Arc<LaneStats>, Vec<Vec<u32>>) {
    let options = options(LiveOptions::new(BatchPolicy::fixed(100, Duration::from_secs(3600)), dispatch));
    let session = InterpDevice::new().load(&program(), &load_options(dispatch).with_depth(1)).unwrap();
    let executor = RecordingExecutor::default();
    let batches = executor.batches.clone();
    let (receiver, executor) =
        (Box::new(ScriptedReceiver::new(script)), Box::new(BlockingExecutor { executor, all_came }));
    let lanes = vec![LiveLane::new(Lane { name: "lane".into(), memory: None, receiver, executor }, session)];
    let stats = Arc::new(LaneStats::default());
    let (_, error) = run_live(lanes, std::slice::from_ref(&stats), &options, &stop, || {}, &mut |_: Event<'_>| {});
    assert!(error.is_none(), "{error:?}");
    let batches = batches.lock().unwrap();
    let numbers = batches.iter().map(|batch| batch.iter().map(|(number, _)| *number).collect()).collect();
    (stats, numbers)
}

fn cancelled() -> CancelToken {
    let token = CancelToken::new();
    token.cancel();
    token
}

#[test]
fn the_warm_up_is_not_measured_and_the_limit_ends_the_run() {
    for dispatch in BOTH {
        let (stats, batches, window) = returning_in_time(move || {
            let stop = CancelToken::new();
            let window = Arc::new(MeasurementWindow::new(250, Some(320), stop.clone()));
            let measured = |options: LiveOptions| options.with_window(window.clone());
            let script = vec![Step::Packets(120), Step::Nothing, Step::Packets(1000)];
            let (stats, batches) = run_one(script, measured, dispatch, (stop, cancelled()));
            (stats, batches, window)
        });
        assert_eq!(batches.concat(), (0..570).collect::<Vec<_>>(), "{dispatch}");
        let sizes: Vec<usize> = batches.iter().map(Vec::len).collect();
        assert_eq!(sizes, [100, 100, 50, 100, 100, 100, 20], "{dispatch}");
        assert!(
            window.is_warmed_up()
                && window.received_packets() == 570
                && window.elapsed().is_some_and(|elapsed| !elapsed.is_zero())
        );
        let measured = stats.measured_snapshot().expect("the warm-up is over");
        assert_eq!((measured.received.packets, measured.executed.all(), measured.batches), (320, 320, 4), "{dispatch}");
        let verdicts = VerdictCounts { drop: 160, pass: 160, ..VerdictCounts::default() };
        assert_eq!((measured.verdicts, measured.latency.len()), (verdicts, 320), "{dispatch}");
        let all = stats.snapshot();
        assert_eq!((all.received.packets, all.executed.all(), all.batches), (570, 570, 7), "{dispatch}");
    }
}

#[test]
fn nothing_is_measured_during_the_warm_up() {
    for dispatch in BOTH {
        let stats = returning_in_time(move || {
            let stop = CancelToken::new();
            let window = Arc::new(MeasurementWindow::new(251, None, stop.clone()));
            let script = vec![Step::Packets(250), Step::Stop(stop.clone())];
            let measured = |options: LiveOptions| options.with_window(window.clone());
            let (stats, _) = run_one(script, measured, dispatch, (stop, cancelled()));
            assert!(!window.is_warmed_up() && window.elapsed().is_none());
            stats
        });
        assert!(stats.measured_snapshot().is_none(), "{dispatch}");
        let all = stats.snapshot();
        assert_eq!((all.executed.all(), all.latency.len()), (250, 0), "{dispatch}");
    }
}

#[test]
fn batches_beyond_the_queue_limits_are_dropped_and_counted() {
    // `queued` is the maximum number of queued batches, besides the first one and the one that the
    // executor has.
    for (batches, packets, queued) in [(3, 10_000, 3), (1000, 250, 2), (1000, 10, 1)] {
        for warm_up in [0, 500] {
            let (stats, executed_packets) = returning_in_time(move || {
                let (stop, all_came) = (CancelToken::new(), CancelToken::new());
                let script = vec![Step::Packets(3000), Step::Stop(all_came.clone()), Step::Stop(stop.clone())];
                let window = Some(Arc::new(MeasurementWindow::new(warm_up, None, stop.clone())));
                let options = |options: LiveOptions| {
                    options
                        .with_window(window)
                        .with_overload(OverloadPolicy::Drop { max_batches: batches, max_packets: packets })
                };
                run_one(script, options, Dispatch::Pipelined, (stop, all_came))
            });
            let numbers = executed_packets.concat();
            assert!(
                executed_packets.iter().all(|batch| batch.len() == 100) && numbers.is_sorted(),
                "{executed_packets:?}"
            );
            assert!(
                (queued..=queued + 2).contains(&executed_packets.len()),
                "{batches}, {packets}: {}",
                executed_packets.len()
            );
            let all = stats.snapshot();
            assert_eq!((all.received.packets, all.executed.all()), (3000, 3000));
            assert_eq!(all.executed.losses.of(Loss::Overload), 3000 - numbers.len() as u64);
            assert_eq!(stats.packets_in_flight(), 0);
            let measured = stats.measured_snapshot().expect("the warm-up is over");
            let warm = |packets: &[u32]| packets.iter().filter(|number| u64::from(**number) < warm_up).count() as u64;
            assert_eq!((measured.received.packets, measured.executed.all()), (3000 - warm_up, 3000 - warm_up));
            let lost = 3000 - warm_up - (numbers.len() as u64 - warm(&numbers));
            assert_eq!(measured.executed.losses.of(Loss::Overload), lost);
        }
    }
}

#[test]
fn losses_before_the_first_measured_batch_completes_are_measured() {
    let received = |packets| ReceivedCounts { packets, ..ReceivedCounts::default() };
    for (warm_up, executed_packets, dropped) in [(0, 0, 0), (0, 0, 30), (50, 50, 0), (50, 20, 30)] {
        let stats = LaneStats::default();
        let mut executed = ExecutedCounts::default();
        executed.packets[Action::Tx as usize] = executed_packets;
        stats.set_executed(&executed);
        stats.start_measuring_rx(received(warm_up));
        stats.record_overload_drop(dropped);
        stats.set_received(received(warm_up + 100));
        stats.record_failure();
        let measured = stats.measured_snapshot().expect("the warm-up is over");
        assert_eq!(
            (measured.received.packets, measured.executed.all()),
            (100, 100),
            "{warm_up}, {executed_packets}, {dropped}"
        );
        assert_eq!(measured.executed.losses.of(Loss::Overload), dropped as u64);
        // Packets of the warm-up that were lost with the lane are not measured.
        assert_eq!(stats.snapshot().executed.all(), warm_up + 100);
    }
}
