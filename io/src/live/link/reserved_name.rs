//! Names of interfaces that runs create, and removing those that killed runs left behind.
//!
//! An interface is called `pc0-1234a`: a number, the process ID, and a letter for its role (`a` and
//! `b` of a veth pair, `t` for TAP). Its alias distinguishes it from an interface that somebody
//! else gave such a name.
//!
//! Process IDs cannot tell whether the owner still runs, because containers that share a network
//! namespace have their own. Instead, a run holds an abstract Unix socket (unix(7)) named like the
//! interface: the name exists once per network namespace and vanishes with the process, however
//! that ends. Whoever can bind it knows that the owner is gone.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use super::configure::LinkConfigurator;
use super::error::LinkError;

/// Prefix of the aliases of interfaces that runs create.
pub(crate) const ALIAS: &str = "portcullis";

/// An interface name that is reserved for this run until dropped.
#[derive(Debug)]
pub(super) struct ReservedName {
    stem: String,
    _socket: UnixDatagram,
}

impl ReservedName {
    /// Removes interfaces left behind by dead runs, then reserves an unused name.
    pub fn new() -> Result<ReservedName, LinkError> {
        remove_orphans();
        ReservedName::take()
    }

    fn take() -> Result<ReservedName, LinkError> {
        let process = std::process::id();
        for number in 0..1000 {
            let stem = format!("pc{number}-{process}");
            match bind_name(&stem) {
                Ok(socket) => return Ok(ReservedName { stem, _socket: socket }),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(LinkError::new(&stem, "reserving its name", error)),
            }
        }
        let error = io::Error::from_raw_os_error(libc::EADDRINUSE);
        Err(LinkError::new("pc", "finding an unused interface name", error))
    }

    /// The interface's name: at most 3 + 3 + 7 + 1 of the 15 characters allowed.
    pub fn name(&self, which: char) -> String {
        format!("{}{which}", self.stem)
    }
}

fn bind_name(stem: &str) -> io::Result<UnixDatagram> {
    UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(format!("portcullis/{stem}"))?)
}

/// Removes the interfaces of dead runs. Failures are ignored: the leftovers are harmless.
fn remove_orphans() {
    let Ok(mut links) = LinkConfigurator::open("pc") else { return };
    for (index, name) in links.find_by_alias(ALIAS).unwrap_or_default() {
        let Some(stem) = stem(&name) else { continue };
        // Hold the name during the removal, so that no new run can take it.
        if let Ok(_held) = bind_name(stem)
            && let Ok(left) = links.find(&name)
            && left.index == index
        {
            // Removing one end of a pair removes the other.
            let _ = links.delete(&left);
        }
    }
}

/// The reserved part of an interface name, if it has the form of ours.
fn stem(name: &str) -> Option<&str> {
    let stem = name.strip_suffix(['a', 'b', 't'])?;
    let (number, process) = stem.strip_prefix("pc")?.split_once('-')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(number) && is_number(process)).then_some(stem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinguished_from_foreign_ones() {
        for name in ["pc0-1a", "pc12-4194304b", "pc999-4194304t"] {
            assert!(name.len() < libc::IFNAMSIZ);
            assert_eq!(stem(name), Some(&name[..name.len() - 1]));
        }
        for name in
            ["", "a", "pc", "pca", "pc-a", "pc0-a", "pc-1a", "pc0-1", "pc0-1c", "pcx-1a", "pc0-x1a", "eth0", "xpc0-1a"]
        {
            assert_eq!(stem(name), None, "{name}");
        }
    }

    #[test]
    fn a_name_is_reserved_once_until_it_is_dropped() {
        let (first, second) = (ReservedName::take().unwrap(), ReservedName::take().unwrap());
        assert_ne!(first.stem, second.stem);
        assert_eq!(bind_name(&first.stem).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let stem = first.stem.clone();
        drop(first);
        drop(bind_name(&stem).unwrap());
    }
}
