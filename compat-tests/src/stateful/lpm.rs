//! Longest-prefix match by linear search.

use std::collections::BTreeMap;
use std::net::IpAddr;

use portcullis::packet_io::synth::Random;

use crate::ip::own_words;

/// Prefixes of one address family, by address words and length, with one-word values.
#[derive(Debug, Clone, Default)]
pub struct Prefixes(BTreeMap<Vec<u32>, u32>);

impl Prefixes {
    /// Sets a prefix's value.
    pub fn set(&mut self, key: &[u32], value: u32) {
        self.0.insert(key.to_vec(), value);
    }

    /// Returns the value of the longest prefix that matches.
    pub fn longest(&mut self, address: IpAddr) -> Option<&mut u32> {
        let bits = bits_of(&own_words(address));
        let fits = |(key, _): &(&Vec<u32>, &mut u32)| {
            let (length, prefix) = key.split_last().expect("a key ends with the length");
            bits_of(prefix)[..*length as usize] == bits[..*length as usize]
        };
        self.0.iter_mut().filter(fits).max_by_key(|(key, _)| key.last().copied()).map(|(_, value)| value)
    }

    /// Returns the contents as map rows.
    pub fn rows(&self) -> BTreeMap<Vec<u32>, Vec<u32>> {
        self.0.iter().map(|(key, value)| (key.clone(), vec![*value])).collect()
    }
}

/// Returns the bits of the words, most significant first.
fn bits_of(words: &[u32]) -> Vec<bool> {
    words.iter().flat_map(|word| (0..32).rev().map(move |bit| word >> bit & 1 == 1)).collect()
}

/// Returns the prefix of an address with `length` bits, as a map key.
pub fn prefix(address: IpAddr, length: u32) -> Vec<u32> {
    let mut words = own_words(address);
    for (i, word) in words.iter_mut().enumerate() {
        let kept = length.saturating_sub(32 * i as u32).min(32);
        *word &= u32::MAX.checked_shl(32 - kept).unwrap_or(0);
    }
    words.push(length);
    words
}

/// Returns a random address that shares its first `length` bits with another.
pub fn near(address: IpAddr, length: u32, random: &mut Random) -> IpAddr {
    let words = own_words(address);
    let mut bits = bits_of(&words);
    for bit in &mut bits[length as usize..] {
        *bit = random.one_in(2);
    }
    let number = |bits: &[bool]| bits.iter().fold(0_u128, |number, bit| number << 1 | u128::from(*bit));
    match address {
        IpAddr::V4(_) => IpAddr::V4((number(&bits) as u32).into()),
        IpAddr::V6(_) => IpAddr::V6(number(&bits).into()),
    }
}
