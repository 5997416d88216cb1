use std::collections::BTreeMap;

use portcullis_core::map::Table;

use super::super::insert_entries;
use super::*;

fn map(name: &str, kind: MapKind, key: u32, value: u32, entries: u32) -> Declaration {
    Declaration::new(name, kind, key, value, entries)
}

fn maps() -> Vec<Declaration> {
    vec![
        map("flows", MapKind::Hash, 2, 3, 50),
        map("settings", MapKind::Array, 1, 2, 9),
        map("seen", MapKind::Hash, 5, 0, 20),
        map("sums", MapKind::Counter, 1, 2, 7),
    ]
}

type Model = BTreeMap<Vec<u32>, Vec<u32>>;

/// Content of the maps: for arrays and counters, the entries that are not zero.
fn models() -> Vec<Model> {
    let flows = (0..30_u32).map(|n| (vec![n.wrapping_mul(0x9e37_79b9), n], vec![n, 0, u32::MAX - n]));
    let settings = [(vec![2], vec![0, 7]), (vec![8], vec![1, 0])];
    let seen = (0..3).map(|n| (vec![n, 0, u32::MAX, 1, n], Vec::new()));
    let sums = [(vec![0], vec![5, 0]), (vec![6], vec![0, 1])];
    vec![flows.collect(), settings.into(), seen.collect(), sums.into()]
}

fn memory(map: &Declaration, model: &Model) -> Vec<u32> {
    let mut table = Table::new(map, Vec::new());
    model.iter().for_each(|(key, value)| table.set(key, value).unwrap());
    let mut words = vec![0; portcullis_core::map::layout::Layout::of(map).words()];
    let (at, changed) = table.changes();
    words[at..at + changed.len()].copy_from_slice(changed);
    words
}

fn written(maps: &[Declaration], models: &[Model]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes, maps.len()).unwrap();
    maps.iter().zip(models).for_each(|(map, model)| writer.write_map(map, &memory(map, model)).unwrap());
    writer.finish().unwrap();
    bytes
}

fn model(entries: &Entries) -> Model {
    entries.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

/// Encodes words as docs/reference/map-memory.md specifies.
fn as_specified(words: &[u32]) -> Vec<u8> {
    let mut bytes = b"portcullis state".to_vec();
    words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    sealed(bytes)
}

fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let words = bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
    let sum = words.fold(0xcbf2_9ce4_8422_2325_u64, |sum, word| (sum ^ u64::from(word)).wrapping_mul(0x100_0000_01b3));
    bytes.extend(sum.to_le_bytes());
    bytes
}

#[test]
fn state_survives_writing_and_reading() {
    let (maps, models) = (maps(), models());
    let bytes = written(&maps, &models);
    let read_again: Vec<Model> = read(&maps, &bytes).unwrap().iter().map(model).collect();
    assert_eq!(read_again, models);
    // The filter may declare the maps in another order.
    let turned: Vec<Declaration> = maps.iter().rev().cloned().collect();
    let read_again: Vec<Model> = read(&turned, &bytes).unwrap().iter().rev().map(model).collect();
    assert_eq!(read_again, models);
}

#[test]
fn files_match_the_specification() {
    let maps = [map("ab", MapKind::Hash, 1, 2, 10), map("count", MapKind::Counter, 1, 2, 3)];
    let models = [Model::from([(vec![9], vec![1, 2]), (vec![3], vec![0, 0])]), [(vec![1], vec![u32::MAX, 4])].into()];
    let (ab, coun, t) = (0x0000_6261, 0x6e75_6f63, 0x74);
    let version_and_maps = [1, 2];
    let hash = [1, 1, 2, 10, 2, 2, ab, 3, 0, 0, 9, 1, 2];
    let counter = [4, 1, 2, 3, 1, 5, coun, t, 1, u32::MAX, 4];
    let wanted = as_specified(&[&version_and_maps[..], &hash, &counter].concat());
    assert_eq!(written(&maps, &models), wanted);
    let read_again: Vec<Model> = read(&maps, &wanted).unwrap().iter().map(model).collect();
    assert_eq!(read_again, models);
}

