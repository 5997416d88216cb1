//! Compares every stock filter, in both languages, over every corpus and on every device, with its
//! model and the reference interpreter: verdicts, lengths and bytes.

use std::sync::Arc;

use portcullis_compat_tests::corpora::{self, Corpus};
use portcullis_compat_tests::models::{self, Outcome};
use portcullis_compat_tests::{devices, layouts, stock};
use portcullis_core::device::{Device, DeviceKind, LoadOptions, Session};
use portcullis_core::diagnostics::Source;
use portcullis_core::packet::ResizeRoom;
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_opencl_c as opencl_c;
use portcullis_opencl_c::files::NoIncludes;
use portcullis_wgsl as wgsl;

/// Packets per batch: not a power of two, so that batches end within a group of packets.
const BATCH: usize = 3001;

/// Returns every stock filter: name, file extension, program.
fn programs() -> Vec<(&'static str, &'static str, Arc<Program>)> {
    let options = ProgramOptions::default();
    let source = |name: &str, ending: &str, text: &str| Source::new(format!("{name}.{ending}"), text);
    let in_wgsl =
        stock::FILTERS.iter().map(|&(name, text)| (name, "wgsl", wgsl::compile(&source(name, "wgsl", text), &options)));
    let in_c = stock::FILTERS_IN_C
        .iter()
        .map(|&(name, text)| (name, "cl", opencl_c::compile(&source(name, "cl", text), &options, &mut NoIncludes)));
    let compiled = in_wgsl.chain(in_c);
    compiled.map(|(name, ending, p)| (name, ending, Arc::new(p.unwrap_or_else(|e| panic!("{}", e.render()))))).collect()
}

fn run(session: &mut dyn Session, packets: &[Vec<u8>], room: ResizeRoom) -> Vec<Outcome> {
    let mut outcomes = Vec::with_capacity(packets.len());
    let (batches, guarded) = layouts::batches(packets, BATCH, room);
    for batch in batches {
        let done = session.run(batch).unwrap_or_else(|e| panic!("{e}"));
        let packets = done.batch.packets().map(<[u8]>::to_vec);
        outcomes.extend(done.verdicts.iter().zip(packets).map(|(verdict, bytes)| Outcome { verdict, bytes }));
    }
    assert_eq!(guarded.stray_write(), None, "a byte that belongs to no packet was written to");
    outcomes
}

/// Panics at the first packet whose outcome differs, with the packet and both outcomes.
fn compare(what: &str, packets: &[Vec<u8>], got: &[Outcome], want: &[Outcome]) {
    assert_eq!(got.len(), packets.len(), "{what}: number of outcomes");
    for (i, ((packet, got), want)) in packets.iter().zip(got).zip(want).enumerate() {
        assert!(
            got == want,
            "{what}: packet {i} of {} bytes\n  packet {packet:02x?}\n  got    {got:02x?}\n  want   {want:02x?}",
            packet.len()
        );
    }
}

/// Runs every filter over the corpus on `device`.
fn check(device: &Arc<dyn Device>, corpus: &Corpus) {
    for (name, ending, program) in programs() {
        let what = format!("{name}.{ending} on {} over {}", device.info().id, corpus.name);
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
