//! Creating and configuring interfaces through rtnetlink(7).

use std::io;

use super::error::LinkError;
use super::interface::{Interface, netlink};
use super::netlink::{LINK_HEADER, Message, Netlink, attributes};

// include/uapi/linux/if_link.h
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const IN6_ADDR_GEN_MODE_NONE: u8 = 1;

/// A configuration socket, bound to the network namespace in which it was opened. Interface indexes
/// are only valid there, and the thread may have changed its namespace since.
#[derive(Debug)]
pub(crate) struct LinkConfigurator(Netlink);

impl LinkConfigurator {
    /// Opens a socket in the calling thread's namespace; errors mention `interface`.
    pub fn open(interface: &str) -> Result<LinkConfigurator, LinkError> {
        netlink(interface).map(LinkConfigurator)
    }

    /// Like [`Interface::find`], in this socket's namespace.
    pub fn find(&mut self, name: &str) -> Result<Interface, LinkError> {
        Interface::ask(&mut self.0, name)
    }

    /// Finds all interfaces whose alias starts with `prefix`; returns indexes and names.
    pub fn find_by_alias(&mut self, prefix: &str) -> io::Result<Vec<(u32, String)>> {
        let mut message = Message::link(0, 0, 0);
        message.number(libc::IFLA_EXT_MASK, libc::RTEXT_FILTER_SKIP_STATS as u32);
        let mut found = Vec::new();
        self.0.dump(libc::RTM_GETLINK, &message, |answer| {
            let mut all = attributes(answer.get(LINK_HEADER..).unwrap_or_default());
            let is_one = all.any(|(kind, value)| kind == libc::IFLA_IFALIAS && value.starts_with(prefix.as_bytes()));
            found
                .extend(Interface::parse(answer).filter(|_| is_one).map(|interface| (interface.index, interface.name)));
        })?;
        Ok(found)
    }

    /// Creates the interface that `message` describes.
    pub fn create(&mut self, message: &Message) -> io::Result<()> {
        self.0.request(libc::RTM_NEWLINK, libc::NLM_F_CREATE | libc::NLM_F_EXCL, message)
    }

    pub fn delete(&mut self, interface: &Interface) -> Result<(), LinkError> {
        let deleted = self.0.request(libc::RTM_DELLINK, 0, &Message::link(interface.index, 0, 0));
        deleted.map_err(|error| LinkError::new(&interface.name, "removing it", error))
    }

    pub fn set_up(&mut self, interface: &Interface) -> Result<(), LinkError> {
        let up = libc::IFF_UP as u32;
        self.change(interface, &Message::link(interface.index, up, up), "setting it up")
    }

    pub fn set_mac(&mut self, interface: &Interface, mac: [u8; 6]) -> Result<(), LinkError> {
        let mut message = Message::link(interface.index, 0, 0);
        message.attribute(libc::IFLA_ADDRESS, &mac);
        self.change(interface, &message, "setting its MAC address")
    }

    /// Sets the alias, which `ip link` shows.
    pub fn set_alias(&mut self, interface: &Interface, alias: &str) -> Result<(), LinkError> {
        let mut message = Message::link(interface.index, 0, 0);
        message.string(libc::IFLA_IFALIAS, alias);
        self.change(interface, &message, "setting its alias")
    }

    /// Prevents automatic IPv6 addresses, the link-local one included.
    pub fn disable_ipv6_addresses(&mut self, interface: &Interface) -> Result<(), LinkError> {
        let mut message = Message::link(interface.index, 0, 0);
        message.nested(libc::IFLA_AF_SPEC, |message| {
            message.nested(libc::AF_INET6 as u16, |message| {
                message.attribute(IFLA_INET6_ADDR_GEN_MODE, &[IN6_ADDR_GEN_MODE_NONE]);
            });
        });
        match self.change(interface, &message, "disabling its automatic IPv6 addresses") {
            // The kernel has no IPv6, or it is disabled.
            Err(LinkError::System { error, .. }) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => Ok(()),
            changed => changed,
        }
    }

    fn change(&mut self, interface: &Interface, message: &Message, what: &'static str) -> Result<(), LinkError> {
        let changed = self.0.request(libc::RTM_NEWLINK, 0, message);
        changed.map_err(|error| LinkError::new(&interface.name, what, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_has_no_alias() {
        // Every alias starts with the empty prefix.
        assert!(!LinkConfigurator::open("lo").unwrap().find_by_alias("").unwrap().contains(&(1, "lo".into())));
    }
}
