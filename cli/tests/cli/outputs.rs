//! Output files of `run`, and what is refused so that no data are lost.

#[cfg(target_os = "linux")]
use crate::support::RunOutput;
use crate::support::{PASS, Place, packets, pcap, pcap_of};

const BY_BYTE: &str = "fn xdp_filter(pkt: u32) -> u32 {
    let verdict = load_u8(pkt, 0u);
    store_u8(pkt, 2u, 0xeeu);
    if verdict == XDP_REDIRECT { return redirect(load_be16(pkt, 1u) >> 8u); }
    return verdict;
}";

#[test]
fn packets_are_written_by_verdict() {
    let place = Place::new();
    let filter = place.file("f.wgsl", BY_BYTE);
    let capture = place
        .file("c.pcap", pcap(&[&[2, 1, 1], &[3, 2, 2, 2], &[4, 5, 3], &[1, 4], &[2, 5], &[4, 6, 6], &[4, 5, 7, 7]]));
    place
        .run(&["run", filter, "--read", capture, "--write", "p.pcap", "--write-tx", "t.pcap", "--write-redirect", "r"])
        .assert_success();
    assert_eq!(packets(&place.read("p.pcap")), [vec![2, 1, 0xee], vec![2, 5]]);
    assert_eq!(packets(&place.read("t.pcap")), [[3, 2, 0xee, 2]]);
    assert_eq!(packets(&place.read("r/5.pcap")), [vec![4, 5, 0xee], vec![4, 5, 0xee, 7]]);
    assert_eq!(packets(&place.read("r/6.pcap")), [[4, 6, 0xee]]);
    assert!(!place.has("r/other.pcap"));
    // Timestamps and resolution are the input's: the fifth packet has second 4.
    let passed = place.read("p.pcap");
    assert_eq!(passed[24 + 16 + 3..][..8], [4, 0, 0, 0, 5, 0, 0, 0]);
}

