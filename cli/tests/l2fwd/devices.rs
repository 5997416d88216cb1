//! Every device that there is, by each of its dispatch methods.

use portcullis_live_tests::Suite;

use crate::each_device::{on_each, only};
use crate::support::{Place, number, numbered, run, swapped};

/// Packets, and the size of the bursts that they come in: of many small ones some devices take
/// long.
const CAPTURES: [(usize, &str); 5] = [(40, "1"), (200, "3"), (500, "64"), (2500, "1000"), (2500, "8192")];

#[test]
fn every_device_swaps_every_packet_by_each_of_its_methods() {
    let suite = Suite::anywhere("l2fwd", "devices");
    let place = Place::new();
    // Of all devices one after the other, some do.
    let captures = if only().is_some() { &CAPTURES[..] } else { &CAPTURES[2..4] };
    on_each(&suite, |backend, device, method| {
        let id = device.info().id.as_str();
        // A GPU has memory of its own as well.
        let mempools: &[&str] = if backend == "cuda" { &["host", "gpu"] } else { &["host"] };
        for (&(count, burst), mempool) in
            captures.iter().flat_map(|it| mempools.iter().map(move |mempool| (it, *mempool)))
        {
            let packets = numbered(count);
            place.capture("in.pcap", &packets);
            let (port, wanted) = (place.port(0, "in.pcap", "out.pcap"), count.to_string());
            let arguments = ["--dpdk", &port, "--device", id, "--workload", method.name(), "--packets", &wanted];
            let ran = run(arguments.iter().chain(&["--burst", burst, "--mempool", mempool, "--json"]));
            let what = format!("{id}, {method}, {burst}, {mempool}");
            assert_eq!(ran.code, 0, "{what}: {ran:?}");
            let row = &ran.rows()[0];
            assert_eq!((&row["device"]["id"], &row["workload"]), (&id.into(), &method.name().into()), "{what}");
            assert!(mempool == "host" || row["is_copied"] == false, "{what}: {row}");
            assert_eq!(number(&row["ran"]["packets_out"]), count as u64, "{what}: {row}");
            assert!(place.packets("out.pcap") == swapped(&packets), "{what}");
        }
    });
}
