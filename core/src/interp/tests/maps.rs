//! The prelude's map functions, compared with Rust's collections.

use std::collections::HashMap;

use super::{Random, program};
use crate::device::{Device, LoadOptions, Session};
use crate::interp::InterpDevice;
use crate::map::Accumulation;
use crate::packet::Batch;

fn session(text: &str) -> Box<dyn Session> {
    InterpDevice::new().load(&program(text, 32_768), &LoadOptions::default()).unwrap()
}

/// Runs packets of words, and returns the packets as the filter left them.
fn run(session: &mut dyn Session, packets: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let bytes = |words: &Vec<u32>| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let batch = Batch::from_packets(&packets.iter().map(bytes).collect::<Vec<_>>()).unwrap();
    let done = session.run(batch).unwrap();
    let words = |packet: &[u8]| packet.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
    done.batch.packets().map(words).collect()
}

/// A filter whose packets encode map calls: function, word index, two arguments, then the key. The
/// filter stores the result in the first word.
fn calls(key: u32, value: u32, entries: u32) -> String {
    let words: Vec<String> = (0..key).map(|i| format!("load_le32(pkt, {}u)", 16 + 4 * i)).collect();
    let words = words.join(", ");
    let made = match key {
        1 => words,
        2..=4 => format!("vec{key}<u32>({words})"),
        _ => format!("array<u32, {key}>({words})"),
    };
    format!(
        "//! map m: hash key={key} value={value} entries={entries}
        fn xdp_filter(pkt: u32) -> u32 {{
            let key = {made};
            let word = load_le32(pkt, 4u);
            let a = load_le32(pkt, 8u);
            let b = load_le32(pkt, 12u);
            var result = 0u;
            switch load_le32(pkt, 0u) {{
                case 0u: {{ result = select(1u, 0u, m_find(key) == MAP_NONE); }}
                case 1u: {{
                    let entry = m_insert(key);
                    result = select(select(1u, 2u, map_is_new(entry)), 0u, entry == MAP_FULL);
                }}
                case 2u: {{ result = select(0u, 1u, m_remove(key)); }}
                case 3u: {{ result = m_read(m_find(key), word); }}
                case 4u: {{ m_write(m_find(key), word, a); }}
                case 5u: {{ result = m_add(m_find(key), word, a); }}
                default: {{ result = m_compare_exchange(m_find(key), word, a, b); }}
            }}
            store_le32(pkt, 0u, result);
            return XDP_PASS;
        }}"
    )
}

#[test]
fn hash_maps_behave_like_rusts() {
    let mut random = Random(7);
    for key in 1..=10 {
        let mut session = session(&calls(key, 3, 40));
        let mut model: HashMap<Vec<u32>, [u32; 3]> = HashMap::new();
        for _ in 0..20 {
            let (mut packets, mut expected) = (Vec::new(), Vec::new());
            for _ in 0..100 {
                // Keys that differ in a single word, some in its highest bit only, and often
                // repeat.
                let mut name = vec![0_u32; key as usize];
                name[random.below(u64::from(key)) as usize] = [0, 1, 0x8000_0000, u32::MAX][random.below(4) as usize];
                let (call, word, a, b) = (random.below(7), random.below(4), random.below(3), random.next() as u32);
                let mut packet = vec![call as u32, word as u32, a as u32, b];
                packet.extend(&name);
                packets.push(packet);
                let word = word as usize;
                let value = model.get_mut(&name).and_then(|value| value.get_mut(word));
                let before = value.as_ref().map_or(0, |value| **value);
                expected.push(match call {
                    0 => u32::from(model.contains_key(&name)),
                    1 => {
                        if model.insert(name.clone(), *model.get(&name).unwrap_or(&[0; 3])).is_none() {
                            2
                        } else {
                            1
                        }
                    }
                    2 => u32::from(model.remove(&name).is_some()),
                    3 => before,
                    4 => {
                        if let Some(value) = value {
                            *value = a as u32;
                        }
                        0
                    }
                    5 => {
                        if let Some(value) = value {
                            *value = before.wrapping_add(a as u32);
                        }
                        before
                    }
                    _ => {
                        if let Some(value) = value.filter(|value| **value == a as u32) {
                            *value = b;
                        }
                        before
                    }
                });
            }
            let results: Vec<u32> = run(&mut *session, &packets).iter().map(|packet| packet[0]).collect();
            assert_eq!(results, expected, "keys of {key} words");
        }
    }
}

