//! Stock filters by name, from a folder that has no file of theirs.

use std::path::Path;

use crate::support::{PASS, Place, entries, pcap, reordered, sample, stock};

/// A capture with one packet of TCP over IPv4 to this port.
fn tcp(place: &Place, port: u16) -> &'static str {
    let mut packet = vec![0; 60];
    packet[12..15].copy_from_slice(&[8, 0, 0x45]);
    packet[23] = 6;
    packet[36..38].copy_from_slice(&port.to_be_bytes());
    place.file("c.pcap", pcap(&[&packet]))
}

#[test]
fn a_stock_filter_runs_by_its_name() {
    let place = Place::new();
    let verdicts = |filter: &str| {
        let line =
            place.run(&["run", filter, "--read", &sample(), "--device", "cpu", "--json"]).assert_success().parse_json();
        (line["verdicts"].clone(), line["filter"].clone())
    };
    let (by_name, name) = verdicts("http_only");
    assert_eq!((by_name, name), (verdicts(&stock("http_only")).0, "http_only".into()));
    assert!(place.run(&["check", "router_v4"]).assert_success().out.starts_with("router_v4: no errors\n"));
    place
        .run(&["check", "http_only", "--set", "htp=1"])
        .assert_failure(2, &["http_only.wgsl: --set htp", "no parameter `htp`"]);
}

#[test]
fn the_twin_in_opencl_c_is_chosen_by_the_language() {
    let place = Place::new();
    let capture = tcp(&place, 8080);
    let passed = |extra_args: &[&str]| {
        let args = [&["run", "http_only", "--read", capture, "--device", "cpu", "--json"], extra_args].concat();
        place.run(&args).assert_success().parse_json()["verdicts"]["pass"].clone()
    };
    assert_eq!(passed(&[]), 0);
    assert_eq!(passed(&["--set", "http=8080"]), 1);
    assert_eq!(passed(&["--language", "opencl-c", "--set", "HTTP=8080"]), 1);
    place.run(&["check", "http_only", "--language", "opencl-c", "--set", "htp=1"]).assert_failure(2, &["http_only.cl"]);
    place.run(&["check", "http_only", "--language", "xdp"]).assert_failure(2, &["`http_only`", "wgsl and opencl-c"]);
}

#[test]
fn a_file_of_that_name_comes_first() {
    let place = Place::new();
    place.file("http_only", PASS);
    let capture = tcp(&place, 22);
    let args = ["run", "http_only", "--language", "wgsl", "--read", capture, "--device", "cpu", "--json"];
    assert_eq!(place.run(&args).assert_success().parse_json()["verdicts"]["pass"], 1);
    // A folder is no filter.
    let place = Place::new();
    std::fs::create_dir(place.path("http_only")).unwrap();
    place.run(&["check", "http_only"]).assert_success();
}

#[test]
fn a_typo_is_told_the_nearest_name() {
    let place = Place::new();
    let words = ["there is no stock filter `http_onyl`", "did you mean `http_only`?", "portcullis filters"];
    for command in [&["run", "--read", "synth:packets=1"][..], &["check"], &["bench", "--filter"], &["filters"]] {
        let ran = place.run(&[command, &["http_onyl"]].concat()).assert_failure(2, &words);
        assert!(!ran.err.contains("\n\n\n"), "{}", ran.err);
    }
    place.run(&["check", "http_only.wgsl"]).assert_failure(1, &["http_only.wgsl: "]);
    place.run(&["check", "some/http_only"]).assert_failure(1, &["some/http_only: "]);
    // Nothing hints at a stock filter here.
    std::fs::create_dir(place.path("http_onyl")).unwrap();
    place.run(&["check", "http_onyl"]).assert_failure(1, &["http_onyl: Is a directory"]);
    place.run(&["check", "http_only", "more"]).assert_failure(2, &["unexpected argument `more`"]);
}

#[test]
fn filters_are_listed_and_printed() {
    let place = Place::new();
    let shaders = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shaders");
    let text = place.run(&["filters"]).assert_success().out;
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let listed = place.run(&["filters", "--json"]).assert_success().parse_json();
    let listed = listed["filters"].as_array().unwrap();
    let mut count = 0;
    for entry in std::fs::read_dir(&shaders).unwrap() {
        let path = entry.unwrap().path();
        let (name, ending) = (path.file_stem().unwrap().to_str().unwrap(), path.extension().unwrap().to_str().unwrap());
        let language = match ending {
            "wgsl" => "wgsl",
            "cl" => "opencl-c",
            _ => continue,
        };
        count += 1;
        let source = std::fs::read(&path).unwrap();
        assert_eq!(place.run(&["filters", name, "--language", language]).assert_success().bytes, source, "{name}");
        let line = place.run(&["filters", name, "--language", language, "--json"]).assert_success().parse_json();
        assert_eq!((line["source"].as_str().unwrap().as_bytes(), &line["language"]), (&source[..], &language.into()));
        let entry = listed.iter().find(|entry| entry["name"] == name).unwrap();
        assert_eq!(entry["languages"], serde_json::json!(["wgsl", "opencl-c"]));
        assert!(text.lines().any(|line| line.starts_with(&format!("{name} "))), "{name}: {text}");
        if ending == "wgsl" {
            let checked = place.run(&["check", path.to_str().unwrap(), "--json"]).assert_success().parse_json();
            assert_eq!((&entry["parameters"], &entry["maps"]), (&checked["parameters"], &checked["maps"]), "{name}");
        }
    }
    assert_eq!(count, 2 * listed.len());
    assert!(text.contains("passes every packet\n") && text.contains("parameters: http=80, https=443\n"), "{text}");
    place.run(&["filters", "--language", "wgsl"]).assert_failure(2, &["<NAME>"]);
}

#[test]
fn shells_complete_the_names() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = place.run(&["completions", shell]).assert_success().out;
        assert!(script.contains("gtpu_decap"), "{shell}");
    }
    // Files are completed besides.
    assert!(place.run(&["completions", "zsh"]).assert_success().out.contains("files:file:_files"));
    place.run(&["check", "--help"]).assert_success();
}

#[test]
fn a_synthetic_fronthaul_is_reordered() {
    const SPEC: &str = "packets=1500,seed=4,size=64..1500,mix=ecpri";
    let place = Place::new();
    let (want, prbs) = reordered(&place.synthetic(SPEC));
    let read = format!("synth:{SPEC}");
    let dumps = ["--dump-map", "iq=iq.csv", "--dump-map", "events=events.csv", "--dump-map", "symbols=symbols.csv"];
    let json = place
        .run(&[&["run", "ecpri_reorder", "--device", "cpu", "--read", &read, "--json"], &dumps[..]].concat())
        .assert_success()
        .parse_json();
    assert_eq!(json["verdicts"]["drop"], 1500);
    assert!(entries(&place.text("iq.csv")) == want);
    let events = entries(&place.text("events.csv"));
    assert_eq!((events[&0] + events[&1]) as usize, prbs);
    // Slot 0 has every PRB of its first symbol.
    assert_eq!(place.text("symbols.csv").lines().nth(1), Some("0,65537,65809"));
}
