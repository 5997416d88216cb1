//! A routing table of internet size for `router_v4`, as map files.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::Path;

use super::io_error;

/// Number of routes of each length among 10,000, approximately as collectors of the global table
/// report them, and some of a provider's own.
const LENGTHS: [(u32, u32); 14] = [
    (24, 6000),
    (22, 1150),
    (23, 1000),
    (21, 480),
    (20, 430),
    (19, 240),
    (18, 140),
    (16, 140),
    (32, 100),
    (17, 90),
    (28, 90),
    (29, 80),
    (12, 40),
    (8, 20),
];

/// Next hops, as many as `router_v4` has entries for.
const NEXT_HOPS: u32 = 4096;

/// Writes `routes.csv` and `next_hops.csv`; the same ones every time.
///
/// # Errors
/// A file cannot be written.
pub fn write(folder: &Path, count: usize) -> Result<(), String> {
    let put = |name: &str, text: String| {
        let file = folder.join(name);
        std::fs::write(&file, text).map_err(|error| io_error(&file, &error))
    };
    put("routes.csv", routes(count))?;
    put("next_hops.csv", next_hops())
}

/// Returns `count` different prefixes, the first of which matches every address.
fn routes(count: usize) -> String {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        // Xorshift (Marsaglia, 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u32
    };
    let mut known = HashSet::with_capacity(count);
    let mut text = String::from("prefix,next_hop\n");
    let mut next = (0, 0);
    while known.len() < count {
        if known.insert(next) {
            let (address, length) = next;
            let [a, b, c, d] = u32::to_be_bytes(address);
            let _ = writeln!(text, "{a}.{b}.{c}.{d}/{length},{}", random() % NEXT_HOPS);
        }
        let mut left = random() % LENGTHS.iter().map(|(_, share)| share).sum::<u32>();
        let drawn = LENGTHS.iter().find(|(_, share)| {
            let is_drawn = left < *share;
            left = left.saturating_sub(*share);
            is_drawn
        });
        let (length, _) = drawn.expect("the shares cover everything");
        next = (random() & u32::MAX << (32 - length), *length);
    }
    text
}

fn next_hops() -> String {
    let mut text = String::from("next_hop,port,destination,source\n");
    for hop in 0..NEXT_HOPS {
        let (high, low) = (hop >> 8, hop & 255);
        let _ = writeln!(text, "{hop},{},02:00:00:00:{high:02x}:{low:02x},02:00:00:01:00:{:02x}", hop % 8, hop % 8);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_different_and_have_no_bits_beyond_their_length() {
        let text = routes(20_000);
        let lines: HashSet<&str> = text.lines().skip(1).filter_map(|line| line.split(',').next()).collect();
        assert_eq!(lines.len(), 20_000);
        assert!(lines.contains("0.0.0.0/0"));
        let mut long = 0;
        for prefix in &lines {
            let (address, length) = prefix.split_once('/').unwrap();
            let address = u32::from(address.parse::<std::net::Ipv4Addr>().unwrap());
            let length: u32 = length.parse().unwrap();
            assert_eq!(u64::from(address) << length & 0xffff_ffff, 0, "{prefix}");
            long += usize::from(length == 24);
        }
        assert!((11_000..13_000).contains(&long), "{long} of length 24");
    }

    #[test]
    fn every_next_hop_has_an_entry() {
        assert_eq!(next_hops().lines().count(), 1 + NEXT_HOPS as usize);
        assert!(next_hops().contains("\n4095,7,02:00:00:00:0f:ff,02:00:00:01:00:07\n"));
    }
}
