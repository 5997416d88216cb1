//! Link types of captures.

use std::fmt;

/// A link type number from the LINKTYPE_ registry (draft-ietf-opsawg-pcaplinktype).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkType(pub u32);

/// Names of the common link types, in ascending order of numbers.
const NAMES: &[(u32, &str)] = &[
    (0, "BSD loopback (NULL)"),
    (1, "Ethernet"),
    (3, "AX.25"),
    (6, "IEEE 802.5 Token Ring"),
    (7, "ARCNET"),
    (8, "SLIP"),
    (9, "PPP"),
    (10, "FDDI"),
    (50, "PPP in HDLC framing"),
    (51, "PPPoE"),
    (100, "LLC/SNAP over ATM"),
    (101, "raw IP"),
    (104, "Cisco HDLC"),
    (105, "IEEE 802.11"),
    (107, "Frame Relay"),
    (108, "OpenBSD loopback"),
    (113, "Linux cooked capture (SLL)"),
    (114, "LocalTalk"),
    (117, "OpenBSD pflog"),
    (119, "IEEE 802.11 with Prism header"),
    (122, "IP over Fibre Channel"),
    (127, "IEEE 802.11 with radiotap"),
    (129, "ARCNET for Linux"),
    (138, "IP over IEEE 1394"),
    (140, "SS7 MTP2"),
    (141, "SS7 MTP3"),
    (143, "DOCSIS"),
    (147, "private use 0 (USER0)"),
    (148, "private use 1 (USER1)"),
    (149, "private use 2 (USER2)"),
    (150, "private use 3 (USER3)"),
    (163, "IEEE 802.11 with AVS header"),
    (165, "BACnet MS/TP"),
    (166, "PPP for pppd"),
    (187, "Bluetooth HCI H4"),
    (189, "USB (Linux)"),
    (192, "PPI"),
    (195, "IEEE 802.15.4 with FCS"),
    (201, "Bluetooth HCI H4 with direction"),
    (220, "USB (Linux, padded)"),
    (227, "SocketCAN"),
    (228, "raw IPv4"),
    (229, "raw IPv6"),
    (230, "IEEE 802.15.4 without FCS"),
    (231, "D-Bus"),
    (239, "NFLOG"),
    (240, "NetAnalyzer"),
    (242, "IP over InfiniBand"),
    (247, "InfiniBand"),
    (249, "USBPcap"),
    (251, "Bluetooth Low Energy link layer"),
    (252, "Wireshark upper PDU"),
    (253, "Netlink"),
    (254, "Bluetooth Linux monitor"),
    (258, "Apple PKTAP"),
    (272, "nRF Sniffer"),
    (276, "Linux cooked capture v2 (SLL2)"),
    (280, "Elektrobit high-speed capture"),
    (283, "IEEE 802.15.4 TAP"),
];

impl LinkType {
    /// Ethernet, the only link type that can be filtered.
    pub const ETHERNET: LinkType = LinkType(1);

    /// Returns the name of a common link type.
    pub fn name(self) -> Option<&'static str> {
        NAMES.binary_search_by_key(&self.0, |&(number, _)| number).ok().map(|i| NAMES[i].1)
    }
}

impl fmt::Display for LinkType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_for_binary_search() {
        assert!(NAMES.is_sorted_by(|a, b| a.0 < b.0));
    }

    #[test]
    fn common_link_types_are_shown_by_name_and_others_by_number() {
        assert_eq!(LinkType(105).to_string(), "IEEE 802.11 (105)");
        assert_eq!(LinkType(113).to_string(), "Linux cooked capture (SLL) (113)");
        assert_eq!(LinkType(60_000).to_string(), "60000");
    }
}
