//! Rust types for keys and values of maps.

use std::net::{Ipv4Addr, Ipv6Addr};

/// A type with a fixed number of 32-bit words: a key, a value, or a part of one. Packet bytes
/// correspond to words as `load_be32` returns them.
///
/// ```
/// use portcullis_core::map::Words;
///
/// /// A value of three words.
/// struct Account {
///     packets: u32,
///     bytes: u64,
/// }
///
/// impl Words for Account {
///     const COUNT: usize = 3;
///     fn write(&self, words: &mut [u32]) {
///         (self.packets, self.bytes).write(words);
///     }
///     fn read(words: &[u32]) -> Account {
///         let (packets, bytes) = Words::read(words);
///         Account { packets, bytes }
///     }
/// }
/// let mut words = [0; 3];
/// Account { packets: 7, bytes: 1 << 32 | 5 }.write(&mut words);
/// assert_eq!(words, [7, 5, 1]);
/// ```
pub trait Words: Sized {
    /// Number of words.
    const COUNT: usize;

    /// Encodes the value in [`COUNT`](Words::COUNT) words.
    fn write(&self, words: &mut [u32]);

    /// Decodes a value from [`COUNT`](Words::COUNT) words.
    fn read(words: &[u32]) -> Self;
}

/// The value of a map that only has keys takes no words.
impl Words for () {
    const COUNT: usize = 0;
    fn write(&self, _: &mut [u32]) {}
    fn read(_: &[u32]) {}
}

impl Words for u32 {
    const COUNT: usize = 1;
    fn write(&self, words: &mut [u32]) {
        words[0] = *self;
    }
    fn read(words: &[u32]) -> u32 {
        words[0]
    }
}

/// Low word, then high word, as in a counter's sum.
impl Words for u64 {
    const COUNT: usize = 2;
    fn write(&self, words: &mut [u32]) {
        (*self as u32, (*self >> 32) as u32).write(words);
    }
    fn read(words: &[u32]) -> u64 {
        u64::from(words[1]) << 32 | u64::from(words[0])
    }
}

impl<const N: usize> Words for [u32; N] {
    const COUNT: usize = N;
    fn write(&self, words: &mut [u32]) {
        words.copy_from_slice(self);
    }
    fn read(words: &[u32]) -> [u32; N] {
        std::array::from_fn(|index| words[index])
    }
}

impl Words for Ipv4Addr {
    const COUNT: usize = 1;
    fn write(&self, words: &mut [u32]) {
        words[0] = self.to_bits();
    }
    fn read(words: &[u32]) -> Ipv4Addr {
        Ipv4Addr::from_bits(words[0])
    }
}

/// Most significant word first.
impl Words for Ipv6Addr {
    const COUNT: usize = 4;
    fn write(&self, words: &mut [u32]) {
        let bits = self.to_bits();
        words.copy_from_slice(&[96, 64, 32, 0].map(|shift| (bits >> shift) as u32));
    }
    fn read(words: &[u32]) -> Ipv6Addr {
        Ipv6Addr::from_bits(words[..4].iter().fold(0, |bits, word| bits << 32 | u128::from(*word)))
    }
}

/// A MAC address: the first two bytes as `load_be16` returns them, then the other four as
/// `load_be32` does.
impl Words for [u8; 6] {
    const COUNT: usize = 2;
    fn write(&self, words: &mut [u32]) {
        let [a, b, c, d, e, f] = *self;
        words.copy_from_slice(&[u32::from_be_bytes([0, 0, a, b]), u32::from_be_bytes([c, d, e, f])]);
    }
    fn read(words: &[u32]) -> [u8; 6] {
        let ([_, _, a, b], [c, d, e, f]) = (words[0].to_be_bytes(), words[1].to_be_bytes());
        [a, b, c, d, e, f]
    }
}

/// A prefix of an IPv4 or IPv6 address: the key of an `lpm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix<A> {
    /// The address; bits beyond the length are zero.
    pub address: A,
    /// Number of significant bits.
    pub length: u32,
}

/// The address, then the length.
impl<A: Words> Words for Prefix<A> {
    const COUNT: usize = A::COUNT + 1;
    fn write(&self, words: &mut [u32]) {
        self.address.write(&mut words[..A::COUNT]);
        words[A::COUNT] = self.length;
    }
    fn read(words: &[u32]) -> Prefix<A> {
        Prefix { address: A::read(&words[..A::COUNT]), length: words[A::COUNT] }
    }
}

/// The parts in order.
impl<A: Words, B: Words> Words for (A, B) {
    const COUNT: usize = A::COUNT + B::COUNT;
    fn write(&self, words: &mut [u32]) {
        let (first, second) = words.split_at_mut(A::COUNT);
        self.0.write(first);
        self.1.write(second);
    }
    fn read(words: &[u32]) -> (A, B) {
        let (first, second) = words.split_at(A::COUNT);
        (A::read(first), B::read(second))
    }
}

/// The parts in order.
impl<A: Words, B: Words, C: Words> Words for (A, B, C) {
    const COUNT: usize = A::COUNT + B::COUNT + C::COUNT;
    fn write(&self, words: &mut [u32]) {
        let (first, rest) = words.split_at_mut(A::COUNT);
        let (second, third) = rest.split_at_mut(B::COUNT);
        self.0.write(first);
        self.1.write(second);
        self.2.write(third);
    }
    fn read(words: &[u32]) -> (A, B, C) {
        let (first, (second, third)) = Words::read(words);
        (first, second, third)
    }
}
