//! Errors of AF_XDP.

use std::borrow::Cow;
use std::error::Error;
use std::ffi::CString;
use std::io;

use portcullis_core::packet::ArenaError;
use portcullis_core::reason;

use super::bpf::error::BpfError;
use super::stack::StackError;
use crate::live::link::LinkError;
use crate::live::{LiveError, OwnerProcess};

/// Why AF_XDP cannot be used as configured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum XdpError {
    /// An interface does not exist or cannot be created.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// Passed packets cannot be reinjected into the kernel's stack.
    #[error(
        "{interface}: passed packets cannot get into the kernel's stack: {error}; with --stack none they are dropped"
    )]
    Stack {
        /// The interface that the packets come from.
        interface: String,
        /// The cause.
        error: StackError,
    },
    /// The interface has fewer queues.
    #[error("{interface} has {queues} receive {noun}, and no queue {asked}", noun = if *.queues == 1 { "queue" } else { "queues" })]
    NoQueue {
        /// The interface.
        interface: String,
        /// Requested queue number, counted from 0.
        asked: u32,
        /// Number of receive queues.
        queues: u32,
    },
    /// The memory for frames cannot be allocated.
    #[error("no memory for frames of {bytes} bytes in all: {}{}", reason(.error), memory_hint(.error, *.huge_pages))]
    Memory {
        /// Requested size in bytes.
        bytes: usize,
        /// Whether huge pages were requested.
        huge_pages: bool,
        /// The system's error.
        error: io::Error,
    },
    /// The frames exceed the memory that a batch can address.
    #[error("too much memory for frames: {error}; use fewer queues, or fewer frames each")]
    TooMuchMemory {
        /// The cause.
        error: ArenaError,
    },
    /// The frames exceed the memory that a batch can address.
    #[error(
        "{queues} queues with {frames} frames of {size} bytes each are more than 4 GiB; use fewer queues, or fewer frames"
    )]
    TooManyFrames {
        /// Number of queues.
        queues: usize,
        /// Frames per queue.
        frames: u32,
        /// Size of a frame in bytes.
        size: u32,
    },
    /// The XDP program cannot be loaded or attached.
    #[error(transparent)]
    Program(#[from] BpfError),
    /// Receiving cannot start.
    #[error(transparent)]
    Live(#[from] LiveError),
    /// A socket cannot be created or bound.
    #[error("{interface}, queue {queue}: cannot bind an AF_XDP socket: {}{}", reason(.error), socket_hint(.error, .interface, .holder.as_ref()))]
    Socket {
        /// The interface.
        interface: String,
        /// Queue number.
        queue: u32,
        /// The system's error.
        error: io::Error,
        /// If the queue is in use, the process with an XDP program at the interface, if it can be
        /// found.
        holder: Option<OwnerProcess>,
    },
    /// A socket option was refused.
    #[error("{interface}, queue {queue}: {what}: {}", reason(.error))]
    Option {
        /// The interface.
        interface: String,
        /// Queue number.
        queue: u32,
        /// The option and what happened.
        what: &'static str,
        /// The system's error.
        error: io::Error,
    },
    /// Zero-copy was requested, but the XDP program runs in SKB mode, where frames are copies.
    #[error(
        "{interface}: there is no zero-copy mode where the XDP program runs in SKB mode{}; leave --zero-copy out, and frames \
         are copied",
        .not_native.as_ref().map_or(String::new(), |why| format!(" ({why})"))
    )]
    NoZeroCopyInSkbMode {
        /// The interface.
        interface: String,
        /// Why native mode failed, if it was tried.
        not_native: Option<String>,
    },
    /// Zero-copy was requested, but the driver does not support it.
    #[error(
        "{interface}, queue {queue}: the driver has no zero-copy mode; leave --zero-copy out, and frames are copied"
    )]
    NoZeroCopy {
        /// The interface.
        interface: String,
        /// Queue number.
        queue: u32,
    },
}

impl XdpError {
    pub(crate) fn memory(bytes: usize, huge_pages: bool, error: &(dyn Error + 'static)) -> XdpError {
        let error = system(error);
        match error.raw_os_error() {
            // The UMEM is registered with a socket, so this is about creating that.
            Some(libc::EPERM) => BpfError::new("creating an AF_XDP socket", error).into(),
            _ => XdpError::Memory { bytes, huge_pages, error },
        }
    }

    pub(crate) fn socket(interface: &str, queue: u32, error: &(dyn Error + 'static)) -> XdpError {
        let error = system(error);
        match error.raw_os_error() {
            Some(libc::EPERM) => {
                BpfError::new(format!("{interface}, queue {queue}: creating an AF_XDP socket"), error).into()
            }
            // The kernel lists AF_XDP sockets only with CONFIG_XDP_SOCKETS_DIAG, but a receiving
            // socket implies an XDP program, whose owner can be found.
            Some(libc::EBUSY) => {
                let holder = CString::new(interface).ok().and_then(|name| OwnerProcess::of_xdp_program(&name));
                // On receiving interfaces the program is our own by now.
                let holder = holder.filter(|it| it.pid != std::process::id());
                XdpError::Socket { interface: interface.into(), queue, error, holder }
            }
            _ => XdpError::Socket { interface: interface.into(), queue, error, holder: None },
        }
    }
}

/// Returns the system error underlying a library's error, or the library's text if there is none.
pub(crate) fn system(error: &(dyn Error + 'static)) -> io::Error {
    let mut beneath = Some(error);
    while let Some(error) = beneath {
        if let Some(code) = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return io::Error::from_raw_os_error(code);
        }
        beneath = error.source();
    }
    io::Error::other(error.to_string())
}

fn memory_hint(error: &io::Error, huge_pages: bool) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOMEM) if huge_pages => {
            " (are there enough huge pages? `sysctl vm.nr_hugepages` shows their number; or leave --huge-pages out)"
        }
        Some(libc::ENOBUFS) => {
            " (locked memory is limited: raise the limit with `ulimit -l unlimited`, or run with CAP_IPC_LOCK)"
        }
        _ => "",
    }
}

fn socket_hint(error: &io::Error, interface: &str, holder: Option<&OwnerProcess>) -> Cow<'static, str> {
    let hint = match error.raw_os_error() {
        Some(libc::EBUSY) => {
            let who = match holder {
                Some(holder) => format!(": {holder}; stop it, or leave the queue out"),
                None => format!(
                    "; as root, `bpftool net show dev {interface}` shows its XDP program, and `ss --xdp -p` its process if the \
                     kernel has CONFIG_XDP_SOCKETS_DIAG"
                ),
            };
            return format!(" (another program has a socket on this queue{who})").into();
        }
        Some(libc::EAFNOSUPPORT) => " (this kernel has no AF_XDP: CONFIG_XDP_SOCKETS is off)",
        Some(libc::EOPNOTSUPP) => " (the driver does not support the requested mode)",
        Some(libc::ENODEV) => " (the interface is gone)",
        Some(libc::ENETDOWN) => " (the interface is down: `ip link set up` brings it up)",
        _ => "",
    };
    hint.into()
}
