//! What can be wrong with AF_XDP.

use std::borrow::Cow;
use std::error::Error;
use std::ffi::CString;
use std::io;

use portcullis_core::packet::ArenaError;
use portcullis_core::reason;

use super::bpf::error::BpfError;
use crate::live::link::{LinkError, StackError};
use crate::live::{LiveError, OwnerProcess};

/// Why AF_XDP cannot be used as asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum XdpError {
    /// An interface is not there, or cannot be made.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// Packets that pass cannot get into the kernel's stack.
    #[error(
        "{interface}: no way for packets that pass into the kernel's stack: {error}; with --stack none they are dropped"
    )]
    StackInjector {
        /// The interface that they are from.
        interface: String,
        /// Why.
        error: StackError,
    },
    /// The interface has fewer queues.
    #[error("{interface} has {queues} receive {noun}, and no queue {asked}", noun = if *.queues == 1 { "queue" } else { "queues" })]
    NoQueue {
        /// The interface.
        interface: String,
        /// What was asked for, counted from 0.
        asked: u32,
        /// How many there are.
        queues: u32,
    },
    /// No memory for frames.
    #[error("no memory for frames of {bytes} bytes in all: {}{}", reason(.error), memory_hint(.error, *.huge_pages))]
    Memory {
        /// How much was asked for.
        bytes: usize,
        /// Whether it was to be of huge pages.
        huge_pages: bool,
        /// The system's.
        error: io::Error,
    },
    /// Frames for more than a batch's memory can have.
    #[error("too much memory for frames: {error}; use fewer queues, or fewer frames each")]
    TooMuchMemory {
        /// Why.
        error: ArenaError,
    },
    /// Frames for more than a batch's memory can have.
    #[error(
        "{queues} queues with {frames} frames of {size} bytes each are more than 4 GiB; use fewer queues, or fewer frames"
    )]
    TooManyFrames {
        /// The queues.
        queues: usize,
        /// Frames for each.
        frames: u32,
        /// Bytes of a frame.
        size: u32,
    },
    /// The program cannot be had.
    #[error(transparent)]
    Program(#[from] BpfError),
    /// Receiving cannot begin.
    #[error(transparent)]
    Live(#[from] LiveError),
    /// A socket cannot be had.
    #[error("{interface}, queue {queue}: no AF_XDP socket: {}{}", reason(.error), socket_hint(.error, .interface, .holder.as_ref()))]
    Socket {
        /// The interface.
        interface: String,
        /// Its queue.
        queue: u32,
        /// The system's.
        error: io::Error,
        /// Where another has the queue: the process whose XDP program is at the interface, if it can be found.
        holder: Option<OwnerProcess>,
    },
    /// An option of a socket was refused.
    #[error("{interface}, queue {queue}: {what}: {}", reason(.error))]
    Option {
        /// The interface.
        interface: String,
        /// Its queue.
        queue: u32,
        /// What was asked for.
        what: &'static str,
        /// The system's.
        error: io::Error,
    },
    /// It was asked for without a copy, and its program runs where frames are copies already.
    #[error(
        "{interface}: there is no zero-copy mode where the XDP program runs in SKB mode{}; leave --zero-copy out, and frames \
         are copied",
        .not_native.as_ref().map_or(String::new(), |why| format!(" ({why})"))
    )]
    NoZeroCopyInSkbMode {
        /// The interface.
        interface: String,
        /// Why it is not in native mode, where that was tried.
        not_native: Option<String>,
    },
    /// It was asked for without a copy, and the driver cannot.
    #[error(
        "{interface}, queue {queue}: the driver has no zero-copy mode; leave --zero-copy out, and frames are copied"
    )]
    NoZeroCopy {
        /// The interface.
        interface: String,
        /// Its queue.
        queue: u32,
    },
}

impl XdpError {
    pub(crate) fn memory(bytes: usize, huge_pages: bool, error: &(dyn Error + 'static)) -> XdpError {
        let error = system(error);
        match error.raw_os_error() {
            // It is a socket whose memory it becomes.
            Some(libc::EPERM) => BpfError::new("making an AF_XDP socket", error).into(),
            _ => XdpError::Memory { bytes, huge_pages, error },
        }
    }

    pub(crate) fn socket(interface: &str, queue: u32, error: &(dyn Error + 'static)) -> XdpError {
        let error = system(error);
        match error.raw_os_error() {
            Some(libc::EPERM) => BpfError::new(format!("{interface}, queue {queue}: an AF_XDP socket"), error).into(),
            // The kernel has no table of these sockets, unless it was built with CONFIG_XDP_SOCKETS_DIAG; but who has one that
            // receives has a program there.
            Some(libc::EBUSY) => {
                let holder = CString::new(interface).ok().and_then(|name| OwnerProcess::of_xdp_program(&name));
                // Where packets come in, the program is ours by now.
                let holder = holder.filter(|it| it.pid != std::process::id());
                XdpError::Socket { interface: interface.into(), queue, error, holder }
            }
            _ => XdpError::Socket { interface: interface.into(), queue, error, holder: None },
        }
    }
}

/// The system's error beneath one of the library's; its own words where there is none.
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
            " (are there enough huge pages? `sysctl vm.nr_hugepages` tells; or leave --huge-pages out)"
        }
        Some(libc::ENOBUFS) => " (locked memory is limited: `ulimit -l unlimited`, or run with CAP_IPC_LOCK)",
        _ => "",
    }
}

fn socket_hint(error: &io::Error, interface: &str, holder: Option<&OwnerProcess>) -> Cow<'static, str> {
    let hint = match error.raw_os_error() {
        Some(libc::EBUSY) => {
            let who = match holder {
                Some(holder) => format!(": {holder}; end that, or leave the queue out"),
                None => format!(
                    "; as root, `bpftool net show dev {interface}` tells its XDP program, and `ss --xdp -p` its process where the \
                     kernel has CONFIG_XDP_SOCKETS_DIAG"
                ),
            };
            return format!(" (another program has a socket on this queue{who})").into();
        }
        Some(libc::EAFNOSUPPORT) => " (this kernel has no AF_XDP: CONFIG_XDP_SOCKETS is off)",
        Some(libc::EOPNOTSUPP) => " (the driver cannot do what was asked for)",
        Some(libc::ENODEV) => " (the interface is gone)",
        Some(libc::ENETDOWN) => " (the interface is down: `ip link set up` brings it up)",
        _ => "",
    };
    hint.into()
}
