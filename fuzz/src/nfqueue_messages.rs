//! Fuzz target: arbitrary bytes as an nfnetlink_queue message. A parsed packet must lie within the
//! message, with room for a link header before it. Checksum completion must change only the
//! checksum field, and be idempotent.

use portcullis_io::live::checksum;
use portcullis_io::nfqueue::message::{Message, Packet, decode};

/// Parses the bytes as a message, and checks the packet in it.
///
/// # Panics
/// If a property above is violated.
pub fn run(data: &[u8]) {
    match decode(data) {
        Ok(Message::Packet(Packet { payload, length, .. })) => {
            assert!(
                !payload.is_empty() && payload.start >= Packet::BEFORE_PAYLOAD.max(14) && payload.end <= data.len()
            );
            assert!(length >= payload.len());
            check_completion(&data[payload]);
        }
        Ok(Message::Ack(answer)) => assert!(data.len() >= 20 && answer.error > i32::MIN),
        Ok(Message::Other) => {}
        Err(error) => assert!(error.at <= data.len() && error.to_string().contains(error.what)),
    }
}

/// Checks the completion of a packet's checksum that was left to a network card.
fn check_completion(packet: &[u8]) {
    let changed = |bytes: &[u8]| {
        assert_eq!(bytes.len(), packet.len());
        bytes.iter().zip(packet).enumerate().filter(|(_, (a, b))| a != b).map(|(at, _)| at).collect::<Vec<_>>()
    };
    let mut bytes = packet.to_vec();
    if checksum::complete_packet(&mut bytes) {
        assert!(checksum::is_partial(packet));
        let changed = changed(&bytes);
        assert!(changed.iter().all(|at| changed[0] + 4 > *at), "a checksum has at most 4 bytes");
        assert!(!checksum::complete_packet(&mut bytes), "a completed checksum is not completed again");
    } else {
        assert_eq!(bytes, packet);
    }
    let mut bytes = packet.to_vec();
    let is_datagram = checksum::restore_partial_udp(&mut bytes);
    assert!(changed(&bytes).len() <= if is_datagram { 2 } else { 0 });
    let again = bytes.clone();
    checksum::restore_partial_udp(&mut bytes);
    assert_eq!(bytes, again);
}

#[cfg(test)]
mod tests {
    use portcullis_io::nfqueue::message::put_attribute;

    use super::*;
    use crate::mutate::{A_SECOND, Corpus, run_for};

    fn attribute(number: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_attribute(&mut bytes, number, value);
        bytes
    }

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = (16 + body.len() as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(body);
        bytes
    }

    /// Seed messages: a datagram with partial checksum, once with all attributes and once with few;
    /// a segment; and an error.
    fn good() -> Vec<Vec<u8>> {
        let mut udp = vec![0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        // Checksum of the pseudo-header: the addresses, protocol 17, and length 12.
        udp.extend([0, 9, 0, 9, 0, 12, 0x14, 0x20, 1, 2, 3, 4]);
        let mut tcp = vec![0x60, 0, 0, 0, 0, 20, 6, 64];
        tcp.extend([0; 32]);
        tcp.extend([0, 80, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0, 0, 0, 0, 26, 0, 0]);
        let header = attribute(1, &[0, 0, 0, 7, 8, 0, 1]);
        let full = [
            vec![2, 0, 0, 3],
            header.clone(),
            attribute(5, &[0, 0, 0, 2]),
            attribute(9, &[0, 6, 0, 0, 2, 0, 0, 0, 0, 1, 0, 0]),
            attribute(4, &[0; 16]),
            attribute(13, &[0, 0, 8, 0]),
            attribute(14, &[0, 0, 0, 3]),
            attribute(10, &udp),
        ];
        let little = [vec![2, 0, 0, 3], header, attribute(10, &tcp)];
        let mut error = (-2i32).to_ne_bytes().to_vec();
        error.extend(&message(0x301, &[])[..16]);
        vec![message(0x300, &full.concat()), message(0x300, &little.concat()), message(2, &error)]
    }

    #[test]
    fn seeds_are_valid_messages() {
        let decoded: Vec<_> = good().iter().map(|data| decode(data).unwrap()).collect();
        assert!(matches!(&decoded[..], [Message::Packet(_), Message::Packet(_), Message::Ack(_)]), "{decoded:?}");
        for (data, decoded) in good().iter().zip(&decoded) {
            if let Message::Packet(packet) = decoded {
                assert!(checksum::is_partial(&data[packet.payload.clone()]));
            }
        }
    }

    #[test]
    fn mutated_seeds_never_panic() {
        let good = good();
        let seeds: Vec<&[u8]> = good.iter().map(Vec::as_slice).collect();
        // Truncated attributes, and lengths at their limits.
        let pieces: &[&[u8]] =
            &[&[0; 4], &[0xff; 4], &[3, 0, 10, 0], &[4, 0, 10, 0], &[0xff, 0xff, 10, 0], &[17], &[6]];
        println!(
            "{} messages",
            run_for(A_SECOND, "nfqueue_messages", Corpus { seeds: &seeds, tokens: "", pieces }, 0, run)
        );
    }
}
