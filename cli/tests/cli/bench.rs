//! `portcullis bench`: output files, comparisons and exit codes. No measured time is asserted.

use serde_json::Value;

use crate::support::{PASS, Place, RunOutput, has_device};

/// Runs a short benchmark of the CPU.
fn run(place: &Place, extra_args: &[&str]) -> RunOutput {
    run_on(place, "cpu", "64,1000", extra_args)
}

/// Runs a short benchmark of devices that are separated by spaces.
fn run_on(place: &Place, devices: &str, batches: &str, extra_args: &[&str]) -> RunOutput {
    let mut args = vec!["bench", "--time", "1s"];
    args.extend(devices.split(' ').flat_map(|device| ["--device", device]));
    args.extend(["--batch", batches, "--packets", "64"]);
    place.run(&[&args, extra_args].concat())
}

fn parse_json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap()
}

#[test]
fn every_measurement_is_in_every_output_file() {
    let place = Place::new();
    let files =
        ["--json", "r.json", "--csv", "r.csv", "--report", "r.html", "--filter", "port_filter", "--filter", "mac_swap"];
    let ran = run(&place, &files).assert_success();
    // The budget of these tests is too short, which is noted.
    assert!(ran.err.lines().all(|line| line.contains(" is too short for ")), "{}", ran.err);
    let results = parse_json(&place.read("r.json"));
    let cells = results["cells"].as_array().unwrap();
    // All dispatch methods of the first filter at one batch size, one method otherwise.
    assert!(cells.len() >= 5, "{cells:?}");
    for cell in cells {
        let measured = &cell["outcome"]["measured"];
        assert!(measured["mpps"]["median"].as_f64().unwrap() > 0.0, "{cell}");
        assert!(measured["compared"].as_u64().unwrap() >= 2 * 65_000, "{cell}");
        assert_eq!(cell["packet_bytes"], 64.0);
    }
    assert_eq!(results["run"]["interrupted"], false);
    assert!(results["run"]["commands"][0].as_str().unwrap().starts_with("portcullis bench --time 1s --device cpu"));
    let lines = place.text("r.csv");
    assert_eq!(lines.lines().count(), 1 + cells.len());
    let page = place.text("r.html");
    assert!(page.contains("mac_swap") && !page.contains("://") && !page.contains("WRONG"));
    assert!(ran.out.contains("mac_swap, 64-byte packets") && !ran.out.contains("WRONG"), "{}", ran.out);
}

#[test]
fn a_report_can_be_made_from_earlier_results_and_bars() {
    let place = Place::new();
    run(&place, &["--filter", "port_filter", "--json", "r.json"]).assert_success();
    let bar = r#"[{"what": "capture in, capture out", "against": "tcpdump", "bar": "≥ 2", "measured": "2.43, 2.54 and 2.77",
        "met": true, "command": "cargo bench --bench capture"}]"#;
    // One bar a line, as benchmarks write them.
    place.file("bars.json", bar.trim_matches(['[', ']']).replace('\n', " ") + "\n");
    let from = ["bench", "--from", "r.json", "--bars", "bars.json", "--report", "r.html", "--json", "s.json"];
    place.run(&from).assert_success();
    let page = place.text("r.html");
    assert!(page.contains("port_filter") && page.contains("2.43, 2.54 and 2.77"));
    let (before, after) = (parse_json(&place.read("r.json")), parse_json(&place.read("s.json")));
    assert_eq!(before["cells"], after["cells"]);
    assert_eq!(before["bars"].as_array().unwrap().len(), after["bars"].as_array().unwrap().len());
    place.file("no.json", "{}");
    place.run(&["bench", "--from", "r.json", "--bars", "no.json"]).assert_exit(1, &["no.json: not a file of bars"]);
}

