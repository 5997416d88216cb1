//! Random numbers whose every step is fixed.

use rand::Rng;
use rand_pcg::Pcg32;

/// PCG-XSH-RR 64/32 (O'Neill 2014) and the few ways in which numbers are drawn from it. Only the
/// generator's raw 32-bit output is used: how a library maps it to ranges may change with its
/// version, and packets must not.
#[derive(Debug, Clone)]
pub struct Random(Pcg32);

impl Random {
    /// The sequence of a seed; different streams of one seed are independent.
    pub fn new(seed: u64, stream: u64) -> Random {
        Random(Pcg32::new(seed, stream))
    }

    /// Any 32 bits.
    #[inline]
    pub fn u32(&mut self) -> u32 {
        self.0.next_u32()
    }

    /// A number below `limit`, and 0 for a limit of 0: the high half of a product, whose bias of
    /// less than `limit` / 2^32 does not matter here.
    #[inline]
    pub fn below(&mut self, limit: u32) -> u32 {
        ((u64::from(self.u32()) * u64::from(limit)) >> 32) as u32
    }

    /// A number from `low` to `high`, both included.
    #[inline]
    pub fn between(&mut self, low: u32, high: u32) -> u32 {
        low + self.below(high - low + 1)
    }

    /// True once in `n` draws.
    #[inline]
    pub fn one_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }

    /// One of the items.
    ///
    /// # Panics
    /// When there is none.
    #[inline]
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u32) as usize]
    }

    /// Random bytes: each draw's, lowest first.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(4) {
            piece.copy_from_slice(&self.u32().to_le_bytes()[..piece.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_the_published_generator() {
        // pcg32-demo of the PCG C library: seed 42, stream 54, "Round 1".
        let mut random = Random::new(42, 54);
        let first: Vec<u32> = (0..6).map(|_| random.u32()).collect();
        assert_eq!(first, [0xa15c_02b7, 0x7b47_f409, 0xba1d_3330, 0x83d2_f293, 0xbfa4_784b, 0xcbed_606e]);
    }

    #[test]
    fn draws_stay_in_their_range() {
        let mut random = Random::new(1, 2);
        let mut seen = [0; 10];
        for _ in 0..10_000 {
            seen[random.between(0, 9) as usize] += 1;
        }
        assert!(seen.iter().all(|&n| (800..1200).contains(&n)), "{seen:?}");
        assert_eq!(random.below(0), 0);
    }
}
