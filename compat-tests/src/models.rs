//! Models of the stock filters in plain Rust, written from the filters' descriptions
//! (`shaders/README.md`) and not from their source. They are slow and simple: a header is a slice
//! that is complete or absent.

use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr};

use portcullis_core::device::Completion;
use portcullis_core::packet::Verdict;

use crate::ip::{Ip, ip, own_words, with_dscp};

/// Result of a filter for one packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The verdict.
    pub verdict: Verdict,
    /// The packet's bytes after the filter.
    pub bytes: Vec<u8>,
}

/// Returns the outcomes of a batch's packets on a device.
pub fn outcomes(done: &Completion) -> impl Iterator<Item = Outcome> {
    let bytes = done.batch.packets().map(<[u8]>::to_vec);
    done.verdicts.iter().zip(bytes).map(|(verdict, bytes)| Outcome { verdict, bytes })
}

/// Compares outcomes with those of a model.
///
/// # Panics
/// At the first packet whose outcome differs, with the packet and both outcomes.
pub fn compare<P: Debug>(what: &str, packets: &[P], got: &[Outcome], want: &[Outcome]) {
    assert_eq!(got.len(), packets.len(), "{what}: number of outcomes");
    for (i, ((packet, got), want)) in packets.iter().zip(got).zip(want).enumerate() {
        assert!(got == want, "{what}: packet {i}\n  packet {packet:02x?}\n  got    {got:02x?}\n  want   {want:02x?}");
    }
}

/// Returns the result of the stock filter `name` for a packet, with the parameters' default values.
///
/// # Panics
/// If there is no model of that name.
pub fn outcome(name: &str, packet: &[u8]) -> Outcome {
    let only = |verdict| Outcome { verdict, bytes: packet.to_vec() };
    match name {
        "simple_filter" => only(simple_filter(packet)),
        "port_filter" => only(port_filter(packet)),
        "minimal" => only(Verdict::Pass),
        "complex_filter" => only(complex_filter(packet)),
        "http_only" => only(http_only(packet)),
        "hash_lb" => only(hash_lb(packet)),
        "mac_swap" => mac_swap(packet),
        "dscp_mark" => Outcome { verdict: Verdict::Pass, bytes: dscp_mark(packet) },
        "vlan_pop" => Outcome { verdict: Verdict::Pass, bytes: vlan_pop(packet) },
        "sampler" => only(sampler(packet, 100, 0)),
        other => panic!("no model of {other}"),
    }
}

/// Returns the IPv4 packet of an untagged Ethernet frame.
fn plain_ipv4(packet: &[u8]) -> Option<Ip<'_>> {
    ip(packet).filter(|ip| ip.at == 14 && ip.source.is_ipv4())
}

fn is_tcp_or_udp(ip: &Ip<'_>) -> bool {
    [6, 17].contains(&ip.protocol)
}

/// Returns the port at this offset of the transport header, if the packet has one.
fn port_at(ip: &Ip<'_>, at: usize) -> Option<u16> {
    ip.u16_at(at).filter(|_| is_tcp_or_udp(ip) && !ip.is_later_fragment)
}

fn simple_filter(packet: &[u8]) -> Verdict {
    match plain_ipv4(packet) {
        Some(ip) if ip.source == Ipv4Addr::new(192, 168, 0, 1) => Verdict::Drop,
        Some(ip) if is_tcp_or_udp(&ip) => Verdict::Pass,
        _ => Verdict::Drop,
    }
}

fn port_filter(packet: &[u8]) -> Verdict {
    match plain_ipv4(packet).and_then(|ip| port_at(&ip, 2)) {
        Some(22 | 23) => Verdict::Drop,
        Some(80 | 443 | 1024..) => Verdict::Pass,
        _ => Verdict::Drop,
    }
}

fn complex_filter(packet: &[u8]) -> Verdict {
    if packet.len() < 64 || packet.len() > 1500 {
        return Verdict::Drop;
    }
    let Some(ip) = plain_ipv4(packet) else { return Verdict::Pass };
    if ip.protocol == 1 {
        return Verdict::Drop;
    }
    let IpAddr::V4(source) = ip.source else { unreachable!("the packet is IPv4") };
    let private = matches!(source.octets(), [10, 0, ..] | [172, 16, ..] | [192, 168, ..]);
    match port_at(&ip, 2) {
        Some(80 | 443) => Verdict::Pass,
        Some(..1024) if private => Verdict::Drop,
        _ => Verdict::Pass,
    }
}

fn http_only(packet: &[u8]) -> Verdict {
    match tcp_port_anywhere(packet) {
        Some(80 | 443) => Verdict::Pass,
        _ => Verdict::Drop,
    }
}

/// Returns TCP's destination port, over IPv4 or IPv6, with at most one VLAN tag.
fn tcp_port_anywhere(packet: &[u8]) -> Option<u16> {
    let ip = ip(packet)?;
    let tcp = if ip.source.is_ipv6() { ipv6_tcp(ip)? } else { ip };
    port_at(&tcp, 2).filter(|_| tcp.protocol == 6)
}

