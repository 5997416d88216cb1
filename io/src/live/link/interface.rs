//! What the kernel says of an interface.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::error::LinkError;
use super::netlink::{LINK_HEADER, Message, Netlink, attributes};

/// An interface, as it was when the kernel was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its number, which it has until it is gone.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its MAC address, where it is an Ethernet interface.
    pub mac: Option<[u8; 6]>,
    /// Bytes of a packet, from behind its Ethernet header.
    pub mtu: u32,
    /// Whether it was set up.
    pub is_up: bool,
    /// Whether there is a link: the other end is there.
    pub has_link: bool,
    /// How many queues it receives by.
    pub receive_queues: u32,
    /// How many queues it sends by.
    pub send_queues: u32,
    /// What its driver is called, where it says.
    pub driver: Option<String>,
    /// Whether it takes VLAN tags out of what comes in before anybody sees it (`rx-vlan-offload`). XDP does not get them then.
    pub rx_vlan_offload: bool,
}

impl Interface {
    /// Whether XDP does not see VLAN tags, as they are taken out of packets before, and are lost to what is sent on. Of a veth
    /// pair it is the other end that decides, by whether it puts tags into packets (`txvlan`).
    pub fn loses_vlan_tags(&self) -> bool {
        self.rx_vlan_offload && self.driver.as_deref() != Some("veth")
    }

    /// The interface of this name, or alternative name, in this thread's network namespace.
    ///
    /// # Errors
    /// [`LinkError`]: among others, there is none.
    pub fn find(name: &str) -> Result<Interface, LinkError> {
        Interface::ask(&mut netlink(name)?, name)
    }

    pub(super) fn ask(netlink: &mut Netlink, name: &str) -> Result<Interface, LinkError> {
        let mut message = Message::link(0, 0, 0);
        // A longer one would be refused as wrong, and not as unknown.
        let is_name = !name.is_empty() && name.len() < libc::IFNAMSIZ && !name.contains('\0');
        if !is_name {
            return Err(LinkError::NoInterface { interface: name.to_owned() });
        }
        message.string(libc::IFLA_IFNAME, name);
        message.number(libc::IFLA_EXT_MASK, libc::RTEXT_FILTER_SKIP_STATS as u32);
        let asked = netlink.query(libc::RTM_GETLINK, &message);
        let nonsense = || io::Error::other("the kernel's answer makes no sense");
        let mut interface = asked
            .and_then(|answer| Interface::parse(&answer).ok_or_else(nonsense))
            .map_err(|error| LinkError::new(name, "asking for its settings", error))?;
        if let Some(ethtool) = Ethtool::open(&interface.name) {
            // What drivers can have is not what they have now; some do not say.
            if let Some((receive, send)) = ethtool.channels() {
                (interface.receive_queues, interface.send_queues) = (receive, send);
            }
            interface.driver = ethtool.driver();
            interface.rx_vlan_offload = ethtool.flags() & RX_VLAN != 0;
        }
        Ok(interface)
    }

    /// Out of an answer: `struct ifinfomsg`, then attributes.
    pub(super) fn parse(answer: &[u8]) -> Option<Interface> {
        let header = Header::parse(answer)?;
        let mut interface = Interface {
            index: header.index,
            name: String::new(),
            mac: None,
            mtu: 0,
            is_up: header.is_up(),
            has_link: header.has_link(),
            receive_queues: 1,
            send_queues: 1,
            driver: None,
            rx_vlan_offload: false,
        };
        let number = |value: &[u8]| Some(u32::from_ne_bytes(*value.first_chunk()?));
        for (kind, value) in attributes(answer.get(LINK_HEADER..)?) {
            match kind {
                libc::IFLA_IFNAME => {
                    interface.name = String::from_utf8_lossy(value.strip_suffix(b"\0").unwrap_or(value)).into_owned();
                }
                libc::IFLA_ADDRESS if header.kind == libc::ARPHRD_ETHER => interface.mac = value.try_into().ok(),
                libc::IFLA_MTU => interface.mtu = number(value)?,
                libc::IFLA_NUM_RX_QUEUES => interface.receive_queues = number(value)?,
                libc::IFLA_NUM_TX_QUEUES => interface.send_queues = number(value)?,
                _ => {}
            }
        }
        Some(interface)
    }
}

/// An interface's name, in this thread's network namespace; 0 is none's number.
pub(crate) fn interface_name(index: u32) -> Option<String> {
    let mut name = [0 as libc::c_char; libc::IF_NAMESIZE];
    // SAFETY: there is room for the longest name.
    if unsafe { libc::if_indextoname(index, name.as_mut_ptr()) }.is_null() {
        return None;
    }
    // SAFETY: it was filled with a string.
    Some(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
}

/// For questions and orders, in this thread's namespace. The interface is the one that errors are about.
pub(super) fn netlink(interface: &str) -> Result<Netlink, LinkError> {
    Netlink::open(0).map_err(|error| LinkError::new(interface, "a netlink socket", error))
}

/// `struct ifinfomsg`, include/uapi/linux/rtnetlink.h.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    pub family: u8,
    /// `ARPHRD_…`
    pub kind: u16,
    pub index: u32,
    flags: u32,
    /// Which flags are changed; all where the message is about the interface as a whole.
    pub changed: u32,
}

