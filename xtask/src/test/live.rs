//! Features that not every machine can build: live traffic, of which AF_XDP and DPDK need Linux,
//! and to be built more than Rust; and expressions, which need libpcap.

use std::time::Instant;

use super::Suite;
use super::system::{can_build_af_xdp, can_build_dpdk, can_build_pcap};
use super::tally::Tally;

/// What `--require` calls AF_XDP sockets.
pub const AF_XDP: &str = "af-xdp";

/// Name of netfilter queues in `--require` and in features.
pub const NFQUEUE: &str = "nfqueue";

/// Name of DPDK ports, likewise.
pub const DPDK: &str = "dpdk";

/// Name of libpcap's expressions, likewise.
pub const PCAP_EXPR: &str = "pcap-expr";

/// Features that everything is built and tested with on a machine that can build none of the
/// others, which is everywhere but on Linux.
const EVERYWHERE: &str = "opencl,nfqueue";

/// The packages that know of live traffic, as such a machine has them.
pub const PACKAGES_EVERYWHERE: [&str; 10] = [
    "--package",
    "portcullis",
    "--package",
    "portcullis-cli",
    "--package",
    "portcullis-io",
    "--package",
    "portcullis-live-tests",
    "--features",
    EVERYWHERE,
];

/// Something that this machine may not be able to build.
struct OptionalFeature {
    feature: &'static str,
    what: &'static str,
    can_build: fn() -> bool,
    /// What building the feature needs.
    needs: &'static str,
}

const WAYS: [OptionalFeature; 3] = [
    OptionalFeature {
        feature: AF_XDP,
        what: "live traffic by AF_XDP",
        can_build: can_build_af_xdp,
        needs: "a C compiler, clang, m4, pkg-config and the headers of libelf and zlib",
    },
    OptionalFeature {
        feature: DPDK,
        what: "live traffic by DPDK",
        can_build: can_build_dpdk,
        needs: "a C compiler, libclang, pkg-config and DPDK 22.11 or newer with its headers",
    },
    OptionalFeature {
        feature: PCAP_EXPR,
        what: "expressions that libpcap compiles",
        can_build: can_build_pcap,
        needs: "pkg-config and libpcap with its headers",
    },
];

/// Features that everything is built and tested with.
pub struct Features {
    /// All of them, as cargo takes them.
    pub names: String,
    /// Features that this machine can build and not every machine can.
    ways: Vec<&'static str>,
}

impl Features {
    /// All that this machine can build. They are one set for every step, so that libraries are
    /// built once. What is left out is printed, and fails where it is required.
    pub fn find(suite: &mut Suite<'_>, require: &[String]) -> Features {
        let mut features = Features { names: EVERYWHERE.into(), ways: Vec::new() };
        for OptionalFeature { feature, what, can_build, needs } in WAYS.iter().filter(|_| cfg!(target_os = "linux")) {
            if can_build() {
                features.names = format!("{},{feature}", features.names);
                features.ways.push(feature);
                continue;
            }
            println!("\nNo {what}: to build that {needs} are needed.");
            suite.tally.skipped += 1;
            if require.iter().any(|name| name == feature) {
                suite.end(feature, Tally::one(false), Instant::now());
            }
        }
        features
    }

    /// Whether there is one of those that not every machine can build.
    pub fn has(&self, feature: &str) -> bool {
        self.ways.contains(&feature)
    }

    /// Whether there is more than every machine can build.
    pub fn has_more(&self) -> bool {
        !self.ways.is_empty()
    }
}