#[test]
fn inserting_into_a_full_map_fails_and_loses_no_entry() {
    let mut session = session(&calls(2, 1, 70));
    let insert: Vec<Vec<u32>> = (0..200).map(|i| vec![1, 0, 0, 0, i, 5]).collect();
    let results: Vec<u32> = run(&mut *session, &insert).iter().map(|packet| packet[0]).collect();
    let taken = results.iter().filter(|result| **result == 2).count();
    // Capacity is at least the declared number of entries, and at most 7/10 of a power of two.
    assert!((70..=90).contains(&taken), "{taken}");
    assert!(results[..taken].iter().all(|result| *result == 2) && results[taken..].iter().all(|result| *result == 0));
    let find: Vec<Vec<u32>> = (0..200).map(|i| vec![0, 0, 0, 0, i, 5]).collect();
    let found = run(&mut *session, &find).iter().filter(|packet| packet[0] == 1).count();
    assert_eq!(found, taken);
}

#[test]
fn array_accesses_out_of_range_have_no_effect() {
    let text = "
        //! map values: array value=2 entries=3
        //! map sums: counter entries=2
        fn xdp_filter(pkt: u32) -> u32 {
            let index = load_le32(pkt, 0u);
            sums_add(index, 0xffffffffu);
            values_write(index, 1u, values_read(index, 1u) + 5u);
            store_le32(pkt, 0u, values_add(index, 1u, 1u));
            store_le32(pkt, 4u, values_read(index, 0u) + values_read(index, 2u));
            store_le32(pkt, 8u, values_compare_exchange(index, 1u, 6u, 100u));
            return XDP_PASS;
        }";
    let mut session = session(text);
    let results = run(&mut *session, &[2, 2, 0, 3, u32::MAX].map(|index| vec![index, 9, 9, 9]));
    assert_eq!(results, [[5, 0, 6, 9], [105, 0, 106, 9], [5, 0, 6, 9], [0, 0, 0, 9], [0, 0, 0, 9]]);
}

#[test]
fn accumulations_behave_like_rusts() {
    const ENTRIES: usize = 3;
    const WORDS: usize = 3;
    let calls: String = Accumulation::ALL
        .iter()
        .enumerate()
        .map(|(number, operation)| {
            format!("case {number}u: {{ m_{0}(key, word, value); a_{0}(index, word, value); }}\n", operation.name())
        })
        .collect();
    let text = format!(
        "//! map m: hash key=1 value={WORDS} entries={ENTRIES}
        //! map a: array value={WORDS} entries={ENTRIES}
        fn xdp_filter(pkt: u32) -> u32 {{
            let index = load_le32(pkt, 4u);
            let word = load_le32(pkt, 8u);
            let value = load_le32(pkt, 12u);
            // An index out of range finds no entry.
            var key = MAP_NONE;
            if index < {ENTRIES}u {{ key = m_insert(index); }}
            switch load_le32(pkt, 0u) {{
                {calls}
                default: {{}}
            }}
            for (var i = 0u; i < {WORDS}u; i++) {{
                store_le32(pkt, 16u + i * 8u, m_read(key, i));
                store_le32(pkt, 20u + i * 8u, a_read(index, i));
            }}
            return XDP_PASS;
        }}"
    );
    let mut session = session(&text);
    let (mut random, mut model) = (Random(3), [[0_u32; WORDS]; ENTRIES + 1]);
    let (mut packets, mut expected) = (Vec::new(), Vec::new());
    for _ in 0..3000 {
        let call = random.below(Accumulation::ALL.len() as u64) as usize;
        // Entries and words are one too many.
        let (index, word) = (random.below(ENTRIES as u64 + 1) as usize, random.below(WORDS as u64 + 1) as usize);
        let value = [0, 1, random.below(100) as u32, u32::MAX, random.next() as u32][random.below(5) as usize];
        packets.push([vec![call as u32, index as u32, word as u32, value], vec![9; 2 * WORDS]].concat());
        let words = &mut model[index];
        let is_wide = Accumulation::ALL[call] == Accumulation::AddWide;
        if index < ENTRIES && word + usize::from(is_wide) < WORDS {
            let was = words[word];
            words[word] = match Accumulation::ALL[call] {
                Accumulation::AddWide => {
                    let sum = (u64::from(words[word + 1]) << 32 | u64::from(was)).wrapping_add(u64::from(value));
                    words[word + 1] = (sum >> 32) as u32;
                    sum as u32
                }
                Accumulation::AddSaturating => was.saturating_add(value),
                Accumulation::Min => was.min(value),
                Accumulation::MinNonzero => [was, value].into_iter().filter(|&number| number != 0).min().unwrap_or(0),
                Accumulation::Max => was.max(value),
                Accumulation::Or => was | value,
            };
        }
        expected.push(words.iter().flat_map(|&word| [word, word]).collect::<Vec<u32>>());
    }
    for (number, (packet, expected)) in run(&mut *session, &packets).iter().zip(&expected).enumerate() {
        assert_eq!(&packet[4..], expected, "{number}: {:?}", &packets[number][..4]);
    }
}

