//! `run --watch-map`: a map that follows a file during a run.

use std::fs;
use std::time::Duration;

use crate::live::{LOOK_UP, Live};
use crate::support::{PASS, Place, has_device, pcap};

/// Replaces a file by renaming, as programs that write such files should.
fn replace(place: &Place, name: &str, content: &str) {
    fs::rename(place.path(place.file("new", content)), place.path(name)).unwrap();
}

#[test]
fn a_map_follows_its_file_and_keeps_what_the_filter_counted() {
    for device in ["cpu", "interp"] {
        if !has_device(device) {
            continue;
        }
        let place = Place::new();
        place.file("f.wgsl", LOOK_UP);
        place.file("h.csv", "10.0.0.1,1,0\n10.0.0.9,9,0\n");
        let mut live = Live::start(&place, &["--device", device, "--watch-map", "hosts=h.csv"]);
        assert_eq!(live.ask(1), [1, 1], "{device}: the entry exists before the first packet");
        assert_eq!([live.ask(9), live.ask(9)], [[9, 1], [9, 2]]);
        assert_eq!(live.ask(2), [0, 0]);
        // One row changes, one is added, one stays.
        replace(&place, "h.csv", "10.0.0.1,5,100\n10.0.0.2,2,0\n10.0.0.9,9,0\n");
        live.until(2, |_, answer| answer == [2, 1]);
        assert_eq!([live.ask(1), live.ask(9)], [[5, 101], [9, 3]], "counts of the filter are kept");
        // Written in place with an error: the map does not change, and one warning is printed.
        place.file("h.csv", "10.0.0.1,6,0\n10.0.0.2,x,0\n");
        live.until(9, |live, _| live.log().contains("until h.csv is valid again"));
        for _ in 0..100 {
            live.ask(9);
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(live.ask(1), [5, 102]);
        // More rows than the map has room for.
        let rows: String = (0..2000).map(|n| format!("10.1.{}.{},0,0\n", n / 256, n % 256)).collect();
        place.file("h.csv", rows);
        live.until(9, |live, _| live.log().contains("there is no room in the map"));
        assert_eq!(live.ask(1), [5, 103]);
        fs::remove_file(place.path("h.csv")).unwrap();
        live.until(9, |live, _| live.log().contains("No such file or directory"));
        assert_eq!([live.ask(1), live.ask(2)], [[5, 104], [2, 2]]);
        // Valid again, with one row less.
        place.file("h.csv", "10.0.0.9,9,0\n10.0.0.2,3,0\n");
        live.until(2, |_, answer| answer[0] == 3);
        assert_eq!(live.ask(1), [0, 0]);
        let nines = live.ask(9)[1];
        assert!(nines > 100, "counting continued throughout: {nines}");
        let log = live.end();
        let stays = "the map `hosts` stays unchanged until h.csv is valid again";
        let wanted = [
            "warning: h.csv:2: column 2: `x` is neither a number nor an address; expected a number (80, 0x50) or an IPv4 address, a MAC",
            stays,
            // Seven tenths of 2048 slots.
            "warning: h.csv:1434: there is no room in the map `hosts` for this row and those behind it (entries=1000)",
            stays,
            "warning: h.csv: No such file or directory (os error 2)",
            stays,
            "h.csv is valid again; the map `hosts` follows it",
        ];
        assert_eq!(log.lines().collect::<Vec<_>>(), wanted, "{device}");
    }
}

/// The file replaces entries from `--state` or `--map`.
#[test]
fn a_map_starts_with_the_files_entries() {
    let place = Place::new();
    place.file("f.wgsl", LOOK_UP);
    place.file("a.csv", "10.0.0.1,1,0\n10.0.0.2,1,0\n");
    place.file("b.json", r#"[{"key": "10.0.0.2", "value": [2, 0]}, {"key": "10.0.0.3", "value": [2, 0]}]"#);
    let none = place.file("none.pcap", pcap(&[]));
    let run = |args: &[&str]| {
        place.run(&[&["run", "f.wgsl", "--read", none, "--dump-map", "hosts=o.csv"], args].concat()).assert_success();
        place.text("o.csv")
    };
    run(&["--map", "hosts=a.csv", "--state", "s"]);
    let wanted = "key0,value0,value1\n167772162,2,0\n167772163,2,0\n";
    assert_eq!(run(&["--state", "s", "--watch-map", "hosts=b.json"]), wanted);
    assert_eq!(run(&["--watch-map", "hosts=b.json", "--map", "hosts=a.csv"]), wanted);
}

#[test]
fn wrong_usage_is_refused_before_the_run() {
    let place = Place::new();
    let filter = place.file("f.wgsl", LOOK_UP);
    let none = place.file("none.wgsl", PASS);
    let capture = place.file("c.pcap", pcap(&[&[1; 60]]));
    place.file("h.csv", "10.0.0.1,1,0\n");
    place.file("bad.csv", "10.0.0.1,1\n");
    let run = |args: &[&str]| place.run(&[&["run", "--read", capture], args].concat());
    run(&[filter, "--watch-map", "hosts"])
        .assert_failure(2, &["expected NAME=FILE, for example --watch-map blocked=blocked.csv"]);
    run(&[filter, "--watch-map", "hosts=h.txt"]).assert_failure(2, &["the file name must end in .csv or .json"]);
    run(&[filter, "--watch-map", "host=h.csv"])
        .assert_failure(2, &["--watch-map host=h.csv: the filter has no map `host`"]);
    run(&[none, "--watch-map", "hosts=h.csv"]).assert_failure(2, &["the filter has no map `hosts`; it has no maps"]);
    run(&[filter, "--watch-map", "hosts=h.csv", "--device", "noop"]).assert_failure(2, &["noop runs no filter"]);
    let twice = run(&[filter, "--watch-map", "hosts=h.csv", "--watch-map", "hosts=b.csv"]);
    twice
        .assert_failure(2, &["--watch-map hosts=b.csv: the map already follows h.csv; a map can follow only one file"]);
    run(&[filter, "--watch-map", "hosts=h.csv", "--dump-map", "hosts=h.csv"])
        .assert_failure(2, &["--dump-map hosts=h.csv: this is the input of --watch-map"]);
    let ran = run(&[filter, "--watch-map", "hosts=bad.csv"]).assert_failure(1, &[]);
    let row = "a row is a key of 1 word and a value of 2 words";
    assert_eq!(ran.err, format!("error: bad.csv:1: the row ends after 1 of 2 words of its value; {row}\n"));
    run(&[filter, "--watch-map", "hosts=no.csv"])
        .assert_failure(1, &["error: no.csv: No such file or directory (os error 2)\n"]);
}

#[test]
fn lpm_maps_follow_a_file_too() {
    let place = Place::new();
    let text = LOOK_UP.replace("hosts: hash key=1", "hosts: lpm key=1");
    place.file("f.wgsl", text);
    place.file("p.csv", "prefix,list\n10.0.0.0/24,1,0\n10.0.0.128/25,2,0\n");
    let mut live = Live::start(&place, &["--device", "cpu", "--watch-map", "hosts=p.csv"]);
    assert_eq!([live.ask(1), live.ask(200), live.ask(201)], [[1, 1], [2, 1], [2, 2]]);
    replace(&place, "p.csv", "10.0.0.128/25,2,0\n10.0.0.0/28,3,0\n10.0.0.1,4,0\n");
    live.until(1, |_, answer| answer == [4, 1]);
    assert_eq!([live.ask(2), live.ask(99), live.ask(202)], [[3, 1], [0, 0], [2, 3]]);
    place.file("p.csv", "10.0.0.1/8,1,0\n");
    live.until(1, |live, _| live.log().contains("stays unchanged"));
    assert_eq!(live.ask(2), [3, 2]);
    let log = live.end();
    let why = "warning: p.csv:1: column 1: `10.0.0.1/8` has bits set beyond its length: did you mean `10.0.0.0/8`?\n";
    assert!(log.starts_with(why), "{log}");
}
