//! Reinjecting frames into the kernel's stack, as if they had arrived at an interface.
//!
//! A frame that XDP redirected to a socket has left the kernel. It returns when it is transmitted
//! into one end of a veth pair; at the other end it is redirected to the ingress of its original
//! interface, so that sockets, routes and firewalls see that interface. There are two methods:
//!
//! - [`tcx`], a BPF program: Linux 6.6, and only if the interface's XDP program runs in native
//!   mode. In SKB mode, XDP also runs for redirected frames and would redirect them to the socket
//!   again, in an endless loop.
//! - [`mirred`], an action of traffic control: for older kernels and for SKB mode, in which the
//!   kernel skips XDP for such frames.

pub mod mirred;
pub mod tcx;

use std::io;

use super::bpf::error::BpfError;
use super::xdp::Mode;
use crate::live::link::interface_name;

/// Redirects frames until dropped.
#[derive(Debug)]
pub enum Reinjection {
    /// A tcx program.
    Tcx(tcx::TcxLink),
    /// Traffic control.
    Mirred(mirred::Mirred),
}

impl Reinjection {
    /// Name for reports: `tcx`, `mirred`.
    pub fn name(&self) -> &'static str {
        match self {
            Reinjection::Tcx(_) => "tcx",
            Reinjection::Mirred(_) => "mirred",
        }
    }
}

/// Redirects every frame that arrives at interface `from` to the ingress of interface `to`, given
/// by index in the calling thread's network namespace. `mode` is that of the XDP program at `to`.
/// `from` must be used for nothing else: its MAC address may be changed to that of `to`.
///
/// # Errors
/// [`BpfError::NoReinjection`] if the kernel supports neither method; others name the next step.
pub fn attach(from: u32, to: u32, mode: Mode) -> Result<Reinjection, BpfError> {
    if mode == Mode::Native {
        match tcx::attach(from, to) {
            Err(BpfError::NoTcx) => {}
            attached => return attached.map(Reinjection::Tcx),
        }
    }
    mirred::attach(from, to).map(Reinjection::Mirred)
}

/// Returns the names of the interfaces.
fn names(from: u32, to: u32) -> Result<(String, String), BpfError> {
    let name =
        |index| interface_name(index).ok_or_else(|| BpfError::NoInterface { interface: format!("number {index}") });
    // The kernel would silently accept a nonexistent target.
    let (from_name, to_name) = (name(from)?, name(to)?);
    if from == to {
        let error = io::Error::other("its frames would loop forever; they need another interface to arrive at");
        return Err(BpfError::System { what: format!("redirecting frames from {from_name} to itself"), error });
    }
    Ok((from_name, to_name))
}
