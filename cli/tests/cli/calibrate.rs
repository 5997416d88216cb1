//! `portcullis calibrate`, and `run --explain`.

use crate::support::{Place, has_device, stock};

#[test]
fn devices_that_are_named_are_measured_and_shown() {
    let place = Place::new();
    let ran = place.run(&["calibrate", &stock("simple_filter"), "--device", "noop", "--device", "cpu"]).done();
    for said in [
        "noop (no device: every packet passes): in use",
        "calibration: made for this run",
        "packets of about 64 bytes, microseconds a batch:",
        "packets of about 1514 bytes",
        "  from 1 packets on: ",
    ] {
        assert!(ran.out.contains(said), "{said}: {}", ran.out);
    }
    place.run(&["calibrate", &stock("simple_filter"), "--device", "gpu"]).failed(2, &["there is no device `gpu`"]);
    place.run(&["calibrate", "nothing.wgsl"]).failed(1, &["nothing.wgsl"]);
}

#[test]
fn where_there_is_nothing_to_choose_from_that_is_said() {
    if ["cuda", "wgpu", "opencl"].iter().any(|device| has_device(device)) {
        // A real GPU may be among them; a software device is none that `auto` would have.
        println!("not looked at: there may be a GPU here");
        return;
    }
    let place = Place::new();
    let ran = place.run(&["calibrate", &stock("simple_filter")]).done();
    assert!(ran.out.contains("is the only device that `auto` may choose here"), "{}", ran.out);
}

#[test]
fn check_tells_what_would_be_chosen() {
    let place = Place::new();
    let filter = stock("simple_filter");
    assert!(!place.run(&["check", &filter]).done().out.contains("device"));
    let ran = place.run(&["check", &filter, "--explain"]).done();
    // On a machine with one device, and on one with several of which nothing is kept.
    let said = ["nothing to choose from", "calibration: none (`portcullis calibrate FILTER` makes one)"];
    assert!(said.iter().any(|said| ran.out.contains(said)), "{}", ran.out);
    assert!(ran.out.contains("transfer:"), "{}", ran.out);
}

#[test]
fn the_choice_of_a_run_is_explained_where_that_is_asked_for() {
    let place = Place::new();
    let args = ["run", &stock("simple_filter"), "--read", "synth:packets=100", "--device", "cpu"];
    assert!(!place.run(&args).done().err.contains("device cpu"));
    let ran = place.run(&[&args[..], &["--explain"]].concat()).done();
    assert!(ran.err.contains("device cpu (") && ran.err.contains("nothing to choose from"), "{}", ran.err);
}
