//! Encoding protocol headers and their checksums.

/// Headers under construction, outermost first. All have an even length, which keeps the 16-bit
/// words of checksums aligned.
#[derive(Debug, Clone)]
pub(super) struct Headers {
    bytes: [u8; 256],
    len: usize,
}

/// A packet's addresses, source first: the IPv4 address, or the lower 32 bits of the IPv6 address
/// whose upper bits are fixed.
pub(super) type Addresses = [u32; 2];

impl Headers {
    pub fn new() -> Headers {
        Headers { bytes: [0; 256], len: 0 }
    }

    pub fn clear(&mut self) {
        self.len = 0;
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// # Panics
    /// If the headers exceed 256 bytes; the longest chain generated here is shorter.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    pub fn u8(&mut self, value: u8) {
        self.put(&[value]);
    }

    pub fn u16(&mut self, value: u16) {
        self.put(&value.to_be_bytes());
    }

    pub fn u32(&mut self, value: u32) {
        self.put(&value.to_be_bytes());
    }

    /// Sets a 16-bit field that was left 0.
    pub fn set16(&mut self, at: usize, value: u16) {
        self.bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
    }

    /// Appends an Ethernet II header with locally administered addresses derived from the IP
    /// addresses.
    pub fn ethernet(&mut self, addresses: Addresses, ether_type: u16) {
        for address in [addresses[1], addresses[0]] {
            self.put(&[0x02, 0x00]);
            self.u32(address);
        }
        self.u16(ether_type);
    }

    /// Appends the tag control information and the EtherType after it; the tag's own EtherType
    /// comes before.
    pub fn vlan(&mut self, control: u16, ether_type: u16) {
        self.u16(control);
        self.u16(ether_type);
    }

    /// Appends an IPv4 header (RFC 791) for `payload` bytes. The length of `options` is a multiple
    /// of 4, at most 40.
    #[expect(clippy::too_many_arguments, reason = "one for each header field")]
    pub fn ipv4(
        &mut self,
        addresses: Addresses,
        protocol: u8,
        tos: u8,
        ttl: u8,
        identification: u16,
        flags_and_offset: u16,
        options: &[u8],
        payload: usize,
    ) {
        let start = self.len;
        let header = 20 + options.len();
        self.put(&[0x40 | (header / 4) as u8, tos]);
        self.u16((header + payload) as u16);
        self.u16(identification);
        self.u16(flags_and_offset);
        self.put(&[ttl, protocol]);
        self.u16(0);
        self.u32(addresses[0]);
        self.u32(addresses[1]);
        self.put(options);
        let check = fold(sum(&self.bytes[start..self.len]));
        self.set16(start + 10, !check);
    }

    /// Appends an IPv6 header (RFC 8200) for `payload` bytes.
    pub fn ipv6(&mut self, addresses: Addresses, next_header: u8, class_and_label: u32, hops: u8, payload: usize) {
        self.u32(0x6000_0000 | (class_and_label & 0x0fff_ffff));
        self.u16(payload as u16);
        self.put(&[next_header, hops]);
        for address in addresses {
            self.put(&ipv6_address(address));
        }
    }

    /// Appends a TCP header (RFC 9293) without options and with checksum 0; returns the checksum's
    /// offset.
    pub fn tcp(&mut self, ports: [u16; 2], sequence: u32, acknowledgement: u32, flags: u8, window: u16) -> usize {
        self.u16(ports[0]);
        self.u16(ports[1]);
        self.u32(sequence);
        self.u32(acknowledgement);
        self.put(&[0x50, flags]);
        self.u16(window);
        self.u32(0);
        self.len - 4
    }

    /// Appends a UDP header (RFC 768) with checksum 0; returns the checksum's offset.
    pub fn udp(&mut self, ports: [u16; 2], payload: usize) -> usize {
        self.u16(ports[0]);
        self.u16(ports[1]);
        self.u16((8 + payload) as u16);
        self.u16(0);
        self.len - 2
    }

    /// Sum of the bytes from `start` on.
    pub fn sum_from(&self, start: usize) -> u64 {
        sum(&self.bytes[start..self.len])
    }
}

/// The IPv6 address with these lower 32 bits in the documentation prefix 2001:db8::/32 (RFC 3849).
fn ipv6_address(low: u32) -> [u8; 16] {
    let mut address = [0; 16];
    address[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
    address[12..].copy_from_slice(&low.to_be_bytes());
    address
}

/// Sum of big-endian 16-bit words (RFC 1071); an odd byte is padded with zero.
pub(super) fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(2);
    let odd = words.remainder().first().map_or(0, |&byte| u64::from(byte) << 8);
    words.map(|word| u64::from(u16::from_be_bytes([word[0], word[1]]))).sum::<u64>() + odd
}

/// Folds a sum to 16 bits, adding the carries back in.
pub(super) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Sum of the IPv4 pseudo-header: RFC 9293, section 3.1.
pub(super) fn pseudo_sum_ipv4(addresses: Addresses, protocol: u8, length: usize) -> u64 {
    let halves = |a: u32| u64::from(a >> 16) + u64::from(a & 0xffff);
    halves(addresses[0]) + halves(addresses[1]) + u64::from(protocol) + length as u64
}

/// Sum of the IPv6 pseudo-header: RFC 8200, section 8.1.
pub(super) fn pseudo_sum_ipv6(addresses: Addresses, next_header: u8, length: usize) -> u64 {
    addresses.iter().map(|&a| sum(&ipv6_address(a))).sum::<u64>() + u64::from(next_header) + length as u64
}

/// Complements a sum to a transport checksum. 0 becomes 0xffff: in UDP 0 means no checksum (RFC
/// 768), and in TCP and ICMP both are equivalent.
pub(super) fn checksum(sum: u64) -> u16 {
    match !fold(sum) {
        0 => 0xffff,
        check => check,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_match_the_example_of_rfc_1071() {
        // RFC 1071, section 3.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(fold(sum(&bytes)), 0xddf2);
        assert_eq!(sum(&[0x12, 0x34, 0x56]), 0x1234 + 0x5600);
    }

    #[test]
    fn an_ipv4_header_matches_a_published_example() {
        // A textbook example with checksum b1e6.
        let mut headers = Headers::new();
        headers.ipv4([0xac10_0a63, 0xac10_0a0c], 6, 0, 64, 0x1c46, 0x4000, &[], 40);
        assert_eq!(
            headers.bytes(),
            [
                0x45, 0, 0, 0x3c, 0x1c, 0x46, 0x40, 0, 0x40, 6, 0xb1, 0xe6, 0xac, 0x10, 0x0a, 0x63, 0xac, 0x10, 0x0a,
                0x0c
            ]
        );
    }
}
