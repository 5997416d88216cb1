//! Malformed packets: truncated, or with false length fields. No filter may read or write beyond
//! them.

use std::collections::HashSet;

use super::headers::Headers;
use super::random::Random;
use super::{Generator, Kind, Mix, Size, Spec};

/// The hostile corpus: some ten thousand distinct packets, the same in every run.
///
/// - one packet of each kind, and of each shape that filters distinguish, cut at every length from
///   0 to 130 bytes; the shapes also with some bytes changed;
/// - all-zeros, all-ones and counting bytes of each length from 0 to 130, and of some up to 65,535;
/// - false length fields: IPv4 header lengths 0 to 15, total lengths, IPv6 payload lengths, UDP
///   lengths, TCP data offsets, from minimum to maximum;
/// - IPv6 extension headers that extend to the packet's end and beyond, or claim to be longer than
///   the packet;
/// - stacks of VLAN tags;
/// - random bytes, with and without a plausible beginning or EtherType.
pub fn corpus() -> Vec<Vec<u8>> {
    let mut random = Random::new(0x1057_11e5, 0);
    let mut packets = Vec::new();
    let (templates, shapes) = (templates(), shapes());
    for template in templates.iter().chain(&shapes) {
        packets.extend((0..=template.len().min(130)).map(|cut| template[..cut].to_vec()));
    }
    for length in (0..=130usize).chain([1500, 1501, 9000, 65_535]) {
        packets.push(vec![0; length]);
        packets.push(vec![0xff; length]);
        packets.push((0..length).map(|i| i as u8).collect());
    }
    for template in &templates {
        false_lengths(template, &mut packets);
    }
    for shape in shapes {
        for _ in 0..20 {
            let mut changed = shape.clone();
            for _ in 0..random.between(1, 3) {
                // Mostly within the headers.
                changed[random.below(shape.len().min(80) as u32) as usize] = random.u32() as u8;
            }
            changed.truncate(random.between(shape.len() as u32 / 2, shape.len() as u32) as usize);
            packets.push(changed);
        }
        packets.push(shape);
    }
    extension_headers(&mut packets);
    tag_stacks(&mut packets);
    random_packets(&mut random, &templates, &mut packets);
    // Many packets have the same beginning, so their truncations are equal.
    let mut seen = HashSet::new();
    packets.retain(|packet| seen.insert(packet.clone()));
    packets
}

/// Adds random bytes: as they are, after the beginning of a template, and with a known EtherType,
/// half of those with a first byte that starts an IP header.
fn random_packets(random: &mut Random, templates: &[Vec<u8>], packets: &mut Vec<Vec<u8>>) {
    let templates: Vec<&[u8]> = templates.iter().map(Vec::as_slice).collect();
    for length in 0..=130u32 {
        let mut bytes = vec![0; length as usize];
        random.fill(&mut bytes);
        packets.push(bytes.clone());
        let template = random.pick(&templates);
        let keep = bytes.len().min(random.between(12, 40) as usize).min(template.len());
        bytes[..keep].copy_from_slice(&template[..keep]);
        packets.push(bytes);
    }
    for index in 0..400 {
        let length = if index % 80 == 0 { random.between(500, 2000) } else { random.between(14, 160) };
        let mut bytes = vec![0; length as usize];
        random.fill(&mut bytes);
        bytes[12..14].copy_from_slice(&random.pick(&[IPV4, IPV6, VLAN, SERVICE_VLAN, ARP]).to_be_bytes());
        if let (Some(first), true) = (bytes.get_mut(14), index % 2 == 0) {
            *first = random.pick(&[0x45, 0x60, 0x46, 0x4f]);
        }
        packets.push(bytes);
    }
}

/// EtherTypes: IEEE 802 Numbers (IANA).
const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const VLAN: u16 = 0x8100;
const IPV6: u16 = 0x86dd;
const SERVICE_VLAN: u16 = 0x88a8;

/// Bytes after the network header of a shape: ports and arbitrary data.
const TRANSPORT_BYTES: usize = 44;

/// Ethernet and IPv4 headers from `source`, with `options` words of options.
fn ipv4(options: usize, protocol: u8, source: u32) -> Vec<u8> {
    let mut headers = Headers::new();
    let addresses = [source, 0xcb00_7107];
    headers.ethernet(addresses, IPV4);
    headers.ipv4(addresses, protocol, 0xb9, 64, 0x1234, 0, &vec![1; options * 4], TRANSPORT_BYTES);
    headers.bytes().to_vec()
}

