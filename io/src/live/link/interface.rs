//! Properties of an interface, from rtnetlink(7) and ethtool.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::error::LinkError;
use super::netlink::{LINK_HEADER, Message, Netlink, attributes};

/// Properties of an interface at the time of the query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Interface index, valid until the interface is removed.
    pub index: u32,
    /// Interface name.
    pub name: String,
    /// MAC address, if it is an Ethernet interface.
    pub mac: Option<[u8; 6]>,
    /// Maximum packet length in bytes, without the Ethernet header.
    pub mtu: u32,
    /// Whether the interface is administratively up.
    pub is_up: bool,
    /// Whether the interface has carrier.
    pub has_link: bool,
    /// Number of receive queues.
    pub receive_queues: u32,
    /// Number of transmit queues.
    pub send_queues: u32,
    /// Driver name, if the driver reports it.
    pub driver: Option<String>,
    /// Whether the interface strips VLAN tags from received frames (`rx-vlan-offload`); XDP does
    /// not see the tags then.
    pub rx_vlan_offload: bool,
}

impl Interface {
    /// Whether VLAN tags are stripped before XDP and lost to forwarded frames. For veth this
    /// depends on the peer (`txvlan`), so it is reported as false.
    pub fn loses_vlan_tags(&self) -> bool {
        self.rx_vlan_offload && self.driver.as_deref() != Some("veth")
    }

    /// Finds an interface by name or alternative name in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`LinkError`], for example if there is no such interface.
    pub fn find(name: &str) -> Result<Interface, LinkError> {
        Interface::ask(&mut netlink(name)?, name)
    }

    pub(super) fn ask(netlink: &mut Netlink, name: &str) -> Result<Interface, LinkError> {
        let mut message = Message::link(0, 0, 0);
        // The kernel rejects an overlong name as invalid instead of unknown.
        let is_name = !name.is_empty() && name.len() < libc::IFNAMSIZ && !name.contains('\0');
        if !is_name {
            return Err(LinkError::NoInterface { interface: name.to_owned() });
        }
        message.string(libc::IFLA_IFNAME, name);
        message.number(libc::IFLA_EXT_MASK, libc::RTEXT_FILTER_SKIP_STATS as u32);
        let asked = netlink.query(libc::RTM_GETLINK, &message);
        let nonsense = || io::Error::other("the kernel's answer is malformed");
        let mut interface = asked
            .and_then(|answer| Interface::parse(&answer).ok_or_else(nonsense))
            .map_err(|error| LinkError::new(name, "reading its settings", error))?;
        if let Some(ethtool) = Ethtool::open(&interface.name) {
            // rtnetlink reports the allocated queues, ethtool those in use; not all drivers report
            // the latter.
            if let Some((receive, send)) = ethtool.channels() {
                (interface.receive_queues, interface.send_queues) = (receive, send);
            }
            interface.driver = ethtool.driver();
            interface.rx_vlan_offload = ethtool.flags() & RX_VLAN != 0;
        }
        Ok(interface)
    }

    /// Parses an answer: `struct ifinfomsg`, then attributes.
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

/// Returns the name of an interface index in the calling thread's network namespace; index 0 has
/// none.
pub(crate) fn interface_name(index: u32) -> Option<String> {
    let mut name = [0 as libc::c_char; libc::IF_NAMESIZE];
    // SAFETY: the buffer has room for the longest name.
    if unsafe { libc::if_indextoname(index, name.as_mut_ptr()) }.is_null() {
        return None;
    }
    // SAFETY: the call has written a zero-terminated string.
    Some(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
}

/// Opens a socket for requests in the calling thread's namespace; errors mention `interface`.
pub(super) fn netlink(interface: &str) -> Result<Netlink, LinkError> {
    Netlink::open(0).map_err(|error| LinkError::new(interface, "opening an rtnetlink socket", error))
}

/// `struct ifinfomsg`, include/uapi/linux/rtnetlink.h.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    pub family: u8,
    /// `ARPHRD_…`
    pub kind: u16,
    pub index: u32,
    flags: u32,
    /// Mask of changed flags; all ones if the message is about the whole interface.
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
    max: [u32; 4],
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
    // Version, firmware version, bus address, option ROM version, reserved bytes.
    _others: [u8; 4 * 32 + 12],
    // Numbers of private flags, statistics and self-tests, sizes of EEPROM and registers.
    _lengths: [u32; 5],
}

/// `struct ethtool_value`, include/uapi/linux/ethtool.h.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

// include/uapi/linux/ethtool.h: `ETHTOOL_GDRVINFO`, `ETHTOOL_GFLAGS`, `ETHTOOL_GCHANNELS`,
// `ETH_FLAG_RXVLAN`.
const GET_DRIVER: u32 = 0x3;
const GET_FLAGS: u32 = 0x25;
const GET_CHANNELS: u32 = 0x3c;
const RX_VLAN: u32 = 1 << 8;

/// Queries an interface's driver through SIOCETHTOOL.
struct Ethtool<'a> {
    socket: OwnedFd,
    name: &'a str,
}