#[test]
fn device_resident_packets_are_measured_separately() {
    let devices: Vec<&str> = ["wgpu", "opencl"].into_iter().filter(|device| has_device(device)).collect();
    if devices.is_empty() {
        println!("skipped: there is neither a wgpu nor an OpenCL device");
    }
    for device in devices {
        let place = Place::new();
        let args = format!(
            "bench --time 2s --device {device} --device cpu --packets 64 --batch 64,5000 --filter port_filter \
             --filter mac_swap --transfer resident --json r.json --report r.html"
        );
        place.run(&args.split(' ').collect::<Vec<_>>()).assert_success();
        let results = parse_json(&place.read("r.json"));
        let cells = results["cells"].as_array().unwrap();
        let (resident, other): (Vec<_>, Vec<_>) = cells.iter().partition(|cell| cell["transfer"] == "device-resident");
        assert!(resident.len() >= 2 && resident.iter().all(|cell| cell["filter"] == "port_filter"), "{resident:?}");
        assert!(other.iter().all(|cell| cell["device"] == "cpu" && cell["transfer"] == "in place"), "{other:?}");
        for cell in resident {
            // Every batch is compared before and after: 8,192 packets in batches of 64 and four
            // batches of 5,000.
            assert!(cell["outcome"]["measured"]["compared"].as_u64().unwrap() >= 2 * 8_192, "{cell}");
            // The initial transfer does not count: only verdicts are copied back, a word each at
            // most.
            let copied = cell["outcome"]["measured"]["copied_bytes"].as_f64();
            assert!(copied.is_none_or(|copied| copied <= 4.0), "{cell}");
            assert_eq!(cell["outcome"]["measured"]["stages"]["gather"], 0.0, "{cell}");
        }
        let left = results["left_out"].to_string();
        assert!(left.contains("device-resident") && left.contains("the filter changes packets"), "{left}");
        let page = place.text("r.html");
        assert!(page.contains("Packets in the device’s memory already"));
    }
}

#[test]
fn auto_can_be_measured_as_a_device() {
    let place = Place::new();
    run_on(&place, "auto cpu", "64", &["--filter", "port_filter", "--json", "r.json"]).assert_success();
    let results = parse_json(&place.read("r.json"));
    let cells = results["cells"].as_array().unwrap();
    let auto: Vec<_> = cells.iter().filter(|cell| cell["device"] == "auto").collect();
    assert!(!auto.is_empty() && auto.iter().all(|cell| cell["outcome"]["measured"]["compared"].as_u64() > Some(0)));
    let bars = results["bars"].as_array().unwrap();
    assert!(bars.iter().any(|bar| bar["what"] == "--device auto, at any batch size" && bar["met"].is_boolean()));
}

#[test]
fn a_device_with_wrong_results_is_marked_and_not_rated() {
    let place = Place::new();
    // `noop` passes every packet, whatever the filter says.
    let extra_args = ["--filter", "port_filter", "--json", "r.json", "--csv", "r.csv"];
    let ran = run_on(&place, "noop cpu", "100", &extra_args);
    assert_eq!(ran.code, 1, "{}", ran.err);
    let row = ran.out.lines().find(|line| line.contains("  noop  ")).unwrap();
    assert!(row.trim_end().ends_with("WRONG"), "{row}");
    ran.assert_stdout_contains(&[" of a batch of 100: pass instead of "]);
    let results = parse_json(&place.read("r.json"));
    for cell in results["cells"].as_array().unwrap() {
        let is_wrong = cell["outcome"]["wrong"]["detail"].is_string();
        assert_eq!(is_wrong, cell["device"] == "noop", "{cell}");
        assert_eq!(cell["outcome"]["measured"].is_null(), is_wrong);
    }
    let lines = place.text("r.csv");
    assert!(lines.lines().all(|line| line.contains("noop") == line.contains(",WRONG,")), "{lines}");
}

