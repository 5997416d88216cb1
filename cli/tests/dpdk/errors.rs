//! Messages for errors that DPDK reports.

use crate::program::{Place, sample};
use crate::{pcap_port, run};

const TX: &str = "fn xdp_filter(pkt: u32) -> u32 { return XDP_TX; }";

#[test]
fn a_port_that_cannot_be_opened_says_what_to_do() {
    let place = Place::new();
    place.file("f.wgsl", TX);
    for (port, parts) in [
        ("net_nothing0", &["net_nothing0: DPDK has no driver net_nothing", "librte-net-nothing"][..]),
        ("net_pcap0,rx_pcap=/nowhere/in.pcap", &["net_pcap0", "its driver refuses", "/nowhere/in.pcap"]),
        ("net_pcap0,tx_pcap=/nowhere/out.pcap", &["Couldn't open /nowhere/out.pcap"]),
        ("net_pcap0", &["net_pcap0", "No rx or tx queues"]),
        ("net_null0,nonsense=1", &["net_null0", "nonsense"]),
        ("net_af_packet0", &["net_af_packet0", "are its arguments right?"]),
        ("net_af_packet0,iface=nosuch", &["net_af_packet0", "No such device"]),
        ("7", &["7: DPDK has no port with this number", "it has found 0", "dpdk-devbind.py --status", "--vdev"]),
    ] {
        let ran = run(&place, "f.wgsl", port, &[]).assert_failure(1, parts);
        // Generic failures and names of DPDK's functions are left out.
        assert!(!ran.err.contains("Failed to attach") && !ran.err.contains("(): "), "{}", ran.err);
    }
    let capture = pcap_port(0, &format!("rx_pcap={}", sample()));
    run(&place, "f.wgsl", &capture, &["--queues", "4"])
        .assert_failure(1, &["net_pcap0 (net_pcap) has at most 1 receive queues", "4"]);
    // The queues are checked before memory for them is reserved.
    run(&place, "f.wgsl", &capture, &["--queues", "1000", "--eal", "--no-huge -m 16"])
        .assert_failure(1, &["net_pcap0 (net_pcap) has at most 1 receive queues", "1000"]);
    // An address that no machine has: function 7 of device 1f on bus ff in domain ffff.
    run(&place, "f.wgsl", "ffff:ff:1f.7", &["--eal", "--no-huge"])
        .assert_failure(1, &["ffff:ff:1f.7: DPDK cannot use this network card", "there is none", "lspci -D"]);
    run(&place, "f.wgsl", "0000:03:00.0", &["--dpdk", "03:00.0"]).assert_failure(2, &["--dpdk 0000:03:00.0", "twice"]);
}

#[test]
fn invalid_eal_options_are_quoted_and_standard_output_stays_clean() {
    let place = Place::new();
    place.file("f.wgsl", TX);
    let capture = pcap_port(0, &format!("rx_pcap={}", sample()));
    let eal_failure = "DPDK cannot be initialised with `portcullis ";
    let guide = "doc.dpdk.org/guides/linux_gsg/linux_eal_parameters.html";
    for (eal, code, parts) in [
        ("--nonsense", 1, &[eal_failure, "unrecognized option '--nonsense'", guide][..]),
        ("--version", 1, &["unrecognized option '--version'", guide]),
        ("-l 4095", 1, &["4095", guide]),
        ("--no-huge --in-memory", 1, &["not compatible with --in-memory"]),
        ("--no-huge -m 16", 1, &["no memory for", "--frames", "-m MIB"]),
        ("--no-huge -m 99999999", 1, &["-m 512"]),
        ("-h", 2, &["--eal: `-h`", guide]),
        ("--help", 2, &["--eal: `--help`", guide]),
        ("--proc-type=secondary", 2, &["--eal: `--proc-type=secondary`", "primary"]),
    ] {
        // DPDK's usage text, which lists all options, is suppressed.
        let ran = run(&place, "f.wgsl", &capture, &["--eal", eal]).assert_failure(code, parts);
        assert!(!ran.err.contains("Usage"), "{eal}: {}", ran.err);
        assert_eq!(ran.err.matches('\n').count(), 1, "one line: {}", ran.err);
    }
    // Valid options are passed on, and DPDK's output is suppressed.
    let ran =
        run(&place, "f.wgsl", &capture, &["--eal", "-v --log-level 8 --vdev 'net_null7,size=100'"]).assert_success();
    assert_eq!(ran.parse_json()["packets"], 4000);
    assert!(ran.err.contains("net_pcap0: port 1 of DPDK"), "net_null7 is port 0: {}", ran.err);
    // A port that the options created is found by its number.
    let eal = format!("--no-pci --vdev '{capture}'");
    let ran = run(&place, "f.wgsl", "0", &["--eal", &eal, "--idle-exit", "1s"]).assert_success();
    assert_eq!(ran.parse_json()["packets"], 4000);
}

#[test]
fn an_unusable_pass_to_interface_says_why() {
    let place = Place::new();
    place.file("f.wgsl", TX);
    let capture = pcap_port(0, &format!("rx_pcap={}", sample()));
    // `lo` exists and is no TAP interface; a machine without TAP interfaces gives that reason.
    run(&place, "f.wgsl", &capture, &["--pass-to", "tap:lo"]).assert_failure(1, &["tap:lo: "]);
    if !std::path::Path::new("/dev/vhost-net").exists() {
        let ran =
            run(&place, "f.wgsl", &capture, &["--pass-to", "virtio_user:x0"]).assert_failure(1, &["virtio_user:x0: "]);
        let has_tun = std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun").is_ok();
        assert!(!has_tun || ran.err.contains("modprobe vhost_net"), "{}", ran.err);
    }
}

#[test]
fn packets_that_cannot_be_written_to_a_capture_are_an_error() {
    let place = Place::new();
    place.file("f.wgsl", TX);
    let port = pcap_port(0, &format!("rx_pcap={},tx_pcap=/dev/full", sample()));
    let ran = run(&place, "f.wgsl", &port, &[]).assert_exit(1, &["/dev/full: packets cannot be written"]);
    assert_eq!(ran.parse_json()["packets"], 4000, "the totals are printed nevertheless");
    // A file may grow to 100 blocks of 512 or 1,024 bytes, depending on the shell.
    let line = pcap_port(0, &format!("rx_pcap={},tx_pcap=out.pcap", sample()));
    place
        .shell(&format!("trap '' XFSZ; ulimit -f 100; portcullis run f.wgsl --device cpu --json --dpdk {line}"))
        .assert_exit(1, &["out.pcap: ", "are missing"]);
}
