//! Partial checksums (`CHECKSUM_PARTIAL`): recognising them, and restoring them.

use super::{SCTP, Segment, TCP, UDP, pseudo_sum};

/// Whether the checksum field of a packet that begins with its IP header holds a partial checksum.
/// Without further knowledge about the packet this may be chance, see the parent module.
pub fn is_partial(packet: &[u8]) -> bool {
    let Some(segment) = Segment::of(packet) else { return false };
    if segment.protocol == SCTP {
        return packet[segment.start..segment.end].get(8..12) == Some(&[0; 4]);
    }
    ChecksumField::of(packet, &segment).is_some_and(|field| packet[field.at..field.at + 2] == field.pseudo)
}

/// Replaces the UDP checksum of a packet that begins with its IP header by the partial checksum, to
/// be completed by the next sender. A zero field (no checksum) stays. Returns whether the packet is
/// a valid UDP datagram.
pub fn restore_partial_udp(packet: &mut [u8]) -> bool {
    let Some(segment) = Segment::of(packet).filter(|segment| segment.protocol == UDP) else { return false };
    let Some(field) = ChecksumField::of(packet, &segment) else { return false };
    let bytes = &mut packet[field.at..field.at + 2];
    if bytes != [0; 2] {
        bytes.copy_from_slice(&field.pseudo);
    }
    true
}

/// Position of a TCP or UDP checksum, and the partial checksum that belongs there.
struct ChecksumField {
    at: usize,
    pseudo: [u8; 2],
}

impl ChecksumField {
    fn of(packet: &[u8], segment: &Segment) -> Option<ChecksumField> {
        let bytes = &packet[segment.start..segment.end];
        let (at, length) = match segment.protocol {
            TCP if bytes.len() >= 20 => (16, bytes.len()),
            UDP => {
                let length = usize::from(u16::from_be_bytes([*bytes.get(4)?, *bytes.get(5)?]));
                ((8..=bytes.len()).contains(&length)).then_some((6, length))?
            }
            _ => return None,
        };
        let pseudo = pseudo_sum(segment.addresses, segment.protocol, length);
        Some(ChecksumField { at: segment.start + at, pseudo: pseudo.to_ne_bytes() })
    }
}
