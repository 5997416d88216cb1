//! `run --state`: maps carried from one run to the next.

use std::cell::Cell;
use std::collections::BTreeMap;

use crate::live::{LOOK_UP, Live};
use crate::support::{PASS, Place, has_device, packets, pcap, sample};

/// A filter that counts packets by source and bytes in total, and records lengths.
const COUNTS: &str = "
    //! map sources: hash key=1 value=1 entries=4096
    //! map lengths: array value=1 entries=2048
    //! map bytes: counter entries=1
    fn xdp_filter(pkt: u32) -> u32 {
        let source = sources_insert(load_be32(pkt, 26u));
        if source == MAP_FULL { return XDP_ABORTED; }
        sources_add(source, 0u, 1u);
        lengths_write(pkt_len(pkt), 0u, 1u);
        bytes_add(0u, pkt_len(pkt));
        return XDP_PASS;
    }";

/// Returns the expected dump of `sources` after this many runs over the capture.
fn sources(times: u32) -> String {
    let mut counts = BTreeMap::<u32, u32>::new();
    for packet in packets(&std::fs::read(sample()).unwrap()) {
        let source = packet.get(26..30).map_or(0, |it| u32::from_be_bytes(it.try_into().unwrap()));
        *counts.entry(source).or_default() += times;
    }
    let rows = counts.iter().map(|(source, count)| format!("{source},{count}\n"));
    "key0,value0\n".to_owned() + &rows.collect::<String>()
}

fn bytes(times: usize) -> String {
    let all = packets(&std::fs::read(sample()).unwrap());
    format!("index,sum\n0,{}\n", times * all.iter().map(Vec::len).sum::<usize>())
}

#[test]
fn maps_are_carried_between_runs_and_devices() {
    let place = Place::new();
    let filter = place.file("f.wgsl", COUNTS);
    let mut times = 0;
    for device in ["cpu", "interp", "wgpu", "opencl", "cpu"] {
        if !has_device(device) {
            continue;
        }
        times += 1;
        let args = ["run", filter, "--read", &sample(), "--device", device, "--state", "s", "--batch", "700"];
        place
            .run(&[&args[..], &["--dump-map", "sources=s.csv", "--dump-map", "bytes=b.csv"]].concat())
            .assert_success();
        for (file, wanted) in [("s.csv", sources(times)), ("b.csv", bytes(times as usize))] {
            let text = place.text(file);
            assert!(text == wanted, "{device}, run {times}, {file}:\n{text}");
        }
    }
    assert!(times >= 3);
    assert_eq!(place.names(), ["b.csv", "f.wgsl", "s", "s.csv"], "no other file is left");
    // A run without changes writes the same file.
    let (before, none) = (place.read("s"), place.file("none.pcap", pcap(&[])));
    place.run(&["run", filter, "--read", none, "--state", "s"]).assert_success();
    assert!(place.read("s") == before);
}

#[test]
fn only_the_size_of_a_map_may_change() {
    let place = Place::new();
    place.file("f.wgsl", COUNTS);
    place.run(&["run", "f.wgsl", "--read", &sample(), "--state", "s"]).assert_success();
    let saved = place.read("s");
    let with = |from: &str, to: &str| {
        assert!(COUNTS.contains(from));
        let filter = place.file("g.wgsl", COUNTS.replace(from, to));
        place.run(&["run", filter, "--read", &sample(), "--state", "s", "--dump-map", "sources=s.csv"])
    };
    let refused = |from: &str, to: &str, why: &str| {
        let ran = with(from, to).assert_failure(1, &[]);
        assert_eq!(ran.err, format!("error: s: {why}\n"));
        assert!(place.read("s") == saved && !place.has("s.csv"), "no file has changed");
    };
    let own = "use a separate file for each filter, or remove this one to start over";
    refused(
        "key=1 value=1",
        "key=1 value=2",
        &format!(
            "its map `sources` is declared as `hash key=1 value=1`, but the filter's as `hash key=1 value=2`; {own}"
        ),
    );
    let other = format!("{PASS}\n//! map other: counter entries=1\n");
    place.file("other.wgsl", other);
    let ran = place.run(&["run", "other.wgsl", "--read", &sample(), "--state", "s"]);
    let none = "it has a map `sources` (hash key=1 value=1), but the filter has no map of this name";
    assert_eq!(ran.assert_failure(1, &[]).err, format!("error: s: {none}; {own}\n"));
    let count = sources(1).lines().count() - 1;
    let hint = "increase the number of entries, or remove the file to start over";
    refused(
        "entries=4096",
        "entries=9",
        &format!("the map `sources` has {count} entries in the file, but entries=9 in the filter; {hint}"),
    );
    let longest = packets(&std::fs::read(sample()).unwrap()).iter().map(Vec::len).max().unwrap();
    assert!(longest < 2000, "the map is larger than needed");
    let ran =
        with("entries=2048", "entries=64").assert_failure(1, &["error: s: entry ", "of the map `lengths` is not zero"]);
    assert!(ran.err.ends_with(&format!("but the map has too few entries (entries=64); {hint}\n")), "{}", ran.err);
    // More entries, and just enough.
    with("entries=4096", "entries=100000").assert_success();
    assert_eq!(place.text("s.csv"), sources(2));
    with("entries=2048", &format!("entries={}", longest + 1)).assert_success();
    assert_eq!(place.text("s.csv"), sources(3));
}

