//! The suites of live traffic, which need Linux, and to be built more than Rust.

use std::time::Instant;

use super::Suite;
use super::system::can_build_af_xdp;
use super::tally::Tally;

/// What `--require` calls AF_XDP sockets.
pub const AF_XDP: &str = "af-xdp";

/// What it calls netfilter queues.
pub const NFQUEUE: &str = "nfqueue";

/// Runs them, but for what this machine cannot have and nobody requires.
pub fn run(suite: &mut Suite<'_>, require: &[String]) {
    if !cfg!(target_os = "linux") {
        return;
    }
    let can_build = can_build_af_xdp();
    if !can_build {
        println!(
            "\nNo AF_XDP: to build it a C compiler, clang, m4, pkg-config and the headers of libelf and zlib are needed."
        );
        suite.tally.skipped += 1;
        if require.iter().any(|name| name == AF_XDP) {
            suite.end("AF_XDP", Tally::one(false), Instant::now());
        }
    }
    let both = format!("{AF_XDP},{NFQUEUE}");
    let features = if can_build { &both } else { NFQUEUE };
    let packages = ["--package", "portcullis-io", "--package", "portcullis-live-tests"];
    let lints =
        [&["clippy"], &packages[..], &["--all-targets", "--features", features, "--", "-D", "warnings"]].concat();
    suite.step("lints of live traffic", &lints, &[]);
    suite.tests("tests of live traffic", &[&packages[..], &["--features", features]].concat());
    if can_build {
        let program = ["--package", "portcullis", "--features", features];
        let lints = [&["clippy"], &program[..], &["--all-targets", "--", "-D", "warnings"]].concat();
        suite.step("lints of live runs", &lints, &[]);
        suite.tests("tests of live runs", &[&program[..], &["--lib", "--bins", "--test", "live"]].concat());
    }
}