/// A device without maps fails if the filter changes one, and not if it only declares some.
#[test]
fn maps_are_compared_on_devices_that_run_no_filter() {
    let place = Place::new();
    let filter = |count: &str| {
        format!("//! map seen: counter entries=1\nfn xdp_filter(pkt: u32) -> u32 {{ {count} return XDP_PASS; }}")
    };
    place.file("counts.wgsl", filter("seen_add(0u, 1u);"));
    place.file("has.wgsl", filter("if pkt_len(pkt) == 0u { seen_add(0u, 1u); }"));
    for (file, wrong) in [("counts.wgsl", true), ("has.wgsl", false)] {
        let ran = run_on(&place, "noop", "100", &["--json", "r.json", "--filter", file]);
        assert_eq!(ran.code, i32::from(wrong), "{file}: {}{}", ran.out, ran.err);
        for cell in parse_json(&place.read("r.json"))["cells"].as_array().unwrap() {
            let detail = cell["outcome"]["wrong"]["detail"].as_str().unwrap_or_default();
            assert_eq!(detail.contains("map `seen`"), wrong, "{cell}");
            assert_eq!(cell["outcome"]["measured"].is_null(), wrong, "{cell}");
        }
    }
}

#[test]
fn only_one_output_may_be_standard_output() {
    let place = Place::new();
    let filter = ["--filter", "minimal", "--batch", "64"];
    let ran = run(&place, &[&filter[..], &["--json", "-"]].concat()).assert_success();
    assert_eq!(parse_json(ran.out.as_bytes())["schema"], 1);
    let ran = run(&place, &[&filter[..], &["--csv", "-"]].concat()).assert_success();
    assert!(ran.out.starts_with("filter,device,batch,"), "{}", ran.out);
    run(&place, &["--csv", "-", "--json", "-"]).assert_failure(2, &["only one of"]);
}

/// If one file cannot be written, the others are.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_does_not_affect_other_files() {
    let place = Place::new();
    let ran = run(&place, &["--filter", "minimal", "--batch", "64", "--json", "/dev/full", "--csv", "r.csv"]);
    let ran = ran.assert_exit(1, &["/dev/full: ", "No space left on device"]);
    assert!(place.text("r.csv").contains("minimal,cpu,64,"));
    ran.assert_stdout_contains(&["minimal, 64-byte packets"]);
}

#[test]
fn runs_are_compared_cell_by_cell() {
    let place = Place::new();
    run(&place, &["--filter", "minimal", "--json", "a.json"]).assert_success();
    // The same results with lower rates, and with one cell of another filter.
    let mut half = parse_json(&place.read("a.json"));
    let cells = half["cells"].as_array_mut().unwrap();
    for cell in cells.iter_mut() {
        for part in ["median", "low", "high"] {
            let rate = &mut cell["outcome"]["measured"]["mpps"][part];
            *rate = (rate.as_f64().unwrap() / 50.0).into();
        }
    }
    cells[0]["filter"] = "other".into();
    place.file("b.json", half.to_string());

    place
        .run(&["bench", "--compare", "a.json", "a.json"])
        .assert_success()
        .assert_stdout_contains(&[" 1.00 ", ": 0 slower and 0 faster"]);
    let ran = place.run(&["bench", "--compare", "a.json", "b.json"]);
    assert_eq!(ran.code, 1);
    let unmatched_cells =
        ["only in the first: minimal, cpu, batches of 64", "only in the second: other, cpu, batches of 64"];
    ran.assert_stdout_contains(&["SLOWER", unmatched_cells[0], unmatched_cells[1]]);
    let ran = place.run(&["bench", "--compare", "b.json", "a.json"]);
    assert_eq!(ran.code, 1, "the other filter is no longer measured");
    assert!(ran.out.contains("faster by more") && !ran.out.contains("SLOWER"), "{}", ran.out);
    half["cells"][0]["filter"] = "minimal".into();
    place.file("b.json", half.to_string());
    place.run(&["bench", "--compare", "b.json", "a.json"]).assert_success();

    place.file("c.json", half.to_string().replace("\"schema\":1", "\"schema\":99"));
    place.file("d.json", "{\"packets\": 4}");
    for (file, words) in
        [("c.json", "version 99"), ("d.json", "no results of portcullis bench"), ("e.json", "e.json: ")]
    {
        place.run(&["bench", "--compare", "a.json", file]).assert_failure(1, &[file, words]);
    }
}

