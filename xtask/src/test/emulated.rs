//! The filter suites on an emulated CUDA device: every dispatch method, on a machine without a GPU.

use portcullis_cuda_emulator::{Unavailable, build};

use super::tally::Tally;
use super::{Suite, live};
use crate::executables::Executable;

/// Suites that run on the emulated device; their filters are compiled for every dispatch method,
/// which takes time.
const SUITES: [&str; 9] = [
    "stock_filters",
    "stateful_filters",
    "batches",
    "resubmission",
    "random_filters",
    "maps",
    "host_maps",
    "flows",
    "contention",
];

/// Name of the emulated device in `--require`.
pub const NAME: &str = "emulated-cuda";

/// Part of the names of those live tests that run on every device.
const LIVE: &str = "every_device";

/// Runs the suites from what is built with these features. If this machine cannot build the
/// emulation, they are skipped unless required.
pub fn run(suite: &mut Suite<'_>, built: &[Executable], features: &live::Features, require: &[String]) {
    let is_required = |name: &str| require.iter().any(|required| required == name);
    let folder = match build(&suite.root.join("target"), &[]) {
        Ok(folder) => folder,
        Err(Unavailable::NotSupported(reason)) if !is_required(NAME) => {
            println!("\nNo emulated CUDA device: {reason}");
            suite.tally.skipped += 1;
            return;
        }
        Err(error) => {
            println!("\n{error}");
            return suite.end("the emulated CUDA device", Tally::one(false), std::time::Instant::now());
        }
    };
    let folder = folder.to_string_lossy().into_owned();
    let nvrtc = format!("{folder}/libnvrtc.so.12");
    let live = [live::AF_XDP, live::NFQUEUE, live::DPDK].into_iter().filter(|name| is_required(name));
    let required = ["cuda"].into_iter().chain(live).collect::<Vec<_>>().join(",");
    let environment = [
        ("LD_LIBRARY_PATH", folder.as_str()),
        ("PORTCULLIS_NVRTC", &nvrtc),
        ("PORTCULLIS_REQUIRE", &required),
        ("PORTCULLIS_TEST_ONLY", "cuda"),
        ("CUDA_VISIBLE_DEVICES", "0"),
    ];
    suite.built_tests("tests on an emulated CUDA device", built, ("compat-tests", &SUITES), "", &environment);
    suite.program("self-test on an emulated CUDA device", built, &["selftest", "--device", "cuda"], &environment);
    if features.has(live::AF_XDP) {
        suite.built_tests("live packets on an emulated CUDA device", built, ("cli", &["live"]), LIVE, &environment);
    }
    if features.has(live::DPDK) {
        suite.built_tests("l2fwd on an emulated CUDA device", built, ("cli", &["l2fwd"]), LIVE, &environment);
        suite.built_tests("packets in an emulated GPU's memory", built, ("cli", &["dpdk"]), LIVE, &environment);
    }
}
