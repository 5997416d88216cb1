//! Code that comes while a session filters: nobody can tell but by the time that is taken.

mod stock;

use std::num::NonZeroUsize;
use std::sync::Arc;

use portcullis_core::device::{CancelToken, Device, DeviceError, LoadOptions, Session};
use portcullis_core::interp::InterpDevice;
use portcullis_core::packet::{Batch, Verdicts};
use portcullis_core::program::Program;
use portcullis_cpu::Cpu;

/// Of those that have code for several packets at once.
const NAMES: [&str; 3] = ["port_filter", "http_only", "hash_lb"];

fn program(name: &str) -> Arc<Program> {
    let found = stock::stock().into_iter().find(|(it, _)| it.split('.').next() == Some(name));
    found.unwrap_or_else(|| panic!("there is a filter {name}")).1
}

fn options(threads: usize) -> LoadOptions {
    LoadOptions { threads: NonZeroUsize::new(threads), depth: 3, ..LoadOptions::default() }
}

fn packets(count: usize) -> Vec<Vec<u8>> {
    stock::packets().into_iter().cycle().take(count).collect()
}

fn expected(program: &Arc<Program>, packets: &[Vec<u8>]) -> Verdicts {
    let mut session = InterpDevice::new().load(program, &LoadOptions::default()).unwrap();
    session.run(Batch::from_packets(packets).unwrap()).unwrap().verdicts
}

/// So many batches, as many in flight as there may be.
fn is_right(session: &mut dyn Session, batches: usize, packets: &[Vec<u8>], want: &Verdicts) {
    let mut sent = 0;
    for _ in 0..batches {
        while sent < batches && session.in_flight() < session.depth() {
            session.submit(Batch::from_packets(packets).unwrap()).unwrap();
            sent += 1;
        }
        assert!(session.complete().unwrap().expect("there is one").verdicts == *want);
    }
}

#[test]
fn verdicts_are_the_interpreters_before_and_after_and_while_it_comes() {
    for name in NAMES {
        let program = program(name);
        for (threads, count) in [(1, 61), (1, 20_011), (3, 20_011)] {
            let packets = packets(count);
            let want = expected(&program, &packets);
            let mut session = Cpu::new().load(&program, &options(threads)).unwrap();
            is_right(&mut *session, 40, &packets, &want);
            session.finish_background_work();
            is_right(&mut *session, 40, &packets, &want);
            // Again there is nothing to wait for.
            session.finish_background_work();
            is_right(&mut *session, 2, &packets, &want);
        }
    }
}

/// Batches that were sent before the code came are filtered behind it.
#[test]
fn batches_in_flight_are_filtered_all_the_same() {
    let program = program("http_only");
    let packets = packets(10_007);
    let want = expected(&program, &packets);
    let mut session = Cpu::new().load(&program, &options(2)).unwrap();
    for _ in 0..3 {
        session.submit(Batch::from_packets(&packets).unwrap()).unwrap();
    }
    session.finish_background_work();
    for _ in 0..3 {
        assert!(session.complete().unwrap().expect("there is one").verdicts == want);
    }
}

#[test]
fn sessions_end_while_it_is_made() {
    let program = program("http_only");
    let packets = packets(20_011);
    let want = expected(&program, &packets);
    for rounds in 0..24 {
        let mut session = Cpu::new().load(&program, &options(1 + rounds % 2)).unwrap();
        is_right(&mut *session, rounds, &packets, &want);
        // With a batch under way, every other time.
        if rounds % 2 == 0 {
            session.submit(Batch::from_packets(&packets).unwrap()).unwrap();
        }
    }
}

#[test]
fn several_sessions_of_a_program_are_strangers() {
    let program = program("port_filter");
    let packets = packets(5003);
    let want = expected(&program, &packets);
    let cpu = Cpu::new();
    let mut sessions: Vec<_> = (0..4).map(|_| cpu.load(&program, &options(1)).unwrap()).collect();
    for round in 0..8 {
        sessions.iter_mut().for_each(|session| is_right(&mut **session, 20, &packets, &want));
        if round == 3 {
            drop(sessions.remove(1));
            sessions[0].finish_background_work();
        }
    }
}

#[test]
fn whoever_cancels_gets_an_end() {
    let cancel = CancelToken::new();
    let options = LoadOptions { cancel: cancel.clone(), ..options(2) };
    let mut session = Cpu::new().load(&program("http_only"), &options).unwrap();
    let packets = packets(20_011);
    let want = expected(&program("http_only"), &packets);
    is_right(&mut *session, 20, &packets, &want);
    cancel.cancel();
    session.finish_background_work();
    assert!(matches!(session.run(Batch::from_packets(&packets).unwrap()), Err(DeviceError::Cancelled)));
}