/// Returns an IPv6 packet without its extension headers if they are at most 8 and TCP follows.
fn ipv6_tcp(mut ip: Ip<'_>) -> Option<Ip<'_>> {
    let mut extension_headers = 0;
    loop {
        let size = match ip.protocol {
            6 => return Some(ip),
            0 | 43 | 60 | 135 => 8 + 8 * usize::from(*ip.payload.get(1)?),
            51 => 8 + 4 * usize::from(*ip.payload.get(1)?),
            44 if ip.u16_at(2)? >> 3 == 0 => 8,
            _ => return None,
        };
        extension_headers += 1;
        if extension_headers > 8 {
            return None;
        }
        ip.protocol = ip.payload[0];
        ip.payload = ip.payload.get(size..)?;
    }
}

fn hash_lb(packet: &[u8]) -> Verdict {
    let Some(ip) = plain_ipv4(packet).filter(is_tcp_or_udp) else { return Verdict::Pass };
    let addresses = [ip.source, ip.destination].map(|address| own_words(address)[0].to_le_bytes());
    let ports = [0, 2].map(|at| port_at(&ip, at).unwrap_or(0).to_le_bytes());
    let bytes = [addresses.concat(), ports.concat()].concat();
    Verdict::Redirect(fnv1a(&bytes) % 8)
}

/// The 32-bit FNV-1a hash.
fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(2_166_136_261, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(16_777_619))
}

fn mac_swap(packet: &[u8]) -> Outcome {
    let mut bytes = packet.to_vec();
    if bytes.len() < 14 {
        return Outcome { verdict: Verdict::Drop, bytes };
    }
    let (destination, rest) = bytes.split_at_mut(6);
    destination.swap_with_slice(&mut rest[..6]);
    Outcome { verdict: Verdict::Tx, bytes }
}

fn dscp_mark(packet: &[u8]) -> Vec<u8> {
    match ip(packet).filter(|ip| ip.at == 14) {
        Some(ip) => with_dscp(packet, &ip, 46),
        None => packet.to_vec(),
    }
}

fn vlan_pop(packet: &[u8]) -> Vec<u8> {
    match packet.get(12..18) {
        Some([0x81, 0x00, ..] | [0x88, 0xa8, ..]) => [&packet[..12], &packet[16..]].concat(),
        _ => packet.to_vec(),
    }
}

fn sampler(packet: &[u8], rate: u32, seed: u32) -> Verdict {
    let Some(ip) = ip(packet) else { return Verdict::Drop };
    let mut words = [own_words(ip.source), own_words(ip.destination)].concat();
    words.push(u32::from(ip.identification) << 16 | u32::from(ip.protocol));
    words.extend([0, 4].map(|at| ip.u32_at(at).unwrap_or(0)));
    // MurmurHash3 reads words in little-endian order.
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    if murmur3(&bytes, seed).is_multiple_of(rate) { Verdict::Pass } else { Verdict::Drop }
}

/// The 32-bit MurmurHash3 of whole words.
fn murmur3(bytes: &[u8], seed: u32) -> u32 {
    let mut hash = seed;
    for block in bytes.as_chunks().0 {
        let scrambled = u32::from_le_bytes(*block).wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
        hash = (hash ^ scrambled).rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64);
    }
    hash ^= bytes.len() as u32;
    finalise(hash)
}

/// The finaliser of MurmurHash3.
pub(crate) fn finalise(word: u32) -> u32 {
    let word = (word ^ word >> 16).wrapping_mul(0x85eb_ca6b);
    let word = (word ^ word >> 13).wrapping_mul(0xc2b2_ae35);
    word ^ word >> 16
}

