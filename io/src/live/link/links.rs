//! What interfaces can be told.

use std::io;

use super::error::LinkError;
use super::interface::{Interface, netlink};
use super::netlink::{LINK_HEADER, Message, Netlink, attributes};

// include/uapi/linux/if_link.h
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const IN6_ADDR_GEN_MODE_NONE: u8 = 1;

/// What can be done to interfaces, in the network namespace in which this was opened: a number is another interface's in
/// another one, to which a thread may have moved since.
#[derive(Debug)]
pub(super) struct Links(Netlink);

impl Links {
    /// Of this thread's namespace. The interface is the one that errors are about.
    pub fn open(interface: &str) -> Result<Links, LinkError> {
        netlink(interface).map(Links)
    }

    /// See [`Interface::find`].
    pub fn find(&mut self, name: &str) -> Result<Interface, LinkError> {
        Interface::ask(&mut self.0, name)
    }

    /// All interfaces whose alias begins with this: their numbers and names.
    pub fn with_alias(&mut self, prefix: &str) -> io::Result<Vec<(u32, String)>> {
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

    /// Makes what a message describes.
    pub fn make(&mut self, message: &Message) -> io::Result<()> {
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

    /// Gives it a line that `ip link` shows.
    pub fn set_alias(&mut self, interface: &Interface, alias: &str) -> Result<(), LinkError> {
        let mut message = Message::link(interface.index, 0, 0);
        message.string(libc::IFLA_IFALIAS, alias);
        self.change(interface, &message, "saying what it is for")
    }

    /// Sees to it that it has no IPv6 address, not even the one that it would make itself.
    pub fn without_ipv6_address(&mut self, interface: &Interface) -> Result<(), LinkError> {
        let mut message = Message::link(interface.index, 0, 0);
        message.nested(libc::IFLA_AF_SPEC, |message| {
            message.nested(libc::AF_INET6 as u16, |message| {
                message.attribute(IFLA_INET6_ADDR_GEN_MODE, &[IN6_ADDR_GEN_MODE_NONE]);
            });
        });
        match self.change(interface, &message, "turning its own IPv6 address off") {
            // A kernel without IPv6, or with it turned off.
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
        // Each begins with nothing.
        assert!(!Links::open("lo").unwrap().with_alias("").unwrap().contains(&(1, "lo".into())));
    }
}