/// Ethernet and IPv6 headers with a chain of extension headers, given as (number, length in bytes).
fn ipv6(chain: &[(u8, usize)], protocol: u8) -> Vec<u8> {
    let mut headers = Headers::new();
    let addresses = [0x0a00_0001, 0x0a00_0002];
    let numbers: Vec<u8> = chain.iter().map(|&(number, _)| number).chain([protocol]).collect();
    let payload = chain.iter().map(|&(_, length)| length).sum::<usize>() + TRANSPORT_BYTES;
    headers.ethernet(addresses, IPV6);
    headers.ipv6(addresses, numbers[0], 0x0b9a_bcde, 64, payload);
    let mut packet = headers.bytes().to_vec();
    for (&(number, length), next) in chain.iter().zip(&numbers[1..]) {
        let mut header = vec![0; length];
        header[0] = *next;
        header[1] = match number {
            44 => 0,
            51 => (length / 4 - 2) as u8,
            _ => (length / 8 - 1) as u8,
        };
        packet.extend(header);
    }
    packet
}

/// Appends a pseudo transport header with the destination port where TCP and UDP have it.
fn to_port(port: u16, mut packet: Vec<u8>) -> Vec<u8> {
    packet.extend([0xc0, 0x01]);
    packet.extend(port.to_be_bytes());
    packet.extend(0..TRANSPORT_BYTES as u8 - 4);
    packet
}

/// Inserts tags, given as (EtherType, control information), after the addresses.
fn tagged(packet: &[u8], tags: &[[u16; 2]]) -> Vec<u8> {
    let tags: Vec<u8> = tags.as_flattened().iter().flat_map(|word| word.to_be_bytes()).collect();
    [&packet[..12], &tags, &packet[12..]].concat()
}

/// A packet of every shape that some filter distinguishes, and some invalid ones.
fn shapes() -> Vec<Vec<u8>> {
    let mut shapes = Vec::new();
    for port in [0, 22, 23, 80, 443, 1023, 1024, 65_535] {
        shapes.push(to_port(port, ipv4(0, 6, 0xc0a8_0001)));
        shapes.push(to_port(port, ipv4(0, 17, 0x0a00_ff01)));
        shapes.push(to_port(port, ipv4(0, 6, 0xc633_6401)));
        shapes.push(to_port(port, ipv6(&[], 6)));
    }
    // On either side of the borders of private networks (RFC 1918).
    for source in [0x0a01_0001, 0xac10_0909, 0xac11_0001, 0xc0a8_c801, 0xc0a9_0001] {
        shapes.push(to_port(25, ipv4(0, 6, source)));
    }
    for options in [1, 5, 10] {
        shapes.push(to_port(443, ipv4(options, 6, 0x0a00_0002)));
        shapes.push(to_port(53, ipv4(options, 17, 0x0a00_0002)));
    }
    for protocol in [0, 1, 2, 41, 47, 51, 58, 132] {
        shapes.push(to_port(80, ipv4(0, protocol, 0x0a00_0003)));
        shapes.push(to_port(80, ipv6(&[], protocol)));
    }
    // Fragments: first, with an offset, with the maximum offset; and don't-fragment.
    for field in [0x2000u16, 0x2001, 0x00b9, 0x1fff, 0x4000] {
        let mut fragment = to_port(80, ipv4(0, 6, 0x0a00_0004));
        fragment[20..22].copy_from_slice(&field.to_be_bytes());
        shapes.push(fragment);
        let mut fragment = to_port(80, ipv6(&[(44, 8)], 6));
        // The offset is in the upper 13 bits, the more-fragments flag in the lowest.
        let offset = field << 3 | u16::from(field & 0x2000 != 0);
        fragment[56..58].copy_from_slice(&offset.to_be_bytes());
        shapes.push(fragment);
    }
    // Invalid combinations of version and header length.
    for first in [0x00, 0x40, 0x44, 0x35, 0x55, 0x60, 0xf5] {
        for mut bad in [ipv4(0, 6, 0x0a00_0005), ipv6(&[], 6)] {
            bad[14] = first;
            shapes.push(to_port(80, bad));
        }
    }
    for count in [1, 2, 7, 8, 9, 10] {
        shapes.push(to_port(80, ipv6(&vec![(60, 8); count], 6)));
        shapes.push(to_port(443, ipv6(&vec![(51, 12); count], 6)));
    }
    shapes.push(to_port(443, ipv6(&[(0, 8), (43, 24), (60, 16), (44, 8), (51, 24), (135, 8), (60, 8)], 6)));
    shapes.push(to_port(443, ipv6(&[(0, 2048)], 6)));
    shapes.push(to_port(80, ipv6(&[(0, 8), (50, 8)], 6)));
    shapes.push(to_port(80, ipv6(&[(0, 8), (59, 8)], 6)));
    for inner in
        [to_port(80, ipv4(0, 6, 0x0a00_0006)), to_port(443, ipv4(3, 6, 0x0a00_0006)), to_port(443, ipv6(&[(0, 8)], 6))]
    {
        shapes.push(tagged(&inner, &[[VLAN, 0x2005]]));
        shapes.push(tagged(&inner, &[[SERVICE_VLAN, 0x2005]]));
        shapes.push(tagged(&inner, &[[SERVICE_VLAN, 1], [VLAN, 2]]));
        shapes.push(tagged(&inner, &[[VLAN, 1], [VLAN, 1]]));
    }
    // Both checksum representations of zero that RFC 1624 distinguishes, and existing DSCP/ECN
    // marks.
    for (tos, check) in [(0x00, 0x0000u16), (0x00, 0xffff), (0xb8, 0xffff), (0xbb, 0x1234)] {
        let mut marked = to_port(80, ipv4(0, 6, 0x0a00_0007));
        marked[15] = tos;
        marked[24..26].copy_from_slice(&check.to_be_bytes());
        shapes.push(marked);
    }
    shapes
}

