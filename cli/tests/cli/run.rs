//! `portcullis run` over captures: verdicts, totals, and errors of inputs.

use crate::support::{PASS, Place, packets, pcap, sample, stock};

/// A filter whose verdict is the packet's first byte; a redirect's target is its second byte.
const BY_BYTE: &str = "fn xdp_filter(pkt: u32) -> u32 {
    let verdict = load_u8(pkt, 0u);
    if verdict == XDP_REDIRECT { return redirect(load_u8(pkt, 1u)); }
    return verdict;
}";

#[test]
fn a_capture_is_filtered_and_the_passed_packets_are_written() {
    let place = Place::new();
    let ran = place.run(&["run", &stock("http_only"), "--read", &sample(), "--write", "passed.pcap"]).assert_success();
    // The sample is generated; 914 of its packets are TCP to port 80 or 443.
    ran.assert_stdout_contains(&["packets", "4 000", "pps", "914"]);
    assert_eq!(packets(&place.read("passed.pcap")).len(), 914);
    assert_eq!(ran.err, "");
}

/// Port 0 stands for a port that cannot be read, and never passes.
#[test]
fn a_port_of_zero_passes_nothing() {
    let place = Place::new();
    // TCP cut off before the ports, TCP to port 0, and UDP.
    let tcp = |length: usize| {
        let mut packet = vec![0; length];
        (packet[12], packet[14], packet[23]) = (8, 0x45, 6);
        packet
    };
    let (cut, whole) = (tcp(36), tcp(60));
    let udp = {
        let mut packet = tcp(60);
        packet[23] = 17;
        packet
    };
    let capture = place.file("c.pcap", pcap(&[&cut, &whole, &udp]));
    let ran =
        place.run(&["run", &stock("http_only"), "--read", capture, "--set", "https=0", "--json"]).assert_success();
    assert_eq!(ran.parse_json()["verdicts"]["pass"], 0);
}

#[test]
#[cfg(feature = "opencl")]
fn opencl_gives_the_cpus_output() {
    let place = Place::new();
    let run = |device: &str, output: &str| {
        place.run(&["run", &stock("http_only"), "--read", &sample(), "--write", output, "--device", device])
    };
    if let Err(reason) = portcullis::devices::open("opencl") {
        run("opencl", "none.pcap").assert_failure(1, &[&reason.to_string(), "install"]);
        println!("skipped: {reason}");
        return;
    }
    run("opencl", "opencl.pcap").assert_success().assert_stdout_contains(&["on opencl:0 ("]);
    run("cpu", "cpu.pcap").assert_success();
    assert!(place.read("opencl.pcap") == place.read("cpu.pcap"));
    run("opencl:99", "none.pcap").assert_failure(1, &["opencl:99", "there is opencl:0 ("]);
}

/// The rows below `time` account for all of it, and exceed it only if stages ran in parallel.
#[test]
fn stage_times_add_up() {
    let place = Place::new();
    for device in ["cpu", "interp"] {
        let ran = place
            .run(&["run", &stock("minimal"), "--read", &sample(), "--write", "o.pcap", "--device", device])
            .assert_success();
        let mut times = ran.out.lines().skip_while(|line| !line.starts_with("time")).map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(words[2], "s", "{line}");
            (words[0], words[1].parse::<f64>().unwrap())
        });
        let (_, total) = times.next().unwrap();
        let parts: Vec<_> = times.collect();
        let sum: f64 = parts.iter().map(|(_, time)| time).sum();
        // Each is rounded to a millisecond.
        let rounding = 0.0005 * (parts.len() + 1) as f64 + 1e-9;
        assert!(sum >= total - rounding, "{}", ran.out);
        let other = parts.iter().find(|(name, _)| *name == "other");
        assert!(other.is_none() || sum <= total + rounding, "{}", ran.out);
    }
}