#[test]
fn wrong_usage_is_refused_before_measuring() {
    let place = Place::new();
    for (args, code, words) in [
        (&["--filter", "no_such"][..], 2, "there is no stock filter `no_such`"),
        (&["--filter", "no_such.wgsl"], 1, "no_such.wgsl"),
        (&["--device", "cuda@2"], 2, "only the CPU has threads"),
        (&["--device", "cpu@0"], 2, "number of threads"),
        (&["--device", "cpu@4000000000"], 2, "number of threads"),
        (&["--from", "a.json", "--seeds"], 2, "--seeds"),
        (&["--device", "gpu"], 2, "there is no device `gpu`"),
        (&["--device", "wgpu:999"], 1, "wgpu"),
        (&["--packets", "63"], 2, "64 to 9000"),
        (&["--batch", "0"], 2, "0"),
        (&["--transfer", "fast"], 2, "auto, whole, window and imported, and resident"),
        (&["--json", "a", "--csv", "./a"], 2, "would be written there"),
        (&["--json", "no/such/folder.json"], 1, "no/such/folder.json"),
        (&["--quick", "--full"], 2, "--full"),
        (&["--compare", "a.json"], 2, "--compare"),
        (&["--compare", "a.json", "b.json", "--json", "c.json"], 2, "--json"),
    ] {
        place.run(&[&["bench"], args].concat()).assert_failure(code, &[words]);
        assert_eq!(place.names(), [""; 0]);
    }
}

#[test]
fn outputs_may_not_overwrite_inputs() {
    let place = Place::new();
    place.file("f.wgsl", PASS);
    // The object is not parsed before its file is found to be an output.
    place.file("two.o", "an object");
    place.file("rows.csv", "0,1\n");
    for (filter, to, what) in [
        (&["f.wgsl"][..], "./f.wgsl", "a filter to measure"),
        (&["two.o"], "two.o", "a filter to measure"),
        (&["two.o:second"], "two.o", "a filter to measure"),
        (&["f.wgsl", "--map", "rows=rows.csv"], "rows.csv", "the input of --map"),
    ] {
        let read = || ["f.wgsl", "two.o", "rows.csv"].map(|file| place.read(file));
        let before = read();
        for option in ["--json", "--csv", "--report"] {
            let words = format!("{to}: this is {what}; choose another name");
            run(&place, &[&["--filter"], filter, &[option, to]].concat()).assert_failure(2, &[&words]);
            assert!(read() == before, "{filter:?} {option} {to}");
        }
    }
}

#[test]
fn batches_that_exceed_memory_are_left_out_and_reported() {
    let place = Place::new();
    let args = ["bench", "--time", "1s", "--device", "cpu", "--batch", "100,3000000", "--packets", "9000"];
    let ran = place.run(&[&args[..], &["--filter", "minimal", "--json", "r.json"]].concat()).assert_success();
    let results = parse_json(&place.read("r.json"));
    let left = results["left_out"].as_array().unwrap();
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(left[0]["what"].as_str().unwrap().contains("batches of 3000000"), "{left:?}");
    assert!(left[0]["why"].as_str().unwrap().contains("GB of memory"), "{left:?}");
    ran.assert_stdout_contains(&["left out: minimal, 9000-byte packets in batches of 3000000: "]);
}

/// Earlier results stay until new ones are complete, and those of an interrupted run are marked.
#[cfg(unix)]
#[test]
fn an_interrupted_run_writes_its_results_so_far() {
    use std::process::Stdio;

    let place = Place::new();
    place.file("r.json", "older");
    let args =
        ["bench", "--time", "60s", "--device", "cpu", "--filter", "minimal", "--json", "r.json", "--packets", "64"];
    // As a shell starts a background job: SIGINT is ignored and stays so, SIGTERM is not.
    let mut command = place.command_ignoring("INT", &args);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(place.read("r.json"), b"older");
    crate::support::signal(&child, "INT");
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(child.try_wait().unwrap().is_none(), "an ignored signal ended the run");
    crate::support::signal(&child, "TERM");
    crate::support::wait_for_end(&mut child);
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{}", String::from_utf8_lossy(&ended.stderr));
    let results = parse_json(&place.read("r.json"));
    assert_eq!(results["run"]["interrupted"], true);
    let out = String::from_utf8(ended.stdout).unwrap();
    assert!(out.contains("interrupted: these results are incomplete"), "{out}");
    assert_eq!(place.names(), ["r.json"]);
}