/// An address, left-aligned, and a prefix length in bits.
type Prefix = (u128, u32);

fn first_bits(length: u32) -> u128 {
    u128::MAX.checked_shl(128 - length).unwrap_or(0)
}

/// Prefixes of addresses with `bits` bits, in shapes that are hard for a trie.
fn prefixes(random: &mut Random, bits: u32, count: u32) -> Vec<Prefix> {
    let address = |random: &mut Random| (0..4).fold(0_u128, |all, _| all << 32 | u128::from(random.next() as u32));
    let (base, mut all) = (address(random), Vec::new());
    while all.len() < count as usize {
        let length = random.below(u64::from(bits) + 1) as u32;
        let (address, length) = match random.below(6) {
            0 => (address(random), length),
            // Nested prefixes.
            1 => (base, length),
            // Adjacent prefixes.
            2 => (base.wrapping_add((random.below(8) as u128) << (128 - length.max(1))), length.max(1)),
            // All below one entry of the root.
            3 => (base ^ address(random) >> 20, bits.min(20 + length)),
            // Full-length prefixes.
            4 => (base ^ u128::from(random.next() as u32) << (128 - bits), bits),
            _ => (address(random), [0, 1, 12, 18, 24, bits - 1][random.below(6) as usize]),
        };
        all.push((address & first_bits(length), length));
    }
    all
}

#[test]
fn the_longest_matching_prefix_is_found() {
    let mut random = Random(11);
    for (words, entries) in [(1, 200), (1, 3000), (1, 66_000), (4, 200), (4, 5000), (4, 263_000)] {
        let bits = 32 * words;
        let (key, of) = match words {
            1 => ("load_be32(pkt, 0u)", "u32"),
            _ => ("vec4(load_be32(pkt, 0u), load_be32(pkt, 4u), load_be32(pkt, 8u), load_be32(pkt, 12u))", "vec4<u32>"),
        };
        let mut session = session(&format!(
            "//! map m: lpm key={words} value=2 entries={entries}
            fn xdp_filter(pkt: u32) -> u32 {{
                let key: {of} = {key};
                let entry = m_find(key);
                store_le32(pkt, 16u, select(1u, 0u, entry == MAP_NONE));
                store_le32(pkt, 20u, m_read(entry, 0u));
                store_le32(pkt, 24u, m_add(entry, 1u, 1u));
                return XDP_PASS;
            }}"
        ));
        let declared = crate::map::Declaration::new("m", crate::map::MapKind::Lpm, words, 2, entries);
        let mut model: HashMap<Prefix, [u32; 2]> = HashMap::new();
        for round in 0..3 {
            let mut table = crate::map::Table::new(&declared, session.map_words(0).unwrap());
            let key = |(address, length): Prefix| -> Vec<u32> {
                (0..words).map(|i| (address >> (96 - 32 * i)) as u32).chain([length]).collect()
            };
            for (prefix, value) in prefixes(&mut random, bits, 150).into_iter().zip(0..) {
                if model.len() == entries as usize && !model.contains_key(&prefix) {
                    continue;
                }
                table.set(&key(prefix), &[value + 1000 * round, 0]).unwrap();
                model.insert(prefix, [value + 1000 * round, 0]);
            }
            let known: Vec<Prefix> = model.keys().copied().collect();
            for prefix in known.iter().take(40 * round as usize) {
                assert!(table.remove(&key(*prefix)));
                model.remove(prefix);
            }
            let (at, changed) = table.changes();
            session.set_map_words(0, at, changed).unwrap();
            // At the bounds of prefixes, just beyond them, and elsewhere.
            let addresses = known.iter().flat_map(|(address, length)| {
                let last = address | !first_bits(*length);
                let step = 1_u128 << (128 - bits);
                [*address, last, address.wrapping_sub(step), last.wrapping_add(1), u128::from(*length) << 122]
            });
            let addresses: Vec<u128> = addresses.map(|address| address & first_bits(bits)).collect();
            let packets: Vec<Vec<u32>> = addresses
                .iter()
                .map(|address| (0..4).map(|i| ((address >> (96 - 32 * i)) as u32).swap_bytes()).chain([9; 3]).collect())
                .collect();
            for (address, packet) in addresses.iter().zip(run(&mut *session, &packets)) {
                let fits = |(prefix, length): &&Prefix| (address ^ prefix) & first_bits(*length) == 0;
                let longest = model.keys().filter(fits).max_by_key(|(_, length)| *length).copied();
                let expected = longest.map_or([0; 3], |prefix| {
                    let [value, hits] = model[&prefix];
                    [1, value, hits]
                });
                assert_eq!(packet[4..], expected, "{address:#034x} of {words} words, {longest:x?}");
                if let Some([_, hits]) = longest.and_then(|prefix| model.get_mut(&prefix)) {
                    *hits += 1;
                }
            }
        }
        // Values that filters wrote stay with their prefix when the trie is rebuilt.
        let table = crate::map::Table::new(&declared, session.map_words(0).unwrap());
        for (prefix, value) in model {
            let key = (0..words).map(|i| (prefix.0 >> (96 - 32 * i)) as u32).chain([prefix.1]).collect::<Vec<u32>>();
            assert_eq!(table.get(&key), Some(&value[..]), "{prefix:x?}");
        }
    }
}

