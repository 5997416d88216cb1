//! Paths that are not UTF-8, as archives from other systems have them.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use crate::support::{PASS, Place, packets, pcap, stock};

/// The name with each `é` in Latin-1, which is not UTF-8.
fn latin1(name: &str) -> OsString {
    OsString::from_vec(name.chars().map(|letter| letter as u8).collect())
}

fn run(place: &Place, args: &[&str]) -> crate::support::RunOutput {
    place.run(&args.iter().map(|arg| latin1(arg)).collect::<Vec<_>>())
}

fn path(place: &Place, name: &str) -> PathBuf {
    place.path("").join(latin1(name))
}

fn write(place: &Place, name: &str, content: impl AsRef<[u8]>) {
    std::fs::write(path(place, name), content).unwrap();
}

#[test]
fn every_file_of_a_run_may_have_any_name() {
    let place = Place::new();
    // PASS, TX or REDIRECT by the first byte.
    let filter = "//! map seen: hash key=1 value=1 entries=8\n\
                  fn xdp_filter(pkt: u32) -> u32 {\n    \
                      let first = load_u8(pkt, 0u);\n    \
                      if first == 4u { return redirect(7u); }\n    \
                      return first;\n}\n";
    write(&place, "café.wgsl", filter);
    write(&place, "café.pcap", pcap(&[&[2; 60], &[3; 61], &[4; 62]]));
    write(&place, "ré.csv", "9,8\n");
    let args = "run café.wgsl --read café.pcap --device cpu --write wé.pcap --write-tx té.pcap \
                --write-redirect dé --state sé --map seen=ré.csv --dump-map seen=oé.csv";
    let ran = run(&place, &args.split(' ').collect::<Vec<_>>()).assert_success();
    assert!(ran.out.starts_with("caf\u{fffd}.wgsl, on cpu"), "{}", ran.out);
    let captured = |name: &str| packets(&std::fs::read(path(&place, name)).unwrap());
    assert_eq!(captured("wé.pcap"), [vec![2; 60]]);
    assert_eq!(captured("té.pcap"), [vec![3; 61]]);
    assert_eq!(captured("dé/7.pcap"), [vec![4; 62]]);
    assert_eq!(std::fs::read_to_string(path(&place, "oé.csv")).unwrap(), "key0,value0\n9,8\n");
    assert!(path(&place, "sé").exists());
    // The state comes back from that file.
    let ran = run(
        &place,
        &["run", "café.wgsl", "--read", "café.pcap", "--state", "sé", "--dump-map", "seen=-", "--write", "té.pcap"],
    );
    assert_eq!(ran.assert_success().out, "key0,value0\n9,8\n");
    let ran =
        run(&place, &["run", "café.wgsl", "-r", "café.pcap", "--watch-map", "seen=ré.csv", "--dump-map", "seen=-"]);
    assert_eq!(ran.assert_success().out, "key0,value0\n9,8\n");
    // An output that is the input is seen, whatever it is called.
    run(&place, &["run", "café.wgsl", "-r", "café.pcap", "-w", "café.pcap"])
        .assert_failure(2, &["--write caf", "choose another"]);
}

#[test]
fn what_is_not_there_is_named() {
    let place = Place::new();
    write(&place, "é.wgsl", PASS);
    write(&place, "é.pcap", pcap(&[&[2; 60]]));
    run(&place, &["run", "é.wgsl", "-r", "missingé.pcap"]).assert_failure(1, &["missing\u{fffd}.pcap: "]);
    run(&place, &["run", "missingé.wgsl", "-r", "é.pcap"]).assert_failure(1, &["missing\u{fffd}.wgsl: "]);
    run(&place, &["run", "é.wgsl", "-r", "é.pcap", "-w", "noé/é.pcap"])
        .assert_failure(1, &["no\u{fffd}/\u{fffd}.pcap"]);
    run(&place, &["run", "é.wgsl", "-r", "é.pcap", "--events", "é"])
        .assert_failure(2, &["--events \u{fffd}: the filter"]);
    run(&place, &["run", "é.wgsl", "-r", "é.pcap", "--map", "é=é.csv"]).assert_failure(2, &["NAME=FILE"]);
    if cfg!(all(target_os = "linux", any(feature = "af-xdp", feature = "nfqueue", feature = "dpdk"))) {
        run(&place, &["ctl", "--control", "é.sock", "stats"])
            .assert_failure(1, &["--control \u{fffd}.sock: No such file"]);
        run(&place, &["ctl", "--control", "é.sock", "reload", "é.wgsl"])
            .assert_failure(1, &["--control \u{fffd}.sock: "]);
    }
}

#[test]
fn other_commands_take_any_name() {
    let place = Place::new();
    write(&place, "é.wgsl", PASS);
    assert!(run(&place, &["check", "é.wgsl"]).assert_success().out.starts_with("\u{fffd}.wgsl: no errors"));
    std::fs::copy(stock("minimal"), path(&place, "é.wgsl")).unwrap();
    run(&place, &["bench", "--filter", "é.wgsl", "--map", "no=é.csv"]).assert_failure(2, &["--map no=\u{fffd}.csv"]);
    run(&place, &["man", "é"]).assert_success();
    assert!(path(&place, "é/portcullis-run.1").exists());
    run(&place, &["selftest", "--device", "interp", "--quick", "--filter", "minimal", "--json", "é.json"])
        .assert_success();
    assert!(path(&place, "é.json").exists());
}

#[test]
fn every_file_of_bench_may_have_any_name() {
    let place = Place::new();
    let run = |args: &[&str]| run(&place, &[&["bench"], args].concat());
    let small = ["--time", "1s", "--device", "cpu", "--batch", "64", "--packets", "64", "--filter", "minimal"];
    run(&[&small[..], &["--json", "jé", "--csv", "cé", "--report", "ré"]].concat()).assert_success();
    write(&place, "bé", "[]");
    run(&["--from", "jé", "--bars", "bé", "--json", "ké", "--csv", "cé", "--report", "ré"]).assert_success();
    run(&["--compare", "jé", "ké"]).assert_success();
    let size = |name: &str| std::fs::metadata(path(&place, name)).unwrap().len();
    assert!(["jé", "ké", "cé", "ré"].iter().all(|name| size(name) > 0));
    run(&["--from", "missingé"]).assert_failure(1, &["missing\u{fffd}: "]);
    run(&["--compare", "jé", "missingé"]).assert_failure(1, &["missing\u{fffd}: "]);
    run(&["--from", "jé", "--bars", "missingé"]).assert_failure(1, &["missing\u{fffd}: "]);
    run(&["--from", "jé", "--json", "noé/é"]).assert_failure(1, &["no\u{fffd}/\u{fffd}"]);
    run(&["--from", "jé", "--json", "é", "--csv", "é"])
        .assert_failure(2, &["\u{fffd}: two of --json, --csv and --report"]);
}