/// A quick run measures every required device beside the others.
#[test]
fn a_quick_run_measures_every_required_device() {
    let place = Place::new();
    let devices: Vec<&str> = ["cpu", "wgpu", "opencl"].into_iter().filter(|device| has_device(device)).collect();
    let mut args = vec!["bench", "--quick", "--time", "10s", "--filter", "port_filter", "--filter", "hash_lb"];
    args.extend(["--batch", "64,4096", "--packets", "64", "--json", "r.json"]);
    let require = devices.join(",");
    if !require.is_empty() {
        args.extend(["--require", &require]);
    }
    let ran = place.run(&args).assert_success();
    let results = parse_json(&place.read("r.json"));
    let cells = results["cells"].as_array().unwrap();
    for device in devices {
        for filter in ["port_filter", "hash_lb"] {
            for batch in [64, 4096] {
                let of = |cell: &&Value| {
                    let id = cell["device"].as_str().unwrap();
                    id.split([':', '@']).next() == Some(device) && cell["filter"] == filter && cell["batch"] == batch
                };
                let mine: Vec<_> = cells.iter().filter(of).collect();
                assert!(!mine.is_empty(), "{device}, {filter}, {batch}: {}", ran.out);
                for cell in mine {
                    assert!(cell["outcome"]["measured"]["compared"].as_u64().unwrap() > 0, "{cell}");
                }
            }
        }
    }
}

/// A program's settings are part of its name in results, and initial values of variables and maps
/// apply to every session.
#[test]
fn objects_are_measured_with_their_settings() {
    const SOURCE: &str = r#"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 0); __type(key, __u32); __type(value, __u32); } sized SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_RINGBUF); __uint(max_entries, 4096); } told SEC(".maps");
__u32 verdict = XDP_TX, packets;
SEC("xdp") int other(struct xdp_md *ctx) { return XDP_DROP; }
SEC("xdp") int counts(struct xdp_md *ctx)
{
    __u32 key = 3, *value = bpf_map_lookup_elem(&sized, &key);
    __sync_fetch_and_add(&packets, 1);
    bpf_ringbuf_output(&told, &key, sizeof(key), 0);
    return value && *value == 77 ? verdict : XDP_DROP;
}
char LICENSE[] SEC("license") = "GPL";
"#;
    let Some(place) = crate::objects::place(&[]) else { return };
    crate::objects::compile(&place, SOURCE, &["-g"]).unwrap();
    place.file("sized.csv", "3,77\n");
    let filter = ["--filter", "prog.o:counts", "--json", "r.json"];
    run(&place, &filter).assert_failure(1, &["the map `sized` has no entries"]);
    let set = ["--set", "sized.max_entries=4", "--map", "sized=sized.csv"];
    run(&place, &[&filter[..], &set].concat()).assert_success();
    let results = parse_json(&place.read("r.json"));
    let cells = results["cells"].as_array().unwrap();
    assert!(!cells.is_empty());
    for cell in cells {
        assert_eq!(cell["filter"], "prog.o:counts --set sized.max_entries=4 --map sized=sized.csv");
        assert!(cell["outcome"]["measured"]["compared"].as_u64() > Some(0), "{cell}");
    }
    for (extra_args, code, words) in [
        (&["--set", "nothing=1"][..], 2, "--set nothing: the object has no variable `nothing`"),
        (&["--set", "verdict"], 2, "expected NAME=VALUE"),
        (&["--set", "verdict=none"], 2, "`none` is no number"),
        (
            &["--set", "sized.max_entries=4", "--map", "none=sized.csv"],
            2,
            "--map none=sized.csv: the filter has no map `none`",
        ),
        (&["--set", "sized.max_entries=4", "--map", "told=sized.csv"], 2, "`told` is an event ring"),
        (&["--set", "sized.max_entries=3", "--map", "sized=sized.csv"], 1, "sized.csv:1: "),
        (&["--set", "sized.max_entries=4", "--map", "sized=gone.csv"], 1, "gone.csv"),
        (&["--set", "sized.max_entries=4", "--kernel-routes"], 2, "--kernel-routes: the filter looks up no routes"),
    ] {
        run(&place, &[&filter[..], extra_args].concat()).assert_failure(code, &[words]);
    }
    // Without a filter of its own, `--set` has nothing to apply to.
    run(&place, &["--set", "verdict=1"]).assert_failure(2, &["--filter"]);
}

