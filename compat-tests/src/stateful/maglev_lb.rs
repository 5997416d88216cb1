//! Model of `maglev_lb`: consistent hashing with a table set by the host, failing backends, and
//! flow affinity.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use portcullis::maglev::{self, Backend};
use portcullis_core::packet::Verdict;

use super::{Maps, Model, Writes};
use crate::ip::{Ip, ip, own_words};
use crate::models::{Outcome, finalise, hash};
use crate::traffic::Packet;
use crate::traffic::frame::{ones_complement, update_checksum};

const PLACES: u32 = 65_537;

/// Model of the load balancer.
#[derive(Debug, Default)]
pub struct MaglevLb {
    vips: BTreeSet<u32>,
    table: BTreeMap<u32, u32>,
    backends: BTreeMap<u32, Vec<u32>>,
    /// Backend of each flow, by source, destination, ports and protocol.
    flows: BTreeMap<[u32; 5], u32>,
}

impl MaglevLb {
    fn is_healthy(&self, backend: u32) -> bool {
        self.backends.get(&backend).is_some_and(|words| backend > 0 && words[0] != 0)
    }

    fn choose(&self, flow: [u32; 5]) -> u32 {
        let hash = hash(&flow);
        let hashes = std::iter::successors(Some(hash), |hash| Some(finalise(hash.wrapping_add(1))));
        let backends = hashes.take(64).filter_map(|hash| self.table.get(&(hash % PLACES))).copied();
        backends.into_iter().find(|backend| self.is_healthy(*backend)).unwrap_or(0)
    }

    /// Returns whether the packet is for a virtual address.
    fn is_ours(&self, ip: &Ip<'_>) -> bool {
        matches!(ip.destination, IpAddr::V4(vip) if self.vips.contains(&vip.to_bits()))
            && [6, 17].contains(&ip.protocol)
    }
}

impl Model for MaglevLb {
    fn filter(&mut self, packet: &Packet) -> Outcome {
        let unchanged = |verdict| Outcome { verdict, bytes: packet.bytes.clone() };
        let Some(ip) = ip(&packet.bytes).filter(|ip| self.is_ours(ip)) else { return unchanged(Verdict::Pass) };
        let port = |at| ip.u16_at(at).filter(|_| !ip.is_fragment).map_or(0, u32::from);
        let [source, vip] = [ip.source, ip.destination].map(|address| own_words(address)[0]);
        let flow = [source, vip, port(0), port(2), u32::from(ip.protocol)];
        let mut backend = self.flows.get(&flow).copied().unwrap_or(0);
        if !self.is_healthy(backend) {
            backend = self.choose(flow);
            self.flows.insert(flow, backend);
        }
        if backend == 0 {
            return unchanged(Verdict::Drop);
        }
        let words = &self.backends[&backend];
        let mut bytes = packet.bytes.clone();
        let own = bytes[..6].to_vec();
        bytes[..2].copy_from_slice(&(words[2] as u16).to_be_bytes());
        bytes[2..6].copy_from_slice(&words[3].to_be_bytes());
        bytes[6..12].copy_from_slice(&own);
        let (old, new) = (vip.to_be_bytes(), words[1].to_be_bytes());
        bytes[ip.at + 16..ip.at + 20].copy_from_slice(&new);
        update_checksum(&mut bytes[ip.at + 10..ip.at + 12], &old, &new);
        let header = packet.bytes.len() - ip.payload.len();
        let check = header + if ip.protocol == 17 { 6 } else { 16 };
        let is_udp = ip.protocol == 17;
        if let Some(check) = bytes.get_mut(check..check + 2).filter(|_| !ip.payload.is_empty() && !ip.is_later_fragment)
            && !(is_udp && check == [0, 0])
        {
            update_checksum(check, &old, &new);
            if is_udp && check == [0, 0] {
                check.fill(0xff);
            }
        }
        Outcome { verdict: Verdict::Redirect(words[4]), bytes }
    }

    fn set(&mut self, map: &str, key: &[u32], value: &[u32]) {
        match map {
            "vips" => _ = self.vips.insert(key[0]),
            "table" => _ = self.table.insert(key[0], value[0]),
            "backends" => _ = self.backends.insert(key[0], value.to_vec()),
            other => panic!("no map {other}"),
        }
    }

    fn maps(&self) -> Maps {
        let flows = self.flows.iter().map(|(flow, backend)| (flow.to_vec(), vec![*backend])).collect();
        let vips = self.vips.iter().map(|vip| (vec![*vip], vec![])).collect();
        let table = self.table.iter().map(|(place, backend)| (vec![*place], vec![*backend])).collect();
        let backends = self.backends.iter().map(|(number, words)| (vec![*number], words.clone())).collect();
        [("flows".into(), flows), ("vips".into(), vips), ("table".into(), table), ("backends".into(), backends)].into()
    }
}

/// Returns the host's writes for a pool of backends, with some server addresses as virtual
/// addresses.
pub fn pool(weights: &[u32]) -> Writes {
    let names: Vec<String> = (0..weights.len()).map(|i| format!("backend {i}")).collect();
    let backends: Vec<_> = names.iter().zip(weights).map(|(name, &weight)| Backend { name, weight }).collect();
    let table = maglev::build_table(&backends, PLACES).unwrap();
    let table = (0..).zip(table).map(|(place, backend)| ("table", vec![place], vec![backend]));
    let vips = (1..=4).map(|host| ("vips", vec![0xc000_0200 | host], vec![]));
    let backends = (1..=weights.len() as u32).map(|number| healthy(number, 1));
    table.chain(vips).chain(backends).collect()
}

/// Returns a write that sets the health of a backend.
pub fn healthy(number: u32, healthy: u32) -> (&'static str, Vec<u32>, Vec<u32>) {
    (
        "backends",
        vec![number],
        vec![healthy, 0x0a0a_0000 | number << 4, 0x0200 | number, 0xf000_0000 | number, 20 + number],
    )
}

/// Gives datagrams checksums that become 0 for one of the backends.
pub fn nearly_zero(packets: &mut [Packet]) {
    for (i, packet) in packets.iter_mut().enumerate() {
        let is_plain = packet.bytes.get(12..15) == Some(&[0x08, 0x00, 0x45]) && packet.bytes.get(23) == Some(&17);
        if !is_plain || packet.bytes.len() < 42 {
            continue;
        }
        let vip: [u8; 4] = std::array::from_fn(|i| packet.bytes[30 + i]);
        let (_, _, words) = healthy(i as u32 % 5 + 1, 1);
        // The checksum whose updated value is 0 or all ones.
        let check = ones_complement(&[vip.map(|byte| !byte), words[1].to_be_bytes()].concat());
        packet.bytes[40..42].copy_from_slice(&check.to_be_bytes());
    }
}
