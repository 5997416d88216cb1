//! Completing partial checksums (`CHECKSUM_PARTIAL`, `linux/skbuff.h`), which the sender has left
//! to its network card.
//!
//! A frame between virtual interfaces often passes no card at all, so nobody completes its
//! checksum; the receiving kernel knows this from the socket buffer. A process that receives such a
//! frame gets only the bytes, and the next receiver would drop it as corrupt. So the checksum is
//! completed before a frame is sent on.
//!
//! **TCP, UDP.** The field holds the folded sum P of the pseudo-header, not complemented, so that a
//! card only has to sum the segment and complement. A frame is recognised by this value, which is
//! never 0 because the protocol number is part of the sum. Let R be the sum of the segment without
//! the field. The completed checksum is −(P + R) modulo 65,535. A frame whose valid checksum equals
//! P has P + P + R = 0, hence P = −(P + R): completing it would not change it, so the ambiguity is
//! harmless, and the frame is left alone. One case is undetectable: a frame damaged in transit
//! whose damaged field happens to be P, one in 65,535.
//!
//! **SCTP.** The kernel leaves the CRC32c to cards that can compute it, as virtual interfaces
//! claim, and the field is 0. It is completed too: although a sender may intend the 0 (RFC 9653), a
//! receiver that accepts 0 also accepts the correct CRC.
//!
//! **Left alone** are frames without partial checksums, and those that cannot be completed:
//! - fragments, the first included, because the checksum covers the others as well; an IPv6 packet
//!   in a single fragment is complete;
//! - packets protected by AH (RFC 4302), which a change would invalidate;
//! - packets whose length fields exceed the frame or contradict each other;
//! - packets in tunnels or behind labels (MPLS, PPPoE), and IPv4 with an unfinished source route
//!   (its pseudo-header has another address).

mod crc32c;
mod partial;

pub use partial::{is_partial, restore_partial_udp};

/// EtherTypes: IEEE 802 Numbers (IANA).
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const ETHERTYPE_VLAN: [u8; 2] = [0x81, 0x00];
const ETHERTYPE_SERVICE_VLAN: [u8; 2] = [0x88, 0xa8];

/// Protocol numbers: Assigned Internet Protocol Numbers (IANA).
const HOP_BY_HOP: u8 = 0;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION_OPTIONS: u8 = 60;
const SCTP: u8 = 132;

/// Maximum number of VLAN tags that are skipped.
const MAX_TAGS: usize = 2;

/// Maximum number of IPv6 extension headers that are skipped: each may occur once, destination
/// options twice (RFC 8200, section 4.1).
const MAX_EXTENSIONS: usize = 6;

/// Completes the partial TCP, UDP or SCTP checksum of an Ethernet frame, if it has one; returns
/// whether it did. Only the checksum field is ever written, whatever the bytes are.
#[inline]
pub fn complete(frame: &mut [u8]) -> bool {
    let mut at = 12;
    for _ in 0..=MAX_TAGS {
        let Some(&[high, low]) = frame.get(at..).and_then(<[u8]>::first_chunk) else { return false };
        let version = match [high, low] {
            ETHERTYPE_IPV4 => 4,
            ETHERTYPE_IPV6 => 6,
            ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN => {
                at += 4;
                continue;
            }
            _ => return false,
        };
        let packet = &mut frame[at + 2..];
        return packet.first().is_some_and(|first| first >> 4 == version) && complete_packet(packet);
    }
    false
}

/// Like [`complete`], for a packet that begins with its IPv4 or IPv6 header.
#[inline]
pub fn complete_packet(packet: &mut [u8]) -> bool {
    let Some(segment) = Segment::of(packet) else { return false };
    let bytes = &mut packet[segment.start..segment.end];
    match segment.protocol {
        TCP if bytes.len() >= 20 => complete_sum(bytes, 16, segment.addresses, TCP),
        // The UDP checksum does not cover bytes after the datagram (RFC 768).
        UDP if bytes.len() >= 8 => match usize::from(u16::from_be_bytes([bytes[4], bytes[5]])) {
            length if (8..=bytes.len()).contains(&length) => {
                complete_sum(&mut bytes[..length], 6, segment.addresses, UDP)
            }
            _ => false,
        },
        SCTP if bytes.len() >= 12 => complete_crc(bytes),
        _ => false,
    }
}

/// The transport segment of an IP packet.
struct Segment {
    /// Start and end offset in the packet.
    start: usize,
    end: usize,
    protocol: u8,
    /// Sum of the pseudo-header's addresses.
    addresses: u64,
}

impl Segment {
    #[inline]
    fn of(packet: &[u8]) -> Option<Segment> {
        match packet.first()? >> 4 {
            4 => Segment::of_ipv4(packet),
            6 => Segment::of_ipv6(packet),
            _ => None,
        }
    }

