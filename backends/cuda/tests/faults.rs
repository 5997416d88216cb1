//! Sessions on the emulated driver when it refuses memory, a launch fails, the device is lost or a
//! kernel hangs.
//!
//! Each test runs again in a child process that finds the emulated libraries in place of the
//! driver.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use portcullis_core::device::{CancelToken, Device, DeviceError, Dispatch, Imported, LoadOptions, MeasureOptions};
use portcullis_core::program::Program;

mod child;
use child::batches::{FILTERS, batch, bytes, options};
use child::{CHILD, child_passes, child_passes_with, child_succeeds, compiled, device, is_child, program, reference};

/// Far longer than any test takes; a test that exceeds it hangs.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn out_of_memory_is_an_error_and_returns_the_batch() {
    if !is_child() {
        return child_passes("out_of_memory_is_an_error_and_returns_the_batch", "memory=200000");
    }
    let program = program(FILTERS[3]);
    for dispatch in device().info().dispatch {
        let mut session = device().load(&program, &options(*dispatch)).unwrap();
        let text = match session.submit(batch(30_000, 0, 1)) {
            Err(refused) => {
                assert_eq!(refused.batch.len(), 30_000);
                refused.to_string()
            }
            // If the first parts fit, completing the batch reports the error and ends the session.
            Ok(()) => {
                let error = session.complete().unwrap_err();
                session = device().load(&program, &options(*dispatch)).unwrap();
                error.to_string()
            }
        };
        assert!(text.contains("no memory for a batch") && text.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{text}");
        assert_eq!(session.run(batch(60, 0, 1)).unwrap().verdicts.len(), 60, "{dispatch}: smaller ones still go");
    }
}

#[test]
fn memory_that_cannot_be_pinned_is_copied() {
    if !is_child() {
        return child_passes("memory_that_cannot_be_pinned_is_copied", "no-registering");
    }
    let (program, [mut packets, mut want]) = (program(FILTERS[3]), [1, 1].map(|seed| batch(500, 128, seed)));
    let mut session = device().load(&program, &LoadOptions::default()).unwrap();
    assert_eq!(session.import(packets.span()).unwrap(), Imported::Copied);
    let mut warnings = Vec::new();
    for _ in 0..3 {
        packets = session.run(packets).unwrap().batch;
        want = reference(&program).run(want).unwrap().batch;
        assert_eq!(bytes(&packets), bytes(&want));
        warnings.extend(session.take_warnings());
    }
    assert_is_pinning_warning(&warnings);
}

/// Checks that the session has said once that memory cannot be pinned, and why.
fn assert_is_pinning_warning(warnings: &[String]) {
    let [warning] = warnings else { panic!("not one warning: {warnings:?}") };
    for part in ["cuda:0: host memory cannot be pinned", "CUDA_ERROR_OUT_OF_MEMORY", "`ulimit -l`"] {
        assert!(warning.contains(part), "{part}: {warning}");
    }
}

/// A batch for which slots get no pinned memory comes back, and another device may take it.
#[test]
fn batches_without_pinned_memory_are_refused_and_smaller_ones_go_on() {
    if !is_child() {
        let behaviour = "pinned=400000,no-registering";
        return child_passes("batches_without_pinned_memory_are_refused_and_smaller_ones_go_on", behaviour);
    }
    let program = program(FILTERS[3]);
    for dispatch in [Dispatch::Persistent, Dispatch::WaitValue, Dispatch::Graph] {
        let mut session = device().load(&program, &options(dispatch)).unwrap();
        for _ in 0..2 {
            let done = session.run(batch(60, 128, 1)).unwrap();
            assert_eq!(bytes(&done.batch), bytes(&reference(&program).run(batch(60, 128, 1)).unwrap().batch));
            let refused = session.submit(batch(30_000, 128, 1)).unwrap_err();
            let text = refused.error.to_string();
            assert!(matches!(refused.error, DeviceError::Refused(_)), "{dispatch}: {text}");
            assert!(text.contains("cuda:0") && text.contains("cannot be pinned"), "{dispatch}: {text}");
            assert_eq!(bytes(&refused.batch), bytes(&batch(30_000, 128, 1)));
        }
    }
}

