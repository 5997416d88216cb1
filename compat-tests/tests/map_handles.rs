//! Typed map handles of the host, compared with Rust's collections and with what filters find.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use portcullis_compat_tests::devices;
use portcullis_compat_tests::texts::in_wgsl;
use portcullis_core::device::{
    Completion, Device, DeviceError, Imported, Instrumented, LoadOptions, MapHandle, OpenError, Session, SubmitError,
    UpdateError,
};
use portcullis_core::map::{MapFull, Prefix, Words};
use portcullis_core::packet::{Batch, Span, Verdict};
use portcullis_core::program::Program;

fn program(kind: &str) -> Arc<Program> {
    let text = "
        //! map hosts: KIND key=5 value=4 entries=300
        //! map small: hash key=1 value=0 entries=5
        //! map numbers: array value=3 entries=9
        //! map sums: counter entries=4
        fn xdp_filter(pkt: u32) -> u32 {
            let key = array<u32, 5>(load_be32(pkt, 0u), load_be32(pkt, 4u), load_be32(pkt, 8u), load_be32(pkt, 12u),
                load_be16(pkt, 16u));
            let host = hosts_find(key);
            sums_add(numbers_read(1u, 2u), 0xffffffffu);
            if host == MAP_NONE { return XDP_DROP; }
            // The MAC address and its hit count.
            store_be16(pkt, 20u, hosts_read(host, 0u));
            store_be32(pkt, 22u, hosts_read(host, 1u));
            hosts_add(host, 2u, 1u);
            return XDP_PASS;
        }";
    in_wgsl("handles.wgsl", &text.replace("KIND", kind))
}

type Key = (Ipv6Addr, u32);
type Host = ([u8; 6], u64);

