//! `portcullis calibrate`, and `run --explain`.

use crate::support::{Place, has_device, stock};

#[test]
fn named_devices_are_measured_and_printed() {
    let place = Place::new();
    place
        .run(&["calibrate", &stock("simple_filter"), "--device", "noop", "--device", "cpu"])
        .assert_success()
        .assert_stdout_contains(&[
            "noop (no device: every packet passes): in use",
            "calibration: made for this run",
            "packets of about 64 bytes, microseconds a batch:",
            "packets of about 1514 bytes",
            "  from 1 packets on: ",
        ]);
    place
        .run(&["calibrate", &stock("simple_filter"), "--device", "gpu"])
        .assert_failure(2, &["there is no device `gpu`"]);
    place.run(&["calibrate", "nothing.wgsl"]).assert_failure(1, &["nothing.wgsl"]);
}

#[test]
fn a_single_device_is_reported_as_the_only_choice() {
    if ["cuda", "wgpu", "opencl"].iter().any(|device| has_device(device)) {
        // A hardware GPU may be among them; `auto` does not choose software devices.
        println!("skipped: there may be a GPU");
        return;
    }
    let place = Place::new();
    place
        .run(&["calibrate", &stock("simple_filter")])
        .assert_success()
        .assert_stdout_contains(&["is the only device that `auto` may choose here"]);
}

#[test]
fn check_explains_what_would_be_chosen() {
    let place = Place::new();
    let filter = stock("simple_filter");
    assert!(!place.run(&["check", &filter]).assert_success().out.contains("device"));
    let ran = place.run(&["check", &filter, "--explain"]).assert_success();
    // On a machine with one device, and on one with several and no stored calibration.
    let expected = ["nothing to choose from", "calibration: none (`portcullis calibrate FILTER` makes one)"];
    assert!(expected.iter().any(|expected| ran.out.contains(expected)), "{}", ran.out);
    ran.assert_stdout_contains(&["transfer:"]);
}

#[test]
fn a_run_explains_its_choice_if_asked() {
    let place = Place::new();
    let args = ["run", &stock("simple_filter"), "--read", "synth:packets=100", "--device", "cpu"];
    assert!(!place.run(&args).assert_success().err.contains("device cpu"));
    let ran = place.run(&[&args[..], &["--explain"]].concat()).assert_success();
    assert!(ran.err.contains("device cpu (") && ran.err.contains("nothing to choose from"), "{}", ran.err);
}