/// Without any pinned memory `pipelined` and `inline` copy from and to pageable memory; the other
/// methods, whose kernels access host memory, say what to do.
#[test]
fn without_pinned_memory_filters_run_or_say_what_to_do() {
    if !is_child() {
        let behaviour = "no-pinned-memory,no-registering,pageable";
        return child_passes("without_pinned_memory_filters_run_or_say_what_to_do", behaviour);
    }
    let device = device();
    for (dispatch, body) in device.info().dispatch.iter().flat_map(|dispatch| FILTERS.map(|body| (*dispatch, body))) {
        let program = program(body);
        let mut warnings = Vec::new();
        let mut run = || -> Result<(), DeviceError> {
            let mut session = device.load(&program, &options(dispatch))?;
            for seed in 0..4 {
                let done = session.run(batch(3000, 0, seed))?;
                let want = reference(&program).run(batch(3000, 0, seed))?;
                assert_eq!(done.verdicts, want.verdicts, "{dispatch}: {body}");
                assert_eq!(bytes(&done.batch), bytes(&want.batch), "{dispatch}: {body}");
                warnings.extend(session.take_warnings());
            }
            Ok(())
        };
        match (dispatch, run()) {
            (Dispatch::Pipelined | Dispatch::Inline, ended) => {
                ended.unwrap();
                assert_is_pinning_warning(&warnings);
            }
            (_, ended) => {
                let text = ended.unwrap_err().to_string();
                for part in ["cuda:0: ", "cannot be pinned", "`ulimit -l`", "--dispatch pipelined"] {
                    assert!(text.contains(part), "{dispatch}, {part}: {text}");
                }
            }
        }
    }
    let counts = compiled(
        "//! map seen: array value=1 entries=4
        fn xdp_filter(pkt: u32) -> u32 { seen_add(load_u8(pkt, 0u) & 3u, 0u, 1u); return XDP_PASS; }",
    );
    let mut session = device.load(&counts, &LoadOptions::default()).unwrap();
    session.run(batch(500, 0, 1)).unwrap();
    let mut want = reference(&counts);
    want.run(batch(500, 0, 1)).unwrap();
    assert_eq!(session.map_words(0).unwrap(), want.map_words(0).unwrap());
    session.set_map_words(0, 0, &[7, 8]).unwrap();
    assert_eq!(session.map_words_at(0, 0, 2).unwrap(), [7, 8]);
}

/// A caller that keeps all verdicts uses up the pinned memory for them, also of packets that stay
/// at the device.
#[test]
fn verdicts_are_copied_while_callers_hold_too_many() {
    if !is_child() {
        return child_passes("verdicts_are_copied_while_callers_hold_too_many", "");
    }
    let redirects = "return redirect(load_be16(pkt, 2u));";
    for is_resident in [false, true] {
        let program = program(redirects);
        let options = LoadOptions::default().with_measure(MeasureOptions::default().with_resident(is_resident));
        let mut session = device().load(&program, &options).unwrap();
        let want = reference(&program).run(batch(300, 0, 1)).unwrap().verdicts;
        let (mut next, mut kept) = (batch(300, 0, 1), Vec::new());
        for _ in 0..40 {
            let done = session.run(next).unwrap();
            kept.push(done.verdicts);
            next = done.batch;
        }
        assert!(kept.iter().all(|verdicts| *verdicts == want), "resident: {is_resident}");
        // Verdicts outlive their session.
        drop(session);
        assert_eq!(kept.pop(), Some(want));
    }
}

#[test]
fn a_failed_launch_ends_only_its_session() {
    const TEST: &str = "a_failed_launch_ends_only_its_session";
    let Some(dispatch) = std::env::var(CHILD).ok() else {
        // The first launch is that at load time; the others are of batches, or wait for one.
        for (dispatch, number) in Dispatch::ALL.into_iter().flat_map(|dispatch| (1..4).map(move |n| (dispatch, n))) {
            if (dispatch, number) != (Dispatch::Persistent, 3) {
                child_passes_with(TEST, &format!("launch-fails={number}"), &[(CHILD, dispatch.name())]);
            }
        }
        return;
    };
    let (program, options) = (program(FILTERS[3]), options(dispatch.parse().unwrap()));
    let run = || {
        let mut session = device().load(&program, &options)?;
        session.run(batch(300, 0, 1))?;
        session.run(batch(300, 0, 2)).map(|done| done.verdicts.len())
    };
    let began = Instant::now();
    let text = run().unwrap_err().to_string();
    assert!(text.starts_with("cuda:0: ") && text.contains("CUDA_ERROR_LAUNCH_FAILED"), "{text}");
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    assert_eq!(run(), Ok(300));
}

