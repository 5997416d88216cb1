//! Commands that describe the program and the machine: no arguments, `devices`, `selftest`,
//! `completions`.

use crate::support::{Place, RunOutput, sample};

#[test]
fn without_arguments_devices_and_a_sample_run_are_shown() {
    let ran = Place::new().run::<&str>(&[]).assert_success();
    ran.assert_stdout_contains(&["http_only", "cpu", "wgpu", "interp", "914", "selftest"]);
    assert_eq!(ran.err, "");
}

/// The demo needs no files: what it names is in the program, and its lines fit 80 columns.
#[test]
fn the_demo_fits_80_columns_and_its_commands_work() {
    let place = Place::new();
    // cargo sets this, and then the commands begin with `cargo run`.
    let run = |command: &mut std::process::Command| RunOutput::of(command.output().unwrap()).assert_success().out;
    let by_cargo = run(place.command::<&str>(&[]).env("CARGO", "cargo"));
    let shown = run(place.command::<&str>(&[]).env_remove("CARGO"));
    assert!(by_cargo.lines().all(|line| line.chars().count() <= 80), "{by_cargo}");
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    assert!(!shown.contains("shaders/"), "{shown}");
    let (_, next) = shown.split_once("\nNext:\n").unwrap();
    let mut commands = 0;
    for command in next.lines().filter_map(|line| line.trim_start().strip_prefix("portcullis ")) {
        commands += 1;
        // It takes long, and has tests of its own.
        if command != "selftest" {
            place.run(&command.split(' ').collect::<Vec<_>>()).assert_success();
        }
    }
    assert_eq!(commands, 4, "{shown}");
}

#[test]
fn devices_lists_every_backend_with_reasons_for_missing_ones() {
    let place = Place::new();
    let backends = ["cpu:", "cuda:", "wgpu:", "opencl:", "interp:", "noop:"];
    place.run(&["devices"]).assert_success().assert_stdout_contains(&backends);
    let line = place.run(&["devices", "--json"]).assert_success().parse_json();
    let backends = line["backends"].as_array().unwrap();
    assert_eq!(backends.len(), 6);
    for backend in backends {
        let found = !backend["devices"].as_array().unwrap().is_empty();
        assert_eq!(found, backend["missing"].is_null(), "{backend}");
    }
}

#[test]
fn selftest_compares_devices_and_writes_a_report() {
    let place = Place::new();
    let some = ["--filter", "loads", "--filter", "port_filter"];
    let args = [&["selftest", "--device", "interp", "--json", "report.json"], &some[..]].concat();
    let ran = place.run(&args).assert_success();
    ran.assert_stdout_contains(&["selftest passed"]);
    let report: serde_json::Value = serde_json::from_slice(&place.read("report.json")).unwrap();
    // The stock filter in both languages, and the probe.
    assert_eq!(report["devices"][0]["passed"], 3);
    let results = report["devices"][0]["results"].as_array().unwrap();
    let tried: Vec<_> = results.iter().map(|r| [&r["filter"], &r["language"]].map(|v| v.as_str().unwrap())).collect();
    assert_eq!(tried, [["port_filter", "WGSL"], ["loads", "WGSL"], ["port_filter", "OpenCL C"]]);
    ran.assert_stdout_contains(&["interp  identical  identical "]);

    // A device that is tested with fewer packets is noted with the reason; others are not.
    let ran = place
        .run(&[&["selftest", "--device", "interp", "--device", "cpu", "--json", "-"], &some[..]].concat())
        .assert_success();
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let compared = |device: usize| -> u64 {
        let results = report["devices"][device]["results"].as_array().unwrap();
        results.iter().map(|result| result["compared"].as_u64().unwrap()).sum()
    };
    assert!(compared(0) < compared(1));
    assert!(!ran.err.contains("cpu: "), "{}", ran.err);
    ran.assert_exit(0, &["\ninterp: fewer packets, only in batches of 64: "]);

    place.run(&[&["selftest", "--device", "noop"], &some[..]].concat()).assert_exit(1, &[]).assert_stdout_contains(&[
        "selftest failed",
        "expected",
        "packet",
    ]);

    place
        .run(&[&["selftest", "--device", "interp", "--require", "interp:9"], &some[..]].concat())
        .assert_exit(1, &[])
        .assert_stdout_contains(&["required and missing"]);
    let by = |method| {
        [&["selftest", "--device", "interp", "--dispatch", "inline", "--dispatch", method], &some[..]].concat()
    };
    place
        .run(&by("pipelined"))
        .assert_success()
        .assert_stdout_contains(&["interp inline     identical", "interp pipelined  identical"]);
    place
        .run(&by("graph"))
        .assert_exit(1, &[])
        .assert_stdout_contains(&["interp graph: required and missing: interp has no dispatch method `graph`"]);
    place.run(&["selftest", "--filter", "nothing"]).assert_failure(2, &["`nothing`", "loads"]);
    place.run(&["selftest", "--require", "gpu"]).assert_failure(2, &["`gpu`"]);
}

#[test]
fn completions_contain_the_commands() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = place.run(&["completions", shell]).assert_success().out;
        assert!(script.contains("write-redirect") && script.contains("selftest"), "{shell}");
    }
    place.run(&["completions", "cmd"]).assert_failure(2, &["cmd"]);
}

#[test]
fn progress_without_a_terminal_stays_off_stdout() {
    let place = Place::new();
    let filter = crate::support::stock("minimal");
    let ran = place.run(&["run", &filter, "--read", &sample(), "--progress", "--json"]).assert_success();
    ran.parse_json();
}

/// File names may come from an archive or from another user.
#[cfg(unix)]
#[test]
fn control_characters_in_file_names_do_not_reach_the_terminal() {
    let place = Place::new();
    let filter = place.file("\u{1b}[2J.wgsl", crate::support::PASS);
    for args in [&["run", filter, "--read", &sample()][..], &["check", filter], &["check", "\u{1b}[2J"]] {
        let ran = place.run(args);
        let text = ran.out + &ran.err;
        assert!(text.contains("[2J") && !text.contains('\u{1b}'), "{text:?}");
    }
}
