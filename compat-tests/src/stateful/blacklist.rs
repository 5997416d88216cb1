//! Model of `blacklist`: drops packets from a list of networks.

use portcullis::packet_io::synth::Random;
use portcullis_core::packet::Verdict;

use super::lpm::{Prefixes, prefix};
use super::{Maps, Model, Writes};
use crate::ip::ip;
use crate::models::Outcome;
use crate::traffic::Packet;

/// Model of the blacklist, which counts the drops of each prefix.
#[derive(Debug, Default)]
pub struct Blacklist {
    v4: Prefixes,
    v6: Prefixes,
}

impl Model for Blacklist {
    fn filter(&mut self, packet: &Packet) -> Outcome {
        let dropped = ip(&packet.bytes).and_then(|ip| {
            let list = if ip.source.is_ipv4() { &mut self.v4 } else { &mut self.v6 };
            list.longest(ip.source)
        });
        let verdict = match dropped {
            Some(count) => {
                *count += 1;
                Verdict::Drop
            }
            None => Verdict::Pass,
        };
        Outcome { verdict, bytes: packet.bytes.clone() }
    }

    fn set(&mut self, map: &str, key: &[u32], value: &[u32]) {
        match map {
            "blocked_v4" => self.v4.set(key, value[0]),
            "blocked_v6" => self.v6.set(key, value[0]),
            other => panic!("no map {other}"),
        }
    }

    fn maps(&self) -> Maps {
        [("blocked_v4".into(), self.v4.rows()), ("blocked_v6".into(), self.v6.rows())].into()
    }
}

/// Returns the host's writes: nested networks that contain some of the packets' sources.
pub fn writes(packets: &[Packet], seed: u64) -> Writes {
    let mut random = Random::new(seed, 77);
    let mut writes = Writes::new();
    for ip in packets.iter().filter_map(|packet| ip(&packet.bytes)).step_by(200) {
        let (map, most) = if ip.source.is_ipv4() { ("blocked_v4", 32) } else { ("blocked_v6", 128) };
        let length = most - random.below(most / 4);
        writes.push((map, prefix(ip.source, length), vec![random.below(3)]));
    }
    writes
}
