//! Tests of prefix tables against a model, and of the memory that tries take.

use std::collections::BTreeMap;

use super::super::layout::{HEADER_WORDS, MAX_WORDS};
use super::*;
use crate::map::{MapFull, MapKind, Row, Table};

fn map(key: u32, value: u32, entries: u32) -> Declaration {
    Declaration::new("m", MapKind::Lpm, key, value, entries)
}

#[test]
fn a_table_behaves_like_a_btree_map() {
    let mut random = crate::testing::Random(1);
    let mut next = |below: u32| random.below(below.into()) as u32;
    for (words, read_only) in [(1, false), (4, false), (1, true), (4, true)] {
        let map = Declaration { read_only, ..map(words, 2, 300) };
        let (mut table, mut model) = (Table::new(&map, Vec::new()), BTreeMap::new());
        // A session's copy, to which all changes are written.
        let mut copy = vec![0; Layout::of(&map).words()];
        for round in 0..3000 {
            let length = next(32 * words + 1);
            let mut key = vec![0; words as usize];
            if length > 0 {
                key[next(length) as usize / 32] = next(1 << 5) << 27;
            }
            key = Prefix { address: left_aligned(&key) & prefix_mask(length), length }.key(&map);
            match next(3) {
                0 => assert_eq!(table.remove(&key), model.remove(&key).is_some()),
                1 => {
                    let value = vec![next(5), next(5)];
                    let is_new = !model.contains_key(&key);
                    match table.set(&key, &value) {
                        Ok(()) => _ = model.insert(key, value),
                        Err(MapFull) => assert!(is_new && model.len() == 300),
                    }
                }
                _ => assert_eq!(table.get(&key), model.get(&key).map(Vec::as_slice)),
            }
            if round % 50 == 0 {
                table.compact();
                let (at, words) = table.changes();
                copy[at..at + words.len()].copy_from_slice(words);
                table = Table::new(&map, copy.clone());
                assert_eq!(table.changes(), (0, &[][..]), "nothing has changed since");
            }
            if round % 10 == 0 {
                assert_eq!(table.claimed_slots() as usize, model.len());
                let rows: Vec<_> = model.iter().map(|(k, v)| Row { key: k.clone(), value: v.clone() }).collect();
                assert_eq!(table.rows(), rows);
            }
        }
        assert!(model.len() > 100, "{}", model.len());
    }
}

#[test]
fn a_new_value_changes_only_its_words() {
    let map = map(1, 2, 10);
    let mut table = Table::new(&map, Vec::new());
    table.set(&[0x0a00_0000, 8], &[1, 2]).unwrap();
    table.set(&[0, 0], &[3]).unwrap();
    let (at, image) = table.changes();
    assert_eq!((at, image[0]), (0, 2));
    let mut table = Table::new(&map, image.to_vec());
    table.set(&[0x0a00_0000, 8], &[5, 6]).unwrap();
    // The shortest prefix has the first entry.
    assert_eq!(table.changes(), (HEADER_WORDS as usize + 2, &[5, 6][..]));
    table.set(&[0x0a00_0000, 9], &[]).unwrap();
    assert_eq!(table.changes().1[HEADER_WORDS as usize..][..6], [3, 0, 5, 6, 0, 0], "and then all of it");
    // If entries are shared, a changed value changes all of it.
    let map = Declaration { read_only: true, ..map };
    let mut table = Table::new(&map, image.to_vec());
    table.set(&[0x0a00_0000, 8], &[1, 2]).unwrap();
    assert_eq!(table.changes().1, [1, 2]);
    table.set(&[0x0a00_0000, 8], &[3]).unwrap();
    assert_eq!((table.changes().0, table.changes().1.len()), (0, image.len()));
}

#[test]
fn invalid_prefixes_are_rejected_with_a_reason() {
    let v4 = map(1, 1, 10);
    let said = |map, key: &[u32]| check(map, key).unwrap_err().to_string();
    assert_eq!(said(&v4, &[1]), "a prefix of this map is 1 words of address and one word of length");
    assert_eq!(said(&v4, &[0, 33]), "the prefix length 33 exceeds the 32 bits of an address");
    assert_eq!(
        said(&v4, &[0x0a01_0000, 15]),
        "`10.1.0.0/15` has bits set beyond its length: did you mean `10.0.0.0/15`?"
    );
    let v6 = map(4, 1, 10);
    let key = [0x2001_0db8, 0, 0, 1, 64];
    assert_eq!(said(&v6, &key), "`2001:db8::1/64` has bits set beyond its length: did you mean `2001:db8::/64`?");
    let mut table = Table::new(&v6, Vec::new());
    assert_eq!((table.set(&key, &[1]), table.get(&key)), (Err(MapFull), None));
    assert!(!table.remove(&key));
    for good in [[0, 0], [0x8000_0000, 1], [u32::MAX, 32]] {
        assert_eq!(check(&v4, &good), Ok(()));
    }
    assert_eq!(check(&v6, &[u32::MAX, u32::MAX, u32::MAX, u32::MAX, 128]), Ok(()));
}

/// The worst cases fit into the memory: prefixes of full length, spread out, all in one group, and
/// in pairs.
#[test]
fn the_worst_case_fits_into_the_memory() {
    for words in [1, 4] {
        for entries in [1, 2, 255, 1024, 5000, 66_000 / words] {
            let map = map(words, 1, entries);
            let parts = TrieLayout::of(&map);
            let spread = |i: u32| u128::from(i.reverse_bits()) << 96;
            let shapes: [&dyn Fn(u32) -> u128; 6] = [
                &spread,
                &|i| u128::from(i) << (128 - address_bits(&map)),
                &|i| spread(i / 2) | u128::from(i % 2) << (128 - address_bits(&map)),
                &|i| spread(i / 5) | u128::from(i % 5 * 2 + 1) << (128 - address_bits(&map)),
                // Too many for one list, and far from the next: a list holds what they have in
                // common.
                &|i| spread(i / 4) | u128::from(i % 4) << (128 - address_bits(&map) / 2),
                &|i| {
                    spread(i / 4)
                        | u128::from(i % 4) << (128 - address_bits(&map))
                        | u128::from(i % 4) << (138 - address_bits(&map))
                },
            ];
            for shape in shapes {
                let prefix = |i| Prefix { address: shape(i), length: address_bits(&map) };
                let image = trie::build_image(&map, (0..entries).map(|i| (prefix(i), &[1][..])).collect());
                assert!(image.len() as u64 <= parts.end, "{words} words, {entries} entries: {}", image.len());
                assert_eq!(image[HEADER_END as usize] as usize, image.len());
            }
        }
    }
}

#[test]
fn memory_grows_with_entries_up_to_the_limit() {
    let bytes = |key, entries| 4 * Layout::of(&map(key, 1, entries)).words();
    assert!(bytes(1, 1000) < 170_000 && bytes(4, 1000) < 800_000, "{} {}", bytes(1, 1000), bytes(4, 1000));
    assert!(bytes(1, 1 << 20) < 128 << 20 && bytes(4, 190_000) < 128 << 20);
    assert_eq!([100, 1000, 2000, 100_000].map(|n| TrieLayout::of(&map(1, 1, n)).root_bits), [7, 7, 13, 19]);
    assert_eq!([100, 5000, 100_000, 1 << 20].map(|n| TrieLayout::of(&map(4, 1, n)).root_bits), [7, 13, 13, 19]);
    assert!(TrieLayout::of(&map(1, 64, 16 << 20)).end <= MAX_WORDS);
    assert!(TrieLayout::of(&map(4, 1, 16 << 20)).end > MAX_WORDS);
}
