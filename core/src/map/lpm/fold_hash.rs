//! Multiply-fold hashing of prefixes and values.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Builds multiply-fold hashers with a random seed, so that an attacker cannot choose colliding
/// prefixes.
#[derive(Debug, Clone)]
pub(super) struct FoldHashBuilder(u64);

impl Default for FoldHashBuilder {
    fn default() -> FoldHashBuilder {
        FoldHashBuilder(RandomState::new().hash_one(0))
    }
}

impl BuildHasher for FoldHashBuilder {
    type Hasher = FoldHasher;

    fn build_hasher(&self) -> FoldHasher {
        FoldHasher(self.0)
    }
}

pub(super) struct FoldHasher(u64);

impl Hasher for FoldHasher {
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * 0x9e37_79b9_7f4a_7c15;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    fn write_u128(&mut self, word: u128) {
        self.write_u64((word >> 64) as u64);
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
