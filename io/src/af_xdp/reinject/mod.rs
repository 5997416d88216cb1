//! Frames back into the kernel's stack, as if they had come in at an interface.
//!
//! A frame that an XDP program gave to a socket has left the kernel. It returns when it is sent into one end of a
//! veth pair; where it comes out of the other end, it is handed on to the ingress of the interface from which it
//! came, so that the stack sees the interface that sockets, routes and firewalls ask for. There are two ways:
//!
//! - [`tcx`], a program: Linux 6.6, and only while the interface's XDP program is in native mode. In SKB mode that runs
//!   where handed-on frames come in, and would take them once more, without end.
//! - [`mirred`], an action of the kernel's traffic control: older kernels and SKB mode, in which the kernel leaves
//!   XDP out for such frames.

pub mod mirred;
pub mod tcx;

use std::io;

use super::bpf::error::BpfError;
use super::xdp::Mode;
use crate::live::link::interface_name;

/// Hands frames on until it is dropped.
#[derive(Debug)]
pub enum Reinjection {
    /// By a program.
    Tcx(tcx::TcxLink),
    /// By traffic control.
    Mirred(mirred::Mirred),
}

impl Reinjection {
    /// `tcx`, `mirred`.
    pub fn name(&self) -> &'static str {
        match self {
            Reinjection::Tcx(_) => "tcx",
            Reinjection::Mirred(_) => "mirred",
        }
    }
}

/// Hands every frame that comes in at one interface on to the ingress of another, both by their numbers in this
/// thread's network namespace; `mode` is that of the XDP program at the second. The first is somebody's who wants
/// nothing else of it: it may get the second's MAC address.
///
/// # Errors
/// [`BpfError::NoReinjection`] where the kernel has neither way; other ones tell what to do.
pub fn attach(from: u32, to: u32, mode: Mode) -> Result<Reinjection, BpfError> {
    if mode == Mode::Native {
        match tcx::attach(from, to) {
            Err(BpfError::NoTcx) => {}
            attached => return attached.map(Reinjection::Tcx),
        }
    }
    mirred::attach(from, to).map(Reinjection::Mirred)
}

/// What the interfaces are called.
fn names(from: u32, to: u32) -> Result<(String, String), BpfError> {
    let name =
        |index| interface_name(index).ok_or_else(|| BpfError::NoInterface { interface: format!("number {index}") });
    // The kernel would say nothing of a second one that is not there.
    let (from_name, to_name) = (name(from)?, name(to)?);
    if from == to {
        let error = io::Error::other("its frames would go round for ever; they need another interface to come in at");
        return Err(BpfError::System { what: format!("handing frames on from {from_name} to itself"), error });
    }
    Ok((from_name, to_name))
}
