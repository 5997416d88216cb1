//! tcpdump expressions, and classic BPF programs.

use crate::support::{PASS, Place, has_device, packets, pcap, udp};

/// Output of `tcpdump -y EN10MB -ddd 'udp port 53'`.
const DNS: &str = "20\n40 0 0 12\n21 0 6 34525\n48 0 0 20\n21 0 15 17\n40 0 0 54\n21 12 0 53\n40 0 0 56\n21 10 11 53\n\
                   21 0 10 2048\n48 0 0 23\n21 0 8 17\n40 0 0 20\n69 6 0 8191\n177 0 0 14\n72 0 0 14\n21 2 0 53\n72 0 0 16\n\
                   21 0 1 53\n6 0 0 262144\n6 0 0 0\n";

fn capture(place: &Place) -> &'static str {
    place.file("c.pcap", pcap(&[&udp(53), &udp(54), &udp(53)[..37], &[0; 60]]))
}

#[test]
fn output_of_tcpdump_ddd_is_a_filter() {
    let place = Place::new();
    let (filter, capture) = (place.file("dns.bpf", DNS), capture(&place));
    for device in ["cpu", "interp"].into_iter().filter(|device| has_device(device)) {
        place.run(&["run", filter, "--read", capture, "--write", "o.pcap", "--device", device]).assert_success();
        assert_eq!(packets(&place.read("o.pcap")), [udp(53)]);
    }
    let ran = place
        .run_with(&["run", "-", "--language", "bpf", "--read", capture, "--json"], DNS.as_bytes())
        .assert_success();
    assert_eq!(ran.parse_json()["verdicts"]["pass"], 1);
    place.run_with(&["check", "-"], DNS.as_bytes()).assert_failure(1, &["read as WGSL", "--language bpf"]);
    // Comma-separated, as for iptables' xt_bpf, and as C source.
    let one_line = DNS.trim_end().replace('\n', ",");
    place.run(&["check", place.file("one.bpf", one_line)]).assert_success();
    place.run(&["check", place.file("c.bpf", "{ 0x6, 0, 0, 0x00040000 },\n")]).assert_success();
    let line = place.run(&["check", filter, "--json"]).assert_success().parse_json();
    assert_eq!(line["facts"]["reads_bytes"], 78);
    if cfg!(feature = "cpu") {
        assert!(place.run(&["check", filter, "--emit", "lanes"]).assert_success().out.contains("verdict"));
    }
    place.run(&["check", filter, "--set", "a=1"]).assert_failure(2, &["--set a", "no parameter `a`"]);
}

#[test]
fn instructions_are_listed() {
    let place = Place::new();
    let shown = place.run(&["check", place.file("dns.bpf", DNS), "--emit", "bpf"]).assert_success().out;
    assert!(shown.starts_with("(000) ldh      [12]\n(001) jeq      #0x86dd          jt 2\tjf 8\n"), "{shown}");
    assert_eq!(shown.lines().count(), 20);
    place.run(&["check", place.file("f.wgsl", PASS), "--emit", "bpf"]).assert_failure(1, &["not made of classic BPF"]);
}

#[test]
fn errors_in_programs_have_line_and_column() {
    let place = Place::new();
    let bad = place.file("bad.bpf", "2\n40 0 0 12\n21 0 9 2048\n");
    place.run(&["check", bad]).assert_failure(1, &["bad.bpf:3:1", "jump to instruction 2, out", "is not a `ret`"]);
    let line = place.run(&["check", bad, "--json"]).parse_json();
    assert_eq!((&line["errors"][0]["line"], &line["errors"][0]["column"]), (&3.into(), &1.into()));
    place.run(&["check", place.file("list.bpf", "(000) ret #0\n")]).assert_failure(1, &["tcpdump -ddd"]);
    place.run(&["check", place.file("text.bpf", "tcp port 80\n")]).assert_failure(1, &["text.bpf:1:1", "--expr"]);
    place.run(&["check", place.file("c.bpf", pcap(&[&[0; 60]]))]).assert_failure(1, &["c.bpf: this is a capture"]);
}

#[test]
fn a_filter_is_a_file_or_an_expression() {
    let place = Place::new();
    let (filter, capture) = (place.file("f.wgsl", PASS), capture(&place));
    let all: [&[&str]; 4] =
        [&["run", "--read", capture], &["check"], &["calibrate"], &["ctl", "--control", "/run/none.sock", "reload"]];
    for command in all {
        let with = |extra_args: &[&str]| place.run(&[command, extra_args].concat());
        with(&[]).assert_failure(2, &["FILTER"]);
        with(&["--expr", "tcp", filter]).assert_failure(2, &["--expr", "FILTER"]);
        with(&["--expr", "tcp", "--language", "bpf"]).assert_failure(2, &["--expr", "--language"]);
        with(&["--expr", "tcp", "--set", "a=1"]).assert_failure(2, &["--expr", "--set"]);
    }
    place.run(&["bench", "--from", "x.json", "--expr", "tcp"]).assert_failure(2, &["--expr", "--from"]);
}

