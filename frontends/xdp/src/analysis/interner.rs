//! Assigns consecutive numbers to values.

use std::collections::HashMap;

/// Numbers distinct values consecutively; equal values get the same number.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interner<K> {
    values: Vec<K>,
    numbers: HashMap<K, u32>,
    first: u32,
}

impl<K: Clone + std::cmp::Eq + std::hash::Hash> Interner<K> {
    /// Creates an empty interner whose first number is `first`.
    pub fn starting_at(first: u32) -> Self {
        Interner { values: Vec::new(), numbers: HashMap::new(), first }
    }

    /// Returns the number of `key`, assigning the next one if it is new.
    pub fn intern(&mut self, key: K) -> u32 {
        if let Some(&number) = self.numbers.get(&key) {
            return number;
        }
        let number = self.first + self.values.len() as u32;
        self.values.push(key.clone());
        self.numbers.insert(key, number);
        number
    }

    /// Returns the number of `key` if it has one.
    pub fn get(&self, key: &K) -> Option<u32> {
        self.numbers.get(key).copied()
    }

    /// All values, in the order of their numbers.
    pub fn values(&self) -> &[K] {
        &self.values
    }
}
