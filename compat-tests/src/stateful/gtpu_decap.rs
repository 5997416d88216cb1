//! Model of `gtpu_decap`: GTP-U as in 3GPP TS 29.281.

use std::collections::BTreeMap;

use portcullis::packet_io::synth::Random;
use portcullis_core::packet::Verdict;

use super::{Maps, Model, Writes};
use crate::ip::{Ip, ip};
use crate::models::Outcome;
use crate::traffic::Packet;
use crate::traffic::frame::Frame;

/// Model of the decapsulation, with the TEIDs and slices that the host has set.
#[derive(Debug, Default)]
pub struct GtpuDecap {
    tunnels: BTreeMap<u32, u32>,
    slices: BTreeMap<u32, Vec<u32>>,
}

impl GtpuDecap {
    fn outcome(&self, frame: &[u8]) -> Outcome {
        let unchanged = |verdict| Outcome { verdict, bytes: frame.to_vec() };
        let Some((slice, message)) = ip(frame).and_then(|ip| self.g_pdu(&ip)) else { return unchanged(Verdict::Pass) };
        let Some(inner) = user_packet(message) else { return unchanged(Verdict::Drop) };
        let ethertype: [u8; 2] = match (inner.first().map(|byte| byte >> 4), inner.len()) {
            (Some(4), 20..) if inner[0] & 15 >= 5 => [0x08, 0x00],
            (Some(6), 40..) => [0x86, 0xdd],
            _ => return unchanged(Verdict::Drop),
        };
        let [port, macs @ ..] = slice else { return unchanged(Verdict::Drop) };
        let mac = |words: &[u32]| [&(words[0] as u16).to_be_bytes()[..], &words[1].to_be_bytes()].concat();
        if mac(&macs[..2]) == [0; 6] {
            return unchanged(Verdict::Drop);
        }
        let bytes = [&mac(&macs[..2])[..], &mac(&macs[2..]), &ethertype, inner].concat();
        Outcome { verdict: Verdict::Redirect(*port), bytes }
    }

    /// Returns the slice of the packet's tunnel, and the GTP-U message.
    fn g_pdu<'a>(&self, ip: &Ip<'a>) -> Option<(&[u32], &'a [u8])> {
        let is_gtpu = ip.protocol == 17 && !ip.is_fragment && ip.u16_at(2) == Some(2152);
        let message = ip.payload.get(8..).filter(|message| is_gtpu && message.len() >= 8)?;
        let (version, is_gtp) = (message[0] >> 5, message[0] & 0x10 != 0);
        if version != 1 || !is_gtp || message[1] != 255 {
            return None;
        }
        let slice = self.tunnels.get(&ip.u32_at(12)?)?;
        Some((self.slices.get(slice).map_or(&[], Vec::as_slice), message))
    }
}

/// Returns the bytes after the header and its extensions; `None` if they are malformed.
fn user_packet(message: &[u8]) -> Option<&[u8]> {
    let [e, s, pn] = [4, 2, 1].map(|bit| message[0] & bit != 0);
    if !(e || s || pn) {
        return Some(&message[8..]);
    }
    let (fields, mut rest) = (message.get(8..12)?, &message[12..]);
    let mut next = if e { fields[3] } else { 0 };
    let mut extension_headers = 0;
    while next != 0 {
        extension_headers += 1;
        let length = 4 * usize::from(*rest.first()?);
        if length == 0 || extension_headers > 4 {
            return None;
        }
        next = *rest.get(length - 1)?;
        rest = &rest[length..];
    }
    Some(rest)
}

impl Model for GtpuDecap {
    fn filter(&mut self, packet: &Packet) -> Outcome {
        self.outcome(&packet.bytes)
    }

    fn set(&mut self, map: &str, key: &[u32], value: &[u32]) {
        match map {
            "tunnels" => _ = self.tunnels.insert(key[0], value[0]),
            "slices" => _ = self.slices.insert(key[0], value.to_vec()),
            other => panic!("no map {other}"),
        }
    }