/// A device that is lost in mid-batch returns no verdicts. Batches in flight give their memory back
/// as it was, and so does a batch that is submitted afterwards.
#[test]
fn batches_of_a_lost_device_come_back_unfiltered() {
    const TEST: &str = "batches_of_a_lost_device_come_back_unfiltered";
    let Some(dispatch) = std::env::var(CHILD).ok() else {
        for dispatch in Dispatch::ALL {
            // After the launch at load time, that of the first batch, which `persistent` kernels
            // wait for.
            child_passes_with(TEST, "launch-fails=2", &[(CHILD, dispatch.name())]);
        }
        return;
    };
    let program = program(FILTERS[3]);
    let mut session = device().load(&program, &options(dispatch.parse().unwrap())).unwrap();
    let mut in_flight = Vec::new();
    let mut refused = None;
    for seed in 1..=session.depth() as u32 {
        let next = batch(300, 0, seed);
        let span = next.span().clone();
        match session.submit(next) {
            Ok(()) => in_flight.push(span),
            Err(error) => refused = Some((seed, error)),
        }
    }
    let lost = |error: &DeviceError| {
        let text = error.to_string();
        assert!(text.starts_with("cuda:0: ") && text.contains("CUDA_ERROR_LAUNCH_FAILED"), "{text}");
    };
    let before = |seed: u32| bytes(&batch(300, 0, seed));
    if let Some((seed, error)) = refused {
        lost(&error.error);
        assert_eq!(bytes(&error.batch), before(seed));
    }
    lost(&session.complete().unwrap_err());
    assert_eq!(session.in_flight(), 0);
    assert_eq!(session.complete().unwrap().map(|done| done.verdicts), None, "nothing is in flight");
    let error = session.submit(batch(300, 0, 9)).unwrap_err();
    lost(&error.error);
    assert_eq!(bytes(&error.batch), before(9));
    drop(session);
    // A thread may be waiting for the device first.
    let began = Instant::now();
    while in_flight.iter().any(|span| Arc::strong_count(span) > 1) {
        assert!(began.elapsed() < TEST_TIMEOUT, "the memory is not its owner's again");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs a test's body in a thread, and panics if it does not end in time.
fn with_timeout(work: impl FnOnce() + Send + 'static) {
    let (done, outcome) = channel();
    let thread = std::thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    match outcome.recv_timeout(TEST_TIMEOUT) {
        Err(RecvTimeoutError::Timeout) => panic!("a device that hangs is waited for"),
        Ok(()) | Err(RecvTimeoutError::Disconnected) => {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    }
}

/// A token that is cancelled after a second.
fn cancel_after_a_second() -> CancelToken {
    let token = CancelToken::new();
    let used = token.clone();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(1));
        used.cancel();
    });
    token
}

#[test]
fn a_hanging_session_blocks_no_other() {
    const TEST: &str = "a_hanging_session_blocks_no_other";
    let Some(dispatch) = std::env::var(CHILD).ok() else {
        // The last check waits ten seconds, so the children run concurrently.
        std::thread::scope(|scope| {
            for dispatch in Dispatch::ALL {
                scope.spawn(move || {
                    // After three launches at load time, the launch of the first batch.
                    child_succeeds(TEST, "hang=4,linger=200", &[(CHILD, dispatch.name())]);
                });
            }
        });
        return;
    };
    with_timeout(move || {
        let program = program(FILTERS[3]);
        let others = [1, 2].map(|seed| {
            let mut other = device().load(&program, &LoadOptions::default()).unwrap();
            other.import(batch(3000, 128, seed).span()).unwrap();
            other
        });
        let cancel = CancelToken::new();
        let options = options(dispatch.parse().unwrap()).with_cancel(cancel.clone());
        let mut hangs = device().load(&program, &options).unwrap();
        let hanging = std::thread::spawn(move || hangs.run(batch(300, 0, 1)).err());
        std::thread::sleep(Duration::from_millis(100));
        let quickly = |began: Instant| assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        // Releases are deferred and block nobody, now and while the session is being abandoned.
        let [first, second] = others;
        let began = Instant::now();
        drop(first);
        quickly(began);
        // Work that needs a quiescent device is refused, or ends by its token.
        let began = Instant::now();
        let token = LoadOptions::default().with_cancel(cancel_after_a_second());
        assert_eq!(device().load(&program, &token).err(), Some(DeviceError::Cancelled));
        quickly(began);
        let began = Instant::now();
        let dropping = std::thread::spawn(move || drop(second));
        std::thread::sleep(Duration::from_millis(100));
        cancel.cancel();
        assert_eq!(hanging.join().unwrap(), Some(DeviceError::Cancelled));
        quickly(began);
        dropping.join().unwrap();
        quickly(began);
        let text = device().load(&program, &LoadOptions::default()).err().unwrap().to_string();
        assert!(text.contains("cannot be used") && text.contains("busy with a batch that was given up"), "{text}");
    });
}

