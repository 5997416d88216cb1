//! IP headers as the models parse them: a header is complete or absent.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::traffic::frame::update_checksum;

/// An IP packet behind an Ethernet header and at most one VLAN tag.
#[derive(Debug, Clone, Copy)]
pub struct Ip<'a> {
    /// Offset of the IP header in the frame.
    pub at: usize,
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// The protocol, or the next header of IPv6.
    pub protocol: u8,
    /// IPv4's identification.
    pub identification: u16,
    /// Set for every fragment; IPv4 only.
    pub is_fragment: bool,
    /// Set for fragments other than the first.
    pub is_later_fragment: bool,
    /// Bytes after the header and its options; empty if the options are truncated.
    pub payload: &'a [u8],
}

/// Parses the IP packet in a frame.
pub fn ip(frame: &[u8]) -> Option<Ip<'_>> {
    let at = match frame.get(12..14)? {
        [0x81, 0x00] | [0x88, 0xa8] => 18,
        _ => 14,
    };
    let header = frame.get(at..)?;
    match frame.get(at - 2..at)? {
        [0x08, 0x00] => ipv4(at, header),
        [0x86, 0xdd] => ipv6(at, header),
        _ => None,
    }
}

fn ipv4(at: usize, header: &[u8]) -> Option<Ip<'_>> {
    let fixed: &[u8; 20] = header.first_chunk()?;
    let words = usize::from(fixed[0] & 15);
    if fixed[0] >> 4 != 4 || words < 5 {
        return None;
    }
    let address = |at: usize| IpAddr::V4(Ipv4Addr::new(fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]));
    let is_later_fragment = fixed[6] & 0x1f != 0 || fixed[7] != 0;
    Some(Ip {
        at,
        source: address(12),
        destination: address(16),
        protocol: fixed[9],
        identification: u16::from_be_bytes([fixed[4], fixed[5]]),
        is_fragment: is_later_fragment || fixed[6] & 0x20 != 0,
        is_later_fragment,
        payload: header.get(words * 4..).unwrap_or_default(),
    })
}

fn ipv6(at: usize, header: &[u8]) -> Option<Ip<'_>> {
    let fixed: &[u8; 40] = header.first_chunk()?;
    if fixed[0] >> 4 != 6 {
        return None;
    }
    let address = |at: usize| IpAddr::V6(Ipv6Addr::from_octets(std::array::from_fn(|i| fixed[at + i])));
    Some(Ip {
        at,
        source: address(8),
        destination: address(24),
        protocol: fixed[6],
        identification: 0,
        is_fragment: false,
        is_later_fragment: false,
        payload: &header[40..],
    })
}

impl Ip<'_> {
    /// Reads 16 bits of the payload.
    pub fn u16_at(&self, at: usize) -> Option<u16> {
        self.payload.get(at..).and_then(|bytes| bytes.first_chunk()).map(|bytes| u16::from_be_bytes(*bytes))
    }

    /// Reads 32 bits of the payload.
    pub fn u32_at(&self, at: usize) -> Option<u32> {
        self.payload.get(at..).and_then(|bytes| bytes.first_chunk()).map(|bytes| u32::from_be_bytes(*bytes))
    }
}

/// Returns the DSCP of an IP packet in a frame (RFC 2474).
pub fn dscp(frame: &[u8], ip: &Ip<'_>) -> u8 {
    let header = &frame[ip.at..];
    if ip.source.is_ipv4() { header[1] >> 2 } else { (header[0] << 4 | header[1] >> 4) >> 2 }
}

/// Returns the frame with another DSCP in its IP packet, and IPv4's checksum updated.
pub fn with_dscp(frame: &[u8], ip: &Ip<'_>, mark: u8) -> Vec<u8> {
    let mut bytes = frame.to_vec();
    if dscp(frame, ip) == mark {
        return bytes;
    }
    let header = &mut bytes[ip.at..];
    if ip.source.is_ipv4() {
        let old = [header[0], header[1]];
        header[1] = mark << 2 | header[1] & 3;
        let new = [header[0], header[1]];
        update_checksum(&mut header[10..12], &old, &new);
    } else {
        let class = mark << 2 | header[1] >> 4 & 3;
        header[0] = header[0] & 0xf0 | class >> 4;
        header[1] = header[1] & 0x0f | class << 4;
    }
    bytes
}

/// Returns an address as words, most significant first; an IPv4 address is mapped to IPv6 (RFC
/// 4291, section 2.5.5.2).
pub fn words(address: IpAddr) -> [u32; 4] {
    let bits = u128::from(match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    });
    [96, 64, 32, 0].map(|shift| (bits >> shift) as u32)
}

/// Returns an address in its own family: one word for IPv4, four for IPv6.
pub fn own_words(address: IpAddr) -> Vec<u32> {
    match address {
        IpAddr::V4(address) => vec![u32::from(address)],
        IpAddr::V6(_) => words(address).to_vec(),
    }
}
