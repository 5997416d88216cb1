//! TAP interfaces: frames written by a process are received there by the kernel.
//! Documentation/networking/tuntap.rst.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use super::configure::LinkConfigurator;
use super::error::LinkError;
use super::interface::{Interface, named};
use super::reserved_name::ReservedName;
use crate::live::tun;

/// A TAP interface that vanishes with this process, however that ends.
#[derive(Debug)]
pub struct Tap {
    file: File,
    links: LinkConfigurator,
    interface: Interface,
    _name: ReservedName,
}

impl Tap {
    /// Creates an interface, which is down and has no addresses.
    ///
    /// # Errors
    /// [`LinkError`]; CAP_NET_ADMIN and `/dev/net/tun` are required.
    pub fn new() -> Result<Tap, LinkError> {
        let name_reservation = ReservedName::new()?;
        let name = name_reservation.name('t');
        let opened = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(tun::DEVICE);
        let file = opened.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => LinkError::NotSupported { what: "TAP interfaces", hint: tun::MISSING },
            _ => LinkError::new(&name, "opening /dev/net/tun", error),
        })?;
        let mut request = named(&name);
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
        // SAFETY: TUNSETIFF reads and writes the live `ifreq`.
        if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) } < 0 {
            return Err(LinkError::new(&name, "creating a TAP interface", io::Error::last_os_error()));
        }
        let mut links = LinkConfigurator::open(&name)?;
        let interface = links.find(&name)?;
        Ok(Tap { file, links, interface, _name: name_reservation })
    }

    /// Sets the interface up; only then can frames be written.
    ///
    /// # Errors
    /// [`LinkError`]; CAP_NET_ADMIN is required.
    pub fn set_up(&mut self) -> Result<(), LinkError> {
        self.links.set_up(&self.interface)
    }

    pub(crate) fn links(&mut self) -> (&mut LinkConfigurator, &Interface) {
        (&mut self.links, &self.interface)
    }

    /// Properties of the interface when it was created.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Lets the kernel receive a frame at the interface.
    ///
    /// # Errors
    /// The system's, if the interface is down or the frame shorter than a header.
    pub fn write(&self, frame: &[u8]) -> io::Result<()> {
        (&self.file).write(frame).map(drop)
    }

    /// Reads the next frame that the kernel sent out of the interface and returns its length, or
    /// `None` if none is queued. A frame longer than the buffer is truncated.
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
        // Closing the file is not always enough: a child process between fork and exec may still
        // hold it.
        let _ = self.links.delete(&self.interface);
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
