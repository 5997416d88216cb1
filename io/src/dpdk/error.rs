//! Errors of DPDK.

use std::io;
use std::path::PathBuf;

use portcullis_core::packet::ArenaError;
use portcullis_core::reason;

use crate::live::LiveError;

/// Why DPDK cannot be used as configured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DpdkError {
    /// The EAL cannot be initialised.
    #[error("DPDK cannot be initialised with `{}`: {}{}{}", .arguments.join(" "), reason(.error), advice(.hint), quote(.log_lines))]
    Eal {
        /// EAL arguments.
        arguments: Vec<String>,
        /// DPDK's error.
        error: io::Error,
        /// The next step, if known.
        hint: Option<String>,
        /// DPDK's log messages.
        log_lines: Vec<String>,
    },
    /// An EAL argument is not allowed.
    #[error("`{argument}`: {why}")]
    Argument {
        /// The argument.
        argument: String,
        /// The reason, and the next step.
        why: String,
    },
    /// The EAL was initialised before with other arguments.
    #[error("DPDK is already initialised in this process, with `{}`: it can be initialised only once", .arguments.join(" "))]
    Twice {
        /// Arguments of the first initialisation.
        arguments: Vec<String>,
    },
    /// No huge pages are free.
    #[error(
        "{port}: a network card needs huge pages, and none are free; reserve some, 1 GiB for example: \
         echo 512 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
    )]
    NoHugePages {
        /// The port that needs huge pages.
        port: String,
    },
    /// A text is not a port.
    #[error(
        "`{text}` is not a port: {why}; ports are PCI addresses (0000:03:00.0), numbers (0), and virtual devices \
             (net_pcap0,rx_pcap=in.pcap,tx_pcap=out.pcap)"
    )]
    Text {
        /// The text.
        text: String,
        /// The defect.
        why: &'static str,
    },
    /// A capture would overwrite one that is in use.
    #[error("{port},tx_pcap={}: {other} {does} this capture; choose another name", .file.display())]
    SameFile {
        /// The port that is to write the capture.
        port: String,
        /// The capture file.
        file: PathBuf,
        /// The port that uses the capture, possibly the same one.
        other: String,
        /// How that port uses it: `reads`, `writes`.
        does: &'static str,
    },
    /// A text is not a destination for passed packets.
    #[error(
        "`{text}` is not a destination for passed packets: {why}; they can go into the kernel (tap:NAME, virtio_user:NAME) or out of a \
         port (net_pcap1,tx_pcap=out.pcap)"
    )]
    PassTarget {
        /// The text.
        text: String,
        /// The defect.
        why: &'static str,
    },
    /// An interface name is invalid.
    #[error("`{text}` is not an interface name: those have from 1 to 15 letters, digits, `_`, `-` and `.`")]
    Interface {
        /// The name.
        text: String,
    },
    /// The kernel cannot create an interface for passed packets.
    #[error("{pass_to}: {why}")]
    Kernel {
        /// The destination.
        pass_to: String,
        /// The reason, and the next step.
        why: String,
    },
    /// A port cannot be opened.
    #[error("{port}: {why}{}{}", advice(.hint), quote(.log_lines))]
    Probe {
        /// The port.
        port: String,
        /// The reason.
        why: String,
        /// The next step, if known.
        hint: Option<String>,
        /// DPDK's log messages.
        log_lines: Vec<String>,
    },
    /// An operation on a port failed.
    #[error("{port}: {what}: {}{}{}", reason(.error), advice(.hint), quote(.log_lines))]
    Port {
        /// The port.
        port: String,
        /// The operation.
        what: String,
        /// DPDK's error.
        error: io::Error,
        /// The next step, if known.
        hint: Option<String>,
        /// DPDK's log messages.
        log_lines: Vec<String>,
    },
    /// A port has too few queues.
    #[error("{port} ({driver}) has at most {max} {kind} queues, and {asked} are needed")]
    Queues {
        /// The port.
        port: String,
        /// Driver of the port.
        driver: String,
        /// `receive` or `transmit`.
        kind: &'static str,
        /// Maximum number of queues.
        max: u16,
        /// Required number of queues.
        asked: u16,
    },
    /// No memory for packets.
    #[error(
        "no memory for {packets} packets ({bytes} bytes): {}; use fewer (--frames, --queues), or give DPDK more memory (--eal '-m \
         MIB', more huge pages){}", reason(.error), quote(.log_lines)
    )]
    Pool {
        /// Number of packets.
        packets: usize,
        /// Total size of their buffers in bytes.
        bytes: usize,
        /// DPDK's error.
        error: io::Error,
        /// DPDK's log messages.
        log_lines: Vec<String>,
    },
    /// The packets exceed the memory that a batch can address.
    #[error("too much memory for packets: {error}; use fewer queues, or fewer packets each (--frames)")]
    TooMuchMemory {
        /// The cause.
        error: ArenaError,
    },
    /// An operation on a GPU failed.
    #[error("{gpu}: {what}: {}{}", .why.clone().unwrap_or_else(|| reason(.error)), quote(.log_lines))]
    Gpu {
        /// The GPU.
        gpu: String,
        /// The operation.
        what: String,
        /// DPDK's error.
        error: io::Error,
        /// The error of the GPU's driver, if that is in this process.
        why: Option<String>,
        /// DPDK's log messages.
        log_lines: Vec<String>,
    },
    /// A port's driver cannot access a GPU's memory.
    #[error(
        "{port}: {driver} writes packets with the CPU, which cannot access the memory of {gpu} ({missing}): use packets in host \
         memory (--mempool host)"
    )]
    OutOfReach {
        /// The port.
        port: String,
        /// Driver of the port.
        driver: String,
        /// The GPU.
        gpu: String,
        /// The reason.
        missing: String,
    },
    /// Network cards cannot access a GPU's memory.
    #[error("{missing} (or use packets in host memory: --mempool host)")]
    NoGpuDirect {
        /// The missing prerequisite.
        missing: String,
    },
    /// Ports that cannot share a memory.
    #[error(
        "{card} is a network card, which writes to the memory of {gpu} directly, and {port} ({driver}) writes with the CPU, through a \
         mapping elsewhere: use packets in host memory (--mempool host), or run them separately"
    )]
    Mixed {
        /// A port that is a network card.
        card: String,
        /// A port that is not.
        port: String,
        /// Driver of the port.
        driver: String,
        /// The GPU.
        gpu: String,
    },
    /// Header split is not possible.
    #[error("header split at {bytes} bytes: {why}")]
    Split {
        /// The configured head length in bytes.
        bytes: u16,
        /// The reason.
        why: String,
    },
    /// DPDK has no GPU with this number.
    #[error(
        "DPDK has found no GPU with the number {number}, but {}; its own driver (librte_gpu_cuda) has to be installed and to support the GPU, \
         which must not be bound to vfio-pci: `--gpu cuda:0` works without it",
        if .found.is_empty() { "none at all".to_owned() } else { .found.join(", ") }
    )]
    NoGpu {
        /// The requested number.
        number: i16,
        /// The GPUs that DPDK has found.
        found: Vec<String>,
    },
    /// The DPDK release is not supported by in-process GPU drivers.
    #[error(
        "`{version}` may have another layout of GPU devices than the supported releases, 22.11 to 26.07: use packets in host \
         memory, or DPDK's own driver (`--gpu NUMBER`)"
    )]
    GpuRelease {
        /// The release, as DPDK reports it.
        version: String,
    },
    /// A port's capture cannot be written, although net_pcap reported no error.
    #[error("{}: packets cannot be written: {}", .file.display(), reason(.error))]
    CaptureWrite {
        /// The capture file.
        file: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A port's captures are shorter than the packets that it was given.
    #[error("{files}: {missing} of {expected} bytes are missing; is the disk full?")]
    CaptureTruncated {
        /// The capture files, for the message.
        files: String,
        /// Number of bytes that the files lack.
        missing: u64,
        /// Number of bytes that the files should have, headers included.
        expected: u64,
    },
    /// Receiving cannot start.
    #[error(transparent)]
    Live(#[from] LiveError),
}

fn advice(hint: &Option<String>) -> String {
    hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default()
}

/// DPDK's last log lines: earlier ones are about what succeeded.
pub(super) fn quote(lines: &[String]) -> String {
    const LAST: usize = 4;
    let lines = &lines[lines.len().saturating_sub(LAST)..];
    if lines.is_empty() { String::new() } else { format!(" (DPDK says: {})", lines.join("; ")) }
}

/// Converts a DPDK result, a negative errno value.
pub(super) fn negative(result: i32) -> io::Error {
    // Some drivers return -1 without meaning EPERM.
    if result == -1 {
        return io::Error::other("its driver refuses without a reason");
    }
    io::Error::from_raw_os_error(result.checked_neg().unwrap_or(libc::EINVAL))
}

/// Returns the thread's `rte_errno`.
pub(super) fn last() -> io::Error {
    // SAFETY: reads a thread-local variable.
    let number = unsafe { portcullis_dpdk_sys::pc_errno() };
    match number {
        0 => io::Error::other("DPDK gives no reason"),
        // gpudev sets it to negative values in places.
        number => io::Error::from_raw_os_error(number.saturating_abs()),
    }
}
