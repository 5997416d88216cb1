//! What code that runs ahead of a filter finds, which nothing else shows but the time that is taken.

use portcullis_core::lang::{Source, wgsl};
use portcullis_core::map::Table;
use portcullis_core::map::layout::{Layout, hash};
use portcullis_core::map::lpm::TrieLayout;
use portcullis_core::packet::Batch;
use portcullis_core::program::{Program, ProgramOptions};

use super::*;
use crate::Processor;
use crate::maps::Maps;

fn program(text: &str) -> Program {
    let program = wgsl::compile(&Source::new("ahead.wgsl", text), &ProgramOptions::default());
    program.unwrap_or_else(|errors| panic!("{}", errors.render()))
}

fn code(program: &Program) -> Code {
    let isa = Processor::Host.isa().unwrap();
    let lowered = crate::compile::lower(program, crate::Style::Branching, &*isa).unwrap();
    let walks = program.maps().iter().map(Walk::of).collect();
    let ahead = crate::compile::lower_ahead(program, &*isa).unwrap();
    let ahead = ahead.map(|lowered| Ahead { lowered, when: When::Always, bytes: 1, walks });
    Code::new(vec![lowered], true, ahead, isa).unwrap()
}

/// Which word of the filter's only map each packet leads to, if any; packets are given by their words.
fn found(text: &str, packets: &[Vec<u32>]) -> Vec<Option<usize>> {
    found_by(0, text, packets, &[])
}

/// The same behind so many steps of searches for prefixes, where the map has these words.
fn found_by(steps: usize, text: &str, packets: &[Vec<u32>], words: &[u32]) -> Vec<Option<usize>> {
    let program = program(text);
    let (code, maps) = (code(&program), Maps::new(program.maps()).unwrap());
    maps.set_words(0, 0, words);
    let bytes = |words: &Vec<u32>| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let batch = Batch::from_packets(&packets.iter().map(bytes).collect::<Vec<_>>()).unwrap();
    let context = Context {
        arena: batch.span().as_ptr(),
        descriptors: batch.descriptors().as_ptr(),
        verdicts: std::ptr::null_mut(),
        targets: std::ptr::null_mut(),
        metadata: std::ptr::null(),
        tables: std::ptr::null(),
        resized: std::ptr::null_mut(),
        runtime: code.runtime(),
        maps: maps.addresses(),
        list: std::ptr::null(),
    };
    let (ahead, _) = code.ahead.as_ref().expect("there is a search to be found");
    let count = Layout::of(&program.maps()[0]).words();
    let word = |Lead { place, .. }: &Lead| {
        // SAFETY: the session's maps have one map at least.
        let start = unsafe { *maps.addresses() } as usize;
        let offset = (*place as usize).checked_sub(start)?;
        (offset / 4 < count && offset % 4 == 0).then_some(offset / 4)
    };
    let groups = (0..packets.len()).step_by(GROUP).map(|start| (start, packets.len().min(start + GROUP)));
    groups
        .flat_map(|(start, end)| {
            let mut leads = [Lead::NONE; GROUP];
            // SAFETY: the batch is ours, and the code reads its packets alone.
            unsafe { lead(ahead, &context, start, end, &mut leads) };
            let mut last = leads;
            for step in 0..steps {
                // SAFETY: the maps are those of the program.
                unsafe { walk::step(&code.walks, maps.addresses(), &mut leads, step == 0) };
                let led = leads.iter().zip(&mut last).filter(|(lead, _)| !lead.place.is_null());
                led.for_each(|(lead, last)| *last = *lead);
            }
            last[..end - start].iter().map(word).collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn searches_are_found_where_they_begin() {
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
    assert_eq!(found(text, &packets), want.collect::<Vec<_>>());
}

#[test]
fn searches_for_prefixes_begin_with_a_group_of_the_root() {
    for (key, address) in [(1, "load_le32(pkt, 0u)"), (4, "vec4<u32>(load_le32(pkt, 0u), 1u, 2u, 3u)")] {
        let text = format!(
            "//! map routes: lpm key={key} value=1 entries=5000
             fn xdp_filter(pkt: u32) -> u32 {{ return 1u + (routes_find({address}) & 1u); }}"
        );
        let TrieLayout { root_bits, root, .. } = TrieLayout::of(&program(&text).maps()[0]);
        let packets: Vec<Vec<u32>> = (0..50_u32).map(|n| vec![n.wrapping_mul(0x9e37_79b1)]).collect();
        let group = |packet: &Vec<u32>| Some(root as usize + 16 * (packet[0] >> (32 - root_bits)) as usize);
        assert_eq!(found(&text, &packets), packets.iter().map(group).collect::<Vec<_>>());
    }
}

/// Packets of services are looked up first, which takes a small map only; what it says leads to the large one.
#[test]
fn small_maps_are_searched_at_once() {
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
    assert_eq!(found(text, &packets), want.collect::<Vec<_>>());
}

#[test]
fn searches_for_prefixes_go_on_to_the_value() {
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
    let places = found_by(STEPS, text, &packets, &words);
    let prefix = |place: usize| {
        let at = 16 + 2 * 5000 + place * 2;
        [words[at], words[at + 1] - 1]
    };
    for (number, place) in (0..).zip(places) {
        assert_eq!(prefix((place.unwrap() - 16) / 2), [number << 22, 10 + number % 23]);
    }
}

#[test]
fn there_is_none_where_nothing_is_found() {
    for body in [
        "return XDP_PASS;",
        "_ = adjust_head(pkt, 4); _ = flows_insert(load_le32(pkt, 0u)); return XDP_PASS;",
        "flows_write(3u, 0u, 5u); return XDP_PASS;",
    ] {
        let text = format!(
            "//! map flows: hash key=1 value=1 entries=9
             fn xdp_filter(pkt: u32) -> u32 {{ {body} }}"
        );
        assert!(code(&program(&text)).ahead.is_none(), "{body}");
    }
}