    /// RFC 791.
    #[inline]
    fn of_ipv4(packet: &[u8]) -> Option<Segment> {
        let header: &[u8; 20] = packet.first_chunk()?;
        let start = usize::from(header[0] & 15) * 4;
        let end = usize::from(u16::from_be_bytes([header[2], header[3]]));
        // More-fragments flag or fragment offset; don't-fragment does not count.
        let is_fragment = (header[6] & 0b0011_1111) | header[7] != 0;
        let fits = 20 <= start && start <= end && end <= packet.len();
        (fits && !is_fragment).then(|| Segment { start, end, protocol: header[9], addresses: sum(&header[12..]) })
    }

    /// RFC 8200.
    #[inline]
    fn of_ipv6(packet: &[u8]) -> Option<Segment> {
        let header: &[u8; 40] = packet.first_chunk()?;
        let end = 40 + usize::from(u16::from_be_bytes([header[4], header[5]]));
        if end > packet.len() {
            return None;
        }
        let mut segment = Segment { start: 40, end, protocol: header[6], addresses: sum(&header[8..]) };
        for _ in 0..MAX_EXTENSIONS {
            if !matches!(segment.protocol, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION_OPTIONS) {
                break;
            }
            segment.skip_extension(&packet[..end], &header[8..24])?;
        }
        // If more extension headers follow, `protocol` is none that has a checksum.
        Some(segment)
    }

    /// Skips an extension header.
    #[cold]
    fn skip_extension(&mut self, packet: &[u8], source: &[u8]) -> Option<()> {
        let rest = &packet[self.start..];
        let &[next, length, kind, left, ..] = rest.first_chunk::<8>()?;
        let length = if self.protocol == FRAGMENT { 8 } else { 8 + usize::from(length) * 8 };
        let header = rest.get(..length)?;
        match self.protocol {
            // Bytes 2 and 3: 13 bits of offset, two reserved bits, the more-fragments flag.
            FRAGMENT if kind != 0 || left & 0b1111_1001 != 0 => return None,
            // The pseudo-header has the final destination (section 8.1), which the routing header
            // still holds.
            ROUTING if left != 0 => {
                let last = match kind {
                    // RFC 8200's type 0 (deprecated) and RFC 6275's type 2: the last address.
                    0 | 2 => header.get(8..)?.last_chunk::<16>()?,
                    // RFC 8754 (segment routing): the list is in reverse order.
                    4 => header.get(8..)?.first_chunk()?,
                    _ => return None,
                };
                self.addresses = sum(source) + sum(last);
            }
            _ => {}
        }
        self.start += length;
        self.protocol = next;
        Some(())
    }
}

/// Completes the TCP or UDP checksum at offset `at` of the segment.
#[inline]
fn complete_sum(segment: &mut [u8], at: usize, addresses: u64, protocol: u8) -> bool {
    let pseudo = pseudo_sum(addresses, protocol, segment.len());
    let field = u16::from_ne_bytes([segment[at], segment[at + 1]]);
    field == pseudo && complete_partial(segment, at, pseudo, protocol)
}

/// Folded sum of a pseudo-header, in native byte order: RFC 9293, section 3.1; RFC 8200, section
/// 8.1.
#[inline]
fn pseudo_sum(addresses: u64, protocol: u8, length: usize) -> u16 {
    let length = (length as u16).to_be_bytes();
    fold(addresses + u64::from(u16::from_ne_bytes([0, protocol])) + u64::from(u16::from_ne_bytes(length)))
}

fn complete_partial(segment: &mut [u8], at: usize, pseudo: u16, protocol: u8) -> bool {
    // The field, which holds the pseudo-header's sum, is included.
    let all = sum(segment);
    if fold(all + u64::from(pseudo)) == 0xffff {
        return false;
    }
    let checksum = match !fold(all) {
        // In UDP, 0 means no checksum: RFC 768, RFC 8200 section 8.1.
        0 if protocol == UDP => 0xffff,
        checksum => checksum,
    };
    segment[at..at + 2].copy_from_slice(&checksum.to_ne_bytes());
    true
}

/// Completes the SCTP checksum: RFC 9260, section 6.8 and appendix A.
#[inline]
fn complete_crc(segment: &mut [u8]) -> bool {
    if segment[8..12] != [0; 4] {
        return false;
    }
    let checksum = crc32c::checksum(segment).to_le_bytes();
    segment[8..12].copy_from_slice(&checksum);
    checksum != [0; 4]
}

/// Sum of 16-bit words in native byte order: RFC 1071, section 2 (B); an odd byte is padded with
/// zero. Cannot overflow on realistic sizes: the sum of 64 KiB is below 2^46.
#[inline]
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let add = |sum, &word: &[u8; 8]| {
        let word = u64::from_ne_bytes(word);
        sum + (word & 0xffff_ffff) + (word >> 32)
    };
    add(words.iter().fold(0, add), &last)
}

/// Folds a sum to 16 bits, adding the carries back in; 0 only if all summands were 0.
#[inline]
fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

#[cfg(test)]
mod tests;
