//! Code that is compiled while a session filters must not be noticeable except in speed.

mod stock;

use std::num::NonZeroUsize;
use std::sync::Arc;

use portcullis_core::device::{CancelToken, Device, DeviceError, LoadOptions, Session};
use portcullis_core::interp::InterpDevice;
use portcullis_core::packet::{Batch, Verdicts};
use portcullis_core::program::Program;
use portcullis_cpu::Cpu;

/// Filters that have vector code.
const NAMES: [&str; 3] = ["port_filter", "http_only", "hash_lb"];

fn program(name: &str) -> Arc<Program> {
    let found = stock::stock().into_iter().find(|(it, _)| it.split('.').next() == Some(name));
    found.unwrap_or_else(|| panic!("no filter named {name}")).1
}

fn options(threads: usize) -> LoadOptions {
    LoadOptions::default().with_threads(NonZeroUsize::new(threads)).with_depth(3)
}

fn packets(count: usize) -> Vec<Vec<u8>> {
    stock::packets().into_iter().cycle().take(count).collect()
}

fn expected(program: &Arc<Program>, packets: &[Vec<u8>]) -> Verdicts {
    let mut session = InterpDevice::new().load(program, &LoadOptions::default()).unwrap();
    session.run(Batch::from_packets(packets).unwrap()).unwrap().verdicts
}

/// Runs `batches` batches, as many in flight as allowed, and compares their verdicts.
fn assert_verdicts(session: &mut dyn Session, batches: usize, packets: &[Vec<u8>], want: &Verdicts) {
    let mut sent = 0;
    for _ in 0..batches {
        while sent < batches && session.in_flight() < session.depth() {
            session.submit(Batch::from_packets(packets).unwrap()).unwrap();
            sent += 1;
        }
        assert!(session.complete().unwrap().expect("a batch is in flight").verdicts == *want);
    }
}

#[test]
fn verdicts_agree_with_the_interpreter_before_during_and_after_compilation() {
    for name in NAMES {
        let program = program(name);
        for (threads, count) in [(1, 61), (1, 20_011), (3, 20_011)] {
            let packets = packets(count);
            let want = expected(&program, &packets);
            let mut session = Cpu::new().load(&program, &options(threads)).unwrap();
            assert_verdicts(&mut *session, 40, &packets, &want);
            session.finish_background_work();
            assert_verdicts(&mut *session, 40, &packets, &want);
            // A second call has nothing to wait for.
            session.finish_background_work();
            assert_verdicts(&mut *session, 2, &packets, &want);
        }
    }
}

/// Batches submitted before the code is ready are completed after it.
#[test]
fn batches_in_flight_complete_while_code_is_added() {
    let program = program("http_only");
    let packets = packets(10_007);
    let want = expected(&program, &packets);
    let mut session = Cpu::new().load(&program, &options(2)).unwrap();
    for _ in 0..3 {
        session.submit(Batch::from_packets(&packets).unwrap()).unwrap();
    }
    session.finish_background_work();
    for _ in 0..3 {
        assert!(session.complete().unwrap().expect("a batch is in flight").verdicts == want);
    }
}

#[test]
fn sessions_can_be_dropped_during_compilation() {
    let program = program("http_only");
    let packets = packets(20_011);
    let want = expected(&program, &packets);
    for rounds in 0..24 {
        let mut session = Cpu::new().load(&program, &options(1 + rounds % 2)).unwrap();
        assert_verdicts(&mut *session, rounds, &packets, &want);
        // Every other time with a batch in flight.
        if rounds % 2 == 0 {
            session.submit(Batch::from_packets(&packets).unwrap()).unwrap();
        }
    }
}

#[test]
fn sessions_of_a_program_are_independent() {
    let program = program("port_filter");
    let packets = packets(5003);
    let want = expected(&program, &packets);
    let cpu = Cpu::new();
    let mut sessions: Vec<_> = (0..4).map(|_| cpu.load(&program, &options(1)).unwrap()).collect();
    for round in 0..8 {
        sessions.iter_mut().for_each(|session| assert_verdicts(&mut **session, 20, &packets, &want));
        if round == 3 {
            drop(sessions.remove(1));
            sessions[0].finish_background_work();
        }
    }
}

#[test]
fn cancellation_takes_effect_after_background_compilation() {
    let cancel = CancelToken::new();
    let options = options(2).with_cancel(cancel.clone());
    let mut session = Cpu::new().load(&program("http_only"), &options).unwrap();
    let packets = packets(20_011);
    let want = expected(&program("http_only"), &packets);
    assert_verdicts(&mut *session, 20, &packets, &want);
    cancel.cancel();
    session.finish_background_work();
    assert!(matches!(session.run(Batch::from_packets(&packets).unwrap()), Err(DeviceError::Cancelled)));
}
