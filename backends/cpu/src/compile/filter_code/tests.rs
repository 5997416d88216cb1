//! Tests of the addresses that prefetch code computes. Verdicts do not depend on them, so nothing
//! but the time that is taken would show a wrong one.

use portcullis_core::diagnostics::Source;
use portcullis_core::map::Table;
use portcullis_core::map::layout::{HEADER_WORDS, Layout, hash};
use portcullis_core::map::lpm::TrieLayout;
use portcullis_core::packet::Batch;
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_wgsl as wgsl;

use super::*;
use crate::compile::lowered::Style;
use crate::compile::processor::Processor;
use crate::compile::scalar;
use crate::maps::Maps;

fn program(text: &str) -> Program {
    let program = wgsl::compile(&Source::new("prefetch.wgsl", text), &ProgramOptions::default());
    program.unwrap_or_else(|errors| panic!("{}", errors.render()))
}

fn compile(program: &Program) -> FilterCode {
    let isa = Processor::Host.isa().unwrap();
    let lowered = scalar::lower(program, Style::Branching, &*isa).unwrap();
    let lpm_searches = program.maps().iter().map(LpmPrefetch::of).collect();
    let prefetch = scalar::lower_prefetch(program, &*isa).unwrap();
    let policy = PrefetchPolicy::Always;
    let prefetch = prefetch.map(|lowered| PrefetchCode { lowered, policy, pays: true, bytes: 1, lpm_searches });
    FilterCode::new(vec![lowered], true, prefetch, isa).unwrap()
}

/// What prefetch code is called with.
fn context(batch: &Batch, code: &FilterCode, maps: &Maps) -> BatchContext {
    BatchContext {
        arena: batch.span().as_ptr(),
        descriptors: batch.descriptors().as_ptr(),
        verdicts: std::ptr::null_mut(),
        targets: std::ptr::null_mut(),
        metadata: std::ptr::null(),
        tables: std::ptr::null(),
        resized: std::ptr::null_mut(),
        float_functions: code.float_functions(),
        maps: maps.addresses(0),
    }
}

/// Returns the word of the filter's first map at which each packet's search begins, if it does in
/// that map. Packets are given as words.
fn first_words(text: &str, packets: &[Vec<u32>]) -> Vec<Option<usize>> {
    words_after_steps(0, text, packets, &[])
}

