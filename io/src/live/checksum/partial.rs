//! Checksums that are left to a network card, seen from the other side: known as such, and left again.

use super::{SCTP, Segment, TCP, UDP, pseudo_sum};

/// Whether a packet that begins with its IP header has in its checksum's place what a sender leaves to its network card.
/// Where nothing else is known of the packet, that may be chance: see above.
pub fn is_partial(packet: &[u8]) -> bool {
    let Some(segment) = Segment::of(packet) else { return false };
    if segment.protocol == SCTP {
        return packet[segment.start..segment.end].get(8..12) == Some(&[0; 4]);
    }
    Field::of(packet, &segment).is_some_and(|field| packet[field.at..field.at + 2] == field.pseudo)
}

/// Leaves the checksum of a datagram of UDP to whoever sends it on, and says whether the packet, which begins with its IP
/// header, has one. Where a datagram has no checksum, it stays so.
pub fn restore_partial_udp(packet: &mut [u8]) -> bool {
    let Some(segment) = Segment::of(packet).filter(|segment| segment.protocol == UDP) else { return false };
    let Some(field) = Field::of(packet, &segment) else { return false };
    let bytes = &mut packet[field.at..field.at + 2];
    if bytes != [0; 2] {
        bytes.copy_from_slice(&field.pseudo);
    }
    true
}

/// Where the checksum of TCP or UDP is in a packet, and what a sender leaves there.
struct Field {
    at: usize,
    pseudo: [u8; 2],
}

impl Field {
    fn of(packet: &[u8], segment: &Segment) -> Option<Field> {
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
        Some(Field { at: segment.start + at, pseudo: pseudo.to_ne_bytes() })
    }
}
