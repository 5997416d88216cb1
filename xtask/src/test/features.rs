//! Features that not every machine can build: AF_XDP and DPDK, which need Linux and C toolchains,
//! and expressions, which need libpcap.

use std::time::Instant;

use super::Suite;
use super::system::{can_build_af_xdp, can_build_dpdk, can_build_pcap};
use super::tally::Tally;

/// Name of AF_XDP sockets in `--require` and in features.
pub const AF_XDP: &str = "af-xdp";

/// Name of netfilter queues in `--require` and in features.
pub const NFQUEUE: &str = "nfqueue";

/// Name of DPDK ports, likewise.
pub const DPDK: &str = "dpdk";

/// Name of libpcap's expressions, likewise.
pub const PCAP_EXPR: &str = "pcap-expr";

/// Features that every machine can build, including those without Linux.
const EVERYWHERE: &str = "opencl,nfqueue";

/// Packages that handle live traffic, with the features of [`EVERYWHERE`].
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

/// A feature that this machine may not be able to build.
struct OptionalFeature {
    feature: &'static str,
    what: &'static str,
    can_build: fn() -> bool,
    /// Requirements of the feature's build.
    needs: &'static str,
}

const OPTIONAL_FEATURES: [OptionalFeature; 3] = [
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
    /// Comma-separated list, as cargo takes it.
    pub names: String,
    /// Features that this machine can build and not every machine can.
    optional: Vec<&'static str>,
}

impl Features {
    /// Finds the features that this machine can build. Every step uses the same set, so that
    /// libraries are built once. Features left out are printed, and fail the run if required.
    pub fn find(suite: &mut Suite<'_>, require: &[String]) -> Features {
        let mut features = Features { names: EVERYWHERE.into(), optional: Vec::new() };
        for OptionalFeature { feature, what, can_build, needs } in
            OPTIONAL_FEATURES.iter().filter(|_| cfg!(target_os = "linux"))
        {
            if can_build() {
                features.names = format!("{},{feature}", features.names);
                features.optional.push(feature);
                continue;
            }
            println!("\nNo {what}: building it needs {needs}.");
            suite.tally.skipped += 1;
            if require.iter().any(|name| name == feature) {
                suite.end(feature, Tally::one(false), Instant::now());
            }
        }
        features
    }

    /// Returns whether a feature that not every machine can build is included.
    pub fn has(&self, feature: &str) -> bool {
        self.optional.contains(&feature)
    }

    /// Returns whether any such feature is included.
    pub fn has_optional(&self) -> bool {
        !self.optional.is_empty()
    }
}
