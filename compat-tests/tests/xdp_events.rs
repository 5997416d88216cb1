//! Events of XDP programs (ring buffers, perf buffers, `bpf_printk`) from large batches, and random
//! numbers, on every device. `xdp_objects` compares each packet's events with the kernel's.
#![cfg(target_os = "linux")]

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use portcullis::packet_io::synth::Random;
use portcullis_compat_tests::{devices, layouts, objects};
use portcullis_core::device::{Device, LoadOptions};
use portcullis_core::packet::ResizeRoom;
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_xdp as xdp;
use portcullis_xdp::events::{EventCounts, EventPayload, EventReader};

/// Compiles a source and returns one of its programs, or `None` if there is no compiler.
fn program(source: &str, name: &str, random_seed: u32) -> Option<Arc<Program>> {
    if objects::is_missing("events of objects") {
        return None;
    }
    let options = ProgramOptions::default().with_random_seed(random_seed);
    Some(objects::program(source, &objects::object(source), name, &options))
}

/// Runs packets in batches of `batch` packets and reads the events after each batch. Returns them
/// by map, sorted, with their counts.
fn run_and_read_events(
    device: &dyn Device,
    program: &Arc<Program>,
    packets: &[Vec<u8>],
    batch: usize,
) -> (BTreeMap<String, Vec<Vec<u8>>>, EventCounts) {
    let mut session = device.load(program, &LoadOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    let mut drain = EventReader::begin(program, &mut *session).unwrap().expect("the program writes events");
    let mut by_map: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
    let (batches, _) = layouts::batches(packets, batch, ResizeRoom::Both);
    for batch in batches {
        session.run(batch).unwrap_or_else(|error| panic!("{error}"));
        let mut take = |event: xdp::events::Event<'_>| {
            let bytes = match event.payload {
                EventPayload::Data(data) => data,
                EventPayload::WithPacket { data, packet, .. } => [data, packet].concat(),
                EventPayload::Text(text) => text.into_bytes(),
            };
            by_map.entry(event.ring.name.clone()).or_default().push(bytes);
        };
        drain.read(&mut *session, Some(&mut take)).unwrap_or_else(|error| panic!("{error}"));
    }
    // The order of events within a batch is unspecified.
    by_map.values_mut().for_each(|records| records.sort());
    (by_map, drain.counts())
}

/// Returns distinct Ethernet frames.
fn packets(count: usize) -> Vec<Vec<u8>> {
    let mut random = Random::new(7, 3);
    let packet = |number: usize| {
        let length = 60 + random.below(90) as usize;
        let mut packet: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
        packet[12..14].copy_from_slice(&if number.is_multiple_of(3) { [0x86, 0xdd] } else { [8, 0] });
        packet
    };
    (0..count).map(packet).collect()
}

#[test]
fn large_batches_deliver_every_event() {
    let packets = packets(3000);
    let programs = [
        ("events_ringbuf", "ring_output_part"),
        ("events_ringbuf", "ring_burst"),
        ("events_perf", "perf_sample"),
        ("events_print", "print_many"),
        ("random", "random_several"),
    ];
    let programs = programs.map(|(source, name)| program(source, name, 0));
    if programs.iter().any(Option::is_none) {
        return;
    }
    let programs: Vec<_> = programs.into_iter().flatten().collect();
    let cpu = portcullis::devices::open("cpu").unwrap();
    let want: Vec<_> = programs.iter().map(|program| run_and_read_events(&*cpu, program, &packets, 1)).collect();
    devices::on_each("events of batches", |device| {
        for (program, want) in programs.iter().zip(&want) {
            for batch in [1000, 3000] {
                let got = run_and_read_events(&**device, program, &packets, batch);
                let name = &portcullis_xdp::ObjectInfo::of(program).expect("compiled from an object").program;
                assert_eq!(got.1, want.1, "{}: {name}, batches of {batch}", device.info().id);
                assert!(got.0 == want.0, "{}: {name}, batches of {batch}: events differ", device.info().id);
                assert_eq!(got.1.lost, 0);
            }
        }
    });
}

