//! Errors of the kernel for maps, programs and links, with the next step.

use std::io;

use super::sys::LoadError;
use crate::live::capabilities;
use crate::live::link::no_interface;

/// Why an XDP program cannot run in the kernel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BpfError {
    /// The process lacks permission.
    #[error("{what}: not permitted: {}", missing_capabilities_text(.missing))]
    NotPermitted {
        /// The operation, for example `eth0: loading the XDP program`.
        what: String,
        /// The missing capabilities; empty if something else forbids it.
        missing: Vec<&'static str>,
    },
    /// The interface does not exist, or was removed.
    #[error("{}", no_interface(.interface))]
    NoInterface {
        /// Interface name.
        interface: String,
    },
    /// Another XDP program is attached.
    #[error(
        "{interface}: another XDP program is attached{}{}; stop the process that holds it (`bpftool link` lists it), or \
         detach it: `ip link set dev {interface} xdp off`",
        number(.program),
        .holder.as_ref().map_or(String::new(), |holder| format!(" by {holder}"))
    )]
    Occupied {
        /// Interface name.
        interface: String,
        /// ID of the program, if known.
        program: Option<u32>,
        /// The process that has attached it, if it can be found.
        holder: Option<crate::live::OwnerProcess>,
    },
    /// The driver does not support programs in native mode.
    #[error(
        "{interface}: the driver does not accept XDP programs in native mode ({error}): it has no such mode, or not with \
         this MTU, LRO or so few queues; lower the MTU, take jumbo frames in several buffers, or use SKB mode"
    )]
    NotNative {
        /// Interface name.
        interface: String,
        /// The driver's error.
        error: io::Error,
    },
    /// The kernel does not support XDP sockets.
    #[error("this kernel has no XDP sockets: it needs Linux 5.9 or newer with CONFIG_XDP_SOCKETS")]
    NoSockets,
    /// The kernel does not support programs for multi-buffer frames.
    #[error(
        "this kernel has no XDP for frames in several buffers: jumbo frames need Linux 5.18, and 6.6 in XDP sockets"
    )]
    NoFrags,
    /// The kernel does not support BPF links for XDP.
    #[error(
        "this kernel cannot attach XDP programs by links, without which they would outlive a killed process: it needs \
         Linux 5.9"
    )]
    NoXdpLinks,
    /// The kernel does not support tcx.
    #[error("this kernel has no tcx programs: it needs Linux 6.6 with CONFIG_NET_XGRESS")]
    NoTcx,
    /// The kernel supports no method of reinjecting frames into its stack.
    #[error(
        "this kernel cannot redirect frames to the ingress of an interface: it needs tcx programs (Linux 6.6; not with XDP in SKB \
         mode) or CONFIG_NET_SCH_INGRESS, CONFIG_NET_CLS_U32 and CONFIG_NET_ACT_MIRRED"
    )]
    NoReinjection,
    /// The verifier rejects the program, which is a bug in the generator.
    #[error("{what}: the kernel's verifier rejects the program ({error}); please report this:\n{}", tail(.log))]
    Refused {
        /// The operation.
        what: String,
        /// The system's error.
        error: io::Error,
        /// The verifier's log.
        log: String,
    },
    /// The system refused an operation for another reason.
    #[error("{what}: {}", portcullis_core::reason(.error))]
    System {
        /// The operation.
        what: String,
        /// The system's error.
        error: io::Error,
    },
}

impl BpfError {
    /// Classifies a system error that means the same for every operation.
    pub(crate) fn new(what: impl Into<String>, error: io::Error) -> BpfError {
        let what = what.into();
        match error.raw_os_error() {
            Some(libc::EPERM) => BpfError::NotPermitted { what, missing: missing_capabilities() },
            _ => BpfError::System { what, error },
        }
    }