/// Returns the word of the filter's first map at which each packet's search is after a number of
/// LPM steps. `words` is the map's content.
fn words_after_steps(steps: usize, text: &str, packets: &[Vec<u32>], words: &[u32]) -> Vec<Option<usize>> {
    let program = program(text);
    let (code, maps) = (compile(&program), Maps::new(program.maps(), 1).unwrap());
    maps.set_words(0, 0, words);
    let bytes = |words: &Vec<u32>| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let batch = Batch::from_packets(&packets.iter().map(bytes).collect::<Vec<_>>()).unwrap();
    let context = context(&batch, &code, &maps);
    let (prefetch, _) = code.prefetch.as_ref().expect("the filter has a search");
    let count = Layout::of(&program.maps()[0]).words();
    let word = |PrefetchCursor { address, .. }: &PrefetchCursor| {
        // SAFETY: the program has at least one map.
        let start = unsafe { *maps.addresses(0) } as usize;
        let offset = (*address as usize).checked_sub(start)?;
        (offset / 4 < count && offset % 4 == 0).then_some(offset / 4)
    };
    let groups =
        (0..packets.len()).step_by(PREFETCH_GROUP).map(|start| (start, packets.len().min(start + PREFETCH_GROUP)));
    groups
        .flat_map(|(start, end)| {
            let mut cursors = [PrefetchCursor::NONE; PREFETCH_GROUP];
            // SAFETY: the batch is ours, and the code reads its packets alone.
            unsafe { find_searches(prefetch, &context, start, end, &mut cursors) };
            let mut last = cursors;
            for step in 0..steps {
                // SAFETY: the maps are those of the program.
                unsafe { lpm_prefetch::advance_all(&code.lpm_searches, maps.addresses(0), &mut cursors, step == 0) };
                let advanced = cursors.iter().zip(&mut last).filter(|(cursor, _)| !cursor.address.is_null());
                advanced.for_each(|(cursor, last)| *last = *cursor);
            }
            last[..end - start].iter().map(word).collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn hash_searches_begin_at_the_slot_of_the_keys_hash() {
    let text = "
        //! map flows: hash key=2 value=3 entries=700
        fn look(key: vec2<u32>) -> u32 {
            if (key.y & 1u) == 0u { return flows_insert(key); }
            return flows_find(key);
        }
        fn xdp_filter(pkt: u32) -> u32 {
            if pkt_len(pkt) < 12u { return XDP_DROP; }
            store_le32(pkt, 4u, 0u);
            var word = load_le32(pkt, 0u);
            loop { if (word & 1u) != 0u || word == 0u { break; } word >>= 1u; }
            if word == 7u { return XDP_PASS; }
            if word == 9u && flows_remove(vec2<u32>(word, 3u)) { return XDP_TX; }
            return 1u + (look(vec2<u32>(word, load_le32(pkt, 8u))) & 1u);
        }";
    let layout = Layout::of(&program(text).maps()[0]);
    assert_eq!((layout.slots, layout.stride), (1024, 7));
    let packets: Vec<Vec<u32>> =
        (0..100_u32).map(|n| vec![n, n, n * 77_777][..if n % 10 == 3 { 2 } else { 3 }].to_vec()).collect();
    let want = packets.iter().map(|packet| {
        let [first, _, last] = packet[..] else { return None };
        let odd = if first == 0 { 0 } else { first >> first.trailing_zeros() };
        let key = match odd {
            7 => return None,
            9 => [9, 3],
            _ => [odd, last],
        };
        Some(layout.slot_offset(hash(&key) & 1023))
    });
    assert_eq!(first_words(text, &packets), want.collect::<Vec<_>>());
}

#[test]
fn lpm_searches_begin_at_a_node_of_the_root() {
    for (key, address) in [(1, "load_le32(pkt, 0u)"), (4, "vec4<u32>(load_le32(pkt, 0u), 1u, 2u, 3u)")] {
        let text = format!(
            "//! map routes: lpm key={key} value=1 entries=5000
             fn xdp_filter(pkt: u32) -> u32 {{ return 1u + (routes_find({address}) & 1u); }}"
        );
        let TrieLayout { root_bits, root, .. } = TrieLayout::of(&program(&text).maps()[0]);
        let packets: Vec<Vec<u32>> = (0..50_u32).map(|n| vec![n.wrapping_mul(0x9e37_79b1)]).collect();
        let group = |packet: &Vec<u32>| Some(root as usize + 16 * (packet[0] >> (32 - root_bits)) as usize);
        assert_eq!(first_words(&text, &packets), packets.iter().map(group).collect::<Vec<_>>());
    }
}

/// Lookups in small maps are executed, because their results decide whether the large map is
/// searched.
#[test]
fn searches_of_small_maps_are_executed_not_prefetched() {
    let text = "
        //! map flows: hash key=1 value=1 entries=70000
        //! map services: hash key=1 value=1 entries=9
        //! map networks: lpm key=1 value=1 entries=9
        fn xdp_filter(pkt: u32) -> u32 {
            let word = load_le32(pkt, 0u);
            if services_find(word & 3u) != MAP_NONE || networks_find(word) != MAP_NONE { return XDP_PASS; }
            if word == 12u { return 1u + (services_insert(word) & 1u); }
            return 1u + (flows_find(word) & 1u);
        }";
    let layout = Layout::of(&program(text).maps()[0]);
    let packets: Vec<Vec<u32>> = (0..40_u32).map(|n| vec![n, n, n]).collect();
    let place = |packet: &Vec<u32>| layout.slot_offset(hash(&packet[..1]) & (layout.slots - 1));
    let want = packets.iter().map(|packet| (packet[0] != 12).then(|| place(packet)));
    assert_eq!(first_words(text, &packets), want.collect::<Vec<_>>());
}

#[test]
fn lpm_steps_lead_to_the_value_of_the_longest_match() {
    let text = "//! map routes: lpm key=1 value=2 entries=5000
        fn xdp_filter(pkt: u32) -> u32 {
            let route = routes_find(load_le32(pkt, 0u));
            return 1u + (routes_add(route, 1u, 1u) & 1u);
        }";
    let mut table = Table::new(&program(text).maps()[0], Vec::new());
    for number in 0..200 {
        table.set(&[number << 22, 10 + number % 23], &[0, 1]).unwrap();
    }
    let words = table.changes().1.to_vec();
    let packets: Vec<Vec<u32>> = (0..200).map(|number| vec![number << 22]).collect();
    let places = words_after_steps(MAX_STEPS, text, &packets, &words);
    let prefix = |place: usize| {
        let at = 16 + 2 * 5000 + place * 2;
        [words[at], words[at + 1] - 1]
    };
    for (number, place) in (0..).zip(places) {
        assert_eq!(prefix((place.unwrap() - 16) / 2), [number << 22, 10 + number % 23]);
    }
}

/// Where each packet's first searches in two maps begin: slots of the first map and of the second.
fn slots_of_pair(text: &str, packets: &[Vec<u32>]) -> Vec<[Option<u32>; 2]> {
    let program = program(text);
    let (code, maps) = (compile(&program), Maps::new(program.maps(), 1).unwrap());
    let bytes = |words: &Vec<u32>| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let batch = Batch::from_packets(&packets.iter().map(bytes).collect::<Vec<_>>()).unwrap();
    let context = context(&batch, &code, &maps);
    let (prefetch, _) = code.prefetch.as_ref().expect("the filter has a search");
    let mut cursors = [PrefetchCursor::NONE; PREFETCH_GROUP];
    // SAFETY: the batch is ours, and the code reads its packets alone.
    unsafe { find_searches(prefetch, &context, 0, packets.len(), &mut cursors) };
    let slot = |map: usize, address: *const u8| {
        let layout = Layout::of(&program.maps()[map]);
        // SAFETY: the program has this map.
        let start = unsafe { *maps.addresses(0).add(map) } as usize + 4 * HEADER_WORDS as usize;
        let offset = (address as usize).checked_sub(start)? / 4;
        (offset < (layout.slots * layout.stride) as usize).then_some(offset as u32 / layout.stride)
    };
    cursors[..packets.len()].iter().map(|cursor| [slot(0, cursor.address), slot(1, cursor.second)]).collect()
}

/// The first search is assumed to find its key, and what the entry says is not known.
#[test]
fn first_searches_of_two_maps_are_found_together() {
    let text = "
        //! map limits: hash key=1 value=1 entries=70000
        //! map buckets: lru_hash key=2 value=1 entries=70000
        fn xdp_filter(pkt: u32) -> u32 {
            let word = load_le32(pkt, 0u);
            if word == 3u { return XDP_PASS; }
            var limit = limits_find(word);
            if limit == MAP_NONE { limit = limits_find(0u); }
            if limit == MAP_NONE || word == 4u { return XDP_PASS; }
            let bucket = buckets_insert(vec2<u32>(word, limits_read(limit, 0u)));
            return 1u + (limits_find(bucket) & 1u);
        }";
    let slots: Vec<u32> = program(text).maps().iter().map(|map| Layout::of(map).slots).collect();
    let packets: Vec<Vec<u32>> = (0..12_u32).map(|n| vec![n]).collect();
    let want = packets.iter().map(|packet| {
        let limit = hash(packet) & (slots[0] - 1);
        let bucket = hash(&[packet[0], 0]) & (slots[1] - 1);
        match packet[0] {
            3 => [None; 2],
            4 => [Some(limit), None],
            _ => [Some(limit), Some(bucket)],
        }
    });
    assert_eq!(slots_of_pair(text, &packets), want.collect::<Vec<_>>());
}

#[test]
fn filters_without_a_predictable_search_have_no_prefetch_code() {
    for body in [
        "return XDP_PASS;",
        "_ = adjust_head(pkt, 4); _ = flows_insert(load_le32(pkt, 0u)); return XDP_PASS;",
        "flows_write(3u, 0u, 5u); return XDP_PASS;",
    ] {
        let text = format!(
            "//! map flows: hash key=1 value=1 entries=9
             fn xdp_filter(pkt: u32) -> u32 {{ {body} }}"
        );
        assert!(compile(&program(&text)).prefetch.is_none(), "{body}");
    }
}
