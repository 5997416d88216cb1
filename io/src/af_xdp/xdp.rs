//! Attaching the XDP program to an interface.

use std::io;
use std::os::fd::AsRawFd;

use libbpf_sys as bpf;

use super::bpf::error::BpfError;
use super::bpf::steer::{MatchAction, program};
use super::bpf::sys::{Link, LoadError, Program, XskMap, interface_index, xdp_program_at};
use super::rules::Steering;
use crate::live::OwnerProcess;

/// XDP mode: where in the receive path the program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The program runs in the driver, before the kernel allocates a socket buffer.
    Native,
    /// The program runs in the kernel's stack, on any interface, and slower; also called generic.
    Skb,
}

impl Mode {
    /// Name for reports: `native`, `skb`.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Native => "native",
            Mode::Skb => "skb",
        }
    }
}

/// Options for attaching a program.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Options {
    /// The mode; `None` tries native mode first, then SKB mode if the driver refuses.
    pub mode: Option<Mode>,
    /// Whether frames may span several buffers, as jumbo frames do.
    pub frags: bool,
}

impl Options {
    /// Sets [`Options::mode`].
    #[must_use]
    pub fn with_mode(self, mode: impl Into<Option<Mode>>) -> Options {
        Options { mode: mode.into(), ..self }
    }

    /// Sets [`Options::frags`].
    #[must_use]
    pub fn with_frags(self, frags: bool) -> Options {
        Options { frags, ..self }
    }
}

/// An XDP program at an interface, detached on drop, and also if the process is killed.
///
/// A frame that the program selects is redirected to the socket of the queue on which it arrived;
/// without a socket it stays with the kernel, as it does before the first socket is
/// [set](AttachedProgram::set_socket).
#[derive(Debug)]
pub struct AttachedProgram {
    // Fields are dropped in order: first the program leaves the interface.
    link: Link,
    sockets: XskMap,
    interface: String,
    index: u32,
    queues: u32,
    mode: Mode,
    not_native: Option<BpfError>,
    program_id: u32,
}

impl AttachedProgram {
    /// Attaches a program to an interface in the calling thread's network namespace, with room for
    /// sockets of its first `queues` receive queues.
    ///
    /// # Errors
    /// [`BpfError`] names the next step.
    pub fn new(interface: &str, queues: u32, steer: &Steering, options: &Options) -> Result<AttachedProgram, BpfError> {
        let no_interface = || BpfError::NoInterface { interface: interface.to_owned() };
        let index = interface_index(interface).ok_or_else(no_interface)?;
        let sockets = XskMap::create(queues).map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) if queues > 0 => BpfError::NoSockets,
            _ => BpfError::new(format!("{interface}: creating the map of sockets for {queues} queues"), error),
        })?;
        let program =
            load(interface, &program(steer, MatchAction::RedirectToSocket(sockets.as_raw_fd())), options.frags)?;
        let program_id = program
            .id()
            .map_err(|error| BpfError::new(format!("{interface}: reading the ID of the XDP program"), error))?;

        let attach = |mode| attach(interface, index, &program, mode);
        let (link, mode, not_native) = match options.mode {
            Some(mode) => (attach(mode)?, mode, None),
            None => match attach(Mode::Native) {
                Ok(link) => (link, Mode::Native, None),
                Err(error @ BpfError::NotNative { .. }) => (attach(Mode::Skb)?, Mode::Skb, Some(error)),
                Err(error) => return Err(error),
            },
        };
        Ok(AttachedProgram {
            link,
            sockets,
            interface: interface.to_owned(),
            index,
            queues,
            mode,
            not_native,
            program_id,
        })
    }

    /// Redirects the frames of a queue to an AF_XDP socket bound to it, until the socket is closed.
    ///
    /// # Errors
    /// If `socket` is not a bound AF_XDP socket, or `queue` is out of range.
    pub fn set_socket(&self, queue: u32, socket: &impl AsRawFd) -> Result<(), BpfError> {
        self.sockets.set(queue, socket.as_raw_fd()).map_err(|error| {
            let what = format!("{}, queue {queue}: redirecting its frames to a socket", self.interface);
            match error.raw_os_error() {
                Some(libc::E2BIG) => BpfError::System {
                    what,
                    error: io::Error::other(format!("the map has room for the first {} queues", self.queues)),
                },
                _ => BpfError::new(what, error),
            }
        })
    }

    /// Name of the interface when the program was attached.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Index of the interface.
    pub fn interface_index(&self) -> u32 {
        self.index
    }

    /// The mode that the program runs in.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Why native mode failed, if it was tried.
    pub fn not_native(&self) -> Option<&BpfError> {
        self.not_native.as_ref()
    }

    /// ID of the program, as shown by `bpftool prog`.
    pub fn program_id(&self) -> u32 {
        self.program_id
    }

    /// Whether the program is still attached; it is not once the interface is removed.
    pub fn is_attached(&self) -> bool {
        self.link.interface().is_ok_and(|index| index != 0)
    }
}

/// ID of any process's XDP program at an interface.
pub fn program_at(interface: u32) -> Option<u32> {
    xdp_program_at(interface)
}

fn load(interface: &str, insns: &[super::bpf::insn::Insn], frags: bool) -> Result<Program, BpfError> {
    let load = |flags| Program::load(bpf::BPF_PROG_TYPE_XDP, c"portcullis_xdp", insns, flags);
    let flags = if frags { bpf::BPF_F_XDP_HAS_FRAGS } else { 0 };
    load(flags).map_err(|refused| match &refused {
        // An empty log with EINVAL means that the kernel does not know the flag.
        LoadError { error, log } if frags && log.is_empty() && is(error, libc::EINVAL) && load(0).is_ok() => {
            BpfError::NoFrags
        }
        _ => BpfError::load(format!("{interface}: loading the XDP program"), refused),
    })
}

fn attach(interface: &str, index: u32, program: &Program, mode: Mode) -> Result<Link, BpfError> {
    // include/uapi/linux/if_link.h
    let flags = match mode {
        Mode::Native => bpf::XDP_FLAGS_DRV_MODE,
        Mode::Skb => bpf::XDP_FLAGS_SKB_MODE,
    };
    let name = || interface.to_owned();
    Link::create(program, index, bpf::BPF_XDP, flags).map_err(|error| match error.raw_os_error() {
        Some(libc::ENODEV) => BpfError::NoInterface { interface: name() },
        // EBUSY in the same mode; EEXIST in another mode or on an upper interface.
        Some(libc::EBUSY | libc::EEXIST) => {
            let holder = std::ffi::CString::new(name()).ok().and_then(|name| OwnerProcess::of_xdp_program(&name));
            BpfError::Occupied { interface: name(), program: xdp_program_at(index), holder }
        }
        Some(libc::EINVAL) if !Link::is_known(program, bpf::BPF_XDP) => BpfError::NoXdpLinks,
        Some(libc::EPERM) => BpfError::new(format!("{interface}: attaching the XDP program"), error),
        _ if mode == Mode::Native => BpfError::NotNative { interface: name(), error },
        _ => BpfError::new(format!("{interface}: attaching the XDP program in SKB mode"), error),
    })
}

fn is(error: &io::Error, number: i32) -> bool {
    error.raw_os_error() == Some(number)
}
