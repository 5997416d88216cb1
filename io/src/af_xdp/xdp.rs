//! The XDP program at an interface, from its attachment to its end.

use std::io;
use std::os::fd::AsRawFd;

use libbpf_sys as bpf;

use super::bpf::error::BpfError;
use super::bpf::steer::{Take, program};
use super::bpf::sys::{Link, LoadError, Program, XskMap, interface_index, xdp_program_at};
use super::rules::Steering;
use crate::live::OwnerProcess;

/// Where in a frame's way the program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// In the driver, before the kernel has made anything of the frame.
    Native,
    /// In the kernel's stack, on any interface, and slower: also called generic.
    Skb,
}

impl Mode {
    /// `native`, `skb`.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Native => "native",
            Mode::Skb => "skb",
        }
    }
}

/// How a program is to be attached.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Options {
    /// The mode; `None` tries native mode first, and takes SKB mode where the driver does not want it.
    pub mode: Option<Mode>,
    /// Frames may come in several buffers, as jumbo frames do.
    pub frags: bool,
}

/// A program at an interface, which leaves when this is dropped, and also when the process is killed.
///
/// A frame that it takes goes to the socket of the queue on which it came in, and stays with the kernel where the
/// queue has none. It hands out no frame before a socket was [set](Attached::set_socket).
#[derive(Debug)]
pub struct AttachedProgram {
    // In the order in which they go: first the program leaves the interface.
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
    /// Attaches a program to an interface in this thread's network namespace, with room for sockets of its first
    /// `queues` receive queues.
    ///
    /// # Errors
    /// [`BpfError`] tells what to do.
    pub fn new(interface: &str, queues: u32, steer: &Steering, options: &Options) -> Result<AttachedProgram, BpfError> {
        let no_interface = || BpfError::NoInterface { interface: interface.to_owned() };
        let index = interface_index(interface).ok_or_else(no_interface)?;
        let sockets = XskMap::create(queues).map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) if queues > 0 => BpfError::NoSockets,
            _ => BpfError::new(format!("{interface}: making the map of sockets for {queues} queues"), error),
        })?;
        let program = load(interface, &program(steer, Take::ToSocket(sockets.as_raw_fd())), options.frags)?;
        let program_id = program
            .id()
            .map_err(|error| BpfError::new(format!("{interface}: asking for the number of the XDP program"), error))?;

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

    /// Gives frames of a queue to an AF_XDP socket that is bound to it, from now on until the socket is closed.
    ///
    /// # Errors
    /// What is no bound AF_XDP socket, and a queue for which there is no room.
    pub fn set_socket(&self, queue: u32, socket: &impl AsRawFd) -> Result<(), BpfError> {
        self.sockets.set(queue, socket.as_raw_fd()).map_err(|error| {
            let what = format!("{}, queue {queue}: giving its frames to a socket", self.interface);
            match error.raw_os_error() {
                Some(libc::E2BIG) => BpfError::System {
                    what,
                    error: io::Error::other(format!("there is room for the first {} queues", self.queues)),
                },
                _ => BpfError::new(what, error),
            }
        })
    }

    /// The interface's name, when the program was attached.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// The interface's number.
    pub fn interface_index(&self) -> u32 {
        self.index
    }

    /// The mode that was got.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Why it is not native mode, where that was tried.
    pub fn not_native(&self) -> Option<&BpfError> {
        self.not_native.as_ref()
    }

    /// The program's number, by which `bpftool prog` knows it.
    pub fn program_id(&self) -> u32 {
        self.program_id
    }

    /// Whether the program is still there; it is not once the interface is gone.
    pub fn is_attached(&self) -> bool {
        self.link.interface().is_ok_and(|index| index != 0)
    }
}

/// The number of the XDP program at an interface, ours or somebody else's.
pub fn program_at(interface: u32) -> Option<u32> {
    xdp_program_at(interface)
}

fn load(interface: &str, insns: &[super::bpf::insn::Insn], frags: bool) -> Result<Program, BpfError> {
    let load = |flags| Program::load(bpf::BPF_PROG_TYPE_XDP, c"portcullis_xdp", insns, flags);
    let flags = if frags { bpf::BPF_F_XDP_HAS_FRAGS } else { 0 };
    load(flags).map_err(|refused| match &refused {
        // A flag that the kernel does not know says nothing of the program.
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
        // In the same mode, and in another one or at an interface above.
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