#[cfg(not(feature = "pcap-expr"))]
#[test]
fn without_libpcap_the_error_says_what_to_do() {
    let place = Place::new();
    let capture = capture(&place);
    for command in [&["run", "--read", capture][..], &["check"], &["bench", "--quick"]] {
        let ran = place.run(&[command, &["--expr", "udp port 53"]].concat());
        ran.assert_failure(
            1,
            &["--expr: ", "this build lacks libpcap", "--features pcap-expr", "libpcap-dev", "tcpdump -y EN10MB -ddd"],
        );
    }
}

#[cfg(feature = "pcap-expr")]
#[test]
fn an_expression_compiles_to_tcpdumps_program() {
    let place = Place::new();
    let capture = capture(&place);
    let ran = place.run(&["run", "--expr", "udp port 53", "--read", capture, "--write", "o.pcap"]).assert_success();
    assert!(ran.out.starts_with("udp port 53, on "), "{}", ran.out);
    assert_eq!(packets(&place.read("o.pcap")), [udp(53)]);
    let numbers = place.run(&["check", "--expr", "udp port 53", "--emit", "bpf"]).assert_success().out;
    let file = place.run(&["check", place.file("dns.bpf", DNS), "--emit", "bpf"]).assert_success().out;
    assert_eq!(numbers, file);
    // An empty expression accepts everything, as in tcpdump.
    assert!(place.run(&["check", "--expr", ""]).assert_success().out.contains("pass"));
    let ran = place.run(&["run", "--expr", "", "--read", capture]).assert_success();
    assert!(ran.out.starts_with("'', on "), "{}", ran.out);
    place.run(&["check", "--expr", "udp port"]).assert_failure(1, &["--expr:1:1", "udp port", "syntax error"]);
    place.run(&["check", "--expr", "tcp and udp"]).assert_failure(1, &["expression rejects all packets"]);
    let line = place.run(&["check", "--expr", "udp port", "--json"]).parse_json();
    assert_eq!((&line["ok"], &line["filter"]), (&false.into(), &"udp port".into()));
}

/// An expression may start with a minus sign.
#[cfg(feature = "pcap-expr")]
#[test]
fn an_expression_may_start_with_a_minus_sign() {
    let place = Place::new();
    let capture = capture(&place);
    // A TTL of 64: the low byte of -64 is 0xc0.
    let expression = "-ip[8] & 0xff = 0xc0";
    let filtered = |arguments: &[&str]| {
        place.run(&[&["run", "--read", capture, "--json"], arguments].concat()).assert_success().parse_json()
    };
    assert_eq!(filtered(&["--expr", expression])["filter"], expression);
    assert_eq!(filtered(&["--expr=-ip[8] & 0xff = 0"])["verdicts"]["pass"], 3, "their TTL is 0");
    place.run(&["check", "--expr", expression, "--emit", "bpf"]).assert_success();
    // Taken as the option's value, and the words after it as options.
    place.run(&["bench", "--expr", expression, "--batch", "0"]).assert_failure(2, &["--batch"]);
}

/// Listings equal tcpdump's, byte for byte.
#[cfg(feature = "pcap-expr")]
#[test]
fn listings_equal_tcpdumps() {
    use std::process::Command;

    let required = std::env::var("PORTCULLIS_REQUIRE").unwrap_or_default();
    if Command::new("tcpdump").arg("--version").output().is_err() {
        assert!(!required.split(',').any(|name| name == "tcpdump"), "tcpdump is required");
        println!("skipped: there is no tcpdump");
        return;
    }
    let place = Place::new();
    let all = include_str!("../../../compat-tests/expressions.txt").lines().filter(|line| !line.starts_with('#'));
    let mut compared = 0;
    for expression in all.chain(["-ip[8] & 0xff = 0xc0"]) {
        let theirs = Command::new("tcpdump").args(["-y", "EN10MB", "-d", "--", expression]).output().unwrap();
        let ours = place.run(&["check", "--expr", expression, "--emit", "bpf"]);
        assert_eq!(ours.code == 0, theirs.status.success(), "{expression}: {}", ours.err);
        if ours.code == 0 {
            assert_eq!(ours.out, String::from_utf8_lossy(&theirs.stdout), "{expression}");
            compared += 1;
        }
    }
    assert!(compared > 150, "{compared}");
}
