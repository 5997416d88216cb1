//! What can be wrong with DPDK.

use std::io;
use std::path::PathBuf;

use portcullis_core::packet::ArenaError;
use portcullis_core::reason;

use crate::live::LiveError;

/// Why DPDK cannot be used as asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DpdkError {
    /// DPDK does not begin.
    #[error("DPDK does not begin with `{}`: {}{}{}", .arguments.join(" "), reason(.error), advice(.hint), quote(.said))]
    Eal {
        /// What it was given.
        arguments: Vec<String>,
        /// Its error.
        error: io::Error,
        /// What to do.
        hint: Option<String>,
        /// What it said.
        said: Vec<String>,
    },
    /// It is not to be told this.
    #[error("`{argument}`: {why}")]
    Argument {
        /// What was given.
        argument: String,
        /// Why not, and what to do.
        why: String,
    },
    /// It was begun before with something else.
    #[error("DPDK runs in this process already, begun with `{}`: it can be begun once", .arguments.join(" "))]
    Twice {
        /// What it was given then.
        arguments: Vec<String>,
    },
    /// There are no huge pages.
    #[error(
        "{port}: a network card needs huge pages, and none are free; reserve some, 1 GiB for example: \
         echo 512 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
    )]
    NoHugePages {
        /// The port that needs them.
        port: String,
    },
    /// A port's text means nothing.
    #[error(
        "`{text}` is no port: {why}; ports are PCI addresses (0000:03:00.0), numbers (0), and devices that DPDK makes \
             (net_pcap0,rx_pcap=in.pcap,tx_pcap=out.pcap)"
    )]
    Text {
        /// What was given.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A capture would wipe out another one.
    #[error("{port},tx_pcap={}: this is a capture that {other} {does}; choose another name", .file.display())]
    SameFile {
        /// The port that is to write to it.
        port: String,
        /// The capture.
        file: PathBuf,
        /// The port that has it, which may be the same.
        other: String,
        /// What that does: `reads`, `writes`.
        does: &'static str,
    },
    /// Packets cannot pass to there.
    #[error(
        "`{text}` is nowhere that packets could pass to: {why}; they pass into the kernel (tap:NAME, virtio_user:NAME) or out of a \
         port (net_pcap1,tx_pcap=out.pcap)"
    )]
    PassTarget {
        /// What was given.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// No interface can be called that.
    #[error("`{text}` cannot be an interface's name: those have from 1 to 15 letters, digits, `_`, `-` and `.`")]
    Interface {
        /// What was given.
        text: String,
    },
    /// The kernel makes no interface for packets that pass.
    #[error("{pass_to}: {why}")]
    Kernel {
        /// What was wanted.
        pass_to: String,
        /// Why not, and what to do.
        why: String,
    },
    /// A port cannot be had.
    #[error("{port}: {why}{}{}", advice(.hint), quote(.said))]
    Probe {
        /// The port.
        port: String,
        /// Why not.
        why: String,
        /// What to do.
        hint: Option<String>,
        /// What it said.
        said: Vec<String>,
    },
    /// Something that is asked of a port.
    #[error("{port}: {what}: {}{}{}", reason(.error), advice(.hint), quote(.said))]
    Port {
        /// The port.
        port: String,
        /// What was to be done.
        what: String,
        /// DPDK's error.
        error: io::Error,
        /// What to do.
        hint: Option<String>,
        /// What it said.
        said: Vec<String>,
    },
    /// A port has fewer queues.
    #[error("{port} ({driver}) has {most} {kind} queues at most, and {asked} are needed")]
    Queues {
        /// The port.
        port: String,
        /// Its driver.
        driver: String,
        /// `receive`, `transmit`.
        kind: &'static str,
        /// How many there may be.
        most: u16,
        /// How many are needed.
        asked: u16,
    },
    /// No memory for packets.
    #[error(
        "no memory for {packets} packets ({bytes} bytes): {}; have fewer of them (--frames, --queues), or give DPDK more (--eal '-m \
         MIB', more huge pages){}", reason(.error), quote(.said)
    )]
    Pool {
        /// How many packets.
        packets: usize,
        /// Bytes of their buffers.
        bytes: usize,
        /// DPDK's error.
        error: io::Error,
        /// What it said.
        said: Vec<String>,
    },
    /// More memory than a batch can have.
    #[error("too much memory for packets: {error}; use fewer queues, or fewer packets each (--frames)")]
    TooMuchMemory {
        /// Why.
        error: ArenaError,
    },
    /// A GPU does not do something.
    #[error("{gpu}: {what}: {}{}", .why.clone().unwrap_or_else(|| reason(.error)), quote(.said))]
    Gpu {
        /// The GPU.
        gpu: String,
        /// What was to be done.
        what: String,
        /// DPDK's error.
        error: io::Error,
        /// What its driver says, if that is of this process.
        why: Option<String>,
        /// What DPDK said.
        said: Vec<String>,
    },
    /// A driver does not reach a GPU's memory.
    #[error(
        "{port}: {driver} writes packets by the processor, which does not reach the memory of {gpu} ({missing}): have packets in the host's \
         memory (--mempool host)"
    )]
    OutOfReach {
        /// The port.
        port: String,
        /// Its driver.
        driver: String,
        /// The GPU.
        gpu: String,
        /// Why not.
        missing: String,
    },
    /// Network cards do not reach a GPU's memory.
    #[error("{missing} (or have packets in the host's memory: --mempool host)")]
    NoGpuDirect {
        /// What is missing for it.
        missing: String,
    },
    /// Ports that cannot have packets in the same memory.
    #[error(
        "{card} is a network card, which writes to the memory of {gpu} where that has it, and {port} ({driver}) does by the processor, \
         elsewhere: have packets in the host's memory (--mempool host), or run them apart"
    )]
    Mixed {
        /// A port that is a network card.
        card: String,
        /// A port that is none.
        port: String,
        /// Its driver.
        driver: String,
        /// The GPU.
        gpu: String,
    },
    /// Packets cannot be split.
    #[error("header split at {bytes} bytes: {why}")]
    Split {
        /// Where they were to be split.
        bytes: u16,
        /// Why not.
        why: String,
    },
    /// DPDK has no such GPU.
    #[error(
        "DPDK has found no GPU with the number {number}, but {}; its own driver (librte_gpu_cuda) has to be there, and to know the GPU, \
         which is not bound to vfio-pci: `--gpu cuda:0` does without it",
        if .found.is_empty() { "none at all".to_owned() } else { .found.join(", ") }
    )]
    NoGpu {
        /// What was asked for.
        number: i16,
        /// Those that there are.
        found: Vec<String>,
    },
    /// A release of DPDK that a driver of ours does not fit.
    #[error(
        "`{version}` may keep its GPUs' drivers in another form than the releases from 22.11 to 26.07, which are known: use packets in the \
         host's memory, or DPDK's own driver (`--gpu NUMBER`)"
    )]
    GpuRelease {
        /// The release, as it says.
        version: String,
    },
    /// Receiving cannot begin.
    #[error(transparent)]
    Live(#[from] LiveError),
}

fn advice(hint: &Option<String>) -> String {
    hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default()
}

/// DPDK's last lines: the first of them are about what went well.
pub(super) fn quote(lines: &[String]) -> String {
    const LAST: usize = 4;
    let lines = &lines[lines.len().saturating_sub(LAST)..];
    if lines.is_empty() { String::new() } else { format!(" (DPDK says: {})", lines.join("; ")) }
}

/// An error as DPDK's functions give it: a negative number.
pub(super) fn negative(result: i32) -> io::Error {
    // A driver that gives no reason; EPERM it is not.
    if result == -1 {
        return io::Error::other("its driver refuses");
    }
    io::Error::from_raw_os_error(result.checked_neg().unwrap_or(libc::EINVAL))
}

/// `rte_errno`.
pub(super) fn last() -> io::Error {
    // SAFETY: it reads a variable of this thread's.
    let number = unsafe { portcullis_dpdk_sys::pc_errno() };
    match number {
        0 => io::Error::other("it gives no reason"),
        // gpudev has it negative in places.
        number => io::Error::from_raw_os_error(number.saturating_abs()),
    }
}
