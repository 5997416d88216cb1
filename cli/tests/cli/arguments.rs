//! Invalid and random arguments.

use portcullis::packet_io::synth::Random;

use crate::support::{PASS, Place, pcap};

#[test]
fn wrong_usage_and_wrong_input_have_different_exit_codes() {
    let place = Place::new();
    let (filter, capture) = (place.file("f.wgsl", PASS), place.file("c.pcap", pcap(&[&[0; 60]])));
    let with = |extra_args: &[&str]| place.run(&[&["run", filter, "--read", capture], extra_args].concat());
    with(&["--set", "novalue"]).assert_failure(2, &["--set", "NAME=VALUE"]);
    with(&["--set", "=1"]).assert_failure(2, &["NAME=VALUE"]);
    for bad in ["0", "-1", "NaN", "1.5", "4294967296", "", "0x10"] {
        with(&[&format!("--batch={bad}")]).assert_failure(2, &["--batch"]);
    }
    with(&["--batch=auto"]).assert_failure(2, &["--batch auto", "adapts to live traffic only"]);
    for bad in ["0", "-1", "NaN", "1025", ""] {
        with(&[&format!("--threads={bad}")]).assert_failure(2, &["--threads"]);
    }
    for bad in ["-1", "NaN", "1000001", ""] {
        with(&[&format!("--idle-spin={bad}")]).assert_failure(2, &["--idle-spin"]);
    }
    with(&["--dispatch=Inline"])
        .assert_failure(2, &["--dispatch", "`Inline`", "inline, pipelined, persistent, waitvalue and graph"]);
    with(&["--device=cpu", "--dispatch=graph"])
        .assert_failure(1, &["cpu has no dispatch method `graph`; it has pipelined and inline"]);
    with(&["--limit=-1"]).assert_failure(2, &["--limit"]);
    with(&["--fuel=x"]).assert_failure(2, &["--fuel"]);
    with(&["--fuel=16777217"]).assert_failure(2, &["--fuel"]);
    with(&["--fuel=16777216", "--device=cpu"]).assert_success();
    with(&["--read", capture]).assert_failure(2, &["--read"]);
    // An empty value, as from an unset shell variable.
    for option in ["--write", "--write-tx", "--write-redirect", "--read"] {
        place.run(&["run", filter, &format!("{option}=")]).assert_failure(2, &[option]);
    }
    with(&["--write-redirect", "-"]).assert_failure(2, &["--write-redirect -: "]);
    place.run(&["selftest", "--json="]).assert_failure(2, &["--json"]);
    with(&["--nonsense"]).assert_failure(2, &["--nonsense"]);
    place.run(&["run", filter]).assert_failure(2, &["--read"]);
    place.run(&["run"]).assert_failure(2, &["FILTER"]);
    place.run(&["walk"]).assert_failure(2, &["walk"]);
    place.run(&["check", filter, "--json", "--emit", "wgsl"]).assert_failure(2, &["--emit"]);
}

/// C reads `010` as 8, and WGSL has no such number: it is refused in every language.
#[test]
fn parameters_with_leading_zeros_are_refused_in_every_language() {
    let place = Place::new();
    let filters = [
        place.file("f.wgsl", format!("override PORT: u32 = 80u;\noverride RATE: f32 = 1.0;\n{PASS}")),
        place.file(
            "f.cl",
            "#ifndef PORT\n#define PORT 80u\n#endif\n#ifndef RATE\n#define RATE 1.0f\n#endif\n\
             uint xdp_filter(__global uchar *pkt, uint len) { return PORT + (uint)RATE; }\n",
        ),
    ];
    for filter in filters {
        let set = |set: &str| place.run(&["check", filter, "--json", "--set", set]);
        for value in ["010", "00", "-01", "010u"] {
            let message =
                format!("`{value}` is no value for the parameter `PORT`: expected a number without leading zeros");
            place.run(&["check", filter, "--set", &format!("PORT={value}")]).assert_failure(2, &[&message, "octal"]);
        }
        place.run(&["check", filter, "--set", "RATE=010"]).assert_failure(2, &["without leading zeros"]);
        for (value, number) in [("10", 10), ("0", 0), ("0x10", 16), ("0x010", 16), ("100u", 100)] {
            let parameters = set(&format!("PORT={value}")).assert_success().parse_json()["parameters"].clone();
            assert_eq!((&parameters[0]["name"], &parameters[0]["value"]), (&"PORT".into(), &number.into()), "{filter}");
        }
        set("RATE=0.5").assert_success();
    }
}

/// A `--set` that the filter rejects is wrong usage, too.
#[test]
fn an_invalid_parameter_is_wrong_usage() {
    let place = Place::new();
    let filter = place.file("f.wgsl", format!("override limit: u32 = 3u;\noverride on: bool = true;\n{PASS}"));
    let capture = place.file("c.pcap", pcap(&[&[0; 60]]));
    let list = " = its parameters are `limit`, `on`\n";
    for (set, expected) in [
        (
            &["--set", "limit=1", "--set", "limit=2"][..],
            "error: f.wgsl: --set limit: the parameter `limit` is given twice\n",
        ),
        (&["--set", "limt=1"], "error: f.wgsl: --set limt: the filter has no parameter `limt`\n"),
        (&["--set", "limit=x"], "error: --set limit: `x` is no value for the parameter `limit`: expected a number"),
        (&["--set", "on=1"], "error: --set on: `1` is no value for the parameter `on`: expected `true` or `false`\n"),
    ] {
        place.run(&[&["run", filter, "--read", capture][..], set].concat()).assert_failure(2, &[expected, list]);
        place.run(&[&["check", filter][..], set].concat()).assert_failure(2, &[expected, list]);
        let ran = place.run(&[&["check", filter, "--json"][..], set].concat());
        assert_eq!(ran.code, 2);
        let error = &ran.parse_json()["errors"][0];
        let message = error["message"].as_str().unwrap();
        assert!(expected.trim_end().ends_with(message) || message.contains("expected a number"), "{message}");
    }
    let filter = place.file("unset.wgsl", format!("override limit: u32;\n{PASS}"));
    place
        .run(&["run", filter, "--read", capture])
        .assert_failure(2, &["--set limit: the parameter `limit` has no value"]);
    // An error in the filter's text is reported before wrong parameters.
    let filter = place.file("bad.wgsl", "override a: u32 = 1u;\nfn xdp_filter(pkt: u32) -> u32 { return b; }");
    place.run(&["check", filter, "--set", "a=x"]).assert_failure(1, &["bad.wgsl:2:41"]);
}

