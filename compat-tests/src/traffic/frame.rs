//! Builds frames header by header, with correct lengths and checksums.

use std::net::{IpAddr, SocketAddr};

/// TCP header flags (RFC 9293, section 3.1).
pub const FIN: u8 = 0x01;
/// See [`FIN`].
pub const SYN: u8 = 0x02;
/// See [`FIN`].
pub const RST: u8 = 0x04;
/// See [`FIN`].
pub const PSH: u8 = 0x08;
/// See [`FIN`].
pub const ACK: u8 = 0x10;

/// An IP packet in an Ethernet frame.
#[derive(Debug, Clone)]
pub struct Frame {
    /// VLAN tags, outermost first: TPID and control information.
    pub tags: Vec<(u16, u16)>,
    /// Source address, of the same family as the destination.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// IPv4's TOS or IPv6's traffic class.
    pub class: u8,
    /// IPv4's identification.
    pub identification: u16,
    /// IPv4's flags and fragment offset.
    pub fragment: u16,
    /// Length of the IPv4 options in words.
    pub options: u8,
    /// The protocol, or IPv6's next header.
    pub protocol: u8,
    /// Bytes after the IP header.
    pub payload: Vec<u8>,
}

impl Frame {
    /// Creates a packet of any protocol.
    pub fn new(source: IpAddr, destination: IpAddr, protocol: u8, payload: Vec<u8>) -> Frame {
        let (tags, class, identification, fragment, options) = (Vec::new(), 0, 0, 0, 0);
        Frame { tags, source, destination, class, identification, fragment, options, protocol, payload }
    }

    /// Creates a TCP segment.
    pub fn tcp(source: SocketAddr, destination: SocketAddr, flags: u8, sequence: [u32; 2], data: &[u8]) -> Frame {
        let mut segment = [source.port().to_be_bytes(), destination.port().to_be_bytes()].concat();
        sequence.iter().for_each(|number| segment.extend(number.to_be_bytes()));
        segment.extend([0x50, flags, 0xfa, 0xf0, 0, 0, 0, 0]);
        segment.extend(data);
        let check = transport_checksum(source.ip(), destination.ip(), 6, &segment);
        segment[16..18].copy_from_slice(&check.to_be_bytes());
        Frame::new(source.ip(), destination.ip(), 6, segment)
    }

    /// Creates a UDP datagram.
    pub fn udp(source: SocketAddr, destination: SocketAddr, data: &[u8]) -> Frame {
        let mut datagram = [source.port().to_be_bytes(), destination.port().to_be_bytes()].concat();
        datagram.extend((8 + data.len() as u16).to_be_bytes());
        datagram.extend([0, 0]);
        datagram.extend(data);
        // A checksum of zero is sent as all ones (RFC 768).
        let check = match transport_checksum(source.ip(), destination.ip(), 17, &datagram) {
            0 => 0xffff,
            check => check,
        };
        datagram[6..8].copy_from_slice(&check.to_be_bytes());
        Frame::new(source.ip(), destination.ip(), 17, datagram)
    }

    /// Splits the frame into fragments of `size` bytes, a multiple of 8; IPv4 only.
    pub fn fragments(&self, size: usize) -> Vec<Frame> {
        let pieces = self.payload.chunks(size);
        let last = pieces.len() - 1;
        let piece = |(i, payload): (usize, &[u8])| {
            let more = if i < last { 0x2000 } else { 0 };
            Frame { fragment: more | (i * size / 8) as u16, payload: payload.to_vec(), ..self.clone() }
        };
        pieces.enumerate().map(piece).collect()
    }

    /// Serialises the frame, with MAC addresses derived from the IP addresses.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = [mac(self.destination), mac(self.source)].concat();
        for (tpid, control) in &self.tags {
            bytes.extend([tpid.to_be_bytes(), control.to_be_bytes()].concat());
        }
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                bytes.extend([0x08, 0x00]);
                let mut header = vec![0x45 + self.options, self.class];
                let length = 20 + 4 * usize::from(self.options) + self.payload.len();
                for field in [length as u16, self.identification, self.fragment] {
                    header.extend(field.to_be_bytes());
                }
                header.extend([64, self.protocol, 0, 0]);
                header.extend(source.octets());
                header.extend(destination.octets());
                header.resize(20 + 4 * usize::from(self.options), 1);
                let check = !ones_complement(&header);
                header[10..12].copy_from_slice(&check.to_be_bytes());
                bytes.extend(header);
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                bytes.extend([0x86, 0xdd, 0x60 | self.class >> 4, self.class << 4, 0, 0]);
                bytes.extend((self.payload.len() as u16).to_be_bytes());
                bytes.extend([self.protocol, 64]);
                bytes.extend(source.octets());
                bytes.extend(destination.octets());
            }
            _ => panic!("{} and {} are not of one family", self.source, self.destination),
        }
        bytes.extend(&self.payload);
        bytes
    }
}

/// Derives a host's MAC address from its IP address.
pub fn mac(address: IpAddr) -> [u8; 6] {
    let low = match address {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(address) => std::array::from_fn(|i| address.octets()[12 + i]),
    };
    [2, 0, low[0], low[1], low[2], low[3]]
}

/// Returns the one's complement sum of 16-bit words (RFC 1071), with the last one padded.
pub fn ones_complement(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0));
    let mut sum: u64 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Updates a checksum for bytes that change (RFC 1624, equation 3: HC' = ~(~HC + ~m + m')).
pub fn update_checksum(check: &mut [u8], old: &[u8], new: &[u8]) {
    let not = |bytes: &[u8]| bytes.iter().map(|byte| !byte).collect::<Vec<u8>>();
    let updated = !ones_complement(&[&not(check), &not(old), new].concat());
    check.copy_from_slice(&updated.to_be_bytes());
}

/// Returns the checksum of a segment or datagram whose checksum field is zero (RFC 9293, section
/// 3.1; RFC 8200, section 8.1). If the field holds the correct checksum, the result is 0.
pub fn transport_checksum(source: IpAddr, destination: IpAddr, protocol: u8, segment: &[u8]) -> u16 {
    let mut all = Vec::new();
    for address in [source, destination] {
        match address {
            IpAddr::V4(address) => all.extend(address.octets()),
            IpAddr::V6(address) => all.extend(address.octets()),
        }
    }
    all.extend((segment.len() as u32).to_be_bytes());
    all.extend([0, 0, 0, protocol]);
    all.extend(segment);
    !ones_complement(&all)
}
