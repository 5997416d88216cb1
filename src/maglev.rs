//! Lookup tables for Maglev consistent hashing (Eisenbud et al., "Maglev: A Fast and Reliable
//! Software Network Load Balancer", NSDI 2016, section 3.4), for use by `shaders/maglev_lb.wgsl`.

/// A backend of the load balancer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backend<'a> {
    /// Unique name. The backend's permutation is derived from it, so it must not change.
    pub name: &'a str,
    /// Share of the table relative to other backends; 0 for none.
    pub weight: u32,
}

/// The table size is not prime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the table size {0} is not prime")]
pub struct NotPrime(pub u32);

/// Builds the lookup table: each entry is the number of a backend, starting at 1, or 0 if no
/// backend has a weight. A backend's share of the entries is proportional to its weight. When a
/// backend is added or removed, few entries of the others change.
///
/// # Errors
/// [`NotPrime`]: only with a prime size is each backend's sequence a permutation of the entries.
/// 65537 is prime.
pub fn build_table(backends: &[Backend<'_>], size: u32) -> Result<Vec<u32>, NotPrime> {
    if !is_prime(size) {
        return Err(NotPrime(size));
    }
    let mut table = vec![0; size as usize];
    let Some(heaviest) = backends.iter().map(|backend| backend.weight).max().filter(|weight| *weight > 0) else {
        return Ok(table);
    };
    let mut permutations: Vec<Permutation> =
        (1..).zip(backends).map(|(number, backend)| Permutation::new(number, backend, size)).collect();
    let mut left = size;
    loop {
        // In each round the heaviest backend takes an entry; others do so in a fraction of the
        // rounds.
        for permutation in &mut permutations {
            permutation.credit += u64::from(permutation.weight);
            if permutation.credit < u64::from(heaviest) {
                continue;
            }
            permutation.credit -= u64::from(heaviest);
            permutation.take_next_free(&mut table);
            left -= 1;
            if left == 0 {
                return Ok(table);
            }
        }
    }
}

/// A backend's permutation of the table entries, and its progress.
struct Permutation {
    number: u32,
    weight: u32,
    credit: u64,
    next: u64,
    step: u64,
}

impl Permutation {
    fn new(number: u32, backend: &Backend<'_>, size: u32) -> Permutation {
        let [offset, skip] = [1, 2].map(|seed| hash(backend.name, seed));
        let size = u64::from(size);
        let step = if size == 2 { 1 } else { skip % (size - 1) + 1 };
        Permutation { number, weight: backend.weight, credit: 0, next: offset % size, step }
    }

    /// Takes the next free entry of the permutation. There must be one.
    fn take_next_free(&mut self, table: &mut [u32]) {
        let size = table.len() as u64;
        loop {
            let entry = &mut table[self.next as usize];
            self.next = (self.next + self.step) % size;
            if *entry == 0 {
                *entry = self.number;
                return;
            }
        }
    }
}

/// 64-bit FNV-1a of a name, mixed so that similar names get unrelated values.
fn hash(name: &str, seed: u64) -> u64 {
    let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let mut hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, fnv) ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // Finaliser of SplitMix64.
    hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ hash >> 31
}

fn is_prime(number: u32) -> bool {
    let number = u64::from(number);
    number >= 2
        && (2..).take_while(|divisor| divisor * divisor <= number).all(|divisor| !number.is_multiple_of(divisor))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE_SIZE: u32 = 65_537;

    fn backends<'a>(names: &'a [String], weight: impl Fn(usize) -> u32) -> Vec<Backend<'a>> {
        names.iter().enumerate().map(|(i, name)| Backend { name, weight: weight(i) }).collect()
    }

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|i| format!("10.0.0.{i}")).collect()
    }

    #[test]
    fn shares_are_proportional_to_weights() {
        let (names, weight) = (names(10), |i| [1, 2, 5, 0, 10][i % 5]);
        let table = build_table(&backends(&names, weight), TABLE_SIZE).unwrap();
        for (i, number) in (0..10).zip(1..) {
            let share = table.iter().filter(|entry| **entry == number).count() as f64;
            let wanted = f64::from(TABLE_SIZE) * f64::from(weight(i)) / 36.0;
            assert!((share - wanted).abs() <= wanted * 0.01, "{number}: {share} entries, not {wanted}");
        }
    }

    #[test]
    fn removing_a_backend_moves_few_entries_of_others() {
        let names = names(20);
        let all = build_table(&backends(&names, |_| 1), TABLE_SIZE).unwrap();
        let without = build_table(&backends(&names, |i| u32::from(i != 7)), TABLE_SIZE).unwrap();
        let moved = all.iter().zip(&without).filter(|(before, after)| **before != 8 && before != after).count();
        // Figure 12 of the paper: below 2 % if the table has at least 100 entries per backend.
        assert!(moved < TABLE_SIZE as usize / 50, "{moved}");
        assert!(!without.contains(&8));
    }

    #[test]
    fn no_backend_is_required_but_a_prime_size() {
        assert_eq!(build_table(&[], 7), Ok(vec![0; 7]));
        assert_eq!(build_table(&[Backend { name: "a", weight: 0 }], 7), Ok(vec![0; 7]));
        assert_eq!(build_table(&[Backend { name: "a", weight: u32::MAX }], 2), Ok(vec![1; 2]));
        for number in [0, 1, 9, 65_536] {
            assert_eq!(build_table(&[], number), Err(NotPrime(number)));
        }
    }
}