#[test]
fn lost_events_are_counted() {
    let Some(program) = program("events_ringbuf", "ring_burst", 0) else { return };
    let slots = portcullis_xdp::ObjectInfo::of(&program).expect("compiled from an object").rings[0].slots as usize;
    // Each packet writes six events: seven iterations, the third of which discards its record.
    let count = slots / 6 + 5000;
    let packets: Vec<Vec<u8>> = (0..count).map(|number| vec![number as u8; 63]).collect();
    let (room, all) = (slots as u64, 6 * count as u64);
    devices::on_each("lost events", |device| {
        if device.info().id == "interp" {
            return;
        }
        let (by_map, counts) = run_and_read_events(&**device, &program, &packets, count);
        assert_eq!(counts, EventCounts { events: room, lost: all - room }, "{}", device.info().id);
        // Every delivered event is complete: a number, consecutive bytes that start with the
        // packet's, and their sum.
        for record in &by_map["events"] {
            let (number, first) = (record[0], record[4].wrapping_sub(record[0]));
            let bytes: Vec<u8> =
                (0..27).map(|at| if at < 14 { first.wrapping_add(number) } else { at }).chain([!number]).collect();
            let sum: u32 = bytes[..27].iter().map(|byte| u32::from(*byte)).sum();
            assert_eq!((&record[4..32], &record[32..36]), (&bytes[..], &sum.to_le_bytes()[..]));
        }
    });
}

/// Returns the four random numbers that each packet draws, sorted by packet.
fn numbers(seed: u32, packets: &[Vec<u8>]) -> Option<Vec<[u32; 4]>> {
    let program = program("random", "random_several", seed)?;
    let cpu = portcullis::devices::open("cpu").unwrap();
    let (by_map, _) = run_and_read_events(&*cpu, &program, packets, packets.len());
    let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
    let of = |record: &Vec<u8>| [0, 4, 8, 12].map(|at| word(&record[at..at + 4]));
    Some(by_map["drawn"].iter().map(of).collect())
}

/// Whether a count is within five standard deviations of its binomial expectation; by chance it is
/// not once in two million.
fn is_near(count: usize, of: usize, share: f64) -> bool {
    let (mean, deviation) = (of as f64 * share, (of as f64 * share * (1.0 - share)).sqrt());
    (count as f64 - mean).abs() <= 5.0 * deviation
}

#[test]
fn random_numbers_are_uniform_and_independent() {
    // Packets of real traffic are similar: these differ in a counter only.
    let alike: Vec<Vec<u8>> = (0..15_000_u32)
        .map(|number| [&[0; 12][..], &[8, 0], &[0x45; 20], &number.to_be_bytes(), &[0; 26]].concat())
        .collect();
    for packets in [packets(15_000), alike] {
        let Some(drawn) = numbers(0, &packets) else { return };
        let Some(others) = numbers(1, &packets) else { return };
        assert_eq!(drawn.len(), packets.len());
        let all: Vec<u32> = drawn.iter().flatten().copied().collect();
        // Each bit is set in half of the numbers, and each pair of bits is equal in half of them.
        for bit in 0..32 {
            let set = all.iter().filter(|number| *number >> bit & 1 != 0).count();
            assert!(is_near(set, all.len(), 0.5), "bit {bit}: {set} of {}", all.len());
            for other in 0..bit {
                let alike = all.iter().filter(|number| (*number >> bit ^ *number >> other) & 1 == 0).count();
                assert!(is_near(alike, all.len(), 0.5), "bits {bit} and {other}: {alike} of {}", all.len());
            }
        }
        // Remainders, which programs use to choose, and the highest bits.
        for of in [3, 4, 10, 128] {
            for rest in 0..of {
                let count = all.iter().filter(|number| *number % of == rest).count();
                assert!(is_near(count, all.len(), 1.0 / f64::from(of)), "{rest} of {of}: {count}");
            }
        }
        for part in 0..64 {
            let count = all.iter().filter(|number| *number >> 26 == part).count();
            assert!(is_near(count, all.len(), 1.0 / 64.0), "part {part} of 64: {count}");
        }
        // The numbers of one packet are independent.
        for numbers in &drawn {
            assert_eq!(numbers.iter().collect::<HashSet<_>>().len(), 4, "{numbers:x?}");
        }
        for (first, second) in [(0, 1), (1, 2), (0, 3)] {
            let differ: u32 = drawn.iter().map(|it| (it[first] ^ it[second]).count_ones()).sum();
            assert!(is_near(differ as usize, 32 * drawn.len(), 0.5), "{first} and {second}: {differ}");
        }
        // Duplicates are rare: one in 2^32 pairs by chance.
        let distinct: HashSet<u32> = all.iter().copied().collect();
        assert!(all.len() - distinct.len() < 10, "{} of {}", distinct.len(), all.len());
        // Another seed gives other numbers.
        let others: HashSet<u32> = others.into_iter().flatten().collect();
        let same = all.iter().filter(|number| others.contains(number)).count();
        assert!(same < 10, "{same}");
    }
}

#[test]
fn a_sampler_selects_its_share() {
    let Some(program) = program("random", "random_sampler", 0) else { return };
    let packets = packets(40_000);
    let cpu = portcullis::devices::open("cpu").unwrap();
    let (_, counts) = run_and_read_events(&*cpu, &program, &packets, 10_000);
    assert!(is_near(counts.events as usize, packets.len(), 1.0 / 128.0), "{counts:?}");
}
