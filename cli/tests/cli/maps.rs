//! `run --dump-map`: entries of maps after the run.

use std::collections::BTreeMap;

use crate::support::{PASS, Place, has_device, packets, pcap, sample};

/// A filter that counts packets and bytes by source, bytes by protocol, and packets by length, with
/// results that do not depend on the order of packets.
const ACCOUNTS: &str = "
    //! map sources: hash key=1 value=2 entries=4096
    //! map pairs: hash key=3 value=0 entries=8192
    //! map protocols: counter entries=256
    //! map lengths: array value=3 entries=16
    fn xdp_filter(pkt: u32) -> u32 {
        let bucket = pkt_len(pkt) / 100u;
        lengths_add(bucket, 0u, 1u);
        lengths_compare_exchange(bucket, 2u, 0u, 7u);
        if load_be16(pkt, 12u) != ETH_P_IP { return XDP_DROP; }
        let source = sources_insert(load_be32(pkt, 26u));
        let pair = pairs_insert(vec3<u32>(load_be32(pkt, 26u), load_be32(pkt, 30u), load_u8(pkt, 23u)));
        if source == MAP_FULL || pair == MAP_FULL { return XDP_ABORTED; }
        sources_add(source, 0u, 1u);
        sources_add(source, 1u, pkt_len(pkt));
        // Makes the sum exceed 32 bits.
        protocols_add(load_u8(pkt, 23u), 0xff000000u);
        protocols_add(load_u8(pkt, 23u), pkt_len(pkt));
        return XDP_PASS;
    }";

/// Expected contents of the maps, from an independent reading of the capture.
struct ExpectedMaps {
    sources: BTreeMap<u32, [u32; 2]>,
    pairs: BTreeMap<[u32; 3], ()>,
    protocols: [u64; 256],
    lengths: [[u32; 3]; 16],
}

impl ExpectedMaps {
    fn of(packets: &[Vec<u8>]) -> ExpectedMaps {
        let mut all = ExpectedMaps {
            sources: BTreeMap::new(),
            pairs: BTreeMap::new(),
            protocols: [0; 256],
            lengths: [[0; 3]; 16],
        };
        for packet in packets {
            // Big-endian; 0 if the packet is too short.
            let number = |at: usize, bytes: usize| {
                packet.get(at..at + bytes).map_or(0, |it| it.iter().fold(0, |n, byte| n << 8 | u32::from(*byte)))
            };
            let length = packet.len() as u32;
            if let Some(bucket) = all.lengths.get_mut(packet.len() / 100) {
                bucket[0] += 1;
                bucket[2] = 7;
            }
            if number(12, 2) == 0x0800 {
                let (source, protocol) = (number(26, 4), number(23, 1));
                let account = all.sources.entry(source).or_default();
                *account = [account[0] + 1, account[1] + length];
                all.pairs.insert([source, number(30, 4), protocol], ());
                all.protocols[protocol as usize] += 0xff00_0000 + u64::from(length);
            }
        }
        all
    }

