//! Live traffic, of which AF_XDP needs Linux, and to be built more than Rust.

use std::time::Instant;

use super::Suite;
use super::system::can_build_af_xdp;
use super::tally::Tally;

/// What `--require` calls AF_XDP sockets.
pub const AF_XDP: &str = "af-xdp";

/// What it calls netfilter queues.
pub const NFQUEUE: &str = "nfqueue";

/// Features that everything is built and tested with on a machine that cannot build AF_XDP, which is everywhere but on Linux.
pub const WITHOUT_AF_XDP: &str = "opencl,nfqueue";

/// The packages that know of AF_XDP, as such a machine has them.
pub const PACKAGES_WITHOUT_AF_XDP: [&str; 8] = [
    "--package",
    "portcullis",
    "--package",
    "portcullis-io",
    "--package",
    "portcullis-live-tests",
    "--features",
    WITHOUT_AF_XDP,
];

/// Features that everything is built and tested with: all that this machine can build. They are one set for every step, so that
/// libraries are built once. What is left out is printed, and fails where it is required.
pub fn features(suite: &mut Suite<'_>, require: &[String]) -> String {
    if !cfg!(target_os = "linux") {
        return WITHOUT_AF_XDP.into();
    }
    if can_build_af_xdp() {
        return format!("{WITHOUT_AF_XDP},{AF_XDP}");
    }
    println!(
        "\nNo AF_XDP: to build it a C compiler, clang, m4, pkg-config and the headers of libelf and zlib are needed."
    );
    suite.tally.skipped += 1;
    if require.iter().any(|name| name == AF_XDP) {
        suite.end("AF_XDP", Tally::one(false), Instant::now());
    }
    WITHOUT_AF_XDP.into()
}
