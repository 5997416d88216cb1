//! The suites of filters on a CUDA device that is emulated: every way of handing batches over, on a machine without
//! a GPU.

use portcullis_cuda_emulator::{Unavailable, build};

use super::Suite;
use super::tally::Tally;
use crate::executables::Executable;

/// Suites whose filters it runs; each is compiled for every dispatch method, which takes its time.
const SUITES: [&str; 9] = [
    "stock_filters",
    "stateful_filters",
    "batches",
    "submitted_again",
    "random_filters",
    "maps",
    "maps_of_the_host",
    "flows",
    "contention",
];

/// What `--require` calls it.
pub const NAME: &str = "emulated-cuda";

/// Runs them, of what is built, unless this machine cannot have the emulation and it is not `required`.
pub fn run(suite: &mut Suite<'_>, built: &[Executable], required: bool) {
    let folder = match build(&suite.root.join("target"), &[]) {
        Ok(folder) => folder,
        Err(Unavailable::Here(reason)) if !required => {
            println!("\nNo emulated CUDA device: {reason}");
            suite.tally.skipped += 1;
            return;
        }
        Err(broken) => {
            println!("\n{broken}");
            return suite.end("the emulated CUDA device", Tally::one(false), std::time::Instant::now());
        }
    };
    let folder = folder.to_string_lossy().into_owned();
    let nvrtc = format!("{folder}/libnvrtc.so.12");
    let environment = [
        ("LD_LIBRARY_PATH", folder.as_str()),
        ("PORTCULLIS_NVRTC", &nvrtc),
        ("PORTCULLIS_REQUIRE", "cuda"),
        ("PORTCULLIS_TEST_ONLY", "cuda"),
        ("CUDA_VISIBLE_DEVICES", "0"),
    ];
    suite.built_tests("tests on an emulated CUDA device", built, &SUITES, &environment);
    suite.program("self-test on an emulated CUDA device", built, &["selftest", "--device", "cuda"], &environment);
}
