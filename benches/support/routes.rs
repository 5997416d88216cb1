//! Synthetic routing tables of internet size, with a realistic distribution of prefix lengths.
//!
//! The lengths approximate what collectors of the global tables report; the addresses are random.
//! Half of the routes are more specific routes of one created before. The same seed always produces
//! the same table.

use std::collections::HashSet;

use portcullis::packet_io::synth::Random;

/// Number of routes of each length among 10,000 IPv4 routes.
const IPV4_LENGTHS: [(u32, u32); 24] = [
    (24, 6000),
    (22, 1150),
    (23, 1000),
    (21, 480),
    (20, 430),
    (19, 240),
    (18, 140),
    (16, 140),
    (17, 80),
    (15, 20),
    (14, 12),
    (13, 6),
    (12, 3),
    (11, 1),
    (10, 1),
    (9, 1),
    (8, 2),
    // Internal routes of providers.
    (32, 80),
    (29, 60),
    (28, 40),
    (25, 30),
    (26, 30),
    (27, 30),
    (30, 24),
];

/// Number of routes of each length among 10,000 IPv6 routes.
const IPV6_LENGTHS: [(u32, u32); 24] = [
    (48, 4520),
    (32, 1500),
    (44, 800),
    (40, 700),
    (36, 500),
    (46, 400),
    (47, 300),
    (29, 250),
    (45, 200),
    (42, 200),
    (33, 150),
    (34, 100),
    (38, 100),
    (35, 50),
    (41, 50),
    (43, 40),
    (37, 30),
    (39, 30),
    (30, 30),
    (28, 20),
    (31, 20),
    (64, 5),
    (24, 3),
    (20, 2),
];

/// First 12 bits of the IPv6 space that the registries allocate from.
const IPV6_REGISTRIES: [u32; 6] = [0x200, 0x240, 0x260, 0x280, 0x2a0, 0x2c0];

/// A prefix and its next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The address, with its first bit in the highest of 128 bits.
    pub address: u128,
    /// Length of the prefix in bits.
    pub length: u32,
    /// Index of the next hop.
    pub next_hop: u32,
}

impl Route {
    /// The key in a map of kind `lpm`: `words` words of the address, and the length.
    pub fn key(&self, words: u32) -> Vec<u32> {
        (0..words).map(|i| (self.address >> (96 - 32 * i)) as u32).chain([self.length]).collect()
    }
}

/// Draws an arbitrary address.
pub fn address(random: &mut Random) -> u128 {
    (0..4).fold(0, |all, _| all << 32 | u128::from(random.u32()))
}

/// Draws a length, given the number of routes of each.
fn length(random: &mut Random, lengths: &[(u32, u32)]) -> u32 {
    let mut left = random.below(lengths.iter().map(|(_, share)| share).sum());
    for (length, share) in lengths {
        match left.checked_sub(*share) {
            Some(rest) => left = rest,
            None => return *length,
        }
    }
    unreachable!("the shares cover everything")
}

/// Mask of the first `length` bits.
pub fn mask(length: u32) -> u128 {
    u128::MAX.checked_shl(128 - length).unwrap_or(0)
}

/// Creates IPv4 routes with `next_hops` next hops, in 1.0.0.0 to 223.255.255.255 without 10.0.0.0/8
/// and 127.0.0.0/8.
pub fn ipv4(count: usize, next_hops: u32, seed: u64) -> Vec<Route> {
    let is_public = |address: u128| !matches!(address >> 120, 0 | 10 | 127 | 224..);
    table(count, next_hops, seed, &IPV4_LENGTHS, |random| {
        std::iter::repeat_with(|| address(random))
            .find(|address| is_public(*address))
            .expect("most addresses are public")
    })
}

/// Creates IPv6 routes within the allocated space.
pub fn ipv6(count: usize, next_hops: u32, seed: u64) -> Vec<Route> {
    table(count, next_hops, seed, &IPV6_LENGTHS, |random| {
        let registry = u128::from(random.pick(&IPV6_REGISTRIES));
        registry << 116 | address(random) >> 12
    })
}

fn table(
    count: usize,
    next_hops: u32,
    seed: u64,
    lengths: &[(u32, u32)],
    anywhere: impl Fn(&mut Random) -> u128,
) -> Vec<Route> {
    let mut random = Random::new(seed, 0);
    let (mut routes, mut known): (Vec<Route>, _) = (Vec::with_capacity(count), HashSet::with_capacity(count));
    while routes.len() < count {
        let length = length(&mut random, lengths);
        let mut address = anywhere(&mut random);
        if random.one_in(2) && !routes.is_empty() {
            // Most earlier routes are too specific to contain this one, so try several.
            let parent = (0..8).map(|_| random.pick(&routes)).find(|route| route.length < length);
            if let Some(parent) = parent {
                address = parent.address | address & !mask(parent.length);
            }
        }
        address &= mask(length);
        if known.insert((address, length)) {
            routes.push(Route { address, length, next_hop: random.below(next_hops) });
        }
    }
    routes
}
