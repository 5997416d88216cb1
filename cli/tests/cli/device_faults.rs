//! `portcullis run` on devices that fail: an emulated CUDA driver that refuses or is lost.

use std::path::Path;

use portcullis_cuda_emulator::{BEHAVIOUR, Unavailable};

use crate::support::{Place, RunOutput, packets, sample, stock};

/// Runs `http_only` over the sample in batches of 500 packets by a dispatch method, and writes the
/// packets that pass to `passed.pcap`, on an emulated CUDA device that behaves as asked. `None` if
/// the driver cannot be built on this machine.
fn run_on_cuda(place: &Place, dispatch: &str, behaviour: &str) -> Option<RunOutput> {
    let folder = match portcullis_cuda_emulator::build(Path::new(env!("CARGO_TARGET_TMPDIR")), &[]) {
        Ok(folder) => folder,
        Err(Unavailable::NotSupported(reason)) => {
            println!("skipped: {reason}");
            return None;
        }
        Err(broken) => panic!("{broken}"),
    };
    let mut command = place.command(&[
        "run",
        &stock("http_only"),
        "--device",
        "cuda:0",
        "--read",
        &sample(),
        "--batch",
        "500",
        "--write",
        "passed.pcap",
        "--dispatch",
        dispatch,
    ]);
    command.env("LD_LIBRARY_PATH", &folder).env("PORTCULLIS_NVRTC", folder.join("libnvrtc.so.12"));
    command.env(BEHAVIOUR, behaviour).env_remove("CUDA_VISIBLE_DEVICES").env_remove("PORTCULLIS_CUBINS");
    Some(RunOutput::of(command.output().unwrap()))
}

/// The packets that pass, by the CPU.
fn passed_by_cpu(place: &Place) -> Vec<Vec<u8>> {
    let filter = stock("http_only");
    place.run(&["run", &filter, "--device", "cpu", "--read", &sample(), "--write", "cpu.pcap"]).assert_success();
    packets(&place.read("cpu.pcap"))
}

#[test]
fn refused_pinned_memory_is_a_warning() {
    let place = Place::new();
    let Some(ran) = run_on_cuda(&place, "pipelined", "no-pinned-memory,no-registering,pageable") else { return };
    let ran = ran.assert_success();
    let warning = "warning: cuda:0: host memory cannot be pinned (CUDA_ERROR_OUT_OF_MEMORY";
    assert_eq!((ran.err.matches("warning: ").count(), ran.err.matches(warning).count()), (1, 1), "{}", ran.err);
    assert!(packets(&place.read("passed.pcap")) == passed_by_cpu(&place));
}

#[test]
fn a_device_lost_in_mid_run_ends_it_with_the_packets_before() {
    let place = Place::new();
    // The launch at load time, and those of two batches, succeed. With `inline` each batch
    // completes before the next is submitted.
    let Some(ran) = run_on_cuda(&place, "inline", "launch-fails=4") else { return };
    ran.assert_failure(
        1,
        &["error: cuda:0: ", "CUDA_ERROR_LAUNCH_FAILED", "1 000 packets were filtered before the error"],
    );
    let (passed, want) = (packets(&place.read("passed.pcap")), passed_by_cpu(&place));
    assert!(!passed.is_empty() && passed.len() < want.len() && want.starts_with(&passed), "{}", passed.len());
}
