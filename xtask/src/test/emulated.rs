//! The filter suites on an emulated CUDA device: every dispatch method, on a machine without a GPU.

use std::time::Instant;

use portcullis_cuda_emulator::{Unavailable, build};

use super::tally::Tally;
use super::{Suite, features, suites};
use crate::executables::Executable;

/// Suites that run on the emulated device; their filters are compiled for every dispatch method,
/// which takes time.
const SUITES: [&str; 10] = [
    "stock_filters",
    "stateful_filters",
    "batches",
    "transfers",
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
pub fn run(suite: &mut Suite<'_>, built: &[Executable], features: &features::Features, require: &[String]) {
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
            return suite.end("the emulated CUDA device", Tally::one(false), Instant::now());
        }
    };
    let folder = folder.to_string_lossy().into_owned();
    let nvrtc = format!("{folder}/libnvrtc.so.12");
    let live = [features::AF_XDP, features::NFQUEUE, features::DPDK].into_iter().filter(|name| is_required(name));
    let required = ["cuda"].into_iter().chain(live).collect::<Vec<_>>().join(",");
    let environment = [
        ("LD_LIBRARY_PATH", folder.as_str()),
        ("PORTCULLIS_NVRTC", &nvrtc),
        ("PORTCULLIS_REQUIRE", &required),
        ("PORTCULLIS_TEST_ONLY", "cuda"),
        ("CUDA_VISIBLE_DEVICES", "0"),
    ];
    let live = [("live", features::AF_XDP), ("l2fwd", features::DPDK), ("dpdk", features::DPDK)];
    let live = live.into_iter().filter(|&(_, feature)| features.has(feature)).map(|(name, _)| ("cli", name, LIVE));
    let mut suites = Vec::new();
    for (folder, name, only) in SUITES.into_iter().map(|name| ("compat-tests", name, "")).chain(live) {
        let folder = suite.root.join(folder);
        let Some(test) = built.iter().find(|test| test.is_test && test.folder == folder && test.name == name) else {
            suite.end(&format!("{name} is built"), Tally::one(false), Instant::now());
            continue;
        };
        let mut command = suite.command(test, &environment);
        command.arg(only);
        suites.push(suites::Suite::of_executable(test, command));
    }
    suite.tests("tests on an emulated CUDA device", suites, None);
    suite.program("self-test on an emulated CUDA device", built, &["selftest", "--device", "cuda"], &environment);
}
