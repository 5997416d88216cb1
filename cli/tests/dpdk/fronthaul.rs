//! `ecpri_reorder` on packets in GPU memory: every PRB of a synthetic fronthaul gets to its
//! position in the buffer.

use std::collections::BTreeMap;

use portcullis_live_tests::Suite;

use crate::program::{Place, entries, pcap_of, reordered};
use crate::{cuda_devices, pcap_port, run};

/// Runs the filter on `in.pcap` and returns the buffer and the events.
fn buffer(place: &Place, more: &[&str]) -> (BTreeMap<u32, u32>, BTreeMap<u32, u32>) {
    let port = pcap_port(0, "rx_pcap=in.pcap");
    let dumps = ["--dump-map", "iq=iq.csv", "--dump-map", "events=events.csv"];
    let ran = run(place, "ecpri_reorder", &port, &[&dumps[..], more].concat()).assert_success();
    let json = ran.parse_json();
    assert_eq!(json["verdicts"]["drop"], json["packets"], "{more:?}: {json}");
    if more.contains(&"gpu") {
        assert!(ran.err.contains("are in its memory") && !ran.err.contains("gets a copy"), "{more:?}: {}", ran.err);
    }
    (entries(&place.text("iq.csv")), entries(&place.text("events.csv")))
}

/// Checks the buffer with packets in these places.
fn check(places: &[Vec<&str>]) {
    let place = Place::new();
    let packets = place.synthetic("packets=1500,seed=3,size=64..1500,mix=ecpri");
    place.file("in.pcap", pcap_of(&packets));
    let (want, prbs) = reordered(&packets);
    for more in places {
        let (is, events) = buffer(&place, more);
        let differs = want.iter().find(|(word, data)| is.get(word) != Some(data));
        assert!(is == want, "{more:?}: {} and {} words, {differs:?}", is.len(), want.len());
        // PRBs written, and those that arrived twice.
        assert_eq!(events.keys().collect::<Vec<_>>(), [&0, &1], "{more:?}");
        assert!(events[&1] > 100 && (events[&0] + events[&1]) as usize == prbs, "{more:?}: {events:?} of {prbs}");
    }
}

#[test]
fn a_fronthaul_in_the_memory_of_an_emulated_gpu_is_reordered() {
    check(&[vec![], vec!["--gpu", "software"], vec!["--gpu", "software", "--mempool", "gpu"]]);
}

#[test]
fn every_device_of_cuda_reorders_a_fronthaul_in_its_memory() {
    let suite = Suite::anywhere("dpdk", "fronthaul");
    let Some(devices) = cuda_devices(&suite) else { return };
    let _part = suite.on("cuda");
    for device in devices {
        let id = &device.info().id;
        let place = |method: &'static str| vec!["--device", id, "--dispatch", method, "--mempool", "gpu"];
        check(&device.info().dispatch.iter().map(|method| place(method.name())).collect::<Vec<_>>());
    }
}
