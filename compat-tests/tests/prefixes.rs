//! Longest-prefix match on every device, in both languages, compared with a linear search.

use std::collections::BTreeMap;
use std::sync::Arc;

use portcullis::packet_io::synth::Random;
use portcullis_compat_tests::{devices, texts};
use portcullis_core::device::{DeviceError, LoadOptions, Session};
use portcullis_core::map::{Table, rows};
use portcullis_core::packet::Batch;
use portcullis_core::program::Program;

/// Address and prefix length; an IPv4 address takes the upper 32 bits.
type Prefix = (u128, u32);

/// Returns the filter in both languages. It looks up the packet's address, stores the first word of
/// the value at offset 16 and counts the hit in the second. It passes the packet if a prefix
/// matches.
fn filters(words: u32, entries: u32) -> [Arc<Program>; 2] {
    let map = format!("//! map routes: lpm key={words} value=2 entries={entries}\n");
    let in_wgsl = match words {
        1 => "load_be32(pkt, 0u)",
        _ => "vec4<u32>(load_be32(pkt, 0u), load_be32(pkt, 4u), load_be32(pkt, 8u), load_be32(pkt, 12u))",
    };
    let in_wgsl = format!(
        "{map}fn xdp_filter(pkt: u32) -> u32 {{
            let route = routes_find({in_wgsl});
            store_le32(pkt, 16u, routes_read(route, 0u));
            routes_add(route, 1u, 1u);
            return select(XDP_PASS, XDP_DROP, route == MAP_NONE);
        }}"
    );
    let in_c = match words {
        1 => "uint address = load_be32(pkt, 0); uint route = routes_find(address);",
        _ => {
            "uint address[4] = {load_be32(pkt, 0), load_be32(pkt, 4), load_be32(pkt, 8), load_be32(pkt, 12)};
             uint route = routes_find(address);"
        }
    };
    let in_c = format!(
        "{map}uint xdp_filter(__global uchar *pkt, uint len) {{
            {in_c}
            store_le32(pkt, 16, routes_read(route, 0));
            routes_add(route, 1, 1);
            return route == MAP_NONE ? XDP_DROP : XDP_PASS;
        }}"
    );
    [texts::in_wgsl("prefixes.wgsl", &in_wgsl), texts::in_opencl_c("prefixes.cl", &in_c)]
}

fn any_address(random: &mut Random) -> u128 {
    (0..4).fold(0, |all, _| all << 32 | u128::from(random.u32()))
}

fn mask(length: u32) -> u128 {
    u128::MAX.checked_shl(128 - length).unwrap_or(0)
}

/// Returns nested and adjacent prefixes, prefixes that share a child of the root, host prefixes and
/// random ones.
fn prefixes(random: &mut Random, bits: u32, count: usize) -> BTreeMap<Prefix, u32> {
    let base = any_address(random);
    let mut all = BTreeMap::new();
    for value in 1..=count as u32 {
        let length = random.below(bits + 1);
        let (address, length) = match random.below(5) {
            0 => (base, length),
            1 => (base ^ u128::from(random.below(16)) << (128 - length.max(1)), length.max(1)),
            2 => (base ^ any_address(random) >> 18, bits.min(18 + length)),
            3 => (base ^ u128::from(random.u32()) << (128 - bits), bits),
            _ => (any_address(random), length),
        };
        all.insert((address & mask(length), length), value);
    }
    all
}

fn batch(addresses: &[u128]) -> Batch {
    let packet = |address: &u128| [&address.to_be_bytes()[..], &[7; 8]].concat();
    Batch::from_packets(&addresses.iter().map(packet).collect::<Vec<_>>()).unwrap()
}

/// Tests both languages with small tables; large ones take long to build in debug builds. A device
/// with a slow compiler runs the smallest and the largest case.
fn check_lookups(suite: &str, words: u32, [small, medium, large]: [u32; 3]) {
    let ([a, b], [c, d], [e, _]) = (filters(words, small), filters(words, medium), filters(words, large));
    let cases = [b, c, a, e, d];
    devices::on_each(suite, |device| {
        for program in devices::share(device, &cases, 3) {
            match device.load(program, &LoadOptions::default()) {
                Ok(session) => check_program(session, program),
                // The largest table exceeds WebGPU's default limits, and a device may support no
                // more.
                Err(error) => {
                    assert!(program.maps()[0].entries == 263_000, "{}: {error}", device.info().id);
                    assert!(matches!(error, DeviceError::Unsupported { .. }), "{error}");
                }
            }
        }
    });
}