#[test]
fn maps_may_change_their_capacity() {
    let (maps, models) = (maps(), models());
    let bytes = written(&maps, &models);
    let resized = |entries: [u32; 4]| -> Vec<Result<Model, String>> {
        let maps: Vec<_> =
            maps.iter().zip(entries).map(|(map, entries)| Declaration { entries, ..map.clone() }).collect();
        let all = read(&maps, &bytes).unwrap();
        let each = maps.iter().zip(&all).map(|(map, entries)| {
            let mut table = Table::new(map, Vec::new());
            insert_entries(&mut table, entries).map_err(|number| no_room_error(map, entries, number).to_string())?;
            let rows = table.rows().into_iter().map(|row| (row.key, row.value));
            Ok(rows.filter(|(_, value)| map.kind == MapKind::Hash || value.iter().any(|word| *word != 0)).collect())
        });
        each.collect()
    };
    let all: Vec<Result<Model, String>> = models.into_iter().map(Ok).collect();
    assert_eq!(resized([1000, 10, 4000, 8]), all);
    assert_eq!(resized([30, 9, 3, 7]), all, "just enough");
    let short = |map: &str, what: &str| {
        Err(format!("{map} {what}; increase the number of entries, or remove the file to start over"))
    };
    let few = resized([10, 8, 3, 6]);
    assert_eq!(few[0], short("the map `flows` has 30 entries in the file,", "but entries=10 in the filter"));
    assert_eq!(
        few[1],
        short("entry 8 of the map `settings`", "is not zero, but the map has too few entries (entries=8)")
    );
    assert_eq!(few[3], short("entry 6 of the map `sums`", "is not zero, but the map has too few entries (entries=6)"));
}

#[test]
fn differing_maps_are_reported_by_name() {
    let (ours, bytes) = (maps(), written(&maps(), &models()));
    let refused = |change: fn(&mut Vec<Declaration>), words: &[&str]| {
        let mut maps = ours.clone();
        change(&mut maps);
        let error = read(&maps, &bytes).unwrap_err();
        assert!(matches!(error, StateError::MapsDiffer(_)));
        words.iter().for_each(|word| assert!(error.to_string().contains(word), "{error}"));
    };
    refused(|maps| maps[0].value = 4, &["`flows`", "`hash key=2 value=3`", "`hash key=2 value=4`"]);
    refused(|maps| maps[2].key = 4, &["`seen`", "`hash key=5 value=0`", "`hash key=4 value=0`"]);
    refused(|maps| maps[1].kind = MapKind::Counter, &["`settings`", "`array value=2`", "`counter`"]);
    refused(
        |maps| maps[3].name = "summs".into(),
        &["it has a map `sums` (counter), but the filter has no map of this name"],
    );
    refused(|maps| maps.push(map("more", MapKind::Array, 1, 1, 1)), &["it lacks the filter's map `more`"]);
    refused(Vec::clear, &["it has a map `flows` (hash key=2 value=3)"]);
}

/// Truncation and flipped bits are rejected without a panic.
#[test]
fn damage_is_detected() {
    let (maps, bytes) = (maps(), written(&maps(), &models()));
    for length in 0..bytes.len() {
        let error = read(&maps, &bytes[..length]).unwrap_err();
        assert!(matches!(error, StateError::NotAStateFile | StateError::Damaged(_)), "{length} bytes: {error}");
    }
    for bit in 0..8 * bytes.len() {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(read(&maps, &changed).is_err(), "bit {bit}");
    }
    let longer = [&bytes[..], &[0; 4]].concat();
    assert!(matches!(read(&maps, &longer), Err(StateError::Damaged(_))));
}

/// Damage with a valid checksum must not cause a panic.
#[test]
fn invalid_content_with_a_valid_checksum_does_not_panic() {
    let (maps, bytes) = (maps(), written(&maps(), &models()));
    let content = &bytes[..bytes.len() - 8];
    let mut refused = 0;
    for at in (16..content.len()).step_by(4) {
        for word in [0, 1, 2, 5, 0x7fff_ffff, u32::MAX] {
            let mut changed = content.to_vec();
            changed[at..at + 4].copy_from_slice(&word.to_le_bytes());
            refused += usize::from(read(&maps, &sealed(changed)).is_err());
        }
        refused += usize::from(read(&maps, &sealed(content[..at].to_vec())).is_err());
    }
    // All truncated files, and errors in the headers of four maps.
    assert!(refused > content.len() / 4 - 4 + 4 * 6, "{refused}");
    let all = [&[1, 2][..], &[4, 1, 2, 7, 0, 1, 0x61], &[4, 1, 2, 7, 0, 1, 0x61]].concat();
    let twice = read(&[map("a", MapKind::Counter, 1, 2, 7)], &as_specified(&all));
    assert_eq!(twice, Err(StateError::Damaged("a map occurs twice")));
}

#[test]
fn other_files_and_versions_are_distinguished() {
    assert_eq!(read(&maps(), b""), Err(StateError::NotAStateFile));
    assert_eq!(read(&maps(), b"key0,value0\n1,2\n"), Err(StateError::NotAStateFile));
    assert_eq!(read(&maps(), &as_specified(&[2, 0, 0])), Err(StateError::Version(2)));
}
