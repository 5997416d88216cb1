//! Model of `token_bucket`: a token bucket per source.

use std::collections::HashMap;

use portcullis_core::packet::Verdict;

use super::{Maps, Model, Writes};
use crate::ip::{ip, words};
use crate::models::Outcome;
use crate::traffic::Packet;

/// Model of the token bucket filter.
#[derive(Debug, Default)]
pub struct TokenBucket {
    /// Packets per second and maximum number of tokens.
    limits: HashMap<[u32; 4], (u32, u32)>,
    /// Thousandths of tokens, and the time of the last update in milliseconds.
    buckets: HashMap<[u32; 4], (u128, u64)>,
}

impl TokenBucket {
    fn verdict(&mut self, packet: &Packet) -> Verdict {
        let Some(ip) = ip(&packet.bytes) else { return Verdict::Pass };
        let source = words(ip.source);
        let limit = self.limits.get(&source).or_else(|| self.limits.get(&[0; 4]));
        let Some(&(rate, burst)) = limit else { return Verdict::Pass };
        let full = u128::from(burst.min(4_294_967)) * 1000;
        let now = packet.metadata.time_ns() / 1_000_000;
        let (tokens, last) = self.buckets.entry(source).or_insert((full, now));
        let elapsed = now.saturating_sub(*last);
        *last += elapsed;
        *tokens = (*tokens + u128::from(elapsed) * u128::from(rate)).min(full);
        match tokens.checked_sub(1000) {
            Some(rest) => {
                *tokens = rest;
                Verdict::Pass
            }
            None => Verdict::Drop,
        }
    }
}

impl Model for TokenBucket {
    fn filter(&mut self, packet: &Packet) -> Outcome {
        Outcome { verdict: self.verdict(packet), bytes: packet.bytes.clone() }
    }

    fn set(&mut self, map: &str, key: &[u32], value: &[u32]) {
        assert_eq!(map, "limits");
        self.limits.insert(key.try_into().unwrap(), (value[0], value[1]));
    }

    fn maps(&self) -> Maps {
        let bucket = |(source, (tokens, last)): (&[u32; 4], &(u128, u64))| {
            (source.to_vec(), vec![u32::try_from(*tokens).unwrap(), *last as u32])
        };
        let limits = self.limits.iter().map(|(source, (rate, burst))| (source.to_vec(), vec![*rate, *burst]));
        [("buckets".into(), self.buckets.iter().map(bucket).collect()), ("limits".into(), limits.collect())].into()
    }
}

/// Returns limits for some of the clients, and a default limit if a burst is given.
pub fn limits(everybody: Option<u32>) -> Writes {
    let client = |host: u32| vec![0, 0, 0xffff, 0x0a01_0000 | (host % 5) << 8 | host];
    let mut limits = vec![
        ("limits", client(0), vec![2, 3]),
        ("limits", client(2), vec![0, 40]),
        ("limits", client(4), vec![1 << 31, u32::MAX]),
        ("limits", client(6), vec![5, 0]),
        ("limits", vec![0x2001_0db8, 0, 0, 3], vec![1, 1]),
    ];
    limits.extend(everybody.map(|burst| ("limits", vec![0; 4], vec![3, burst])));
    limits
}