/// The three sizes give roots of 6, 12 and 18 bits.
#[test]
fn ipv4_lookups_find_the_longest_prefix() {
    check_lookups("prefixes of IPv4", 1, [300, 3000, 66_000]);
}

#[test]
fn ipv6_lookups_find_the_longest_prefix() {
    check_lookups("prefixes of IPv6", 4, [300, 5000, 263_000]);
}

fn check_program(mut session: Box<dyn Session>, program: &Program) {
    let map = &program.maps()[0];
    let (words, bits, what) = (map.key, 32 * map.key, format!("{}: {map:?}", program.source().name));
    let mut random = Random::new(u64::from(words), 0);
    let mut routes = prefixes(&mut random, bits, 300);
    let key = |(address, length): &Prefix| -> Vec<u32> {
        (0..words).map(|i| (address >> (96 - 32 * i)) as u32).chain([*length]).collect()
    };
    let mut hits: BTreeMap<Prefix, u32> = BTreeMap::new();
    for round in 0..2 {
        let mut table = Table::new(map, session.map_words(0).unwrap());
        if round == 1 {
            // Remove a third of the prefixes and change a few; the hit counts of the others must
            // stay.
            for prefix in routes.keys().copied().collect::<Vec<_>>().iter().step_by(3) {
                assert!(table.remove(&key(prefix)));
                routes.remove(prefix);
                hits.remove(prefix);
            }
        }
        for (prefix, value) in &routes {
            table.set(&key(prefix), &[*value, hits.get(prefix).copied().unwrap_or(0)]).unwrap();
        }
        let (at, changed) = table.changes();
        session.set_map_words(0, at, changed).unwrap();

        let step = 1_u128 << (128 - bits);
        let edges = routes.keys().flat_map(|(first, length)| {
            let last = first | !mask(*length);
            [*first, last, first.wrapping_sub(step), last.wrapping_add(1)]
        });
        let anywhere: Vec<u128> = (0..200).map(|_| any_address(&mut random)).collect();
        let addresses: Vec<u128> = edges.chain(anywhere).map(|address| address & mask(bits)).collect();
        let done = session.run(batch(&addresses)).unwrap();
        for ((address, packet), verdict) in addresses.iter().zip(done.batch.packets()).zip(done.verdicts.actions()) {
            let fits = |(prefix, length): &&Prefix| (address ^ prefix) & mask(*length) == 0;
            let longest = routes.keys().filter(fits).max_by_key(|(_, length)| *length);
            let found = u32::from_le_bytes(packet[16..20].try_into().unwrap());
            let expected = longest.map_or((0, 1), |prefix| (routes[prefix], 2));
            assert_eq!((found, *verdict), expected, "{address:#034x}: {longest:x?}; {what}");
            if let Some(prefix) = longest {
                *hits.entry(*prefix).or_default() += 1;
            }
        }
        let wanted =
            routes.iter().map(|(prefix, value)| (key(prefix), vec![*value, hits.get(prefix).copied().unwrap_or(0)]));
        let found = rows(map, &session.map_words(0).unwrap());
        assert!(found.into_iter().map(|row| (row.key, row.value)).eq(wanted), "round {round}; {what}");
    }
}

/// Arbitrary words in the map's memory: searches terminate, and packets' addresses stay unchanged.
#[test]
fn lookups_in_arbitrary_memory_terminate() {
    let programs = [1, 4].map(|words| filters(words, 3000));
    devices::on_each("prefixes in garbage", |device| {
        for program in programs.iter().flatten() {
            for kind in 0..3 {
                let mut random = Random::new(kind as u64, 0);
                let mut session = device.load(program, &LoadOptions::default()).unwrap();
                let count = session.map_words(0).unwrap().len();
                let word = |random: &mut Random| {
                    let word = random.u32();
                    [word, word | 0x8000_0000, 0x8000_0000 | (word % count as u32)][kind]
                };
                let words: Vec<u32> = (0..count).map(|_| word(&mut random)).collect();
                session.set_map_words(0, 0, &words).unwrap();
                let addresses: Vec<u128> = (0..1000).map(|_| any_address(&mut random)).collect();
                let done = session.run(batch(&addresses)).unwrap();
                let untouched = |(address, packet): (&u128, &[u8])| packet[..16] == address.to_be_bytes();
                assert!(addresses.iter().zip(done.batch.packets()).all(untouched));
            }
        }
    });
}
