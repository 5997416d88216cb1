//! Model of `policer`: the two-rate three-colour marker of RFC 2698, with the code points of RFC
//! 2597.

use std::collections::HashMap;

use portcullis_core::packet::Verdict;

use super::{Maps, Model, Writes};
use crate::ip::{dscp, ip, with_dscp, words};
use crate::models::Outcome;
use crate::traffic::Packet;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Colour {
    Green,
    Yellow,
    Red,
}

/// Model of the policer.
#[derive(Debug, Default)]
pub struct Policer {
    aware: bool,
    red_passes: bool,
    profiles: HashMap<[u32; 4], [u32; 4]>,
    meters: HashMap<[u32; 4], Meter>,
}

/// Token buckets C and P in thousandths of bytes, and the time of the last update in milliseconds.
#[derive(Debug)]
struct Meter {
    c: u128,
    p: u128,
    last: u64,
}

/// DSCPs of assured forwarding by class and drop precedence (RFC 2597, section 6).
const ASSURED: [[u8; 3]; 4] = [[10, 12, 14], [18, 20, 22], [26, 28, 30], [34, 36, 38]];

impl Policer {
    /// Creates a model: `aware` uses the packet's own colour, `red_passes` lets red packets pass.
    pub fn new(aware: bool, red_passes: bool) -> Policer {
        Policer { aware, red_passes, ..Policer::default() }
    }

    fn outcome(&mut self, packet: &Packet) -> Outcome {
        let unchanged = |verdict| Outcome { verdict, bytes: packet.bytes.clone() };
        let Some(ip) = ip(&packet.bytes) else { return unchanged(Verdict::Pass) };
        let source = words(ip.source);
        let profile = self.profiles.get(&source).or_else(|| self.profiles.get(&[0; 4]));
        let Some(&[cir, cbs, pir, pbs]) = profile else { return unchanged(Verdict::Pass) };
        let now = packet.metadata.time_ns() / 1_000_000;
        let [full_c, full_p] = [cbs, pbs].map(|bytes| u128::from(bytes) * 1000);
        let meter = self.meters.entry(source).or_insert(Meter { c: full_c, p: full_p, last: now });
        let elapsed = now.saturating_sub(meter.last);
        meter.last += elapsed;
        meter.c = (meter.c + u128::from(elapsed) * u128::from(cir)).min(full_c);
        meter.p = (meter.p + u128::from(elapsed) * u128::from(pir)).min(full_p);

        let own = if self.aware { colour(dscp(&packet.bytes, &ip)) } else { Colour::Green };
        let b = u128::from(packet.metadata.wire_length - ip.at as u32) * 1000;
        let colour = if own == Colour::Red || meter.p < b {
            Colour::Red
        } else if own == Colour::Yellow || meter.c < b {
            meter.p -= b;
            Colour::Yellow
        } else {
            meter.p -= b;
            meter.c -= b;
            Colour::Green
        };
        if colour == Colour::Red && !self.red_passes {
            return unchanged(Verdict::Drop);
        }
        Outcome { verdict: Verdict::Pass, bytes: with_dscp(&packet.bytes, &ip, ASSURED[0][colour as usize]) }
    }
}

fn colour(dscp: u8) -> Colour {
    let place = ASSURED.iter().find_map(|class| class.iter().position(|known| *known == dscp));
    [Colour::Green, Colour::Yellow, Colour::Red][place.unwrap_or(0)]
}

impl Model for Policer {
    fn filter(&mut self, packet: &Packet) -> Outcome {
        self.outcome(packet)
    }

    fn set(&mut self, map: &str, key: &[u32], value: &[u32]) {
        assert_eq!(map, "profiles");
        self.profiles.insert(key.try_into().unwrap(), value.try_into().unwrap());
    }

    fn maps(&self) -> Maps {
        let meter = |(source, meter): (&[u32; 4], &Meter)| {
            let words = |bucket: u128| [bucket as u32, (bucket >> 32) as u32];
            (source.to_vec(), [&words(meter.c)[..], &words(meter.p), &[meter.last as u32]].concat())
        };
        let profiles = self.profiles.iter().map(|(source, profile)| (source.to_vec(), profile.to_vec()));
        [("meters".into(), self.meters.iter().map(meter).collect()), ("profiles".into(), profiles.collect())].into()
    }
}

/// Returns profiles for some of the clients, and a default profile.
pub fn profiles() -> Writes {
    let client = |host: u32| vec![0, 0, 0xffff, 0x0a01_0000 | (host % 5) << 8 | host];
    vec![
        ("profiles", vec![0; 4], vec![200, 1500, 400, 2500]),
        ("profiles", client(0), vec![0, 0, 1000, 1000]),
        ("profiles", client(2), vec![0, 0, 0, 0]),
        ("profiles", client(4), vec![u32::MAX; 4]),
    ]
}
