//! Reproducible random numbers.

use rand::Rng;
use rand_pcg::Pcg32;

/// PCG-XSH-RR 64/32 (O'Neill 2014) with a few ways to draw numbers. Only the raw 32-bit output of
/// the library is used, because its mapping to ranges may change between versions, and packets must
/// not.
#[derive(Debug, Clone)]
pub struct Random(Pcg32);

impl Random {
    /// Creates the sequence of a seed; different streams of one seed are independent.
    pub fn new(seed: u64, stream: u64) -> Random {
        Random(Pcg32::new(seed, stream))
    }

    /// Draws 32 random bits.
    #[inline]
    pub fn u32(&mut self) -> u32 {
        self.0.next_u32()
    }

    /// Draws a number below `limit`, or 0 if `limit` is 0: the high half of a product, whose bias
    /// of less than `limit` / 2^32 is negligible here.
    #[inline]
    pub fn below(&mut self, limit: u32) -> u32 {
        ((u64::from(self.u32()) * u64::from(limit)) >> 32) as u32
    }

    /// Draws a number from `low` to `high`, both inclusive.
    #[inline]
    pub fn between(&mut self, low: u32, high: u32) -> u32 {
        low + self.below(high - low + 1)
    }

    /// Returns true with probability 1 / `n`.
    #[inline]
    pub fn one_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }

    /// Draws one of the items.
    ///
    /// # Panics
    /// If `items` is empty.
    #[inline]
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u32) as usize]
    }

    /// Fills `bytes` with random bytes, each draw's least significant byte first.
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
    fn matches_the_reference_implementation() {
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
