use std::sync::Arc;

use portcullis_core::device::{Device, LoadOptions};
use portcullis_core::diagnostics::Source;
use portcullis_core::interp::InterpDevice;
use portcullis_core::packet::Batch;
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_wgsl as wgsl;

use super::super::records::{Traffic, traffic};
use super::*;

/// Returns fields at the rules' boundaries, in addition to the traffic's: only those that a packet
/// can have (TCP and UDP, and ICMP if the rule depends on the protocol).
fn edges(workload: &Workload) -> Vec<Fields> {
    let plain = traffic(workload.traffic, 1).next().expect("one");
    let mut all = Vec::new();
    for destination_port in [0, 21, 22, 23, 24, 79, 80, 81, 442, 443, 444, 1023, 1024, 8080, 65_535] {
        for source in [0x0a00_0001, 0x0a01_0001, 0xac10_0001, 0xac11_0001, 0xc0a8_0001, 0xc0a8_0002, 0xc0a9_0001] {
            for protocol in [6, 17] {
                for length in [64, 1499, 1500, 1501] {
                    all.push(Fields { length, source, destination_port, protocol, ..plain });
                }
            }
        }
    }
    if matches!(workload.name, "simple filter" | "complex filter") {
        all.push(Fields { protocol: 1, ..plain });
    }
    all
}

/// Each rule over records agrees with its filter over packets, run by the reference interpreter.
#[test]
fn records_and_packets_get_the_same() {
    for workload in &WORKLOADS {
        let text = Source::new(format!("{}.wgsl", workload.name), workload.text());
        let program = wgsl::compile(&text, &ProgramOptions::default()).unwrap_or_else(|e| panic!("{}", e.render()));
        let program: Arc<Program> = Arc::new(program);
        let fields: Vec<_> = traffic(workload.traffic, 2000).chain(edges(workload)).collect();
        let packets: Vec<Vec<u8>> = fields
            .iter()
            .map(|fields| {
                let mut packet = vec![0; fields.length as usize];
                fields.write_packet(&mut packet);
                packet
            })
            .collect();
        let mut session = InterpDevice::new().load(&program, &LoadOptions::default()).unwrap();
        let done = session.run(Batch::from_packets(&packets).unwrap()).unwrap();
        for (fields, verdict) in fields.iter().zip(done.verdicts.iter()) {
            let action = (workload.rule)(*fields);
            // By hand: PASS is 2, DROP is 1; a redirect is 4 with its port above.
            let want = match workload.traffic {
                Traffic::Filters => [1, 2][usize::from(action)],
                Traffic::Balancers => 4 + 256 * u32::from(action % 8),
            };
            assert_eq!(verdict.to_return(), want, "{}: {fields:?}", workload.name);
            assert_eq!(workload.returns(action), want);
        }
    }
}

/// The marks are only in records, so they are checked against the hash and the rule's definition.
#[test]
fn even_workers_are_marked() {
    // The published test vectors (http://www.isthe.com/chongo/tech/comp/fnv/) are hashes of texts,
    // not of addresses and ports. If all bytes are zero, FNV-1a multiplies the basis by the prime
    // once per byte, which checks both constants.
    let zero = Fields { length: 64, source: 0, destination: 0, source_port: 0, destination_port: 0, protocol: 6 };
    let by_hand = (0..12).fold(2_166_136_261_u64, |hash, _| hash * 16_777_619 % (1 << 32)) as u32;
    assert_eq!(hash(zero), by_hand);
    for fields in traffic(Traffic::Balancers, 4000) {
        let action = balance(fields);
        assert_eq!(action & 0x80 != 0, action & 7 != 1 && action & 1 == 0, "{action:#x}");
    }
}

/// The batch balancer marks every record, unlike the other. Hashes computed by hand, by FNV-1a's
/// definition; the third one's lowest bits are odd.
#[test]
fn the_batch_balancer_marks_every_record() {
    let first = traffic(Traffic::Balancers, 1).next().expect("one");
    for (source, source_port, destination_port, hash_by_hand, action) in [
        (0xc0a8_0001, 1024, 80, 0x3bf1_a550, 0x81),
        (0xc0a8_0002, 1041, 443, 0x97be_eae6, 0x86),
        (0xc0a8_0003, 1058, 8080, 0x2c67_723d, 0x87),
        (0xc0a8_0004, 1075, 80, 0x8a28_f2ce, 0x80),
    ] {
        let fields = Fields { source, destination: 0x0808_0808, source_port, destination_port, ..first };
        assert_eq!(hash(fields), hash_by_hand);
        assert_eq!(balance_in_batches(fields), action, "{fields:?}");
    }
}

/// The loop applies the rule to each record.
#[test]
fn the_loop_over_records_keeps_each_action() {
    for workload in &WORKLOADS {
        let fields: Vec<_> = traffic(workload.traffic, 300).collect();
        let mut records: Vec<_> = fields.iter().map(|fields| fields.to_record(7)).collect();
        (workload.record_loop)(&mut records);
        for (record, fields) in records.iter().zip(&fields) {
            assert_eq!(record[ACTION], (workload.rule)(*fields));
            assert_eq!(Fields::from_record(record), *fields);
        }
    }
}