impl Ethtool<'_> {
    fn open(name: &str) -> Option<Ethtool<'_>> {
        // SAFETY: the call takes no pointers.
        let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        // SAFETY: the descriptor was just created; nothing else owns it.
        (socket >= 0).then(|| Ethtool { socket: unsafe { OwnedFd::from_raw_fd(socket) }, name })
    }

    /// Executes the command with which structure `of` starts; returns whether the driver filled it
    /// in.
    ///
    /// # Safety
    /// `of` is the structure of its command.
    unsafe fn ask<T>(&self, of: &mut T) -> bool {
        let mut request = named(self.name);
        request.ifr_ifru.ifru_data = std::ptr::from_mut(of).cast();
        // SAFETY: the request points to a live structure of the command's type.
        unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) == 0 }
    }

    /// Numbers of receive and transmit queues in use.
    fn channels(&self) -> Option<(u32, u32)> {
        let mut channels = Channels { command: GET_CHANNELS, ..Channels::default() };
        // SAFETY: the structure belongs to ETHTOOL_GCHANNELS.
        let got = unsafe { self.ask(&mut channels) };
        let (receive, send) = (channels.receive + channels.combined, channels.send + channels.combined);
        (got && receive > 0 && send > 0).then_some((receive, send))
    }

    fn driver(&self) -> Option<String> {
        let mut info = DriverInfo { command: GET_DRIVER, driver: [0; 32], _others: [0; 4 * 32 + 12], _lengths: [0; 5] };
        // SAFETY: the structure belongs to ETHTOOL_GDRVINFO.
        let got = unsafe { self.ask(&mut info) };
        let name = info.driver.split(|byte| *byte == 0).next().filter(|name| !name.is_empty())?;
        got.then(|| String::from_utf8_lossy(name).into_owned())
    }

    /// Flags `ETH_FLAG_…`; 0 if the driver does not report them.
    fn flags(&self) -> u32 {
        let mut flags = Value { command: GET_FLAGS, data: 0 };
        // SAFETY: the structure belongs to ETHTOOL_GFLAGS.
        if unsafe { self.ask(&mut flags) } { flags.data } else { 0 }
    }
}

/// A request about an interface by name (netdevice(7)); overlong names are truncated.
pub(super) fn named(name: &str) -> libc::ifreq {
    // SAFETY: `ifreq` is plain integers and pointers, for which zeros are valid.
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
    fn the_loopback_interface_is_found() {
        let lo = Interface::find("lo").unwrap();
        assert_eq!((lo.index, lo.name.as_str(), lo.mac), (1, "lo", None));
        assert!(lo.mtu > 1000 && lo.receive_queues >= 1 && lo.send_queues >= 1, "{lo:?}");
    }

    #[test]
    fn vlan_tags_are_lost_if_the_driver_strips_them_except_for_veth() {
        let mut interface = Interface::find("lo").unwrap();
        for (driver, offload, lost) in [
            (Some("ixgbe"), true, true),
            (Some("ixgbe"), false, false),
            (None, true, true),
            // A veth's own setting does not matter.
            (Some("veth"), true, false),
        ] {
            (interface.driver, interface.rx_vlan_offload) = (driver.map(Into::into), offload);
            assert_eq!(interface.loses_vlan_tags(), lost, "{driver:?}, {offload}");
        }
    }

    #[test]
    fn unknown_and_invalid_names_are_not_found() {
        for name in ["", "nosuchthing", "a/b", "a\0b", "a name that is longer than any can be"] {
            let error = Interface::find(name).unwrap_err();
            assert!(matches!(error, LinkError::NoInterface { .. }), "{name:?}: {error}");
        }
    }
}