    fn maps(&self) -> Maps {
        let tunnels = self.tunnels.iter().map(|(teid, slice)| (vec![*teid], vec![*slice])).collect();
        let slices = self.slices.iter().map(|(slice, words)| (vec![*slice], words.clone())).collect();
        [("tunnels".into(), tunnels), ("slices".into(), slices)].into()
    }
}

/// Number of TEIDs in use; the host does not know some, and some refer to a missing slice.
const TEIDS: u32 = 50;

/// Returns the host's writes.
pub fn writes() -> Writes {
    let teid = |number: u32| number.wrapping_mul(0x0101_0101);
    let tunnels = (0..TEIDS).filter(|number| number % 5 != 4);
    let tunnels =
        tunnels.map(|number| ("tunnels", vec![teid(number)], vec![if number == 7 { 9999 } else { number % 6 }]));
    // The last of the six slices has no addresses.
    let slice = |slice: u32| vec![slice + 10, 0x0200, slice << 24 | 7, 0x0201, 0xffff_0000 | slice];
    let slices = (0..5).map(|number| ("slices", vec![number], slice(number)));
    tunnels.chain(slices).collect()
}

/// Encapsulates most of the packets in tunnels.
pub fn tunnelled(packets: &[Packet], seed: u64) -> Vec<Packet> {
    let mut random = Random::new(seed, 2152);
    packets.iter().map(|packet| wrap(packet, &mut random)).collect()
}

fn wrap(packet: &Packet, random: &mut Random) -> Packet {
    if random.one_in(10) {
        return packet.clone();
    }
    let inner = packet.bytes.get(14..).unwrap_or_default();
    let flags = random.pick(&[0x30, 0x30, 0x32, 0x31, 0x34, 0x36, 0x37, 0x20, 0x50, 0x38]);
    let kind = if random.one_in(12) { random.pick(&[1, 2, 26, 254]) } else { 255 };
    let teid = random.below(TEIDS).wrapping_mul(0x0101_0101);
    let mut message = vec![flags, kind];
    message.extend((inner.len() as u16).to_be_bytes());
    message.extend(teid.to_be_bytes());
    if flags & 7 != 0 {
        // Fields that the flags do not announce may hold anything.
        let mut extensions = random.below(6);
        let e = flags & 4 != 0;
        message.extend([1, 2, 3, if e && extensions == 0 { 0 } else { 0x85 }]);
        while e && extensions > 0 {
            extensions -= 1;
            let words = if random.one_in(15) { 0 } else { random.between(1, 3) };
            let mut extension = vec![9; words as usize * 4];
            match extension.as_mut_slice() {
                [] => extension.push(0),
                [first, .., last] => (*first, *last) = (words as u8, if extensions == 0 { 0 } else { 0x85 }),
                [_] => unreachable!("a word has four bytes"),
            }
            message.extend(extension);
        }
    }
    message.extend(inner);
    let port = if random.one_in(15) { 2123 } else { 2152 };
    let [from, to] = match random.one_in(4) {
        true => ["[2001:db8::9]:2152".to_owned(), format!("[2001:db8::a]:{port}")],
        false => ["10.9.0.1:2152".to_owned(), format!("10.9.0.2:{port}")],
    };
    let mut frame = Frame::udp(from.parse().unwrap(), to.parse().unwrap(), &message);
    if frame.source.is_ipv4() {
        frame.options = random.pick(&[0, 0, 0, 1, 10]);
        frame.fragment = random.pick(&[0, 0, 0, 0, 0x4000, 0x2000, 0x0010]);
    }
    if random.one_in(6) {
        frame.tags = vec![(0x8100, 5)];
    }
    let mut bytes = frame.bytes();
    match random.below(40) {
        0 | 1 => bytes.truncate(random.below(bytes.len() as u32) as usize),
        2 => bytes.truncate(random.between(50, 110) as usize),
        3 => {
            let at = random.below(80.min(bytes.len() as u32)) as usize;
            bytes[at] = random.u32() as u8;
        }
        _ => {}
    }
    Packet { bytes, metadata: packet.metadata }
}