impl Header {
    pub fn parse(message: &[u8]) -> Option<Header> {
        let bytes: &[u8; LINK_HEADER] = message.first_chunk()?;
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let kind = u16::from_ne_bytes([bytes[2], bytes[3]]);
        Some(Header { family: bytes[0], kind, index: word(4), flags: word(8), changed: word(12) })
    }

    pub fn is_up(&self) -> bool {
        self.flags & libc::IFF_UP as u32 != 0
    }

    pub fn has_link(&self) -> bool {
        self.flags & libc::IFF_LOWER_UP as u32 != 0
    }
}

/// `struct ethtool_channels`, include/uapi/linux/ethtool.h.
#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    most: [u32; 4],
    receive: u32,
    send: u32,
    other: u32,
    combined: u32,
}

/// `struct ethtool_drvinfo`, include/uapi/linux/ethtool.h.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    // Version, firmware, bus, expansion ROM, and what is reserved.
    _others: [u8; 4 * 32 + 12],
    // Private flags, statistics, tests, EEPROM, registers.
    _lengths: [u32; 5],
}

/// `struct ethtool_value`, include/uapi/linux/ethtool.h.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

// include/uapi/linux/ethtool.h: `ETHTOOL_GDRVINFO`, `ETHTOOL_GFLAGS`, `ETHTOOL_GCHANNELS`, `ETH_FLAG_RXVLAN`.
const GET_DRIVER: u32 = 0x3;
const GET_FLAGS: u32 = 0x25;
const GET_CHANNELS: u32 = 0x3c;
const RX_VLAN: u32 = 1 << 8;

/// What an interface's driver says.
struct Ethtool<'a> {
    socket: OwnedFd,
    name: &'a str,
}

impl Ethtool<'_> {
    fn open(name: &str) -> Option<Ethtool<'_>> {
        // SAFETY: it takes no memory.
        let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        // SAFETY: it was just made, and is nobody else's.
        (socket >= 0).then(|| Ethtool { socket: unsafe { OwnedFd::from_raw_fd(socket) }, name })
    }

    /// Asks with a structure that begins with its command, and is filled in. Whether the driver knows the answer.
    ///
    /// # Safety
    /// The structure is the command's.
    unsafe fn ask<T>(&self, of: &mut T) -> bool {
        let mut request = named(self.name);
        request.ifr_ifru.ifru_data = std::ptr::from_mut(of).cast();
        // SAFETY: the request names a structure that lives, the one that the command fills in.
        unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) == 0 }
    }

    /// Queues to receive and to send by that it has now.
    fn channels(&self) -> Option<(u32, u32)> {
        let mut channels = Channels { command: GET_CHANNELS, ..Channels::default() };
        // SAFETY: it is this command's.
        let got = unsafe { self.ask(&mut channels) };
        let (receive, send) = (channels.receive + channels.combined, channels.send + channels.combined);
        (got && receive > 0 && send > 0).then_some((receive, send))
    }

    fn driver(&self) -> Option<String> {
        let mut info = DriverInfo { command: GET_DRIVER, driver: [0; 32], _others: [0; 4 * 32 + 12], _lengths: [0; 5] };
        // SAFETY: it is this command's.
        let got = unsafe { self.ask(&mut info) };
        let name = info.driver.split(|byte| *byte == 0).next().filter(|name| !name.is_empty())?;
        got.then(|| String::from_utf8_lossy(name).into_owned())
    }

    /// `ETH_FLAG_…`; none where nobody says.
    fn flags(&self) -> u32 {
        let mut flags = Value { command: GET_FLAGS, data: 0 };
        // SAFETY: it is this command's.
        if unsafe { self.ask(&mut flags) } { flags.data } else { 0 }
    }
}

/// A request about an interface by its name: netdevice(7). What is too long of the name is left out.
pub(super) fn named(name: &str) -> libc::ifreq {
    // SAFETY: a structure of numbers and pointers, for which zeros are good.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(name.as_bytes()) {
        *to = *from as libc::c_char;
    }
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_there() {
        let lo = Interface::find("lo").unwrap();
        assert_eq!((lo.index, lo.name.as_str(), lo.mac), (1, "lo", None));
        assert!(lo.mtu > 1000 && lo.receive_queues >= 1 && lo.send_queues >= 1, "{lo:?}");
    }

    #[test]
    fn tags_are_lost_where_the_interface_takes_them_out() {
        let mut interface = Interface::find("lo").unwrap();
        for (driver, offload, lost) in [
            (Some("ixgbe"), true, true),
            (Some("ixgbe"), false, false),
            (None, true, true),
            // Its own setting says nothing.
            (Some("veth"), true, false),
        ] {
            (interface.driver, interface.rx_vlan_offload) = (driver.map(Into::into), offload);
            assert_eq!(interface.loses_vlan_tags(), lost, "{driver:?}, {offload}");
        }
    }

    #[test]
    fn what_is_not_there_is_not_found() {
        for name in ["", "nosuchthing", "a/b", "a\0b", "a name that is longer than any can be"] {
            let error = Interface::find(name).unwrap_err();
            assert!(matches!(error, LinkError::NoInterface { .. }), "{name:?}: {error}");
        }
    }
}