#[test]
fn files_that_are_not_state_are_refused_and_kept() {
    let place = Place::new();
    let filter = place.file("f.wgsl", COUNTS);
    let run = |state: &str| place.run(&["run", filter, "--read", &sample(), "--state", state]);
    run("s").assert_success();
    let saved = place.read("s");
    let mut changed = saved.clone();
    changed[saved.len() / 2] ^= 8;
    let advice = "restore a copy, or remove it to start over";
    let foreign = "not a state file written by --state; choose another name, or remove the file to start over";
    let newer = [&saved[..16], &[9, 0, 0, 0], &saved[20..]].concat();
    for (content, why) in [
        (&b""[..], foreign),
        (b"key0,value0\n1,2\n", foreign),
        (&saved[..saved.len() - 12], &format!("the file is damaged (truncated or changed: wrong checksum); {advice}")),
        (&saved[..21], &format!("the file is damaged (truncated or changed: wrong checksum); {advice}")),
        (&changed, &format!("the file is damaged (truncated or changed: wrong checksum); {advice}")),
        (&newer, "format version 9 is not supported (expected 1); use the release that wrote the file"),
    ] {
        place.file("bad", content);
        assert_eq!(run("bad").assert_failure(1, &[]).err, format!("error: bad: {why}\n"));
        assert_eq!(place.read("bad"), content);
    }
    std::fs::create_dir(place.path("dir")).unwrap();
    run("dir").assert_failure(1, &["error: dir: cannot be created: Is a directory (os error 21)"]);
    run("none/s").assert_failure(1, &["error: none/s: cannot be created: there is no folder none; create it first"]);
    #[cfg(unix)]
    run("/dev/null").assert_failure(1, &["error: /dev/null: not a regular file, which --state needs"]);
    run("f.wgsl").assert_failure(1, &["error: f.wgsl: not a state file written by --state"]);
    assert_eq!(place.names(), ["bad", "dir", "f.wgsl", "s"]);
}

#[test]
fn wrong_usage_is_refused_before_the_run() {
    let place = Place::new();
    let filter = place.file("f.wgsl", COUNTS);
    let none = place.file("none.wgsl", PASS);
    let run = |args: &[&str]| place.run(&[&["run"], args, &["--read", &sample(), "--state", "s.csv"]].concat());
    run(&[none]).assert_failure(2, &["error: --state s.csv: the filter has no maps"]);
    run(&[filter, "--device", "noop"]).assert_failure(2, &["error: --state s.csv: noop runs no filter"]);
    run(&[filter, "--dump-map", "bytes=s.csv"])
        .assert_failure(2, &["--dump-map bytes=s.csv: this is the file of --state"]);
    run(&[filter, "--write", "./s.csv"]).assert_failure(2, &["--state s.csv: this is the output of --write"]);
    assert_eq!(place.names(), ["f.wgsl", "none.wgsl"]);
}

/// After the reader closed the pipe, batches in flight have unknown effects.
#[cfg(unix)]
#[test]
fn a_closed_pipe_keeps_the_old_state_with_a_message() {
    let place = Place::new();
    place.file("f.wgsl", COUNTS);
    let run = "portcullis run f.wgsl --read synth:packets=400000 --device cpu --state s";
    assert_eq!(place.shell(&format!("{run} --limit 10 >totals")).code, 0);
    let saved = place.read("s");
    let ran = place.shell(&format!("{{ {run} --write -; echo $? >code; }} | head -c 100 >packets"));
    assert_eq!((ran.err.as_str(), place.read("code")), ("no map is written\n", b"141\n".to_vec()));
    assert!(place.read("s") == saved);
}