    /// Classifies the error of a program that was not loaded.
    pub(crate) fn load(what: impl Into<String>, LoadError { error, log }: LoadError) -> BpfError {
        // The verifier is stricter without CAP_PERFMON.
        let missing = if log.is_empty() { Vec::new() } else { missing_capabilities() };
        match (log.is_empty(), missing.is_empty()) {
            (true, _) => BpfError::new(what, error),
            (false, true) => BpfError::Refused { what: what.into(), error, log },
            (false, false) => BpfError::NotPermitted { what: what.into(), missing },
        }
    }
}

// Capability bits, include/uapi/linux/capability.h.
const CAP_NET_ADMIN: u64 = 1 << 12;
const CAP_NET_RAW: u64 = 1 << 13;
const CAP_SYS_ADMIN: u64 = 1 << 21;
const CAP_PERFMON: u64 = 1 << 38;
const CAP_BPF: u64 = 1 << 39;

/// Returns the capabilities that AF_XDP requires and the calling thread lacks.
fn missing_capabilities() -> Vec<&'static str> {
    missing(capabilities::effective())
}

fn missing(effective: u64) -> Vec<&'static str> {
    let needed = [
        ("CAP_NET_ADMIN", CAP_NET_ADMIN),
        ("CAP_NET_RAW", CAP_NET_RAW),
        ("CAP_BPF", CAP_BPF | CAP_SYS_ADMIN),
        ("CAP_PERFMON", CAP_PERFMON | CAP_SYS_ADMIN),
    ];
    needed.into_iter().filter(|(_, any_of)| effective & any_of == 0).map(|(name, _)| name).collect()
}

fn missing_capabilities_text(missing: &[&str]) -> String {
    if missing.is_empty() {
        return "this process has the capabilities, so something else forbids it: a container or user namespace, a \
                seccomp profile, a security module, or before Linux 5.11 the limit of locked memory (`ulimit -l \
                unlimited`)"
            .into();
    }
    let (last, others) = missing.split_last().expect("one at least");
    let all = if others.is_empty() { (*last).to_owned() } else { format!("{} and {last}", others.join(", ")) };
    format!(
        "{all} {} missing; AF_XDP needs CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_PERFMON (before Linux 5.8 \
         CAP_SYS_ADMIN): run it as root",
        if missing.len() == 1 { "is" } else { "are" }
    )
}

fn number(program: &Option<u32>) -> String {
    program.map_or_else(String::new, |id| format!(" (number {id})"))
}

/// The end of a verifier log, which states the problem.
fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_capabilities_are_named() {
        assert_eq!(missing(0), ["CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_BPF", "CAP_PERFMON"]);
        assert_eq!(missing(CAP_NET_ADMIN | CAP_NET_RAW | CAP_BPF), ["CAP_PERFMON"]);
        assert_eq!(missing(CAP_NET_ADMIN | CAP_NET_RAW | CAP_SYS_ADMIN), [""; 0]);
        assert_eq!(missing(CAP_NET_RAW | CAP_BPF | CAP_PERFMON), ["CAP_NET_ADMIN"]);
        let error = |missing| BpfError::NotPermitted { what: "eth0: loading".into(), missing }.to_string();
        assert_eq!(
            error(vec!["CAP_BPF"]),
            "eth0: loading: not permitted: CAP_BPF is missing; AF_XDP needs CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and \
             CAP_PERFMON (before Linux 5.8 CAP_SYS_ADMIN): run it as root"
        );
        assert!(error(vec!["A", "B", "C"]).contains("A, B and C are missing"));
        assert!(error(vec![]).contains("`ulimit -l unlimited`"));
    }

    #[test]
    fn long_verifier_logs_are_cut_to_their_last_20_lines() {
        let log: Vec<String> = (0..100).map(|line| line.to_string()).collect();
        assert_eq!(tail(&log.join("\n")).lines().collect::<Vec<_>>(), &log[80..]);
        assert_eq!(tail("short"), "short");
    }
}