#[test]
fn a_failed_quiescent_period_frees_nothing_beside_resident_kernels() {
    const TEST: &str = "a_failed_quiescent_period_frees_nothing_beside_resident_kernels";
    if !is_child() {
        // With the cache, loading the filter again takes no time.
        let cache = tempfile::tempdir().unwrap();
        child_succeeds(TEST, "hang=5,linger=200", &[("PORTCULLIS_CACHE", cache.path().to_str().unwrap())]);
        return;
    }
    with_timeout(|| {
        let program = program(FILTERS[3]);
        let load = |dispatch, cancel| device().load(&program, &options(dispatch).with_cancel(cancel));
        drop(load(Dispatch::Inline, CancelToken::new()).unwrap());
        let mut resident = load(Dispatch::Persistent, CancelToken::new()).unwrap();
        let cancel = CancelToken::new();
        let mut hangs = load(Dispatch::WaitValue, cancel.clone()).unwrap();
        resident.run(batch(50, 128, 1)).unwrap();
        hangs.submit(batch(300, 0, 1)).unwrap();
        std::thread::scope(|scope| {
            // Loading waits for all resident kernels to leave, until it is cancelled.
            let waiting = scope.spawn(|| load(Dispatch::Inline, cancel_after_a_second()).err());
            std::thread::sleep(Duration::from_millis(100));
            // Whoever waits has the last reference to these kernels now, and releases them.
            drop(resident);
            assert_eq!(waiting.join().unwrap(), Some(DeviceError::Cancelled));
        });
        cancel.cancel();
        assert_eq!(hangs.complete().err(), Some(DeviceError::Cancelled));
    });
}

#[test]
fn a_filter_that_hangs_at_load_time_blocks_no_other_session() {
    if !is_child() {
        child_succeeds("a_filter_that_hangs_at_load_time_blocks_no_other_session", "hang-plain", &[]);
        return;
    }
    with_timeout(|| {
        let program = program(FILTERS[3]);
        let mut session = device().load(&program, &options(Dispatch::Persistent)).unwrap();
        assert_eq!(session.run(batch(300, 0, 1)).unwrap().verdicts.len(), 300);
        let cancel = CancelToken::new();
        let load = || device().load(&program, &LoadOptions::default().with_cancel(cancel.clone())).err();
        std::thread::scope(|scope| {
            let loading = scope.spawn(load);
            // Compiling takes part of that time.
            for seed in 0..100 {
                let began = Instant::now();
                assert_eq!(session.run(batch(300, 0, seed)).unwrap().verdicts.len(), 300);
                assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
                std::thread::sleep(Duration::from_millis(20));
            }
            cancel.cancel();
            assert_eq!(loading.join().unwrap(), Some(DeviceError::Cancelled));
        });
    });
}

#[test]
fn a_hanging_kernel_is_abandoned() {
    let Some(dispatch) = std::env::var(CHILD).ok() else {
        // The first launch is that at load time, the later one that of the second batch;
        // `persistent` launches nothing for a batch, so there it is the first batch's, or that
        // queued after it.
        for (dispatch, later) in Dispatch::ALL.into_iter().flat_map(|dispatch| [(dispatch, false), (dispatch, true)]) {
            let number = if dispatch == Dispatch::Persistent { 2 } else { 3 };
            let behaviour = format!("hang={},linger=200", if later { number } else { 1 });
            child_succeeds("a_hanging_kernel_is_abandoned", &behaviour, &[(CHILD, dispatch.name())]);
        }
        // Copies to pageable memory block, but not before the kernel has ended.
        for dispatch in [Dispatch::Pipelined, Dispatch::Inline] {
            let behaviour = "hang=3,linger=200,no-pinned-memory,no-registering,pageable";
            child_succeeds("a_hanging_kernel_is_abandoned", behaviour, &[(CHILD, dispatch.name())]);
        }
        return;
    };
    with_timeout(move || cancel_while_a_kernel_hangs(dispatch.parse().unwrap(), &program(FILTERS[3])));
}

/// Cancels while a kernel hangs, and checks that nothing waits for it and that the packets' memory
/// stays allocated.
fn cancel_while_a_kernel_hangs(dispatch: Dispatch, program: &Arc<Program>) {
    let cancel = CancelToken::new();
    let options = options(dispatch).with_cancel(cancel.clone());
    let after = {
        let cancel = cancel.clone();
        move || {
            std::thread::sleep(Duration::from_secs(2));
            cancel.cancel();
        }
    };
    let began = Instant::now();
    let canceller = std::thread::spawn(after);
    let run = || -> Result<(), DeviceError> {
        let mut session = device().load(program, &options)?;
        // Close together, so that they are copied from where they lie.
        let mut pass = || {
            session.submit(batch(300, 128, 1)).map_err(|refused| refused.error)?;
            session.complete()
        };
        let ended = pass().and_then(|_| pass());
        assert_eq!(session.in_flight(), 0);
        drop(session);
        ended.map(|_| ())
    };
    assert_eq!(run(), Err(DeviceError::Cancelled), "{dispatch}");
    assert!(began.elapsed() < Duration::from_secs(15), "{dispatch}: {:?}", began.elapsed());
    canceller.join().unwrap();
}