/// Two runs with one file would start with the same counts, and the second to end would discard
/// those of the first. The file need not exist yet, and may be named by a link.
#[cfg(unix)]
#[test]
fn a_state_file_is_locked_before_it_exists() {
    let place = Place::new();
    place.file("f.wgsl", LOOK_UP);
    place.file("h.csv", "10.0.0.1,7,0\n");
    let none = place.file("none.pcap", pcap(&[]));
    std::os::unix::fs::symlink("s", place.path("link")).unwrap();
    let hosts = ["--map", "hosts=h.csv"];
    let other = |state: &str| place.run(&["run", "f.wgsl", "--read", none, "--state", state]);
    for (first, second, packets) in [("s", "link", 3), ("s", "link", 2), ("link", "s", 1)] {
        let mut live = Live::start(&place, &[&["--device", "cpu", "--state", first], &hosts[..]].concat());
        (1..=packets).for_each(|count| assert_eq!(live.ask(1), [7, count]));
        let why = "another run is using this state file; wait until it ends, or choose another file";
        for state in [second, first] {
            assert_eq!(other(state).assert_failure(1, &[]).err, format!("error: {state}: {why}\n"));
        }
        assert_eq!(live.end(), "");
        other(second).assert_success();
        assert!(place.path("link").is_symlink());
        assert_eq!(place.names(), ["f.wgsl", "h.csv", "link", "none.pcap", "s"], "no lock file is left");
        place.run(&["run", "f.wgsl", "--read", none, "--state", second, "--dump-map", "hosts=o.csv"]).assert_success();
        let counts = format!("key0,value0,value1\n167772161,7,{packets}\n");
        assert_eq!(place.text("o.csv"), counts);
        for name in ["s", "o.csv"] {
            std::fs::remove_file(place.path(name)).unwrap();
        }
    }
    // A killed run leaves its lock file behind, which blocks nobody.
    let mut live = Live::start(&place, &["--device", "cpu", "--state", "s"]);
    live.ask(1);
    assert!(place.has(".s.lock"));
    live.kill();
    assert_eq!((place.has(".s.lock"), place.has("s")), (true, false));
    other("s").assert_success();
    assert_eq!(place.names(), ["f.wgsl", "h.csv", "link", "none.pcap", "s"]);
    // Neither does a lock file that is a dangling link: the run fails instead of waiting.
    std::os::unix::fs::symlink("nowhere", place.path(".s.lock")).unwrap();
    other("s")
        .assert_failure(1, &["error: s: cannot lock it with ", "/.s.lock: No such file or directory (os error 2)\n"]);
}

/// A killed run loses at most the counts since the last write.
#[test]
fn a_long_run_writes_its_state_periodically() {
    let place = Place::new();
    place.file("f.wgsl", LOOK_UP);
    let hosts = place.file("h.csv", "10.0.0.1,7,0\n");
    let mut live = Live::start(
        &place,
        &["--device", "cpu", "--map", &format!("hosts={hosts}"), "--state", "s", "--state-every", "1"],
    );
    let before = place.path("s");
    live.until(1, |_, _| before.exists());
    let first = place.read("s");
    // The file stays locked meanwhile.
    let other = ["run", "f.wgsl", "--read", place.file("none.pcap", pcap(&[])), "--state", "s"];
    place.run(&other).assert_failure(1, &["error: s: another run is using this state file"]);
    // The state is written again.
    live.until(1, |_, _| std::fs::read(place.path("s")).unwrap() != first);
    let (most, log) = (live.packets, live.log());
    live.kill();
    assert_eq!(log, "");
    place.run(&[&other[..], &["--dump-map", "hosts=o.csv"]].concat()).assert_success();
    let text = place.text("o.csv");
    let count: u64 = text.strip_prefix("key0,value0,value1\n167772161,7,").unwrap().trim_end().parse().unwrap();
    assert!((2..=most).contains(&count), "{count} of {most}");
    place.run(&["run", "f.wgsl", "--read", "none.pcap", "--state-every", "1"]).assert_failure(2, &["--state"]);
}

