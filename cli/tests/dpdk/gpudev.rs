//! Packets in GPU memory, in host memory mapped into a GPU, and split between both: filtered and
//! sent like packets in host memory.

use portcullis_live_tests::Suite;
use serde_json::Value;

use crate::program::{Place, RunOutput, packets, sample};
use crate::{cuda_devices, pcap_port, run};

/// A filter that reads 38 bytes and writes 12.
const FILTER: &str = "
    fn xdp_filter(pkt: u32) -> u32 {
        let first = load_be32(pkt, 0u);
        store_be32(pkt, 0u, load_be32(pkt, 6u));
        store_be32(pkt, 6u, first);
        if load_be16(pkt, 36u) % 7u == 0u { return XDP_DROP; }
        return select(XDP_TX, XDP_PASS, pkt_len(pkt) > 90u);
    }";

/// Result of running the filter.
#[derive(Debug, PartialEq)]
struct FilterResult {
    verdicts: Value,
    tx: Vec<Vec<u8>>,
    pass: Vec<Vec<u8>>,
}

impl FilterResult {
    fn by_the_interpreter(place: &Place) -> FilterResult {
        let arguments = ["run", "f.wgsl", "--read", &sample(), "--device", "interp", "--json"];
        let json = place
            .run(&[&arguments[..], &["--write", "pass.pcap", "--write-tx", "tx.pcap"]].concat())
            .assert_success()
            .parse_json();
        let of = |name: &str| packets(&place.read(name));
        FilterResult { verdicts: json["verdicts"].clone(), tx: of("tx.pcap"), pass: of("pass.pcap") }
    }

    fn by_dpdk(place: &Place, more: &[&str]) -> (FilterResult, RunOutput) {
        let port = pcap_port(0, &format!("rx_pcap={},tx_pcap=to-tx.pcap", sample()));
        let stack = pcap_port(1, "tx_pcap=to-pass.pcap");
        let ran = run(place, "f.wgsl", &port, &[&["--pass-to", &stack], more].concat()).assert_success();
        let json = ran.parse_json();
        let of = |name: &str| packets(&place.read(name));
        (FilterResult { verdicts: json["verdicts"].clone(), tx: of("to-tx.pcap"), pass: of("to-pass.pcap") }, ran)
    }
}

/// Options for where packets are, without the GPU.
const PLACES: [&[&str]; 3] = [&[], &["--mempool", "gpu"], &["--mempool", "gpu", "--header-split", "38"]];

#[test]
fn an_emulated_gpu_gives_the_same_results_as_host_memory() {
    let place = Place::new();
    place.file("f.wgsl", FILTER);
    let want = FilterResult::by_the_interpreter(&place);
    assert!(want.tx.len() > 100 && want.pass.len() > 100, "{}", want.verdicts);
    for more in PLACES {
        let (is, ran) = FilterResult::by_dpdk(&place, &[&["--gpu", "software"], more].concat());
        assert!(is == want, "{more:?}: {} {}", is.verdicts, want.verdicts);
        let note = if more.is_empty() { "it reads packets in host memory" } else { "are in its memory" };
        assert!(ran.err.contains("GPU software, number 0 of DPDK") && ran.err.contains(note), "{more:?}: {}", ran.err);
    }
    let (is, ran) = FilterResult::by_dpdk(&place, &["--header-split", "38"]);
    assert!(is == want && ran.err.contains("net_pcap: cannot split packets"), "{}", ran.err);
}

#[test]
fn every_device_of_cuda_filters_packets_in_place_with_each_dispatch_method() {
    let suite = Suite::anywhere("dpdk", "gpudev");
    let Some(devices) = cuda_devices(&suite) else { return };
    let _part = suite.on("cuda");
    let place = Place::new();
    place.file("f.wgsl", FILTER);
    let want = FilterResult::by_the_interpreter(&place);
    for (device, method) in devices.iter().flat_map(|it| it.info().dispatch.iter().map(move |method| (it, method))) {
        let id = &device.info().id;
        for more in PLACES {
            let more = [&["--device", id, "--dispatch", method.name(), "--gpu", id], more].concat();
            let (is, ran) = FilterResult::by_dpdk(&place, &more);
            assert!(is == want, "{more:?}: {} {}", is.verdicts, want.verdicts);
            assert_eq!(ran.parse_json()["device"], id.as_str(), "{more:?}");
            if more.contains(&"gpu") && !more.contains(&"--header-split") {
                assert!(!ran.err.contains("gets a copy"), "{more:?}: {}", ran.err);
            }
        }
    }
    // The GPU is that of the chosen device, by whichever name it was chosen.
    for name in ["cuda", "auto"] {
        let chosen = portcullis::devices::open(name).unwrap();
        if chosen.info().id.starts_with("cuda:") {
            let (is, ran) = FilterResult::by_dpdk(&place, &["--device", name, "--mempool", "gpu"]);
            assert!(is == want && ran.err.contains(&format!("GPU {}, number", chosen.info().id)), "{}", ran.err);
        }
    }
    // A driver in software reaches GPU memory through the CPU, and so does a filter on the CPU.
    let id = &devices[0].info().id;
    let (is, _) = FilterResult::by_dpdk(&place, &["--device", "cpu", "--mempool", "gpu", "--gpu", id]);
    assert!(is == want, "{}", is.verdicts);
    if devices[0].info().name.starts_with("emulated CUDA device") {
        let port = pcap_port(0, &format!("rx_pcap={}", sample()));
        let mut command = place.command(&["run", "f.wgsl", "--device", id, "--mempool", "gpu", "--dpdk", &port]);
        let output = command.env("PORTCULLIS_EMULATED_CUDA", "no-gdrcopy").output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        let parts = ["net_pcap writes packets with the CPU", "modprobe gdrdrv", "--mempool host"];
        assert!(!output.status.success() && parts.iter().all(|part| stderr.contains(part)), "{stderr}");
    }
}

#[test]
fn impossible_combinations_are_refused_with_the_reason() {
    let place = Place::new();
    place.file("f.wgsl", FILTER);
    let shaders = concat!(env!("CARGO_MANIFEST_DIR"), "/../shaders");
    let port = pcap_port(0, &format!("rx_pcap={}", sample()));
    let vlan_pop = format!("{shaders}/vlan_pop.wgsl");
    for (filter, more, parts) in [
        ("f.wgsl", &["--header-split", "37"][..], &["header split at 37 bytes", "reads up to byte 38"][..]),
        (&vlan_pop, &["--header-split", "1000"], &["changes packets' lengths"]),
        ("f.wgsl", &["--header-split", "64", "--control", "c.sock"], &["--header-split", "--control"]),
        ("f.wgsl", &["--header-split", "13"], &["--header-split", "14"]),
        ("f.wgsl", &["--mempool", "gpu"], &["--mempool gpu", "cpu", "--gpu software"]),
        ("f.wgsl", &["--gpu", "vulkan"], &["--gpu vulkan", "cuda:N"]),
        ("f.wgsl", &["--gpu", "7"], &["no GPU with the number 7", "cuda:0"]),
        ("f.wgsl", &["--gpu", "cuda:99"], &["--gpu cuda:99", "CUDA"]),
    ] {
        let ran = run(&place, filter, &port, more);
        assert!(ran.code != 0, "{more:?}: {}", ran.err);
        assert!(parts.iter().all(|part| ran.err.contains(part)), "{more:?}: {}", ran.err);
    }
}