/// More threads than fit into the address space: the message says that the number is too high.
#[cfg(target_os = "linux")]
#[test]
fn too_many_threads_are_refused_with_a_hint() {
    let place = Place::new();
    place.file("f.wgsl", PASS);
    place.file("c.pcap", pcap(&[&[0; 60]]));
    let run = "portcullis run f.wgsl --read c.pcap --device cpu --threads 1024";
    place
        .shell(&format!("ulimit -v 1500000; {run}"))
        .assert_failure(1, &["cpu: cannot start worker threads (try fewer): "]);
}

#[test]
fn help_names_every_option() {
    let place = Place::new();
    let help = place.run(&["run", "--help"]).assert_success().out;
    let options =
        "--read --write --write-tx --write-redirect --set --device --batch --threads --limit --fuel --json --progress";
    for option in options.split(' ') {
        assert!(help.contains(option), "{option}");
    }
    assert!(place.run(&["--version"]).assert_success().out.contains(env!("CARGO_PKG_VERSION")));
    let help = place.run(&["--help"]).assert_success().out;
    for command in ["run", "check", "devices", "selftest", "completions", "130", "141"] {
        assert!(help.contains(command), "{command}");
    }
}

/// Any outcome is fine but a crash, which `Place::run` detects, and an undocumented exit status.
#[test]
fn random_arguments_never_crash() {
    let place = Place::new();
    place.file("f.wgsl", PASS);
    place.file("f.bpf", "1\n6 0 0 1\n");
    place.file("c.pcap", pcap(&[&[0; 60]]));
    let plain = "run check devices completions help f.wgsl f.bpf c.pcap --expr --language=bpf - -- --read \
                 --write --json --set a=b = --batch --limit 1 0 -1 99999999999999999999 --device cpu noop \
                 interp synth:packets=10 synth: synth:size=1 --threads=2 --emit wgsl clif lanes bpf \
                 --progress \u{1F980} --write-redirect d --write-tx o.pcap --help -V --fuel --json=x \
                 /dev/null bash ../..";
    let words: Vec<&str> = plain.split(' ').chain(["tcp port 80", "", "\n"]).collect();
    let mut random = Random::new(1, 0);
    for _ in 0..150 {
        let mut args: Vec<&str> = (0..random.below(9)).map(|_| random.pick(&words)).collect();
        if random.one_in(2) {
            // Half of them get as far as running a filter.
            args.splice(0..0, ["run", "f.wgsl", "--read", "c.pcap"]);
        }
        if args.is_empty() {
            continue;
        }
        let ran = place.run(&args);
        assert!([0, 1, 2].contains(&ran.code), "{args:?}: {}", ran.code);
        assert!(ran.code == 0 || !ran.err.is_empty() || args.contains(&"--json"), "{args:?} fails without a message");
    }
}

#[cfg(unix)]
#[test]
fn arguments_that_are_not_utf8_are_an_error() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let place = Place::new();
    let odd = OsStr::from_bytes(b"\xff\xfe");
    place.file("f.wgsl", PASS);
    assert_eq!(place.run(&[OsStr::new("run"), OsStr::new("f.wgsl"), OsStr::new("--read"), odd]).code, 1);
    assert_eq!(place.run(&[OsStr::new("check"), odd]).code, 1);
    assert_eq!(place.run(&[odd]).code, 2);
}

/// Mutated bytes as a filter and as a capture give a result, or an error that names the file.
#[test]
fn errors_in_mutated_inputs_name_the_file() {
    let place = Place::new();
    let filter = place.file("f.wgsl", PASS);
    let good = pcap(&[&[1; 60], &[2; 60]]);
    let mut random = Random::new(2, 0);
    for round in 0..60 {
        let mut bytes = good.clone();
        for _ in 0..=round % 4 {
            let at = random.below(bytes.len() as u32) as usize;
            bytes[at] = random.u32() as u8;
        }
        place.file("noise.pcap", &bytes);
        let ran = place.run(&["run", filter, "--read", "noise.pcap", "--device", "cpu", "--json"]);
        assert!(ran.code == 0 || (ran.code == 1 && ran.err.contains("noise.pcap")), "{}: {}", ran.code, ran.err);
        place.file("noise.wgsl", &bytes[round..]);
        place.run(&["check", "noise.wgsl"]).assert_failure(1, &["noise.wgsl"]);
    }
}

#[cfg(not(all(target_os = "linux", feature = "dpdk")))]
#[test]
fn missing_features_are_named() {
    let part = if cfg!(target_os = "linux") { "build it with `--features dpdk`" } else { "Linux only" };
    Place::new().run(&["l2fwd", "--dpdk", "net_null0"]).assert_failure(2, &["l2fwd: ", part]);
}
