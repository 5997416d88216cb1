//! TAP interfaces: what a program writes comes in there. Documentation/networking/tuntap.rst.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use super::error::LinkError;
use super::interface::{Interface, named};
use super::links::Links;
use super::name::Claim;
use crate::live::tun;

/// An interface that goes with this process, however that ends.
#[derive(Debug)]
pub struct Tap {
    file: File,
    links: Links,
    interface: Interface,
    _claim: Claim,
}

impl Tap {
    /// An interface that is still down, without addresses.
    ///
    /// # Errors
    /// [`LinkError`]: it needs CAP_NET_ADMIN, and `/dev/net/tun`.
    pub fn new() -> Result<Tap, LinkError> {
        let claim = Claim::new()?;
        let name = claim.name('t');
        let opened = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(tun::DEVICE);
        let file = opened.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => LinkError::NotSupported { what: "TAP interfaces", hint: tun::MISSING },
            _ => LinkError::new(&name, "opening /dev/net/tun", error),
        })?;
        let mut request = named(&name);
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
        // SAFETY: a structure with a name and flags in it, which the kernel reads and fills in.
        if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) } < 0 {
            return Err(LinkError::new(&name, "making a TAP interface", io::Error::last_os_error()));
        }
        let mut links = Links::open(&name)?;
        let interface = links.find(&name)?;
        Ok(Tap { file, links, interface, _claim: claim })
    }

    /// Sets it up: from then on it can be written.
    ///
    /// # Errors
    /// [`LinkError`]: it needs CAP_NET_ADMIN.
    pub fn set_up(&mut self) -> Result<(), LinkError> {
        self.links.set_up(&self.interface)
    }

    pub(super) fn links(&mut self) -> (&mut Links, &Interface) {
        (&mut self.links, &self.interface)
    }

    /// What the kernel has.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// A frame comes in at the interface.
    ///
    /// # Errors
    /// The system's: the interface is down, or the frame is not even a header.
    pub fn write(&self, frame: &[u8]) -> io::Result<()> {
        (&self.file).write(frame).map(drop)
    }

    /// The next frame that was sent at the interface: its length, or `None` where none waits. What is longer than the
    /// buffer is cut.
    ///
    /// # Errors
    /// The system's.
    pub fn read(&self, frame: &mut [u8]) -> io::Result<Option<usize>> {
        match (&self.file).read(frame) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            read => read.map(Some),
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        // It would go with the file; but a process that is just being made, anywhere in this one, has that for a moment, too.
        let _ = self.links.delete(&self.interface);
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
