//! Names of interfaces that a run makes, and what killed runs left behind.
//!
//! An interface is called `pc0-1234a`: a number, the process, and which of a pair it is; and it has an alias, by which it is
//! told from one that somebody else calls so. Whether its run is still there is
//! not asked of process ids, of which containers that share a network have their own each. A run that makes an interface
//! holds an abstract Unix socket of its name (unix(7)): such a name is known in the whole network namespace, can be had
//! once, and goes with its process, however that ends. Whoever can have it knows that nobody is there.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use super::error::LinkError;
use super::links::Links;

/// What the aliases of a run's interfaces begin with.
pub(super) const ALIAS: &str = "portcullis";

/// A name that is this run's until it is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    stem: String,
    _socket: UnixDatagram,
}

impl Claim {
    /// A name that no interface has. First, the interfaces are removed whose names nobody claims any longer.
    pub fn new() -> Result<Claim, LinkError> {
        remove_leftovers();
        Claim::take()
    }

    fn take() -> Result<Claim, LinkError> {
        let process = std::process::id();
        for number in 0..1000 {
            let stem = format!("pc{number}-{process}");
            match hold(&stem) {
                Ok(socket) => return Ok(Claim { stem, _socket: socket }),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(LinkError::new(&stem, "claiming its name", error)),
            }
        }
        let error = io::Error::from_raw_os_error(libc::EADDRINUSE);
        Err(LinkError::new("pc", "finding a name for an interface", error))
    }

    /// An interface's name: at most 3 + 3 + 7 + 1 characters, of the 15 that there may be.
    pub fn name(&self, which: char) -> String {
        format!("{}{which}", self.stem)
    }
}

fn hold(stem: &str) -> io::Result<UnixDatagram> {
    UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(format!("portcullis/{stem}"))?)
}

/// Removes the interfaces of runs that are no more. What cannot be removed stays: it does no harm.
fn remove_leftovers() {
    let Ok(mut links) = Links::open("pc") else { return };
    for (index, name) in links.with_alias(ALIAS).unwrap_or_default() {
        let Some(stem) = stem(&name) else { continue };
        // Held while it is removed: somebody might get the name in between.
        if let Ok(_held) = hold(stem)
            && let Ok(left) = links.find(&name)
            && left.index == index
        {
            // With one of a pair the other goes.
            let _ = links.delete(&left);
        }
    }
}

/// What a name of ours begins with.
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
    fn names_are_told_from_others() {
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
    fn a_name_is_had_once_until_it_is_given_back() {
        let (first, second) = (Claim::take().unwrap(), Claim::take().unwrap());
        assert_ne!(first.stem, second.stem);
        assert_eq!(hold(&first.stem).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let stem = first.stem.clone();
        drop(first);
        drop(hold(&stem).unwrap());
    }
}
