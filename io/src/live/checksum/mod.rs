//! Checksums that a sender left to its network card.
//!
//! A frame of a virtual interface has often never seen a card: what its sender left to be done by one on the way out,
//! nobody has done, and the receiving kernel knows and does not mind (`CHECKSUM_PARTIAL`, `linux/skbuff.h`). Whoever takes
//! such a frame out of the kernel takes the bytes and not the knowledge, and whoever is sent it later drops it as corrupt.
//! So the checksum is completed before a frame is sent on.
//!
//! **TCP, UDP.** The field holds the folded sum P of the pseudo-header, and not its complement, so that a card has only to
//! sum the segment up and to complement. That is how such a frame is known here; P is never 0, for the protocol's number
//! is a part of it. Let R be the sum of the segment without the field. The checksum that completes the frame is −(P + R)
//! modulo 65,535. A frame that has P by chance and is right has P + P + R = 0, so that P = −(P + R) is what completing it
//! would give: the two cannot be told apart and need not be, and such a frame is left alone. What cannot be told apart
//! and is lost is that a frame was damaged on its way, in one of 65,535 whose damaged field is P.
//!
//! **SCTP.** The kernel leaves a CRC32c to cards that can do it, which virtual interfaces say they can, and has 0 in the
//! field then. That is completed, too: the sender might mean its 0 (RFC 9653), but whoever takes 0 takes a right CRC.
//!
//! **Left alone** is what nobody leaves to cards, and what cannot be completed:
//! - fragments, the first included: its field covers the others as well. An IPv6 packet in a single fragment is whole;
//! - what AH protects (RFC 4302), which would no longer match what it protects;
//! - packets whose length fields reach beyond the frame or contradict each other;
//! - what is in tunnels or behind labels (MPLS, PPPoE), and IPv4 with a source route that is not at its end (its
//!   pseudo-header has another address).

mod crc32c;
mod partial;

pub use partial::{is_partial, restore_partial_udp};

/// EtherTypes: IEEE 802 Numbers (IANA).
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const ETHERTYPE_VLAN: [u8; 2] = [0x81, 0x00];
const ETHERTYPE_SERVICE_VLAN: [u8; 2] = [0x88, 0xa8];

/// Protocols: Assigned Internet Protocol Numbers (IANA).
const HOP_BY_HOP: u8 = 0;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION_OPTIONS: u8 = 60;
const SCTP: u8 = 132;

/// VLAN tags that are looked behind.
const TAGS: usize = 2;

/// Extension headers that are looked behind: each may be there once, and destination options twice (RFC 8200, section 4.1).
const EXTENSIONS: usize = 6;

/// Completes the checksum of TCP, UDP or SCTP in an Ethernet frame where its sender left that to its network card, and says
/// whether it did. Nothing but the checksum's field is ever written, whatever the bytes are.
#[inline]
pub fn complete(frame: &mut [u8]) -> bool {
    let mut at = 12;
    for _ in 0..=TAGS {
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

/// The same for a packet that begins with its IPv4 or IPv6 header.
#[inline]
pub fn complete_packet(packet: &mut [u8]) -> bool {
    let Some(segment) = Segment::of(packet) else { return false };
    let bytes = &mut packet[segment.start..segment.end];
    match segment.protocol {
        TCP if bytes.len() >= 20 => complete_sum(bytes, 16, segment.addresses, TCP),
        // What lies behind a datagram that is shorter than its packet is not summed up (RFC 768).
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

/// What an IP packet carries.
struct Segment {
    /// Where it is in the packet.
    start: usize,
    end: usize,
    protocol: u8,
    /// The sum of the addresses.
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
        // More fragments, or an offset: all but "do not fragment".
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
        for _ in 0..EXTENSIONS {
            if !matches!(segment.protocol, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION_OPTIONS) {
                break;
            }
            segment.pass_extension(&packet[..end], &header[8..24])?;
        }
        // One that is still to be looked behind is none that has a checksum.
        Some(segment)
    }

    /// Goes on behind an extension header.
    #[cold]
    fn pass_extension(&mut self, packet: &[u8], source: &[u8]) -> Option<()> {
        let rest = &packet[self.start..];
        let &[next, length, kind, left, ..] = rest.first_chunk::<8>()?;
        let length = if self.protocol == FRAGMENT { 8 } else { 8 + usize::from(length) * 8 };
        let header = rest.get(..length)?;
        match self.protocol {
            // Bytes 2 and 3: the offset in 13 bits, two that say nothing, and whether there are more.
            FRAGMENT if kind != 0 || left & 0b1111_1001 != 0 => return None,
            // The pseudo-header has the last destination (section 8.1), which is not in the header yet.
            ROUTING if left != 0 => {
                let last = match kind {
                    // RFC 8200's own, of old, and RFC 6275's: the last address.
                    0 | 2 => header.get(8..)?.last_chunk::<16>()?,
                    // RFC 8754: they are listed backwards.
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

/// Completes the sum of TCP or UDP, whose field is `at` this place of the segment.
#[inline]
fn complete_sum(segment: &mut [u8], at: usize, addresses: u64, protocol: u8) -> bool {
    let pseudo = pseudo_sum(addresses, protocol, segment.len());
    let field = u16::from_ne_bytes([segment[at], segment[at + 1]]);
    field == pseudo && complete_partial(segment, at, pseudo, protocol)
}

/// The folded sum of a pseudo-header, in the machine's byte order: RFC 9293, section 3.1; RFC 8200, section 8.1.
#[inline]
fn pseudo_sum(addresses: u64, protocol: u8, length: usize) -> u16 {
    let length = (length as u16).to_be_bytes();
    fold(addresses + u64::from(u16::from_ne_bytes([0, protocol])) + u64::from(u16::from_ne_bytes(length)))
}

fn complete_partial(segment: &mut [u8], at: usize, pseudo: u16, protocol: u8) -> bool {
    // With the field, which is the pseudo-header's sum.
    let all = sum(segment);
    if fold(all + u64::from(pseudo)) == 0xffff {
        return false;
    }
    let checksum = match !fold(all) {
        // To UDP, 0 is that there is none: RFC 768, RFC 8200 section 8.1.
        0 if protocol == UDP => 0xffff,
        checksum => checksum,
    };
    segment[at..at + 2].copy_from_slice(&checksum.to_ne_bytes());
    true
}

/// Completes SCTP's: RFC 9260, section 6.8 and appendix A.
#[inline]
fn complete_crc(segment: &mut [u8]) -> bool {
    if segment[8..12] != [0; 4] {
        return false;
    }
    let checksum = crc32c::of(segment).to_le_bytes();
    segment[8..12].copy_from_slice(&checksum);
    checksum != [0; 4]
}

/// The sum of the 16-bit words, in the machine's byte order: RFC 1071, section 2 (B). An odd byte is followed by a zero.
/// It cannot overflow on what fits into memory: of 64 KiB, it is below 2^46.
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

/// A sum in 16 bits, the carries added back in: 0 only where nothing but zeros was added.
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