#[test]
fn changed_lengths_are_written() {
    let place = Place::new();
    let filter = place.file(
        "f.wgsl",
        "fn xdp_filter(pkt: u32) -> u32 {
            if !adjust_head(pkt, -2i) || !adjust_tail(pkt, -1i) { return XDP_DROP; }
            store_be16(pkt, 0u, 0xabcdu);
            return XDP_PASS;
        }",
    );
    let capture = place.file("c.pcap", pcap(&[&[7; 20], &[8; 2], &[9; 14]]));
    place.run(&["run", filter, "--read", capture, "--write", "o.pcapng"]).assert_success();
    assert_eq!(place.read("o.pcapng")[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
    place.run(&["run", filter, "--read", capture, "--write", "o.pcap"]).assert_success();
    let wanted = [[&[0xab, 0xcd][..], &[7; 19]].concat(), [&[0xab, 0xcd][..], &[9; 13]].concat()];
    assert_eq!(packets(&place.read("o.pcap")), wanted);
}

#[test]
fn outputs_may_not_overwrite_inputs() {
    let place = Place::new();
    let filter = place.file("f.wgsl", PASS);
    let content = pcap(&[&[1; 60]]);
    let capture = place.file("c.pcap", &content);
    std::fs::hard_link(place.path("c.pcap"), place.path("link.pcap")).unwrap();
    std::fs::create_dir(place.path("dir")).unwrap();
    for args in [
        &["--write", "c.pcap"][..],
        &["--write", "./dir/../c.pcap"],
        &["--write", "link.pcap"],
        &["--write-tx", "c.pcap"],
        &["--write", "f.wgsl"],
        &["--write", "a.pcap", "--write-tx", "a.pcap"],
        &["--write", "a.pcap", "--write-tx", "./a.pcap"],
        &["--write", "-", "--write-tx", "-"],
        &["--write", "dir/3.pcap", "--write-redirect", "dir"],
        &["--write", "dir/other.pcap", "--write-redirect", "dir"],
    ] {
        place.run(&[&["run", filter, "--read", capture], args].concat()).assert_failure(2, &["error: --write"]);
        assert_eq!(place.read("c.pcap"), content);
        assert_eq!(place.read("f.wgsl"), PASS.as_bytes());
    }
    place.run(&["run", filter, "--read", capture, "--write", "/dev/null", "--write-tx", "/dev/null"]).assert_success();
    let seven = place.file("7.pcap", &content);
    place
        .run(&["run", filter, "--read", seven, "--write-redirect", "."])
        .assert_failure(2, &["error: --write-redirect"]);
    // No target's file has such a name.
    place.run(&["run", filter, "--read", capture, "--write-redirect", "."]).assert_success();
    place
        .run(&["run", filter, "--read", capture, "--write", "dir/passed.pcap", "--write-redirect", "dir"])
        .assert_success();
}

/// Inputs are protected under other names too: links, and files that a shell opened.
#[cfg(unix)]
#[test]
fn links_and_redirections_may_not_overwrite_inputs() {
    use std::os::unix::fs::symlink;
    let place = Place::new();
    let filter = place.file("f.wgsl", PASS);
    let content = pcap(&[&[1; 60]]);
    let capture = place.file("c.pcap", &content);
    std::fs::create_dir(place.path("dir")).unwrap();
    std::fs::hard_link(place.path("c.pcap"), place.path("dir/3.pcap")).unwrap();
    std::fs::create_dir(place.path("filters")).unwrap();
    symlink("../f.wgsl", place.path("filters/4.pcap")).unwrap();
    symlink("c.pcap", place.path("link.pcap")).unwrap();
    symlink("new.pcap", place.path("dangling.pcap")).unwrap();
    symlink("dangling.pcap", place.path("twice.pcap")).unwrap();
    for args in [
        &["--write", "link.pcap"][..],
        &["--write-redirect", "dir"],
        &["--write-redirect", "filters"],
        &["--write", "new.pcap", "--write-tx", "dangling.pcap"],
        &["--write", "twice.pcap", "--write-tx", "new.pcap"],
        &["--write", "-", "--write-tx", "/dev/stdout"],
    ] {
        place.run(&[&["run", filter, "--read", capture], args].concat()).assert_failure(2, &["error: --write"]);
        assert!(place.read("c.pcap") == content && place.read("f.wgsl") == PASS.as_bytes(), "{args:?}");
    }
    for (line, message) in [
        ("run f.wgsl --read - --write c.pcap < c.pcap", "--write c.pcap: this is the input capture"),
        ("run f.wgsl --read c.pcap --write - >> c.pcap", "--write -: this is the input capture"),
        ("run - --read c.pcap --write f.wgsl < f.wgsl", "--write f.wgsl: this is the filter"),
        (
            "run f.wgsl --read c.pcap --write o.pcap > o.pcap",
            "--write o.pcap: this is the destination of standard output",
        ),
    ] {
        let ran = place.shell(&format!("portcullis {line}")).assert_failure(2, &[]);
        assert_eq!(ran.err, format!("error: {message}; choose another name\n"));
        assert!(place.read("c.pcap") == content && place.read("f.wgsl") == PASS.as_bytes(), "{line}");
    }
}

/// `/dev/stdout` is standard output too, so nothing else may go there.
#[cfg(unix)]
#[test]
fn dev_stdout_holds_only_the_capture() {
    let place = Place::new();
    let (filter, capture) = (place.file("f.wgsl", PASS), place.file("c.pcap", pcap(&[&[1; 60]])));
    let ran =
        place.shell(&format!("portcullis run {filter} --read {capture} --write /dev/stdout > o.pcap")).assert_success();
    assert_eq!(packets(&place.read("o.pcap")), [[1; 60]]);
    assert!(ran.err.contains("packets"), "{}", ran.err);
}

#[test]
fn outputs_that_cannot_be_written_are_named() {
    let place = Place::new();
    let (filter, capture) = (place.file("f.wgsl", PASS), place.file("c.pcap", pcap(&[&[1; 60]])));
    let with = |option: &str, to: &str| place.run(&["run", filter, "--read", capture, option, to]);
    for (option, to, why) in [
        ("--write", "none/o.pcap", "cannot be created: there is no folder none; create it first"),
        ("--write", "none/deep/o.pcap", "cannot be created: there is no folder none/deep; create it first"),
        ("--write", ".", "cannot be created: Is a directory (os error 21)"),
        ("--write-tx", "c.pcap/o.pcap", "cannot be created: Not a directory (os error 20)"),
        ("--write-redirect", "c.pcap", "cannot be created: it is a file, not a folder"),
        ("--write-redirect", "c.pcap/dir", "cannot be created: Not a directory (os error 20)"),
    ] {
        assert_eq!(with(option, to).assert_failure(1, &[]).err, format!("error: {to}: {why}\n"), "{option}");
    }
    if std::path::Path::new("/dev/full").exists() {
        let why = "writing failed: No space left on device (os error 28); free some space, or choose another path";
        assert_eq!(with("--write", "/dev/full").assert_failure(1, &[]).err, format!("error: /dev/full: {why}\n"));
    }
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("nowhere", place.path("dangling")).unwrap();
        with("--write-redirect", "dangling").assert_failure(1, &["it is a link that leads nowhere\n"]);
    }
    std::fs::create_dir_all(place.path("r/3.pcap")).unwrap();
    let redirect = place.file("r.wgsl", "fn xdp_filter(pkt: u32) -> u32 { return redirect(load_u8(pkt, 0u)); }");
    let capture = place.file("r.pcap", pcap(&[&[3; 60], &[2; 60], &[4; 60]]));
    place
        .run(&["run", redirect, "--read", capture, "--write-redirect", "r"])
        .assert_failure(1, &["error: r/3.pcap: cannot be created: Is a directory (os error 21)\n"]);
    // The other files are complete nevertheless.
    assert_eq!(packets(&place.read("r/2.pcap")), [[2; 60]]);
    assert_eq!(packets(&place.read("r/4.pcap")), [[4; 60]]);
    let args = ["selftest", "--device", "interp", "--filter", "loads", "--json", "none/report.json"];
    let ran = place.run(&args);
    assert_eq!(
        (ran.code, &*ran.err),
        (1, "error: none/report.json: cannot be written: there is no folder none; create it first\n")
    );
}