fn key(seed: u32) -> Key {
    let address = Ipv6Addr::from_bits(u128::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
    (address, seed % 7)
}

fn packet(key: &Key) -> Vec<u8> {
    let port = (key.1 as u16).to_be_bytes();
    [&key.0.octets()[..], &port, &[0; 42]].concat()
}

/// Asserts that a snapshot and single lookups agree with the model.
fn assert_agrees(hosts: &MapHandle<Key, Host>, session: &mut dyn Session, model: &BTreeMap<Key, Host>) {
    let rows = hosts.snapshot(session).unwrap();
    assert_eq!(rows.iter().collect::<BTreeMap<_, _>>(), *model);
    let in_order: Vec<Key> = rows.iter().map(|(key, _)| key).collect();
    assert!(in_order.is_sorted());
    for seed in (0..400).step_by(3) {
        let wanted = model.get(&key(seed)).copied();
        assert_eq!((hosts.get(session, &key(seed)).unwrap(), rows.get(&key(seed))), (wanted, wanted), "key {seed}");
    }
}

#[test]
fn handles_behave_like_rust_maps() {
    devices::on_each("handles on maps", |device: &Arc<dyn Device>| {
        ["hash", "lru_hash"].into_iter().for_each(|kind| a_handle_is_a_map_of_rust(device, kind));
    });
}

fn a_handle_is_a_map_of_rust(device: &Arc<dyn Device>, kind: &str) {
    let program = program(kind);
    let mut session = device.load(&program, &LoadOptions::default()).unwrap();
    let session = &mut *session;
    let hosts = MapHandle::<Key, Host>::open(&program, "hosts").unwrap();
    let mut model = BTreeMap::new();
    hosts
        .update(session, |rows| {
            for seed in 0..300 {
                let host = ([2, 0, 0, 1, (seed >> 8) as u8, seed as u8], u64::from(seed) << 20);
                rows.set(&key(seed), &host)?;
                model.insert(key(seed), host);
            }
            for seed in (0..300).step_by(5) {
                assert!(rows.remove(&key(seed)));
                model.remove(&key(seed));
            }
            Ok::<(), UpdateError>(())
        })
        .unwrap();
    assert_agrees(&hosts, session, &model);
    for seed in [5, 302] {
        hosts.set(session, &key(seed), &([7; 6], 7)).unwrap();
        model.insert(key(seed), ([7; 6], 7));
    }
    for (seed, there) in [(1, true), (0, false), (399, false)] {
        assert_eq!(hosts.remove(session, &key(seed)).unwrap(), there);
        model.remove(&key(seed));
    }
    assert_agrees(&hosts, session, &model);

    // Filters read what the host has written, and the host reads what filters have written.
    let numbers = MapHandle::<u32, [u32; 3]>::open(&program, "numbers").unwrap();
    numbers.set(session, &1, &[0, 0, 3]).unwrap();
    let keys: Vec<Key> = (0..350).map(key).collect();
    let done = session.run(Batch::from_packets(&keys.iter().map(packet).collect::<Vec<_>>()).unwrap()).unwrap();
    for ((key, packet), verdict) in keys.iter().zip(done.batch.packets()).zip(done.verdicts.actions()) {
        let host = model.get_mut(key);
        assert_eq!(*verdict == 2, host.is_some());
        if let Some((mac, met)) = host {
            assert_eq!(packet[20..26], mac[..]);
            *met += 1;
        }
    }
    assert_agrees(&hosts, session, &model);

    let sums = MapHandle::<u32, u64>::open(&program, "sums").unwrap();
    assert_eq!(sums.get(session, &3).unwrap(), Some(350 * 0xffff_ffff));
    sums.set(session, &0, &u64::MAX).unwrap();
    assert_eq!(
        sums.snapshot(session).unwrap().iter().map(|row| row.1).collect::<Vec<_>>(),
        [u64::MAX, 0, 0, 350 * 0xffff_ffff]
    );
    assert!(sums.remove(session, &3).unwrap());
    assert_eq!((sums.get(session, &3).unwrap(), sums.get(session, &4).unwrap()), (Some(0), None));
    assert_eq!(sums.set(session, &4, &1), Err(UpdateError::NoEntry(4)));
    assert_eq!(numbers.get(session, &1).unwrap(), Some([0, 0, 3]));
}

#[test]
fn updates_are_applied_completely_or_not_at_all() {
    devices::on_each("updates of maps", |device: &Arc<dyn Device>| {
        let program = program("hash");
        let mut session = device.load(&program, &LoadOptions::default()).unwrap();
        let session = &mut *session;
        let small = MapHandle::<Ipv4Addr, ()>::open(&program, "small").unwrap();
        let address = |last| Ipv4Addr::new(192, 0, 2, last);
        let rows = |session: &mut dyn Session| -> Vec<Ipv4Addr> {
            small.snapshot(session).unwrap().iter().map(|(key, ())| key).collect()
        };
        small.set(session, &address(1), &()).unwrap();
        // Eight slots, of which five may be claimed.
        let full = small.update(session, |rows| {
            assert!(rows.remove(&address(1)));
            (2..=7).try_for_each(|last| rows.set(&address(last), &()))
        });
        assert_eq!((full, rows(session)), (Err(UpdateError::MapFull(MapFull)), vec![address(1)]));
        let cancelled = small.update(session, |rows| {
            rows.set(&address(2), &()).unwrap();
            Err::<(), DeviceError>(DeviceError::Cancelled)
        });
        assert_eq!((cancelled, rows(session)), (Err(DeviceError::Cancelled), vec![address(1)]));
        // Removed entries free their slots, within an update as well.
        for round in 0..20 {
            small
                .update(session, |rows| {
                    let all: Vec<_> = rows.iter().map(|(key, ())| key).collect();
                    all.iter().for_each(|key| assert!(rows.remove(key)));
                    (0..5).try_for_each(|last| rows.set(&address(5 * round + last), &()))
                })
                .unwrap();
            assert_eq!(rows(session), (0..5).map(|last| address(5 * round + last)).collect::<Vec<_>>());
            assert_eq!(small.get(session, &address(5 * round)).unwrap(), Some(()));
        }
        assert_eq!(small.set(session, &address(0), &()), Err(UpdateError::MapFull(MapFull)));
    });
}

#[test]
fn updates_take_effect_between_batches_in_flight() {
    devices::on_each("updates between batches", |device: &Arc<dyn Device>| {
        let program = program("hash");
        let options = LoadOptions::default().with_depth(3);
        let mut session = device.load(&program, &options).unwrap();
        let session = &mut *session;
        let hosts = MapHandle::<Key, Host>::open(&program, "hosts").unwrap();
        let keys: Vec<Key> = (0..200).map(key).collect();
        let batch = || Batch::from_packets(&keys.iter().map(packet).collect::<Vec<_>>()).unwrap();
        let mut passed = Vec::new();
        // Each round adds a host and verifies the hit counts so far.
        for round in 0..6_u64 {
            session.submit(batch()).unwrap();
            let met: u64 = hosts.snapshot(session).unwrap().iter().map(|(_, (_, met))| met).sum();
            assert_eq!(met, (0..=round).sum::<u64>());
            hosts.set(session, &keys[round as usize], &([1; 6], 0)).unwrap();
            // No batch is submitted while this entry exists, so none finds it.
            hosts.set(session, &keys[150], &([1; 6], 0)).unwrap();
            assert!(hosts.remove(session, &keys[150]).unwrap());
            if session.in_flight() == session.depth() {
                passed.push(session.complete().unwrap().unwrap().verdicts.counts().pass);
            }
        }
        while let Some(done) = session.complete().unwrap() {
            passed.push(done.verdicts.counts().pass);
        }
        assert_eq!(passed, [0, 1, 2, 3, 4, 5]);
    });
}

/// A session that counts the map words that are read and written.
struct CountingSession {
    session: Box<dyn Session>,
    moved: usize,
}

impl CountingSession {
    /// Runs `of`; returns its result and the number of words transferred.
    fn count_words<T>(&mut self, of: impl FnOnce(&mut CountingSession) -> T) -> (T, usize) {
        self.moved = 0;
        let result = of(self);
        (result, self.moved)
    }
}

impl Session for CountingSession {
    fn import(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError> {
        self.session.import(span)
    }

    fn submit(&mut self, batch: Batch) -> Result<(), SubmitError> {
        self.session.submit(batch)
    }

    fn complete(&mut self) -> Result<Option<Completion>, DeviceError> {
        self.session.complete()
    }

    fn map_words(&mut self, map: usize) -> Result<Vec<u32>, DeviceError> {
        let words = self.session.map_words(map)?;
        self.moved += words.len();
        Ok(words)
    }

    fn map_words_at(&mut self, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        self.moved += words;
        self.session.map_words_at(map, at, words)
    }

    fn set_map_words(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        self.moved += words.len();
        self.session.set_map_words(map, at, words)
    }

    fn in_flight(&self) -> usize {
        self.session.in_flight()
    }

    fn depth(&self) -> usize {
        self.session.depth()
    }
}

impl Instrumented for CountingSession {}

/// Single-entry operations on a map that is as full as possible: they agree with a model, the
/// filter finds the results, and they transfer little of the map.
#[test]
fn single_entry_operations_transfer_few_slots() {
    const HEADER: usize = 16;
    let text = "
        //! map flows: KIND key=2 value=2 entries=ENTRIES
        fn xdp_filter(pkt: u32) -> u32 {
            let flow = flows_find(vec2<u32>(load_be32(pkt, 0u), load_be32(pkt, 4u)));
            if flow == MAP_NONE { return XDP_DROP; }
            return redirect(flows_read(flow, 1u));
        }";
    devices::on_each("single entries", |device: &Arc<dyn Device>| {
        // The tables have 8192 slots, of which at most 5734 may be claimed.
        for (kind, entries, stride) in [("hash", 5734_u32, 6), ("lru_hash", 2867, 7)] {
            let text = text.replace("KIND", kind).replace("ENTRIES", &entries.to_string());
            let program = in_wgsl("flows.wgsl", &text);
            let session = device.load(&program, &LoadOptions::default()).unwrap();
            let mut session = CountingSession { session, moved: 0 };
            let flows = MapHandle::<(Ipv4Addr, u32), (u32, u32)>::open(&program, "flows").unwrap();
            let key = |seed: u32| (Ipv4Addr::from_bits(seed.wrapping_mul(0x9e37_79b1)), seed % 5);
            let most = 5734;
            flows
                .update(&mut session, |rows| (0..most - 200).try_for_each(|seed| rows.set(&key(seed), &(seed, 0))))
                .unwrap();
            let mut model: BTreeMap<_, _> = (0..most - 200).map(|seed| (key(seed), (seed, 0))).collect();
            // Words that one search reads at most: 128 slots. Nearly all searches end within the
            // first read.
            let most_of_one = HEADER + 3 + (8 * 32 + 120 + 1) * stride;
            let mut moved = Vec::new();
            for round in 0..200 {
                // Sets a new and an existing entry, removes an existing entry twice and an absent
                // one, and looks each of them up.
                let (new, old, gone) = (most - 200 + round, 7 * round, 7 * round + 3);
                for seed in [new, old] {
                    let value = (round, seed % 1000);
                    moved.push(session.count_words(|it| flows.set(it, &key(seed), &value).unwrap()).1);
                    model.insert(key(seed), value);
                }
                for seed in [gone, gone, 100_000 + round] {
                    let (there, words) = session.count_words(|it| flows.remove(it, &key(seed)).unwrap());
                    assert_eq!(there, model.remove(&key(seed)).is_some(), "{seed}");
                    moved.push(words);
                }
                for seed in [new, old, gone, gone + 1, 100_000 + round] {
                    let (found, words) = session.count_words(|it| flows.get(it, &key(seed)).unwrap());
                    assert_eq!(found, model.get(&key(seed)).copied(), "{seed}");
                    moved.push(words);
                }
            }
            let each = moved.iter().sum::<usize>() / moved.len();
            assert!(each < HEADER + 2 * 32 * stride, "{each} words per operation");
            let rows = |session: &mut CountingSession| -> BTreeMap<_, _> {
                let rows = flows.snapshot(session).unwrap();
                assert_eq!(rows.table().claimed_slots(), most, "each key has a slot");
                rows.iter().collect()
            };
            assert_eq!(rows(&mut session), model);

            // A new key only fits after the table has been rebuilt without the removed keys, but a
            // removed key still has its slot.
            let one = key(3);
            let (set, words) = session.count_words(|it| flows.set(it, &one, &(1, 1)));
            assert_eq!(set, Ok(()));
            moved.push(words);
            model.insert(one, (1, 1));
            assert_eq!(rows(&mut session), model);
            let (set, words) = session.count_words(|it| flows.set(it, &key(200_000), &(2, 2)));
            assert_eq!(set, Ok(()));
            assert!(words > 2 * 8192 * stride, "the whole map is read and written");
            model.insert(key(200_000), (2, 2));
            for seed in 0.. {
                let (set, words) = session.count_words(|it| flows.set(it, &key(300_000 + seed), &(3, 3)));
                moved.push(words);
                if set.is_err() {
                    assert_eq!((set, model.len()), (Err(UpdateError::MapFull(MapFull)), most as usize));
                    break;
                }
                model.insert(key(300_000 + seed), (3, 3));
            }
            assert_eq!(rows(&mut session), model);
            assert!(moved.iter().all(|words| *words <= most_of_one), "{moved:?}");

            // Filters find the current entries.
            let seeds: Vec<u32> = (0..most).step_by(3).chain(200_000..200_002).chain(299_990..300_200).collect();
            let packet = |seed: &u32| {
                let (address, number) = key(*seed);
                [&address.octets()[..], &number.to_be_bytes(), &[0; 52]].concat()
            };
            let batch = Batch::from_packets(&seeds.iter().map(packet).collect::<Vec<_>>()).unwrap();
            let done = session.run(batch).unwrap();
            for (seed, verdict) in seeds.iter().zip(done.verdicts.iter()) {
                let wanted = model.get(&key(*seed)).map_or(Verdict::Drop, |value| Verdict::Redirect(value.1));
                assert_eq!(verdict, wanted, "{seed}");
            }
        }
    });
}

/// Arrays, counters and values of existing prefixes are transferred one by one.
#[test]
fn array_and_prefix_values_are_transferred_alone() {
    let text = "
        //! map numbers: array value=3 entries=5000
        //! map sums: counter entries=5000
        //! map routes: lpm key=1 value=1 entries=5000
        //! map shared: lpm key=1 value=1 entries=500
        fn xdp_filter(pkt: u32) -> u32 {
            let route = routes_find(load_be32(pkt, 0u));
            if route == MAP_NONE { return XDP_DROP; }
            routes_add(route, 0u, 1000u);
            return redirect(routes_read(route, 0u) + shared_read(shared_find(load_be32(pkt, 0u)), 0u));
        }";
    let program = in_wgsl("numbers.wgsl", text);
    devices::on_each("single values", |device: &Arc<dyn Device>| {
        let session = device.load(&program, &LoadOptions::default()).unwrap();
        let mut session = CountingSession { session, moved: 0 };
        let numbers = MapHandle::<u32, [u32; 3]>::open(&program, "numbers").unwrap();
        let sums = MapHandle::<u32, u64>::open(&program, "sums").unwrap();
        for (number, value) in [(0, [1, 2, 3]), (4999, [4, 5, 6])] {
            assert_eq!(session.count_words(|it| numbers.set(it, &number, &value).unwrap()), ((), 3));
            assert_eq!(session.count_words(|it| numbers.get(it, &number).unwrap()), (Some(value), 3));
            assert_eq!(session.count_words(|it| sums.set(it, &number, &u64::MAX).unwrap()), ((), 2));
            assert_eq!(session.count_words(|it| sums.remove(it, &number).unwrap()), (true, 2));
            assert_eq!(session.count_words(|it| sums.get(it, &number).unwrap()), (Some(0), 2));
        }
        assert_eq!(session.count_words(|it| numbers.get(it, &5000).unwrap()), (None, 0));
        assert_eq!(session.count_words(|it| numbers.remove(it, &5000).unwrap()), (false, 0));
        assert!(numbers.remove(&mut session, &4999).unwrap());
        assert_eq!(numbers.snapshot(&mut session).unwrap().iter().filter(|row| row.1 != [0; 3]).count(), 1);

        let routes = MapHandle::<Prefix<Ipv4Addr>, u32>::open(&program, "routes").unwrap();
        let prefix = |second: u8| Prefix { address: Ipv4Addr::new(10, second, 0, 0), length: 16 };
        routes.update(&mut session, |rows| (0..=255).try_for_each(|second| rows.set(&prefix(second), &7))).unwrap();
        // Transfers the prefixes and one value.
        let (prefixes, all) = (5000 * 2, session.map_words(2).unwrap().len());
        assert_eq!(session.count_words(|it| routes.set(it, &prefix(9), &8).unwrap()), ((), prefixes + 1));
        assert_eq!(session.count_words(|it| routes.get(it, &prefix(9)).unwrap()), (Some(8), prefixes + 1));
        let shorter = Prefix { length: 15, ..prefix(8) };
        assert_eq!(session.count_words(|it| routes.get(it, &shorter).unwrap()), (None, prefixes));
        assert_eq!(session.count_words(|it| routes.remove(it, &shorter).unwrap()), (false, prefixes));
        let (there, words) = session.count_words(|it| routes.remove(it, &prefix(200)).unwrap());
        assert!(there && words > all, "the trie is rebuilt");
        // The filter only reads values of this map, so several prefixes may share one.
        let shared = MapHandle::<Prefix<Ipv4Addr>, u32>::open(&program, "shared").unwrap();
        shared.update(&mut session, |rows| (0..=255).try_for_each(|second| rows.set(&prefix(second), &100))).unwrap();
        shared.set(&mut session, &prefix(9), &200).unwrap();
        let packet = |second: u8| [&[10, second, 3, 4][..], &[0; 56]].concat();
        let done = session.run(Batch::from_packets(&[0, 9, 10, 200].map(packet)).unwrap()).unwrap();
        let wanted = [Verdict::Redirect(1107), Verdict::Redirect(1208), Verdict::Redirect(1107), Verdict::Drop];
        assert_eq!(done.verdicts.iter().collect::<Vec<_>>(), wanted);
        assert_eq!(routes.get(&mut session, &prefix(9)).unwrap(), Some(1008));
    });
}

#[test]
fn prefixes_are_keys() {
    let text = "
        //! map routes: lpm key=1 value=1 entries=200
        fn xdp_filter(pkt: u32) -> u32 {
            let route = routes_find(load_be32(pkt, 0u));
            if route == MAP_NONE { return XDP_DROP; }
            return redirect(routes_read(route, 0u));
        }";
    let program = in_wgsl("routes.wgsl", text);
    devices::on_each("handles on prefixes", |device: &Arc<dyn Device>| {
        let mut session = device.load(&program, &LoadOptions::default()).unwrap();
        let session = &mut *session;
        let routes = MapHandle::<Prefix<Ipv4Addr>, u32>::open(&program, "routes").unwrap();
        let prefix = |address: u32, length: u32| {
            let kept = u32::MAX.checked_shl(32 - length).unwrap_or(0);
            Prefix { address: Ipv4Addr::from_bits(address & kept), length }
        };
        let mut model = BTreeMap::new();
        routes
            .update(session, |rows| {
                for number in 0..200_u32 {
                    let prefix = prefix(0x0a00_0000 | number.wrapping_mul(0x0012_3457) >> 4, 4 + number % 29);
                    rows.set(&prefix, &number)?;
                    model.insert(prefix, number);
                }
                Ok::<(), UpdateError>(())
            })
            .unwrap();
        for length in [9, 17, 25] {
            let gone = *model.keys().find(|prefix| prefix.length == length).unwrap();
            model.remove(&gone);
            assert!(routes.remove(session, &gone).unwrap() && !routes.remove(session, &gone).unwrap());
        }
        routes.set(session, &prefix(0x0a00_0000, 9), &9999).unwrap();
        model.insert(prefix(0x0a00_0000, 9), 9999);
        assert_eq!(routes.snapshot(session).unwrap().iter().collect::<BTreeMap<_, _>>(), model);
        assert_eq!(routes.get(session, &prefix(0x0a00_0000, 9)).unwrap(), Some(9999));
        assert_eq!(routes.get(session, &prefix(0x0b00_0000, 9)).unwrap(), None);
        // The model searches all prefixes for the longest match.
        let addresses: Vec<u32> = (0..500_u32).map(|n| 0x0a00_0000 | n.wrapping_mul(0x9e37_79b9) >> 8).collect();
        let longest = |address: u32| {
            let fits = model.iter().filter(|(it, _)| prefix(address, it.length).address == it.address);
            fits.max_by_key(|(it, _)| it.length).map(|(_, number)| *number)
        };
        let packets: Vec<_> = addresses.iter().map(|address| [&address.to_be_bytes()[..], &[0; 56]].concat()).collect();
        let done = session.run(Batch::from_packets(&packets).unwrap()).unwrap();
        for (address, verdict) in addresses.iter().zip(done.verdicts.iter()) {
            let wanted = longest(*address).map_or(Verdict::Drop, Verdict::Redirect);
            assert_eq!(verdict, wanted, "{address:#010x}");
        }
        let bits = Prefix { address: Ipv4Addr::new(10, 0, 0, 1), length: 8 };
        let refused = routes.set(session, &bits, &1).unwrap_err();
        assert_eq!(refused.to_string(), "`10.0.0.1/8` has bits set beyond its length: did you mean `10.0.0.0/8`?");
    });
}

#[test]
fn handle_types_must_match_the_declaration() {
    let program = program("hash");
    let opened = |error: OpenError| error.to_string();
    let none = MapHandle::<u32, u32>::open(&program, "host").map(drop).map_err(opened);
    assert_eq!(none, Err("the filter has no map `host`".into()));
    let key = MapHandle::<Ipv6Addr, Host>::open(&program, "hosts").map(drop).map_err(opened);
    assert_eq!(key, Err("the map `hosts` has keys of 5 words, but the requested type has 4".into()));
    let value = MapHandle::<u32, u32>::open(&program, "sums").map(drop).map_err(opened);
    assert_eq!(value, Err("the map `sums` has values of 2 words, but the requested type has 1".into()));
}

#[test]
fn keys_and_values_are_the_words_that_filters_load() {
    fn is<T: Words + PartialEq + std::fmt::Debug>(value: T, wanted: &[u32]) {
        let mut words = vec![0; T::COUNT];
        value.write(&mut words);
        assert_eq!((words.as_slice(), T::read(wanted)), (wanted, value));
    }
    is((), &[]);
    is(7_u32, &[7]);
    is(5_u64 << 32 | 3, &[3, 5]);
    is([1_u32, 2, 3], &[1, 2, 3]);
    is(Ipv4Addr::new(10, 0, 0, 19), &[0x0a00_0013]);
    is("2001:db8::7".parse::<Ipv6Addr>().unwrap(), &[0x2001_0db8, 0, 0, 7]);
    is([0x02_u8, 0x1a, 0x2b, 0x3c, 0x4d, 0x5e], &[0x021a, 0x2b3c_4d5e]);
    is(Prefix { address: Ipv4Addr::new(10, 0, 0, 0), length: 8 }, &[0x0a00_0000, 8]);
    is((Ipv4Addr::new(10, 0, 0, 1), 80_u32, 1_u64 << 32), &[0x0a00_0001, 80, 0, 1]);
}