/// Whenever a run is killed, the file is the old or the new one, and the next run removes what was
/// left beside it.
#[cfg(unix)]
#[test]
fn a_killed_run_never_damages_the_file() {
    let place = Place::new();
    let text = "//! map seen: array value=4 entries=60000
        fn xdp_filter(pkt: u32) -> u32 {
            let entry = load_be32(pkt, 26u) % 60000u;
            for (var word = 0u; word < 4u; word = word + 1u) { seen_add(entry, word, word + 1u); }
            return XDP_PASS;
        }";
    let filter = place.file("f.wgsl", text);
    let read = "synth:packets=60000,flows=60000";
    let run = ["run", filter, "--read", read, "--device", "cpu", "--state", "s"];
    place.run(&run).assert_success();
    let none = place.file("none.pcap", pcap(&[]));
    // Reads the file, which must be complete.
    let rows = || -> Vec<[u64; 5]> {
        place.run(&["run", filter, "--read", none, "--state", "s", "--dump-map", "seen=s.csv"]).assert_success();
        let text = place.text("s.csv");
        let rows = text.lines().skip(1).map(|row| {
            let numbers: Vec<u64> = row.split(',').map(|number| number.parse().unwrap()).collect();
            numbers.try_into().unwrap()
        });
        rows.collect()
    };
    let once = rows();
    let size = std::fs::metadata(place.path("s")).unwrap().len();
    assert!(size > 300_000, "too small to be killed while writing: {size} bytes");
    let (mut runs, mut killed, halfway) = (1, 0, Cell::new(0));
    // Continue on a busy machine until one run was killed while writing.
    for round in (0..64).take_while(|round| *round < 16 || halfway.get() == 0) {
        let mut child = place.command(&run).stdout(std::process::Stdio::null()).spawn().unwrap();
        // Kill later and later while it writes.
        let is_time = || {
            let names = place.names();
            let temporary = names.iter().find(|name| name.ends_with(".tmp"));
            let length = temporary.and_then(|name| Some(place.path(name).metadata().ok()?.len()));
            length.is_some_and(|length| length > size * (round % 16) / 16)
        };
        while child.try_wait().unwrap().is_none() && !is_time() {}
        child.kill().unwrap();
        killed += usize::from(!child.wait().unwrap().success());
        halfway.set(halfway.get() + usize::from(place.names().iter().any(|name| name.ends_with(".tmp"))));
        let now = rows();
        let times = now.iter().zip(&once).find(|(_, once)| once[1] > 0).map(|(now, once)| now[1] / once[1]).unwrap();
        assert!(times == runs || times == runs + 1, "{runs} runs before, and now {times}");
        for (now, once) in now.iter().zip(&once) {
            assert_eq!(now[1..], once[1..].iter().map(|n| n * times).collect::<Vec<_>>()[..], "entry {}", once[0]);
        }
        runs = times;
        assert_eq!(place.names(), ["f.wgsl", "none.pcap", "s", "s.csv"], "temporary files are removed");
    }
    println!("{killed} were killed, {} of them halfway through the file", halfway.get());
    assert!(halfway.get() > 0, "no run was killed while writing");
}

/// Values changed by the filter are carried in `lpm` and `lru_hash` maps too.
#[test]
fn lpm_and_lru_maps_are_carried() {
    let place = Place::new();
    let text = "
        //! map routes: lpm key=1 value=2 entries=1000
        //! map hosts: lpm key=4 value=1 entries=10
        //! map recent: lru_hash key=1 value=1 entries=4096
        fn xdp_filter(pkt: u32) -> u32 {
            let source = load_be32(pkt, 26u);
            routes_add(routes_find(source), 1u, 1u);
            hosts_add(hosts_find(vec4<u32>(source, 0u, 0u, 0u)), 0u, 1u);
            recent_add(recent_insert(source), 0u, 1u);
            return XDP_PASS;
        }";
    let filter = place.file("f.wgsl", text);
    place.file("routes.csv", "0.0.0.0/1,1,0\n128.0.0.0/1,2,0\n192.168.0.0/16,3,0\n");
    place.file("hosts.json", r#"[{"prefix": "::/0", "value": 100}]"#);
    let (mut low, mut high, mut all) = (0, 0, 0);
    for packet in packets(&std::fs::read(sample()).unwrap()) {
        let source = packet.get(26..30).map_or(0, |it| u32::from_be_bytes(it.try_into().unwrap()));
        all += 1;
        low += u32::from(source >> 31 == 0);
        high += u32::from(source >> 31 == 1 && source >> 16 != 0xc0a8);
    }
    let mut times = 0;
    for device in ["cpu", "interp", "wgpu", "opencl"] {
        if !has_device(device) {
            continue;
        }
        let mut args = vec!["run", filter, "--read"];
        let sample = sample();
        args.extend([&sample, "--device", device, "--state", "s"]);
        if times == 0 {
            args.extend(["--map", "routes=routes.csv", "--map", "hosts=hosts.json"]);
        }
        args.extend(["--dump-map", "routes=r.csv", "--dump-map", "hosts=h.csv", "--dump-map", "recent=l.csv"]);
        place.run(&args).assert_success();
        times += 1;
        let read = |file| place.text(file);
        let rest = all - low - high;
        let wanted = format!(
            "prefix,value0,value1\n0.0.0.0/1,1,{}\n128.0.0.0/1,2,{}\n192.168.0.0/16,3,{}\n",
            times * low,
            times * high,
            times * rest
        );
        assert_eq!(read("r.csv"), wanted, "{device}");
        assert_eq!(read("h.csv"), format!("prefix,value0\n::/0,{}\n", 100 + times * all));
        assert!(read("l.csv") == sources(times), "{device}: {}", read("l.csv"));
    }
}