/// Hashes words by MurmurHash3's finaliser.
pub(crate) fn hash(words: &[u32]) -> u32 {
    words.iter().fold(0, |hash, word| finalise(hash ^ word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::frame::ones_complement;

    /// Returns a packet: Ethernet, IPv4 with `options` words of options, TCP to a port.
    fn tcp4(options: usize, source: [u8; 4], port: u16) -> Vec<u8> {
        let mut packet = vec![0; 12];
        packet.extend([0x08, 0x00, 0x45 + options as u8, 0]);
        packet.extend([0, 0, 0, 0, 0, 0, 64, 6, 0, 0]);
        packet.extend(source);
        packet.extend([8, 8, 8, 8]);
        packet.extend(vec![1; options * 4]);
        packet.extend([0x12, 0x34]);
        packet.extend(port.to_be_bytes());
        packet.extend([0; 30]);
        packet
    }

    /// Published test vectors, "FNV-1a 32-bit" (http://www.isthe.com/chongo/tech/comp/fnv/).
    #[test]
    fn fnv_agrees_with_its_test_vectors() {
        assert_eq!(fnv1a(b""), 0x811c_9dc5);
        assert_eq!(fnv1a(b"a"), 0xe40c_292c);
        assert_eq!(fnv1a(b"foobar"), 0xbf9c_f968);
    }

    /// Test vectors of the reference implementation.
    #[test]
    fn murmur_agrees_with_its_test_vectors() {
        assert_eq!(murmur3(b"", 0), 0);
        assert_eq!(murmur3(b"", 1), 0x514e_28b7);
        assert_eq!(murmur3(b"", 0xffff_ffff), 0x81f1_6f39);
        assert_eq!(murmur3(&[0xff; 4], 0), 0x7629_3b50);
        assert_eq!(murmur3(&[0x21, 0x43, 0x65, 0x87], 0), 0xf55b_516b);
        assert_eq!(murmur3(&[0x21, 0x43, 0x65, 0x87], 0x5082_edee), 0x2362_f9de);
        assert_eq!(murmur3(b"aaaa", 0x9747_b28c), 0x5a97_808a);
    }

    /// One packet in `rate` is sampled, by the bytes that routers do not change.
    #[test]
    fn samples_have_the_right_rate_and_survive_routing() {
        let mut picked = 0;
        for i in 0..20_000_u32 {
            let mut packet = tcp4(0, [10, (i >> 8) as u8, i as u8, 4], 80);
            let verdict = sampler(&packet, 20, 3);
            picked += usize::from(verdict == Verdict::Pass);
            (packet[0], packet[15], packet[22], packet[24]) = (9, 0xb8, 7, 5);
            assert_eq!(sampler(&packet, 20, 3), verdict);
        }
        assert!((900..1100).contains(&picked), "{picked} of 1000");
    }

    #[test]
    fn rules_on_ports_honour_options_and_fragments() {
        for options in [0, 1, 10] {
            assert_eq!(port_filter(&tcp4(options, [1, 2, 3, 4], 22)), Verdict::Drop);
            assert_eq!(port_filter(&tcp4(options, [1, 2, 3, 4], 80)), Verdict::Pass);
            assert_eq!(port_filter(&tcp4(options, [1, 2, 3, 4], 1023)), Verdict::Drop);
            assert_eq!(port_filter(&tcp4(options, [1, 2, 3, 4], 1024)), Verdict::Pass);
            assert_eq!(complex_filter(&tcp4(options, [10, 0, 3, 4], 22)), Verdict::Drop);
            assert_eq!(complex_filter(&tcp4(options, [10, 1, 3, 4], 22)), Verdict::Pass);
            assert_eq!(http_only(&tcp4(options, [1, 2, 3, 4], 443)), Verdict::Pass);
        }
        let mut later = tcp4(0, [10, 0, 0, 1], 80);
        later[21] = 1;
        assert_eq!(port_filter(&later), Verdict::Drop);
        assert_eq!(http_only(&later), Verdict::Drop);
        assert_eq!(simple_filter(&later), Verdict::Pass);
        later[37] = 22;
        assert_eq!(complex_filter(&later), Verdict::Pass);
    }

    /// A header with a correct checksum has a correct one after marking.
    #[test]
    fn a_marked_header_has_a_valid_checksum() {
        let mut packet = tcp4(0, [192, 168, 0, 199], 80);
        let sum = |p: &[u8]| ones_complement(&p[14..34]);
        packet[15] = 0b11;
        let check = 0xffff - sum(&packet);
        packet[24..26].copy_from_slice(&check.to_be_bytes());
        assert_eq!(sum(&packet), 0xffff);
        let marked = dscp_mark(&packet);
        assert_eq!(marked[15], 0xbb);
        assert_eq!(sum(&marked), 0xffff);
    }

    #[test]
    fn eight_extension_headers_are_skipped_and_nine_are_not() {
        for (count, verdict) in [(0, Verdict::Pass), (8, Verdict::Pass), (9, Verdict::Drop)] {
            let mut packet = vec![0; 12];
            packet.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, if count == 0 { 6 } else { 60 }, 64]);
            packet.extend([0; 32]);
            for i in 0..count {
                packet.extend([if i + 1 == count { 6 } else { 60 }, 0, 1, 4, 0, 0, 0, 0]);
            }
            packet.extend([0x12, 0x34, 0, 80]);
            assert_eq!(http_only(&packet), verdict, "{count}");
            assert_eq!(http_only(&packet[..packet.len() - 1]), Verdict::Drop);
        }
    }

    #[test]
    fn a_popped_packet_is_the_packet_without_the_tag() {
        let tagged = [&[9; 12][..], &[0x81, 0x00, 0x00, 0x05, 0x08, 0x00], &[7; 4]].concat();
        assert_eq!(vlan_pop(&tagged), [&[9; 12][..], &[0x08, 0x00], &[7; 4]].concat());
        assert_eq!(vlan_pop(&tagged[..17]), tagged[..17]);
    }
}
