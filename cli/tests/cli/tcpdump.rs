//! Options and expressions as tcpdump takes them.

use crate::support::{PASS, Place, packets, pcap, udp};

#[test]
fn short_options_are_those_of_tcpdump() {
    let place = Place::new();
    let (filter, file) = (place.file("f.wgsl", PASS), pcap(&[&[1; 60], &[2; 61], &[3; 62]]));
    let capture = place.file("c.pcap", &file);
    place.run(&["run", "-n", "-nn", "-r", capture, "-w", "o.pcap", "-c", "2", filter]).assert_success();
    assert_eq!(packets(&place.read("o.pcap")), [vec![1; 60], vec![2; 61]]);
    let ran = place.run_with(&["run", filter, "-r", "-", "-w", "-"], &file).assert_success();
    assert_eq!(packets(&ran.bytes).len(), 3);
    place.run(&["run", filter, "-r", capture, "-i", "eth0"]).assert_failure(2, &["--read", "--af-xdp"]);
    let help = place.run(&["run", "--help"]).assert_success().out;
    assert!(help.contains("-i, --af-xdp") && help.contains("takes them over"), "{help}");
}

#[cfg(not(all(target_os = "linux", feature = "af-xdp")))]
#[test]
fn a_build_without_af_xdp_names_the_feature() {
    let place = Place::new();
    let filter = place.file("f.wgsl", PASS);
    let part = if cfg!(target_os = "linux") { "--features af-xdp" } else { "only Linux" };
    place.run(&["run", "-i", "eth0", filter]).assert_failure(2, &["-i", part]);
}

#[test]
fn what_only_tcpdump_has_gets_a_next_step() {
    let place = Place::new();
    let capture = place.file("c.pcap", pcap(&[&udp(53)]));
    for (option, words) in [
        ("-X", "portcullis run … -w - | tcpdump -X -r -"),
        ("-vvv", "tcpdump -v -r -"),
        ("-d", "portcullis check --emit bpf"),
        ("-D", "ip link"),
    ] {
        place.run(&["run", "-r", capture, option, "tcp"]).assert_failure(2, &[words]);
    }
    place.run(&["check", "-X", "tcp"]).assert_failure(2, &["-X"]);
}

/// A build without libpcap takes the words for an expression all the same, and says what it lacks.
#[cfg(not(feature = "pcap-expr"))]
#[test]
fn expressions_need_libpcap() {
    let place = Place::new();
    let capture = place.file("c.pcap", pcap(&[&udp(53)]));
    for words in [&["udp port 53"][..], &["udp", "port", "53"], &["udp"]] {
        let ran = place.run(&[&["run", "-r", capture], words].concat());
        ran.assert_failure(1, &["this build lacks libpcap", "--features pcap-expr", "no file and no stock filter"]);
    }
}

#[cfg(feature = "pcap-expr")]
#[test]
fn words_behind_the_options_are_an_expression() {
    let place = Place::new();
    let capture = place.file("c.pcap", pcap(&[&udp(53), &udp(54), &[0; 60]]));
    for words in [&["udp port 53"][..], &["udp", "port", "53"], &["(udp", "port", "53)"], &["udp[2:2]=53"]] {
        let args = [&["run", "-r", capture, "-w", "o.pcap", "--device", "cpu"], words].concat();
        let ran = place.run(&args).assert_success();
        assert!(ran.out.starts_with(&format!("{}, on cpu", words.join(" "))), "{}", ran.out);
        assert_eq!(packets(&place.read("o.pcap")), [udp(53)], "{words:?}");
    }
    // Options may stand between the words, and behind them.
    place.run(&["run", "udp", "port", "53", "-r", capture, "-w", "o.pcap"]).assert_success();
    assert_eq!(packets(&place.read("o.pcap")), [udp(53)]);
    let bpf = |args: &[&str]| place.run(&[&["check", "--emit", "bpf"], args].concat()).assert_success().out;
    assert_eq!(bpf(&["udp", "port", "53"]), bpf(&["--expr", "udp port 53"]));
    place.run(&["check", "udp", "prot", "53"]).assert_failure(1, &["expression: ", "no file and no stock filter"]);
    place.run(&["check", "udp", "port", "53", "--set", "a=1"]).assert_failure(2, &["--set a", "has no parameters"]);
    // A single word is never looked up as the name of a host.
    place.run(&["check", "localhost"]).assert_failure(2, &["`localhost`", "no such file"]);
}
