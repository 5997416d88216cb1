//! Model of `syn_flood`: sliding windows over count-min sketches, one per group of networks.

use std::collections::HashMap;
use std::net::IpAddr;

use portcullis_core::packet::Verdict;

use super::{Maps, Model};
use crate::ip::{ip, words};
use crate::models::{Outcome, finalise, hash};
use crate::traffic::Packet;
use crate::traffic::frame::{ACK, SYN};

type Sketch = [[u32; 32]; 4];

/// Model of the SYN flood filter.
#[derive(Debug)]
pub struct SynFlood {
    /// Length of a window in milliseconds.
    window: u64,
    limit: u64,
    groups: HashMap<u32, Group>,
    dropped: HashMap<u32, u64>,
}

/// Counters of a group: start of the current window, its count, and the previous window's count.
#[derive(Debug)]
struct Group {
    begun: u64,
    now: Sketch,
    before: Sketch,
    /// Half of the map's rows that the window uses: 1 or 2.
    side: u32,
}

impl SynFlood {
    /// Creates a model with the window's length and its limit of SYNs.
    pub fn new(window: u64, limit: u64) -> SynFlood {
        SynFlood { window, limit, groups: HashMap::new(), dropped: HashMap::new() }
    }

    fn verdict(&mut self, packet: &Packet) -> Verdict {
        let Some(source) = syn_from(&packet.bytes) else { return Verdict::Pass };
        let network = match source {
            IpAddr::V4(address) => [0, address.to_bits() >> 8],
            IpAddr::V6(_) => [words(source)[0], words(source)[1]],
        };
        let number = hash(&network) & 0xfff;
        let now = packet.metadata.time_ns() / 1_000_000;
        let empty = Sketch::default();
        let group = self.groups.entry(number).or_insert(Group { begun: now, now: empty, before: empty, side: 1 });
        let elapsed = now.saturating_sub(group.begun);
        if elapsed >= 2 * self.window {
            *group = Group { begun: now, now: empty, before: empty, side: 1 };
        } else if elapsed >= self.window {
            group.before = std::mem::replace(&mut group.now, empty);
            group.begun += self.window;
            group.side = 3 - group.side;
        }
        let remaining = self.window - now.saturating_sub(group.begun);
        let source = hash(&words(source));
        let estimates = (0..4).map(|row| {
            let column = (finalise(source.wrapping_add(row)) >> 27) as usize;
            let row = row as usize;
            group.now[row][column] += 1;
            u64::from(group.now[row][column]) * self.window + u64::from(group.before[row][column]) * remaining
        });
        // All rows are updated before their minimum is compared.
        if estimates.collect::<Vec<_>>().into_iter().min() <= Some(self.limit * self.window) {
            return Verdict::Pass;
        }
        *self.dropped.entry(number).or_default() += 1;
        Verdict::Drop
    }
}

/// Returns the source address of a SYN.
fn syn_from(frame: &[u8]) -> Option<IpAddr> {
    let ip = ip(frame).filter(|ip| ip.protocol == 6 && !ip.is_later_fragment)?;
    let flags = ip.payload.get(13)?;
    (flags & (SYN | ACK) == SYN).then_some(ip.source)
}

impl Model for SynFlood {
    fn filter(&mut self, packet: &Packet) -> Outcome {
        Outcome { verdict: self.verdict(packet), bytes: packet.bytes.clone() }
    }

    fn maps(&self) -> Maps {
        let windows = self.groups.iter().map(|(number, group)| (vec![*number], vec![group.begun as u32, group.side]));
        let sketches = self.groups.iter().flat_map(|(number, group)| {
            let [first, second] = if group.side == 1 { [group.now, group.before] } else { [group.before, group.now] };
            (0..4).map(move |row| (vec![number * 4 + row], [first[row as usize], second[row as usize]].concat()))
        });
        let dropped = self.dropped.iter().map(|(number, sum)| (vec![*number], vec![*sum as u32, (*sum >> 32) as u32]));
        let sketches = sketches.filter(|(_, counters)| counters.iter().any(|counter| *counter != 0)).collect();
        [("windows".into(), windows.collect()), ("sketches".into(), sketches), ("dropped".into(), dropped.collect())]
            .into()
    }
}