/// If writing fails, the file ends with a whole packet, and the error states how many it has.
#[cfg(target_os = "linux")]
#[test]
fn a_file_whose_writing_fails_ends_with_a_whole_packet() {
    let place = Place::new();
    place.file("f.wgsl", PASS);
    place.file("r.wgsl", "fn xdp_filter(pkt: u32) -> u32 { return redirect(pkt_len(pkt) & 1u); }");
    let input = packets(&std::fs::read(crate::support::sample()).unwrap());
    let target = |odd: usize| input.iter().filter(|packet| packet.len() % 2 == odd).cloned().collect::<Vec<_>>();
    let run = |limit: u32, args: &str| {
        let read = crate::support::sample();
        place.shell(&format!("ulimit -f {limit}; portcullis run {args} --read '{read}' --device cpu"))
    };
    let why = "File too large (os error 27); check the limits of the file system and of the process (`ulimit -f`)";
    let check = |ran: RunOutput, name: &str, got: Vec<Vec<u8>>, wanted: &[Vec<u8>]| {
        let count = got.len();
        assert!((10..wanted.len()).contains(&count) && wanted.starts_with(&got), "{name}: {count} packets");
        let message = format!("error: {name}: writing failed: {why}; packets in the file: {count}\n");
        assert_eq!(
            (ran.code, ran.err),
            (1, format!("{message}4 000 packets were filtered, but not all are written\n"))
        );
    };
    // The unit of the limits is 512 bytes. Some of them fall inside a packet.
    for limit in [8, 9, 100, 601] {
        check(run(limit, "f.wgsl --write o.pcap"), "o.pcap", packets(&place.read("o.pcap")), &input);
        let ran = run(limit, "f.wgsl --write o.pcapng");
        check(ran, "o.pcapng", pcapng_packets(&place.read("o.pcapng")), &input);
        let ran = run(limit, "f.wgsl --write - > o.pcap");
        check(ran, "stdout", packets(&place.read("o.pcap")), &input);
        // Each file of a directory can fail; the error is about one of them.
        let ran = run(limit, "r.wgsl --write-redirect r");
        let files = [0, 1].map(|odd| (format!("r/{odd}.pcap"), target(odd)));
        for (name, wanted) in &files {
            assert!(wanted.starts_with(&packets(&place.read(name))), "{name}");
        }
        let (name, wanted) = files.into_iter().find(|(name, _)| ran.err.contains(name.as_str())).unwrap();
        check(ran, &name, packets(&place.read(&name)), &wanted);
    }
    // Appending keeps what the file had before.
    place.file("o.pcap", pcap(&[&[1; 60]]));
    let ran = run(8, "f.wgsl --write - >> o.pcap");
    let appended = place.read("o.pcap")[24 + 16 + 60..].to_vec();
    check(ran, "stdout", packets(&appended), &input);
    // A limit too small for the file header.
    let ran = run(0, "f.wgsl --write o.pcap").assert_failure(1, &[]);
    assert_eq!(ran.err, format!("error: o.pcap: writing failed: {why}; packets in the file: 0\n"));
    assert!(place.read("o.pcap").is_empty());
}