/// Settings apply to the filters that have the parameter or map, and to be in none is an error.
#[test]
fn settings_apply_to_the_filters_that_have_them() {
    let place = Place::new();
    let with = "//! map limits: array value=1 entries=4\n\
                override most: u32 = 1u;\n\
                fn xdp_filter(pkt: u32) -> u32 {\n    \
                    if limits_read(2u, 0u) > most { return XDP_TX; }\n    \
                    return XDP_DROP;\n}\n";
    place.file("with.wgsl", with);
    place.file("without.wgsl", PASS);
    place.file("without.cl", "uint xdp_filter(__global uchar *pkt, uint len) { return XDP_PASS; }\n");
    place.file("limits.csv", "2,9\n");
    let filters = ["--filter", "without.wgsl", "--filter", "with.wgsl", "--filter", "without.cl", "--json", "r.json"];
    let settings = ["--set", "most=8", "--map", "limits=limits.csv"];
    let ran = run(&place, &[&filters[..], &settings].concat()).assert_success();
    for setting in ["--set most=8", "--map limits=limits.csv"] {
        let note = format!("{setting} applies to with.wgsl, not to without.wgsl, without.cl");
        assert!(ran.err.contains(&note), "{}", ran.err);
    }
    let results = parse_json(&place.read("r.json"));
    let mut names: Vec<_> =
        results["cells"].as_array().unwrap().iter().map(|cell| cell["filter"].as_str().unwrap()).collect();
    names.dedup();
    assert_eq!(names, ["without.wgsl", "with.wgsl --set most=8 --map limits=limits.csv", "without.cl"]);
    let files = &filters[..6];
    run(&place, &[files, &["--set", "least=8"]].concat()).assert_failure(2, &["the filter has no parameter `least`"]);
    run(&place, &[files, &["--map", "none=limits.csv"]].concat())
        .assert_failure(2, &["--map none=limits.csv", "no map `none`"]);
    // A value that the filter with the parameter does not take is no reason to leave it out.
    run(&place, &[files, &["--set", "most=many"]].concat()).assert_failure(2, &["--set most"]);
}

#[test]
fn a_budget_that_is_too_short_is_said_before_the_run() {
    let place = Place::new();
    let args =
        ["bench", "--time", "1ms", "--device", "cpu", "--batch", "64,1000", "--packets", "64", "--filter", "minimal"];
    let ran = place.run(&args).assert_success();
    assert!(ran.err.contains("--time 0.001 s is too short for "), "{}", ran.err);
    assert!(ran.err.contains("measurements: this takes up to "), "{}", ran.err);
}

#[test]
fn the_summary_begins_with_what_limits_trust() {
    let place = Place::new();
    run(&place, &["--filter", "minimal", "--json", "r.json"]).assert_success();
    let mut results = parse_json(&place.read("r.json"));
    let cells = results["cells"].as_array_mut().unwrap();
    let count = cells.len();
    for cell in cells {
        cell["outcome"]["measured"]["ended"] = "time".into();
        cell["outcome"]["measured"]["of_ceiling"] = serde_json::json!([7.53, "memory copy"]);
    }
    results["method"]["filters"] = serde_json::json!(["minimal", "forgotten"]);
    results["run"]["load"] = serde_json::json!({ "average_at_start": 7.25, "busy_elsewhere": 1.5 });
    place.file("r.json", results.to_string());
    let out = place.run(&["bench", "--from", "r.json"]).assert_success().out;
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("No figures for forgotten"), "{out}");
    assert!(lines[1].starts_with(&format!("{count} of {count} confidence intervals did not converge")), "{out}");
    assert!(lines[2].starts_with("Other processes kept 1.5 of "), "{out}");
    assert!(!out.contains("753 %") && out.contains("  cached"), "{out}");
}
