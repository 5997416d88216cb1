//! Every available device, with each of its dispatch methods.

use portcullis_live_tests::Suite;

use crate::each_device::{on_each, only};
use crate::running::Running;
use crate::support::{Place, command, count, numbered, run, swapped};

/// Numbers of packets and sizes of their bursts. Small bursts are slow on some devices, so they get
/// fewer packets.
const CAPTURES: [(usize, &str); 5] = [(40, "1"), (200, "3"), (500, "64"), (2500, "1000"), (2500, "8192")];

#[test]
fn every_device_swaps_every_packet_with_each_dispatch_method() {
    let suite = Suite::anywhere("l2fwd", "devices");
    let place = Place::new();
    // A run over all devices uses fewer captures, to save time.
    let captures = if only().is_some() { &CAPTURES[..] } else { &CAPTURES[2..4] };
    on_each(&suite, |backend, device, method| {
        let id = device.info().id.as_str();
        // A GPU also has memory of its own.
        let mempools: &[&str] = if backend == "cuda" { &["host", "gpu"] } else { &["host"] };
        for (&(total, burst), mempool) in
            captures.iter().flat_map(|it| mempools.iter().map(move |mempool| (it, *mempool)))
        {
            let packets = numbered(total);
            place.capture("in.pcap", &packets);
            let (port, wanted) = (place.port(0, "in.pcap", "out.pcap"), total.to_string());
            let arguments = ["--dpdk", &port, "--device", id, "--workload", method.name(), "--packets", &wanted];
            let ran = run(arguments.iter().chain(&["--burst", burst, "--mempool", mempool, "--json"]));
            let what = format!("{id}, {method}, {burst}, {mempool}");
            let row = &ran.assert_success().rows()[0];
            assert_eq!((&row["device"]["id"], &row["workload"]), (&id.into(), &method.name().into()), "{what}");
            assert!(mempool == "host" || row["is_copied"] == false, "{what}: {row}");
            assert_eq!(count(&row["ran"]["packets_out"]), total as u64, "{what}: {row}");
            assert!(place.packets("out.pcap") == swapped(&packets), "{what}");
        }
    });
}

/// Interrupting a run does not wait for a device that hangs, and no handler of `exit` crashes the
/// program.
#[test]
fn every_device_may_hang_in_an_interrupted_run() {
    let suite = Suite::anywhere("l2fwd", "interrupted");
    on_each(&suite, |_, device, method| {
        if !device.info().name.starts_with("emulated CUDA device") {
            return println!("skipped: only the emulated driver can be made to hang");
        }
        let limits = ["--dpdk", "net_null0", "--packets", "0", "--json", "--workload", method.name()];
        let mut command = command(["--device", &device.info().id].iter().chain(&limits));
        command.env("PORTCULLIS_EMULATED_CUDA", "hang=3,abort-at-exit");
        let mut running = Running::spawn(command);
        running.wait_for(&format!("{method} on {}", device.info().id));
        // Time to receive something.
        std::thread::sleep(std::time::Duration::from_secs(1));
        running.signal("INT");
        running.wait().assert_exit(130, &[]);
    });
}