/// The packets of a pcapng file of one section, little-endian.
#[cfg(target_os = "linux")]
fn pcapng_packets(file: &[u8]) -> Vec<Vec<u8>> {
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    let (mut at, mut packets) = (0, Vec::new());
    while at < file.len() {
        let end = at + word(at + 4);
        assert_eq!(word(end - 4), word(at + 4));
        if word(at) == 6 {
            packets.push(file[at + 28..][..word(at + 20)].to_vec());
        }
        at = end;
    }
    packets
}

/// SIGXFSZ would end the program if it were not ignored.
#[cfg(target_os = "linux")]
#[test]
fn a_file_beyond_the_size_limit_is_removed_and_reported() {
    let place = Place::new();
    let counts = "//! map m: array value=1 entries=60000
        fn xdp_filter(pkt: u32) -> u32 { m_add(load_be32(pkt, 26u) % 60000u, 0u, 1u); return XDP_PASS; }";
    place.file("f.wgsl", counts);
    let run = "portcullis run f.wgsl --read synth:packets=20000,flows=20000";
    for (option, file) in [("--state s", "s"), ("--dump-map m=m.csv", "m.csv")] {
        let ran = place.shell(&format!("ulimit -f 8; {run} {option}"));
        let why = format!("error: {file}: writing failed: File too large (os error 27); check the limits of the file ");
        assert!(ran.code == 1 && ran.err.starts_with(&why), "{}: {}", ran.code, ran.err);
        assert_eq!(place.names(), ["f.wgsl"]);
    }
}

/// Files that cannot be created do not count as open.
#[cfg(unix)]
#[test]
fn open_files_are_bounded_even_if_some_cannot_be_created() {
    let place = Place::new();
    place.file("f.wgsl", "fn xdp_filter(pkt: u32) -> u32 { return redirect(load_be16(pkt, 0u)); }");
    // One packet for each target, so that the files are created at the end, one after another.
    let all: Vec<[u8; 2]> = (0..300u16).map(u16::to_be_bytes).collect();
    place.file("c.pcap", pcap_of(&all));
    let run = "portcullis run f.wgsl --read c.pcap --device cpu --write-redirect";
    for target in 0..64 {
        std::fs::create_dir_all(place.path(&format!("r/{target}.pcap"))).unwrap();
    }
    let ran = place.shell(&format!("ulimit -n 128; {run} r"));
    assert!(
        ran.code == 1 && ran.err.starts_with("error: r/0.pcap: cannot be created: Is a directory (os error 21)"),
        "{}",
        ran.err
    );
    for target in 64..300u16 {
        assert_eq!(packets(&place.read(&format!("r/{target}.pcap"))), [target.to_be_bytes()]);
    }
    let ran = place.shell(&format!("ulimit -n 40; {run} few"));
    assert!(ran.code == 1 && ran.err.contains("raise the limit (`ulimit -n`)"), "{}", ran.err);
}

#[test]
fn targets_beyond_the_limit_share_one_file() {
    let place = Place::new();
    let filter = place.file("f.wgsl", "fn xdp_filter(pkt: u32) -> u32 { return redirect(load_be16(pkt, 0u)); }");
    let all: Vec<[u8; 2]> = (0..1100u16).chain([3, 1099, 1098]).map(u16::to_be_bytes).collect();
    let all: Vec<&[u8]> = all.iter().map(|p| &p[..]).collect();
    let capture = place.file("c.pcap", pcap_of(&all));
    let ran = place.run(&["run", filter, "--read", capture, "--write-redirect", "r", "--json"]).assert_success();
    assert_eq!(ran.parse_json()["redirect_targets"].as_object().unwrap().len(), 1100);
    assert_eq!(std::fs::read_dir(place.path("r")).unwrap().count(), 1025);
    assert_eq!(packets(&place.read("r/3.pcap")), [[0, 3], [0, 3]]);
    let others: Vec<Vec<u8>> = (1024..1100u16).chain([1099, 1098]).map(|t| t.to_be_bytes().to_vec()).collect();
    assert_eq!(packets(&place.read("r/other.pcap")), others);
    assert!(!place.has("r/1024.pcap"));
}
