//! Lookup tables for Maglev's consistent hashing (Eisenbud and others, "Maglev: A Fast and Reliable Software Network Load
//! Balancer", NSDI 2016, section 3.4), as `shaders/maglev_lb.wgsl` looks them up.

/// A backend as the table has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backend<'a> {
    /// What it is called. Its places depend on it, so it stays the same for as long as the backend is the same.
    pub name: &'a str,
    /// How much it takes, beside the others; 0 for nothing.
    pub weight: u32,
}

/// A table cannot have so many places.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a table of {0} places: their number has to be a prime")]
pub struct NotPrime(pub u32);

/// The table: for each place the number of a backend, from 1 on, or 0 everywhere where there is none to take anything. Each
/// has a share of places as its weight says. Where one comes or goes, few places of the others change.
///
/// # Errors
/// [`NotPrime`]: only then does each backend meet all places in an order of its own. 65537 is a prime.
pub fn build_table(backends: &[Backend<'_>], places: u32) -> Result<Vec<u32>, NotPrime> {
    if !is_prime(places) {
        return Err(NotPrime(places));
    }
    let mut table = vec![0; places as usize];
    let Some(heaviest) = backends.iter().map(|backend| backend.weight).max().filter(|weight| *weight > 0) else {
        return Ok(table);
    };
    let mut turns: Vec<Turns> =
        (1..).zip(backends).map(|(number, backend)| Turns::new(number, backend, places)).collect();
    let mut left = places;
    loop {
        // In each round the heaviest has a turn, and the others have theirs in as many rounds as their weight says.
        for turn in &mut turns {
            turn.credit += u64::from(turn.weight);
            if turn.credit < u64::from(heaviest) {
                continue;
            }
            turn.credit -= u64::from(heaviest);
            turn.take_next_free(&mut table);
            left -= 1;
            if left == 0 {
                return Ok(table);
            }
        }
    }
}

/// A backend's way through all places.
struct Turns {
    number: u32,
    weight: u32,
    credit: u64,
    next: u64,
    step: u64,
}

impl Turns {
    fn new(number: u32, backend: &Backend<'_>, places: u32) -> Turns {
        let [offset, skip] = [1, 2].map(|seed| hash(backend.name, seed));
        let places = u64::from(places);
        let step = if places == 2 { 1 } else { skip % (places - 1) + 1 };
        Turns { number, weight: backend.weight, credit: 0, next: offset % places, step }
    }

    /// There is a free place.
    fn take_next_free(&mut self, table: &mut [u32]) {
        let places = table.len() as u64;
        loop {
            let place = &mut table[self.next as usize];
            self.next = (self.next + self.step) % places;
            if *place == 0 {
                *place = self.number;
                return;
            }
        }
    }
}

/// FNV-1a of 64 bits of a name, mixed so that names that differ little do not stand side by side.
fn hash(name: &str, seed: u64) -> u64 {
    let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let mut hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, fnv) ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // SplitMix64's finaliser.
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

    const PLACES: u32 = 65_537;

    fn backends<'a>(names: &'a [String], weight: impl Fn(usize) -> u32) -> Vec<Backend<'a>> {
        names.iter().enumerate().map(|(i, name)| Backend { name, weight: weight(i) }).collect()
    }

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|i| format!("10.0.0.{i}")).collect()
    }

    #[test]
    fn shares_are_as_weights_say() {
        let (names, weight) = (names(10), |i| [1, 2, 5, 0, 10][i % 5]);
        let table = build_table(&backends(&names, weight), PLACES).unwrap();
        for (i, number) in (0..10).zip(1..) {
            let share = table.iter().filter(|place| **place == number).count() as f64;
            let wanted = f64::from(PLACES) * f64::from(weight(i)) / 36.0;
            assert!((share - wanted).abs() <= wanted * 0.01, "{number}: {share} places, not {wanted}");
        }
    }

    #[test]
    fn the_places_of_others_stay_when_one_goes() {
        let names = names(20);
        let all = build_table(&backends(&names, |_| 1), PLACES).unwrap();
        let without = build_table(&backends(&names, |i| u32::from(i != 7)), PLACES).unwrap();
        let moved = all.iter().zip(&without).filter(|(before, after)| **before != 8 && before != after).count();
        // The paper's figure 12: below two in a hundred where places are a hundred times the backends and more.
        assert!(moved < PLACES as usize / 50, "{moved}");
        assert!(!without.contains(&8));
    }

    #[test]
    fn there_need_not_be_a_backend_but_a_prime() {
        assert_eq!(build_table(&[], 7), Ok(vec![0; 7]));
        assert_eq!(build_table(&[Backend { name: "a", weight: 0 }], 7), Ok(vec![0; 7]));
        assert_eq!(build_table(&[Backend { name: "a", weight: u32::MAX }], 2), Ok(vec![1; 2]));
        for number in [0, 1, 9, 65_536] {
            assert_eq!(build_table(&[], number), Err(NotPrime(number)));
        }
    }
}
