//! Compares every stock filter, in both languages, over every corpus and on every device, with its
//! model and the reference interpreter: verdicts, lengths and bytes.

use std::sync::Arc;

use portcullis_compat_tests::corpora::{self, Corpus};
use portcullis_compat_tests::models::{self, Outcome, compare};
use portcullis_compat_tests::{devices, layouts, stock};
use portcullis_core::device::{Device, DeviceKind, LoadOptions, Session};
use portcullis_core::packet::ResizeRoom;
use portcullis_core::program::Program;

/// Packets per batch: not a power of two, so that batches end within a group of packets.
const BATCH: usize = 3001;

/// Returns the name and program of every stock filter without maps.
fn programs() -> impl Iterator<Item = (&'static str, Arc<Program>)> {
    stock::in_wgsl(stock::FILTERS).chain(stock::in_opencl_c(stock::FILTERS_IN_C))
}

fn run(session: &mut dyn Session, packets: &[Vec<u8>], room: ResizeRoom) -> Vec<Outcome> {
    let mut outcomes = Vec::with_capacity(packets.len());
    let (batches, guarded) = layouts::batches(packets, BATCH, room);
    for batch in batches {
        let done = session.run(batch).unwrap_or_else(|e| panic!("{e}"));
        outcomes.extend(models::outcomes(&done));
    }
    assert_eq!(guarded.stray_write(), None, "a byte that belongs to no packet was written to");
    outcomes
}

/// Runs every filter over the corpus on `device`.
fn check(device: &Arc<dyn Device>, corpus: &Corpus) {
    for (name, program) in programs() {
        let what = format!("{} on {} over {}", program.source().name, device.info().id, corpus.name);
        let want: Vec<Outcome> = corpus.packets.iter().map(|packet| models::outcome(name, packet)).collect();
        let mut session = device.load(&program, &LoadOptions::default()).unwrap_or_else(|e| panic!("{what}: {e}"));
        compare(&what, &corpus.packets, &run(&mut *session, &corpus.packets, ResizeRoom::Both), &want);
        // The layout does not matter to the interpreter, which runs packets one by one.
        if !program.facts().changes_length && device.info().kind != DeviceKind::Reference {
            compare(&what, &corpus.packets, &run(&mut *session, &corpus.packets, ResizeRoom::None), &want);
        }
    }
}

#[test]
fn over_hostile_packets() {
    let corpus = corpora::hostile();
    devices::on_each("stock filters, hostile packets", |device| check(device, &corpus));
}

#[test]
fn over_synthetic_traffic() {
    let corpus = corpora::synthetic();
    devices::on_each("stock filters, synthetic traffic", |device| check(device, &corpus));
}

#[test]
fn over_captures() {
    let suite = "stock filters, captures";
    let captures = match corpora::captures() {
        Ok(captures) => captures,
        Err(reason) => return devices::record(suite, "all", "skipped", &reason),
    };
    let mut all = Corpus { name: "the captures".into(), packets: Vec::new() };
    for (corpus, fault) in captures {
        if let Some(fault) = fault {
            println!("{}: {} packets, then: {fault}", corpus.name, corpus.packets.len());
        }
        all.packets.extend(corpus.packets);
    }
    assert!(!all.packets.is_empty(), "the captures have no packets");
    devices::on_each(suite, |device| check(device, &all));
}

/// The hostile packets reach every verdict of every filter; otherwise they would prove little.
#[test]
fn hostile_packets_reach_every_verdict() {
    let corpus = corpora::hostile();
    for (name, least) in [
        ("simple_filter", &["drop", "pass"][..]),
        ("port_filter", &["drop", "pass"]),
        ("minimal", &["pass"]),
        ("complex_filter", &["drop", "pass"]),
        ("http_only", &["drop", "pass"]),
        ("hash_lb", &["pass", "redirect"]),
        ("mac_swap", &["drop", "tx"]),
        ("dscp_mark", &["pass"]),
        ("vlan_pop", &["pass"]),
        ("sampler", &["drop", "pass"]),
    ] {
        let outcomes: Vec<Outcome> = corpus.packets.iter().map(|packet| models::outcome(name, packet)).collect();
        for action in least {
            let count = outcomes.iter().filter(|o| o.verdict.action().name() == *action).count();
            assert!(count >= 100, "{name}: {action} {count} times");
        }
    }
}

/// The comparison can fail: it detects a device that passes every packet.
#[test]
#[should_panic(expected = "simple_filter.wgsl on noop over hostile packets: packet")]
fn an_incorrect_device_is_detected() {
    let device: Arc<dyn Device> = Arc::new(portcullis::device::noop::NoopDevice::new());
    check(&device, &corpora::hostile());
}