/// If the filter only reads, prefixes with equal values share an entry until one of them changes.
#[test]
fn prefixes_that_share_an_entry_split_when_a_value_changes() {
    let mut random = Random(12);
    let mut session = session(
        "//! map m: lpm key=1 value=2 entries=300
        fn xdp_filter(pkt: u32) -> u32 {
            let entry = m_find(load_be32(pkt, 0u));
            if entry == MAP_NONE { return XDP_DROP; }
            store_le32(pkt, 4u, entry);
            store_le32(pkt, 8u, m_read(entry, 0u));
            store_le32(pkt, 12u, m_read(entry, 1u));
            return XDP_PASS;
        }",
    );
    let declared = crate::map::Declaration::new("m", crate::map::MapKind::Lpm, 1, 2, 300);
    let declared = crate::map::Declaration { read_only: true, ..declared };
    let mut model: HashMap<Prefix, [u32; 2]> = HashMap::new();
    let mut known = prefixes(&mut random, 32, 250);
    known.sort_unstable();
    known.dedup();
    for round in 0..4 {
        let mut table = crate::map::Table::new(&declared, session.map_words(0).unwrap());
        for prefix in &known {
            if round == 0 || random.below(3) == 0 {
                let value = [random.below(3), 7 + random.below(2)].map(|word| word as u32);
                table.set(&[(prefix.0 >> 96) as u32, prefix.1], &value).unwrap();
                model.insert(*prefix, value);
            }
        }
        let (at, changed) = table.changes();
        session.set_map_words(0, at, changed).unwrap();
        let addresses: Vec<u32> =
            known.iter().flat_map(|(address, _)| [0, 1, !0].map(|off| (address >> 96) as u32 ^ off)).collect();
        let packets: Vec<Vec<u32>> = addresses.iter().map(|address| vec![address.swap_bytes(), 9, 9, 9]).collect();
        let mut entries = std::collections::HashSet::new();
        for (address, packet) in addresses.iter().zip(run(&mut *session, &packets)) {
            let fits = |(prefix, length): &&Prefix| (u128::from(*address) << 96 ^ prefix) & first_bits(*length) == 0;
            match model.keys().filter(fits).max_by_key(|(_, length)| *length) {
                Some(prefix) => {
                    assert_eq!(packet[2..], model[prefix], "{address:#x}, {prefix:x?}, round {round}");
                    entries.insert(packet[1]);
                }
                None => assert_eq!(packet[1..], [9; 3]),
            }
        }
        assert!(entries.len() <= 6, "six distinct values, but entries {entries:?}");
    }
}

#[test]
fn lookups_in_corrupt_maps_stay_in_bounds() {
    let mut random = Random(5);
    for (words, key) in [(1, "load_be32(pkt, 0u)"), (4, "vec4(load_be32(pkt, 0u), 1u, 2u, load_be32(pkt, 0u))")] {
        let mut session = session(&format!(
            "//! map m: lpm key={words} value=1 entries=100
            fn xdp_filter(pkt: u32) -> u32 {{
                let entry = m_find({key});
                store_le32(pkt, 0u, m_read(entry, 0u) + m_add(entry, 0u, 1u));
                return XDP_PASS;
            }}"
        ));
        for kind in 0..4 {
            let garbage = |_| {
                let word = random.next() as u32;
                [word, u32::MAX, word | 0x8000_0000, 0x8000_0000 | (word % 3000)][kind]
            };
            let count = session.map_words(0).unwrap().len();
            let words: Vec<u32> = (0..count).map(garbage).collect();
            session.set_map_words(0, 0, &words).unwrap();
            let mut random = Random(6);
            let packets: Vec<Vec<u32>> = (0..200).map(|_| vec![random.next() as u32, 0, 0, 0]).collect();
            // The interpreter panics on an access out of bounds.
            run(&mut *session, &packets);
        }
    }
}

#[test]
fn unused_map_functions_do_not_prevent_parameters() {
    for (key, value) in [(1, 0), (4, 2), (7, 1)] {
        session(&format!(
            "//! map m: hash key={key} value={value} entries=9
            override limit: u32 = 3u;
            fn xdp_filter(pkt: u32) -> u32 {{ return limit; }}"
        ));
    }
}