    /// Returns map name, file name and contents of each dump.
    fn files(&self) -> Vec<(&'static str, &'static str, String)> {
        let csv = |header: &str, rows: Vec<String>| format!("{header}\n{}", rows.concat());
        let json = |rows: Vec<String>| format!("[\n{}\n]\n", rows.join(",\n"));
        let sources = || self.sources.iter();
        let numbered = |rows: Vec<String>| rows.iter().enumerate().map(|(i, row)| format!("{i},{row}\n")).collect();
        let lengths = self.lengths.iter();
        vec![
            (
                "sources",
                "sources.csv",
                csv("key0,value0,value1", sources().map(|(k, [p, b])| format!("{k},{p},{b}\n")).collect()),
            ),
            (
                "sources",
                "sources.json",
                json(sources().map(|(k, [p, b])| format!(r#"{{"key":[{k}],"value":[{p},{b}]}}"#)).collect()),
            ),
            (
                "pairs",
                "pairs.csv",
                csv("key0,key1,key2", self.pairs.keys().map(|[a, b, c]| format!("{a},{b},{c}\n")).collect()),
            ),
            (
                "protocols",
                "protocols.csv",
                csv("index,sum", numbered(self.protocols.iter().map(u64::to_string).collect())),
            ),
            (
                "lengths",
                "lengths.csv",
                csv("index,value0,value1,value2", numbered(lengths.map(|[a, b, c]| format!("{a},{b},{c}")).collect())),
            ),
        ]
    }
}

#[test]
fn dumps_do_not_depend_on_device_or_batch_size() {
    let place = Place::new();
    let filter = place.file("f.wgsl", ACCOUNTS);
    let model = ExpectedMaps::of(&packets(&std::fs::read(sample()).unwrap()));
    assert!(model.sources.len() > 100 && model.protocols[6] > 1 << 32, "the sample covers the maps");
    let files = model.files();
    let dumps: Vec<String> = files.iter().map(|(map, file, _)| format!("--dump-map={map}={file}")).collect();
    for (device, options) in [
        ("cpu", &["--batch 1", "--batch 7 --threads 4", "--threads 1", "--batch 1000 --dispatch inline"][..]),
        ("interp", &["--batch 1", "--batch 333", "", "--dispatch inline"]),
        ("wgpu", &["--batch 100", "--batch 1500", "", "--dispatch inline"]),
        ("opencl", &["--batch 100", "--batch 1500", "", "--dispatch inline"]),
        ("cuda", &["--batch 100", ""]),
    ] {
        if !has_device(device) {
            continue;
        }
        for arguments in options {
            let mut args = vec!["run", filter, "--device", device, "--json", "--read"];
            let sample = sample();
            args.push(&sample);
            args.extend(arguments.split_whitespace());
            args.extend(dumps.iter().map(String::as_str));
            let ran = place.run(&args).assert_success();
            assert_eq!(ran.parse_json()["verdicts"]["aborted"], 0);
            for (_, file, wanted) in &files {
                let text = place.text(file);
                assert!(text == *wanted, "{device} {arguments}: {file}:\n{text}");
                std::fs::remove_file(place.path(file)).unwrap();
            }
        }
    }
    assert_eq!(place.names(), ["f.wgsl"], "no other file is left");
}

#[test]
fn a_dump_to_standard_output_is_its_only_content() {
    let place = Place::new();
    let filter = place.file("f.wgsl", ACCOUNTS);
    let wanted = &ExpectedMaps::of(&packets(&std::fs::read(sample()).unwrap())).files()[0].2;
    for to in ["sources=-", "sources=/dev/stdout"] {
        let ran = place.run(&["run", filter, "--read", &sample(), "--dump-map", to]).assert_success();
        assert!(ran.out == *wanted && ran.err.contains("packets"), "{to}: {}{}", ran.out, ran.err);
    }
    assert_eq!(place.names(), ["f.wgsl"]);
}

#[test]
fn invalid_dump_arguments_are_refused_before_the_run() {
    let place = Place::new();
    let filter = place.file("f.wgsl", ACCOUNTS);
    let content = pcap(&[&[1; 60]]);
    let capture = place.file("c.pcap", &content);
    let with = |args: &[&str]| place.run(&[&["run", filter, "--read", capture, "--write", "o.pcap"], args].concat());
    let refused = |dump: &str, words: &[&str]| with(&["--dump-map", dump]).assert_failure(2, words);
    for bad in ["sources", "=a.csv", "sources="] {
        refused(bad, &["--dump-map", "expected NAME=FILE"]);
    }
    for bad in ["sources=a.txt", "sources=a", "sources=csv"] {
        refused(bad, &["--dump-map", ".csv or .json"]);
    }
    let listed = "--dump-map souces=a.csv: the filter has no map `souces`; it has `sources`, `pairs`, `protocols`, \
                  `lengths`; did you mean `sources`?";
    refused("souces=a.csv", &[listed]);
    place.file("none.wgsl", PASS);
    let none = place.run(&["run", "none.wgsl", "--read", capture, "--dump-map", "a=a.csv"]);
    none.assert_failure(2, &["the filter has no map `a`; it has no maps"]);
    with(&["--device", "noop", "--dump-map", "sources=a.csv"]).assert_failure(2, &["noop runs no filter"]);
    // No output may overwrite another, or an input.
    let mine = "the output of --dump-map";
    for (args, what) in [
        (&["--dump-map", "sources=a.csv", "--dump-map", "pairs=./a.csv"][..], mine),
        (&["--dump-map", "sources=-", "--dump-map", "pairs=-"], mine),
        (&["--dump-map", "sources=-", "--write-tx", "-"], "the output of --write-tx"),
        (&["--dump-map", "sources=a.csv", "--write-tx", "a.csv"], "the output of --write-tx"),
    ] {
        with(args).assert_failure(2, &["error: --dump-map ", what]);
    }
    std::fs::hard_link(place.path("c.pcap"), place.path("c.csv")).unwrap();
    refused("sources=c.csv", &["--dump-map sources=c.csv: this is the input capture"]);
    assert_eq!(place.read("c.pcap"), content);
    std::fs::create_dir(place.path("dir.csv")).unwrap();
    for (file, why) in [
        ("none/a.csv", "there is no folder none; create it first"),
        ("dir.csv", "Is a directory (os error 21)"),
        ("c.pcap/a.csv", "Not a directory (os error 20)"),
    ] {
        let ran = with(&["--dump-map", &format!("sources={file}")]).assert_failure(1, &[]);
        assert_eq!(ran.err, format!("error: {file}: cannot be created: {why}\n"));
    }
    assert_eq!(place.names(), ["c.csv", "c.pcap", "dir.csv", "f.wgsl", "none.wgsl"]);
}

#[test]
fn a_malformed_capture_dumps_the_maps_of_packets_before_the_fault() {
    let place = Place::new();
    let filter = place.file("f.wgsl", ACCOUNTS);
    let mut content = pcap(&[&[1; 60], &[2; 250]]);
    // A packet that claims an impossible length.
    content.extend([0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff, 0x7f]);
    let capture = place.file("c.pcap", content);
    let ran = place.run(&["run", filter, "--read", capture, "--dump-map", "lengths=l.csv", "--json"]);
    ran.assert_failure(1, &["c.pcap"]);
    let wanted = &ExpectedMaps::of(&[vec![1; 60], vec![2; 250]]).files()[4].2;
    assert_eq!(std::str::from_utf8(&place.read("l.csv")).unwrap(), wanted);
}

#[cfg(target_os = "linux")]
#[test]
fn a_failed_dump_keeps_the_old_file() {
    let place = Place::new();
    place.file("f.wgsl", ACCOUNTS);
    place.file("p.csv", "old");
    let run = format!("portcullis run f.wgsl --read '{}' --dump-map pairs=p.csv", sample());
    // With SIGXFSZ ignored, writing beyond the limit is an error.
    let ran = place.shell(&format!("trap '' XFSZ; ulimit -f 1; {run}"));
    let why = "File too large (os error 27); check the limits of the file system and of the process (`ulimit -f`)";
    let judged = "packets were filtered, but not all maps are written";
    assert_eq!((ran.code, ran.err), (1, format!("error: p.csv: writing failed: {why}\n4 000 {judged}\n")));
    assert_eq!((place.read("p.csv"), place.names()), (b"old".to_vec(), vec!["f.wgsl".into(), "p.csv".into()]));
    std::os::unix::fs::symlink("/dev/full", place.path("full.csv")).unwrap();
    let ran = place.run(&["run", "f.wgsl", "--read", &sample(), "--dump-map", "pairs=full.csv"]);
    ran.assert_failure(1, &["error: full.csv: writing failed: No space left on device (os error 28)", judged]);
    // If a capture cannot be written, batches may be in flight, and the maps match no count.
    let ran = place.shell(&format!("trap '' XFSZ; ulimit -f 8; {run} --write o.pcap"));
    assert_eq!(ran.code, 1);
    assert!(
        ran.err.starts_with("error: o.pcap: writing failed") && ran.err.ends_with("\nno map is written\n"),
        "{}",
        ran.err
    );
    assert_eq!(place.read("p.csv"), b"old");
}
