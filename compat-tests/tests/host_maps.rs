//! Interoperation of the host's map code and filters: each finds the entries that the other has
//! written.

use std::collections::BTreeMap;
use std::sync::Arc;

use portcullis_compat_tests::{devices, texts};
use portcullis_core::device::{Device, DeviceError, LoadOptions};
use portcullis_core::map::Table;
use portcullis_core::packet::Batch;
use portcullis_core::program::Program;

/// Returns the filter. A packet consists of an operation (0: look up, 1: insert, 2: remove) and a
/// key; the filter replaces the operation by the first word of the value.
fn program(words: u32) -> Arc<Program> {
    let key = texts::wgsl_key(&(1..=words).map(|i| format!("load_le32(pkt, {}u)", 4 * i)).collect::<Vec<_>>());
    let text = format!(
        "//! map m: hash key={words} value=2 entries=600
         //! map numbers: array value=3 entries=50
         fn xdp_filter(pkt: u32) -> u32 {{
             let call = load_le32(pkt, 0u);
             let key = {key};
             var entry = MAP_NONE;
             if call == 0u {{ entry = m_find(key); }}
             if call == 1u {{ entry = m_insert(key); m_write(entry, 1u, 77u); }}
             if call == 2u {{ return select(XDP_DROP, XDP_PASS, m_remove(key)); }}
             store_le32(pkt, 0u, m_read(entry, 0u) + numbers_read(call, 2u));
             return select(XDP_PASS, XDP_DROP, entry == MAP_NONE);
         }}"
    );
    texts::in_wgsl("maps.wgsl", &text)
}

fn key(seed: u32, words: u32) -> Vec<u32> {
    (0..words).map(|i| seed.wrapping_mul(0x9e37_79b9).rotate_left(7 * i) ^ i).collect()
}

fn batch(call: u32, keys: &[Vec<u32>]) -> Batch {
    let packet = |key: &Vec<u32>| -> Vec<u8> {
        [call].iter().chain(key).flat_map(|word| word.to_le_bytes()).chain([0; 12]).collect()
    };
    Batch::from_packets(&keys.iter().map(packet).collect::<Vec<_>>()).unwrap()
}

#[test]
fn host_and_filters_find_each_others_entries() {
    devices::on_each("maps, host and filters", |device: &Arc<dyn Device>| {
        for words in [1, 2, 5, 10] {
            let program = program(words);
            let map = &program.maps()[0];
            let mut session = device.load(&program, &LoadOptions::default()).unwrap();
            let mut model = BTreeMap::new();
            let mut table = Table::new(map, session.map_words(0).unwrap());
            for seed in 0..300 {
                table.set(&key(seed, words), &[seed, 1]).unwrap();
                model.insert(key(seed, words), vec![seed, 1]);
            }
            for seed in (0..300).step_by(7) {
                assert!(table.remove(&key(seed, words)));
                model.remove(&key(seed, words));
            }
            let (at, changed) = table.changes();
            session.set_map_words(0, at, changed).unwrap();
            session.set_map_words(1, 16 + 2, &[1000]).unwrap();

            let keys: Vec<_> = (0..400).map(|seed| key(seed, words)).collect();
            let done = session.run(batch(0, &keys)).unwrap();
            for (seed, (packet, verdict)) in done.batch.packets().zip(done.verdicts.actions()).enumerate() {
                let expected = model.get(&keys[seed]);
                assert_eq!(*verdict == 2, expected.is_some(), "key {seed} of {words} words");
                let value = u32::from_le_bytes(packet[..4].try_into().unwrap());
                assert_eq!(value, 1000 + expected.map_or(0, |value| value[0]));
            }

            let made = session.run(batch(1, &keys[250..350])).unwrap();
            assert!(made.verdicts.actions().iter().all(|verdict| *verdict == 2));
            let removed = session.run(batch(2, &keys[..50])).unwrap();
            for (seed, verdict) in removed.verdicts.actions().iter().enumerate() {
                assert_eq!(*verdict == 2, model.remove(&keys[seed]).is_some(), "key {seed} of {words} words");
            }
            for key in &keys[250..350] {
                model.entry(key.clone()).or_insert(vec![0, 0])[1] = 77;
            }
            let mut table = Table::new(map, session.map_words(0).unwrap());
            let rows =
                |table: &Table| table.rows().into_iter().map(|row| (row.key, row.value)).collect::<BTreeMap<_, _>>();
            assert_eq!(rows(&table), model, "{words} words");
            assert!(table.claimed_slots() as usize > model.len(), "removed keys keep their slots");
            table.compact();
            assert_eq!((rows(&table), table.claimed_slots() as usize), (model.clone(), model.len()));
            session.set_map_words(0, table.changes().0, table.changes().1).unwrap();
            let done = session.run(batch(0, &keys)).unwrap();
            let found = done.verdicts.actions().iter().filter(|verdict| **verdict == 2).count();
            assert_eq!(found, model.len());

            let (all, few) = (session.map_words(0).unwrap(), session.map_words_at(0, 17, 5).unwrap());
            assert_eq!(few, all[17..22]);
            assert_eq!(session.map_words_at(0, all.len(), 0).unwrap(), [0_u32; 0]);
            let no_map = [session.map_words(2).map(drop), session.map_words_at(2, 0, 0).map(drop)];
            for refused in no_map.into_iter().chain([session.set_map_words(2, 0, &[])]) {
                let error = refused.unwrap_err();
                assert!(matches!(&error, DeviceError::Refused(text) if text.contains("no map 2")), "{error}");
            }
            let end = table.changes().1.len();
            for (at, words) in [(end - 1, 2), (end + 1, 0), (usize::MAX, 1)] {
                let read = session.map_words_at(0, at, words).map(drop);
                for refused in [read, session.set_map_words(0, at, &[1, 2][..words])] {
                    let error = refused.unwrap_err();
                    assert!(
                        matches!(&error, DeviceError::Refused(text) if text.contains("lie outside map 0, which has")),
                        "{error}"
                    );
                }
            }
        }
    });
}