#[test]
fn json_is_one_line_with_every_key() {
    let place = Place::new();
    let filter = place.file("f.wgsl", BY_BYTE);
    let capture =
        place.file("c.pcap", pcap(&[&[0, 0], &[1], &[2, 9, 9], &[2], &[3], &[4, 7], &[4, 200], &[4, 7], &[99]]));
    for device in ["cpu", "interp"] {
        let line =
            place.run(&["run", filter, "--read", capture, "--json", "--device", device]).assert_success().parse_json();
        let keys: Vec<_> = line.as_object().unwrap().keys().map(String::as_str).collect();
        let mut wanted = [
            "filter",
            "device",
            "packets",
            "bytes",
            "verdicts",
            "redirect_targets",
            "elapsed_s",
            "mpps",
            "interrupted",
        ];
        wanted.sort_unstable();
        assert_eq!(keys, wanted);
        assert_eq!(line["filter"], "f.wgsl");
        assert_eq!(line["device"], device);
        assert_eq!(line["packets"], 9);
        assert_eq!(line["bytes"], 15);
        assert_eq!(line["verdicts"], serde_json::json!({"aborted": 2, "drop": 1, "pass": 2, "tx": 1, "redirect": 3}));
        assert_eq!(line["redirect_targets"], serde_json::json!({"7": 2, "200": 1}));
        assert_eq!(line["interrupted"], false);
        assert!(line["elapsed_s"].as_f64().unwrap() > 0.0 && line["mpps"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn json_of_an_empty_capture_has_every_key() {
    let place = Place::new();
    let (filter, capture) = (place.file("f.wgsl", PASS), place.file("c.pcap", pcap(&[])));
    let line =
        place.run(&["run", filter, "--read", capture, "--json", "--write", "o.pcap"]).assert_success().parse_json();
    assert_eq!(line["packets"], 0);
    assert_eq!(line["verdicts"], serde_json::json!({"aborted": 0, "drop": 0, "pass": 0, "tx": 0, "redirect": 0}));
    assert_eq!(line["redirect_targets"], serde_json::json!({}));
    assert_eq!(place.read("o.pcap").len(), 24);
}

#[test]
fn limits_and_batch_sizes_do_not_change_verdicts() {
    let place = Place::new();
    let (filter, sample) = (stock("hash_lb"), sample());
    let all =
        place.run(&["run", &filter, "--read", &sample, "--json", "--device", "cpu"]).assert_success().parse_json();
    for extra_args in [
        &["--dispatch", "inline"][..],
        &["--batch", "1"],
        &["--batch", "7", "--threads", "1"],
        &["--batch", "1000", "--threads", "3", "--idle-spin", "0"],
        &["--batch", "1000", "--threads", "3", "--idle-spin", "1000000"],
        &["--batch", "4294967295", "--threads", "1024"],
    ] {
        let args = [&["run", &filter, "--read", &sample, "--json", "--device", "cpu"], extra_args].concat();
        let line = place.run(&args).assert_success().parse_json();
        assert_eq!(line["verdicts"], all["verdicts"]);
        assert_eq!(line["redirect_targets"], all["redirect_targets"]);
    }
    for (limit, packets) in [("0", 0), ("1", 1), ("3999", 3999), ("5000", 4000)] {
        let line =
            place.run(&["run", &filter, "--read", &sample, "--json", "--limit", limit]).assert_success().parse_json();
        assert_eq!(line["packets"], packets);
    }
}

#[test]
fn parameters_and_fuel_reach_the_filter() {
    let place = Place::new();
    let filter = place.file(
        "f.wgsl",
        "override limit: u32 = 5u;
         fn xdp_filter(pkt: u32) -> u32 {
             for (var i = 0u; i < 10u; i++) { store_u8(pkt, 0u, i); }
             return select(XDP_DROP, XDP_PASS, pkt_len(pkt) > limit);
         }",
    );
    let capture = place.file("c.pcap", pcap(&[&[0; 4], &[0; 8], &[0; 12]]));
    let verdicts = |extra_args: &[&str]| {
        let args = [&["run", filter, "--read", capture, "--json"], extra_args].concat();
        let verdicts = place.run(&args).assert_success().parse_json()["verdicts"].clone();
        [&verdicts["aborted"], &verdicts["drop"], &verdicts["pass"]].map(|v| v.as_u64().unwrap())
    };
    assert_eq!(verdicts(&[]), [0, 1, 2]);
    assert_eq!(verdicts(&["--set", "limit=10"]), [0, 2, 1]);
    assert_eq!(verdicts(&["--fuel", "3"]), [3, 0, 0]);
    place.run(&["run", filter, "--read", capture, "--set", "nolimit=1"]).assert_failure(2, &["nolimit"]);
}

#[test]
fn errors_name_the_input() {
    let place = Place::new();
    let filter = place.file("f.wgsl", PASS);
    let good = place.file("good.pcap", pcap(&[&[0; 60]]));
    place.file("empty.pcap", "");
    place.file("short.pcap", &pcap(&[])[..20]);
    place.file("text.pcap", "this is no capture at all");
    let mut wifi = pcap(&[&[0; 60]]);
    wifi[20] = 105;
    place.file("wifi.pcap", wifi);
    let mut long = pcap(&[&[0; 60]]);
    long[32..36].copy_from_slice(&300_000u32.to_le_bytes());
    place.file("long.pcap", long);
    std::fs::create_dir(place.path("dir")).unwrap();
    for (name, words) in [
        ("none.pcap", "cannot be opened: No such file or directory (os error 2)\n"),
        ("empty.pcap", "empty"),
        ("short.pcap", "byte 20"),
        ("text.pcap", "neither pcap nor pcapng"),
        ("wifi.pcap", "105"),
        ("long.pcap", "300000"),
        ("dir", "cannot be opened: is a directory\n"),
        ("good.pcap/x", "cannot be opened: Not a directory (os error 20)\n"),
    ] {
        place.run(&["run", filter, "--read", name, "--write", "o.pcap"]).assert_failure(1, &["error: ", name, words]);
    }
    for (name, words) in [
        ("none.wgsl", ": No such file or directory (os error 2)\n"),
        ("dir", ": Is a directory (os error 21)\n"),
        ("good.pcap", "--read"),
    ] {
        place.run(&["run", name, "--read", good]).assert_failure(1, &["error: ", name, words]);
    }
    place.run(&["run", filter, "--read", "synth:packets=x"]).assert_failure(2, &["packets", "x"]);
}

/// A filter file with invalid text is reported as such, even if it is too long; a long file is not
/// read to its end.
#[test]
fn a_filter_file_that_is_not_text_is_reported() {
    let place = Place::new();
    let good = place.file("good.pcap", pcap(&[&[0; 60]]));
    let long = |text: &[u8]| [text, &vec![b' '; 2 << 20][..]].concat();
    place.file("latin.wgsl", b"fn\n // \xfc\n");
    place.file("long-latin.wgsl", long(b"fn\n // \xfc\n"));
    place.file("zero.wgsl", long(b"fn\xff\0"));
    place.file("long.wgsl", long(PASS.as_bytes()));
    // Any cut at an even or odd offset falls within a character.
    place.file("long-utf8.wgsl", "\u{fc}".repeat(1 << 20));
    place.file("odd-utf8.wgsl", " ".to_owned() + &"\u{fc}".repeat(1 << 20));
    std::fs::File::create(place.path("endless.wgsl")).unwrap().set_len(10 << 30).unwrap();
    let no_text = "error: NAME: the source is not text: zero byte at offset ";
    let too_long = "error: NAME: the source exceeds 1048576 bytes, the maximum for a filter\n";
    for (name, message) in [
        ("latin.wgsl", "error: the text is not UTF-8: byte 0xfc at offset 7\n  ┌─ latin.wgsl:2:5\n".to_owned()),
        ("long-latin.wgsl", "error: the text is not UTF-8: byte 0xfc at offset 7\n  ┌─ long-latin.wgsl:2:5\n".into()),
        ("zero.wgsl", format!("{no_text}3\n")),
        ("endless.wgsl", format!("{no_text}0\n")),
        ("/dev/zero", format!("{no_text}0\n")),
        ("long.wgsl", too_long.into()),
        ("long-utf8.wgsl", too_long.into()),
        ("odd-utf8.wgsl", too_long.into()),
    ] {
        if name.starts_with('/') && !std::path::Path::new(name).exists() {
            continue;
        }
        let message = message.replace("NAME", name);
        place.run(&["run", name, "--read", good]).assert_failure(1, &[&message]);
    }
}

#[test]
fn a_truncated_capture_gives_its_complete_packets_and_a_warning() {
    let place = Place::new();
    let filter = place.file("f.wgsl", PASS);
    let whole = pcap(&[&[1; 60], &[2; 60], &[3; 60]]);
    place.file("cut.pcap", &whole[..whole.len() - 1]);
    let ran = place.run(&["run", filter, "--read", "cut.pcap", "--json", "--write", "o.pcap"]).assert_success();
    assert_eq!(ran.parse_json()["packets"], 2);
    let end = (whole.len() - 1).to_string();
    assert!(ran.err.contains("warning: cut.pcap") && ran.err.contains(&end), "{}", ran.err);
    assert_eq!(packets(&place.read("o.pcap")), [[1; 60], [2; 60]]);
}

/// A record that claims too many bytes ends the run with an error; packets before it are written.
#[test]
fn packets_before_a_malformed_record_are_written() {
    let place = Place::new();
    let filter = place.file("f.wgsl", PASS);
    let mut bad = pcap(&[&[1; 60], &[2; 60]]);
    bad[24 + 76 + 8..][..4].copy_from_slice(&0x7fff_ffffu32.to_le_bytes());
    place.file("bad.pcap", bad);
    place
        .run(&["run", filter, "--read", "bad.pcap", "--json", "--write", "o.pcap"])
        .assert_failure(1, &["bad.pcap", "100", "1 packet was filtered before the error"]);
    assert_eq!(packets(&place.read("o.pcap")), [[1; 60]]);
}

#[test]
fn an_unknown_device_is_refused_with_the_known_ones() {
    let place = Place::new();
    let (filter, capture) = (place.file("f.wgsl", PASS), place.file("c.pcap", pcap(&[&[0; 60]])));
    let with = |device: &str| place.run(&["run", filter, "--read", capture, "--device", device]);
    with("gpu").assert_failure(2, &["`gpu`", "auto, cpu, cuda, cuda:N, wgpu, wgpu:N, opencl, opencl:N, interp, noop"]);
    with("wgpu:x").assert_failure(2, &["`wgpu:x`"]);
    with("cpu:7").assert_failure(1, &["cpu:7", "there is cpu ("]);
    with("noop").assert_success();
}
