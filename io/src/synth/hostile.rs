//! Packets that lie about themselves, or are too short for what they say: whatever a filter does
//! with them, it must not read or write outside them.

use super::random::Random;
use super::{Generator, Kind, Mix, Size, Spec};

/// The hostile corpus: a few thousand packets, the same in every run.
///
/// - one packet of each kind, cut at every length from 0 to 130 bytes;
/// - all-zeros, all-ones and counting bytes of each length from 0 to 130;
/// - length fields that lie: IPv4 header lengths 0 to 15, total lengths, IPv6 payload lengths, UDP
///   lengths, TCP data offsets, each from nothing to everything;
/// - IPv6 extension headers that follow each other to the packet's end and beyond, or claim to be
///   longer than the packet;
/// - tags upon tags;
/// - random bytes, with and without a plausible start.
pub fn corpus() -> Vec<Vec<u8>> {
    let mut random = Random::new(0x1057_11e5, 0);
    let mut packets = Vec::new();
    let templates = templates();
    for template in &templates {
        packets.extend((0..=template.len().min(130)).map(|cut| template[..cut].to_vec()));
    }
    for length in 0..=130usize {
        packets.push(vec![0; length]);
        packets.push(vec![0xff; length]);
        packets.push((0..length).map(|i| i as u8).collect());
    }
    for template in &templates {
        lying_lengths(template, &mut packets);
    }
    extension_headers(&mut packets);
    tags(&mut packets);
    for length in 0..=130u32 {
        let mut bytes = vec![0; length as usize];
        random.fill(&mut bytes);
        packets.push(bytes.clone());
        // The same behind a start that gets it looked at.
        let template = random.pick(&templates.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let keep = bytes.len().min(random.between(12, 40) as usize).min(template.len());
        bytes[..keep].copy_from_slice(&template[..keep]);
        packets.push(bytes);
    }
    packets
}

/// A well-formed packet of each kind, of 130 bytes where its kind lets it.
fn templates() -> Vec<Vec<u8>> {
    let kinds = Kind::ALL.iter().filter(|&&(kind, ..)| kind != Kind::Short);
    kinds
        .map(|&(kind, ..)| {
            let mix = Mix::new(&[(kind, 1)]).expect("one weight above 0");
            let spec = Spec { packets: 1, seed: 77, size: Size::Range(130, 130), flows: 1, mix };
            let mut bytes = vec![0; Generator::MAX_PACKET];
            let (length, _) = Generator::new(&spec).next_packet(&mut bytes);
            bytes.truncate(length);
            bytes
        })
        .collect()
}

/// Lengths that a 16-bit field may claim.
const CLAIMS: [u16; 12] = [0, 1, 7, 8, 19, 20, 39, 40, 41, 0x7fff, 0xfffe, 0xffff];

/// Copies of `template` with a length field that is not true. Tags are left alone: where the network
/// header is not right behind the Ethernet header nothing is added.
fn lying_lengths(template: &[u8], packets: &mut Vec<Vec<u8>>) {
    let mut put = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut packet = template.to_vec();
        change(&mut packet);
        packets.push(packet);
    };
    match template[12..14] {
        [0x08, 0x00] => {
            let transport = 14 + usize::from(template[14] & 15) * 4;
            for header in 0..16u8 {
                put(&|packet| packet[14] = 0x40 | header);
                // And of a packet that ends where the header would.
                put(&|packet| {
                    packet[14] = 0x40 | header;
                    packet.truncate(14 + usize::from(header) * 4);
                });
            }
            for version in 0..16u8 {
                put(&|packet| packet[14] = version << 4 | 5);
            }
            for claim in CLAIMS {
                put(&|packet| packet[16..18].copy_from_slice(&claim.to_be_bytes()));
                // Fragment flags and offset.
                put(&|packet| packet[20..22].copy_from_slice(&claim.to_be_bytes()));
                put(&|packet| packet[transport + 4..transport + 6].copy_from_slice(&claim.to_be_bytes()));
            }
            for offset in 0..16u8 {
                put(&|packet| {
                    if let Some(byte) = packet.get_mut(transport + 12) {
                        *byte = offset << 4;
                    }
                });
            }
        }
        [0x86, 0xdd] => {
            for claim in CLAIMS {
                put(&|packet| packet[18..20].copy_from_slice(&claim.to_be_bytes()));
                put(&|packet| packet[58..60].copy_from_slice(&claim.to_be_bytes()));
            }
            for next in 0..=255u8 {
                put(&|packet| packet[20] = next);
            }
        }
        _ => {}
    }
}

/// IPv6 with chains of extension headers: each type followed by itself to the end, with lengths from
/// least to most.
fn extension_headers(packets: &mut Vec<Vec<u8>>) {
    let mut start = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 0];
    start.extend([0, 64]);
    start.extend([0xfe; 32]);
    for kind in [0u8, 43, 44, 51, 60, 135] {
        for length in [0u8, 1, 2, 4, 0x7f, 0xfe, 0xff] {
            for total in [54, 55, 56, 61, 62, 63, 70, 118, 126, 254, 1500] {
                let mut packet = start.clone();
                packet[20] = kind;
                while packet.len() < total {
                    packet.extend([kind, length, 0, 0, 0, 0, 0, 0]);
                }
                packet.truncate(total);
                let payload = (total - 54) as u16;
                packet[18..20].copy_from_slice(&payload.to_be_bytes());
                packets.push(packet);
            }
        }
    }
    // Nine headers, one more than a filter has to follow, and then TCP to port 80; and exactly eight.
    for count in [8, 9] {
        let mut packet = start.clone();
        packet[20] = 60;
        for i in 0..count {
            let next = if i + 1 == count { 6 } else { 60 };
            packet.extend([next, 0, 1, 4, 0, 0, 0, 0]);
        }
        packet.extend([0x30, 0x39, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 2, 0, 0, 0, 0, 0, 0]);
        let payload = (packet.len() - 54) as u16;
        packet[18..20].copy_from_slice(&payload.to_be_bytes());
        packets.push(packet);
    }
}

/// VLAN tags one after the other, and nothing behind them.
fn tags(packets: &mut Vec<Vec<u8>>) {
    for kind in [[0x81, 0x00], [0x88, 0xa8], [0x91, 0x00]] {
        for count in 1..30 {
            let mut packet = vec![0xff; 12];
            for _ in 0..count {
                packet.extend(kind);
                packet.extend([0x0f, 0xff]);
            }
            packets.push(packet.clone());
            packet.extend([0x08, 0x00]);
            packets.push(packet.clone());
            packet.push(0x45);
            packets.push(packet);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_every_length_and_lie() {
        let packets = corpus();
        for length in 0..=130 {
            assert!(packets.iter().filter(|packet| packet.len() == length).count() >= 5, "{length}");
        }
        for header in 0..16u8 {
            let ipv4 = |p: &&Vec<u8>| p.len() > 14 && p[12..14] == [8, 0] && p[14] == 0x40 | header;
            assert!(packets.iter().any(|p| ipv4(&p)), "{header}");
        }
        let bytes: usize = packets.iter().map(Vec::len).sum();
        assert!(packets.len() < 20_000 && bytes < 4 << 20, "{} packets, {bytes} bytes", packets.len());
    }

    #[test]
    fn is_the_same_every_time() {
        assert!(corpus() == corpus());
    }
}