/// A well-formed packet of each kind, of 130 bytes if the kind allows it.
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

/// Values for false 16-bit length fields.
const FALSE_LENGTHS: [u16; 12] = [0, 1, 7, 8, 19, 20, 39, 40, 41, 0x7fff, 0xfffe, 0xffff];

/// Adds copies of `template` with one false length field. Adds nothing unless the network header
/// directly follows the Ethernet header.
fn false_lengths(template: &[u8], packets: &mut Vec<Vec<u8>>) {
    let mut put = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut packet = template.to_vec();
        change(&mut packet);
        packets.push(packet);
    };
    match u16::from_be_bytes([template[12], template[13]]) {
        IPV4 => {
            let transport = 14 + usize::from(template[14] & 15) * 4;
            for header in 0..16u8 {
                put(&|packet| packet[14] = 0x40 | header);
                // Also in a packet that ends where that header would.
                put(&|packet| {
                    packet[14] = 0x40 | header;
                    packet.truncate(14 + usize::from(header) * 4);
                });
            }
            for version in 0..16u8 {
                put(&|packet| packet[14] = version << 4 | 5);
            }
            for claim in FALSE_LENGTHS {
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
        IPV6 => {
            for claim in FALSE_LENGTHS {
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

/// Adds IPv6 packets with chains of one extension header type up to the packet's end, with minimum
/// to maximum lengths.
fn extension_headers(packets: &mut Vec<Vec<u8>>) {
    let start = ipv6(&[], 0);
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
}

/// Adds packets of VLAN tags with nothing or little after them.
fn tag_stacks(packets: &mut Vec<Vec<u8>>) {
    for kind in [VLAN, SERVICE_VLAN, 0x9100].map(u16::to_be_bytes) {
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
    fn covers_every_length_and_header_length() {
        let packets = corpus();
        for length in 0..=130 {
            // There is one empty packet, and few distinct packets of a single byte.
            let least = [1, 3].get(length).copied().unwrap_or(5);
            let count = packets.iter().filter(|packet| packet.len() == length).count();
            assert!(count >= least, "{count} of {length} bytes");
        }
        assert_eq!(packets.iter().collect::<HashSet<_>>().len(), packets.len());
        for header in 0..16u8 {
            let ipv4 = |p: &&Vec<u8>| p.len() > 14 && p[12..14] == [8, 0] && p[14] == 0x40 | header;
            assert!(packets.iter().any(|p| ipv4(&p)), "{header}");
        }
        let bytes: usize = packets.iter().map(Vec::len).sum();
        println!("{} packets, {bytes} bytes", packets.len());
        assert!(packets.len() < 20_000 && bytes < 4 << 20, "{} packets, {bytes} bytes", packets.len());
    }

    #[test]
    fn is_deterministic() {
        assert!(corpus() == corpus());
    }
}
