//! Model of the fast path of a router (RFC 1812 and RFC 8200).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use portcullis::packet_io::synth::Random;
use portcullis_core::packet::Verdict;

use super::lpm::{Prefixes, near, prefix};
use super::{Maps, Model, Writes};
use crate::ip::ip;
use crate::models::Outcome;
use crate::traffic::Packet;
use crate::traffic::frame::{ones_complement, update_checksum};

/// Model of the router for one address family.
#[derive(Debug, Default)]
pub struct Router {
    is_v6: bool,
    routes: Prefixes,
    next_hops: BTreeMap<u32, Vec<u32>>,
}

impl Router {
    /// Creates a router for one family.
    pub fn new(is_v6: bool) -> Router {
        Router { is_v6, ..Router::default() }
    }

    /// Returns the egress port and the forwarded packet.
    fn forwarded(&mut self, frame: &[u8]) -> Option<(u32, Vec<u8>)> {
        let ip = ip(frame).filter(|ip| ip.at == 14 && ip.destination.is_ipv6() == self.is_v6)?;
        let (ttl, is_plain) = match self.is_v6 {
            false => (22, frame[14] == 0x45),
            true => (21, ip.protocol != 0),
        };
        let is_to_one = frame[0] & 1 == 0;
        if !is_to_one || !is_plain || frame[ttl] < 2 || !is_forwarded(ip.source) || !is_forwarded(ip.destination) {
            return None;
        }
        let next_hop = self.routes.longest(ip.destination)?;
        let [port, macs @ ..] = self.next_hops.get(next_hop)?.as_slice() else { return None };
        let mac = |words: &[u32]| [&(words[0] as u16).to_be_bytes()[..], &words[1].to_be_bytes()].concat();
        if mac(&macs[..2]) == [0; 6] {
            return None;
        }
        let mut bytes = [&mac(&macs[..2])[..], &mac(&macs[2..]), &frame[12..]].concat();
        bytes[ttl] -= 1;
        if !self.is_v6 {
            // The 16-bit word that contains the TTL.
            let new = [bytes[22], bytes[23]];
            update_checksum(&mut bytes[24..26], &frame[22..24], &new);
        }
        Some((*port, bytes))
    }
}

/// Returns whether routers forward packets with this source or destination (RFC 1812, section
/// 5.3.7; RFC 4291, section 2.5).
fn is_forwarded(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !matches!(address.octets()[0], 0 | 127 | 224..),
        IpAddr::V6(address) => address.octets()[0] != 0 && !address.is_unicast_link_local() && !address.is_multicast(),
    }
}

impl Model for Router {
    fn filter(&mut self, packet: &Packet) -> Outcome {
        match self.forwarded(&packet.bytes) {
            Some((port, bytes)) => Outcome { verdict: Verdict::Redirect(port), bytes },
            None => Outcome { verdict: Verdict::Pass, bytes: packet.bytes.clone() },
        }
    }

    fn set(&mut self, map: &str, key: &[u32], value: &[u32]) {
        match map {
            "routes" => self.routes.set(key, value[0]),
            "next_hops" => _ = self.next_hops.insert(key[0], value.to_vec()),
            other => panic!("no map {other}"),
        }
    }

    fn maps(&self) -> Maps {
        let next_hops = self.next_hops.iter().map(|(number, words)| (vec![*number], words.clone())).collect();
        [("routes".into(), self.routes.rows()), ("next_hops".into(), next_hops)].into()
    }
}

/// Returns an address around which routes are placed.
fn center(is_v6: bool, number: u32) -> IpAddr {
    match is_v6 {
        false => Ipv4Addr::from((0x1400_0000 + number * 0x0731_0000) ^ 0x00a5_5a3c).into(),
        true => Ipv6Addr::from((0x2001_0db8 + u128::from(number % 3)) << 96 | u128::from(number) << 61 | 0x5a5a).into(),
    }
}

/// Number of addresses around which routes are placed.
const CENTERS: u32 = 12;

/// Number of next hops; one in five has no MAC address.
const NEXT_HOPS: u32 = 10;

/// Returns the host's writes: nested routes around some addresses, and their next hops.
pub fn writes(is_v6: bool, seed: u64) -> Writes {
    let (mut random, most) = (Random::new(seed, 24), if is_v6 { 128 } else { 32 });
    let mut writes: Writes = Vec::new();
    for number in 0..NEXT_HOPS {
        let has_mac = u32::from(number % 5 != 4);
        let value = vec![number + 100, 0x0200 * has_mac, (number << 24 | 1) * has_mac, 0x0202, number];
        writes.push(("next_hops", vec![number], value));
    }
    for number in 0..CENTERS {
        for _ in 0..12 {
            let length = random.below(most + 1);
            // No default route, so that some packets match none.
            let route = prefix(center(is_v6, number), length.max(3));
            writes.push(("routes", route, vec![random.below(NEXT_HOPS + 1)]));
        }
    }
    writes
}

/// Redirects most packets to addresses near the routes, and a few to addresses that no router
/// forwards to.
pub fn routed(packets: &[Packet], is_v6: bool, seed: u64) -> Vec<Packet> {
    let mut random = Random::new(seed, 1812);
    packets.iter().map(|packet| altered(packet, is_v6, &mut random)).collect()
}

fn altered(packet: &Packet, is_v6: bool, random: &mut Random) -> Packet {
    let mut bytes = packet.bytes.clone();
    let family: [u8; 2] = if is_v6 { [0x86, 0xdd] } else { [0x08, 0x00] };
    let whole = if is_v6 { 54 } else { 34 };
    if bytes.len() < whole || bytes[12..14] != family || random.one_in(12) {
        return packet.clone();
    }
    let (source, destination, ttl) = if is_v6 { (22, 38, 21) } else { (26, 30, 22) };
    let most = if is_v6 { 128 } else { 32 };
    let mut set = |at: usize, address: IpAddr| match address {
        IpAddr::V4(address) => bytes[at..at + 4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => bytes[at..at + 16].copy_from_slice(&address.octets()),
    };
    let (center, length) = (center(is_v6, random.below(CENTERS)), random.below(most + 1));
    set(destination, near(center, length, random));
    if random.one_in(15) {
        let strange = |random: &mut Random| -> IpAddr {
            let kind = random.below(5) as usize;
            match is_v6 {
                false => Ipv4Addr::new([0, 127, 224, 255, 240][kind], 0, 0, 1).into(),
                true => {
                    let first = [0_u16, 0xfe80, 0xfebf, 0xff02, 0x0064][kind];
                    Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, 1).into()
                }
            }
        };
        let at = random.pick(&[source, destination]);
        set(at, strange(random));
    }
    bytes[ttl] = random.pick(&[64, 64, 255, 2, 3, 1, 0]);
    if !is_v6 {
        bytes[24..26].fill(0);
        let check = !ones_complement(&bytes[14..34]);
        bytes[24..26].copy_from_slice(&check.to_be_bytes());
    }
    match random.below(40) {
        // IPv4 options, or IPv6 hop-by-hop options.
        0 if is_v6 => bytes[20] = 0,
        0 => bytes[14] = 0x46,
        // A multicast MAC address.
        1 => bytes[0] |= 1,
        2 => bytes.truncate(random.between(10, whole as u32) as usize),
        3 => {
            let at = random.below(whole as u32) as usize;
            bytes[at] = random.u32() as u8;
        }
        _ => {}
    }
    Packet { bytes, metadata: packet.metadata }
}
