//! Longest prefix match on the CPU, one thread, against DIR-24-8 in hand-written Rust. `cargo bench --bench router`.
//!
//! A million IPv4 routes and 200,000 of IPv6 (`support/routes.rs`), a million packets of 64 bytes. Addresses are random
//! ones out of all that there are, and random ones inside a random route each. Both sides of a row give the same
//! verdicts for the same packets, and run in turn.

mod hand_written {
    pub mod dir24;
}
mod support;

use std::cell::RefCell;
use std::hint::black_box;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Instant;

use portcullis_core::device::{Device, LoadOptions, Session};
use portcullis_core::lang::{Source, wgsl};
use portcullis_core::map::Table as MapTable;
use portcullis_core::packet::{Arena, Batch, Carver, Descriptor, Room};
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_cpu::Cpu;

use hand_written::dir24::Dir24;
use support::routes::{self, Random, Route, mask};
use support::{LENGTH, Table, in_turn, only_testing};

/// `redirect(next_hop)`, or a drop where there is no route.
const LOOKUP_V4: &str = "
    fn xdp_filter(pkt: u32) -> u32 {
        if pkt_len(pkt) < 34u || load_be16(pkt, 12u) != ETH_P_IP { return XDP_PASS; }
        let route = routes_find(load_be32(pkt, 30u));
        if route == MAP_NONE { return XDP_DROP; }
        return redirect(routes_read(route, 0u));
    }";

const LOOKUP_V6: &str = "
    fn xdp_filter(pkt: u32) -> u32 {
        if pkt_len(pkt) < 54u || load_be16(pkt, 12u) != ETH_P_IPV6 { return XDP_PASS; }
        let to = vec4<u32>(load_be32(pkt, 38u), load_be32(pkt, 42u), load_be32(pkt, 46u), load_be32(pkt, 50u));
        let route = routes_find(to);
        if route == MAP_NONE { return XDP_DROP; }
        return redirect(routes_read(route, 0u));
    }";

const PASS: u32 = 2;
const DROP: u32 = 1;

fn redirect(next_hop: Option<u32>) -> u32 {
    next_hop.map_or(DROP, |next_hop| 4 | next_hop << 8)
}

fn lookup_v4(tables: &Dir24, packet: &[u8]) -> u32 {
    match packet.first_chunk::<34>() {
        Some(header) if header[12..14] == [0x08, 0x00] => {
            redirect(tables.ipv4(u32::from_be_bytes([header[30], header[31], header[32], header[33]])))
        }
        _ => PASS,
    }
}

fn lookup_v6(tables: &Dir24, packet: &[u8]) -> u32 {
    match packet.first_chunk::<54>() {
        Some(header) if header[12..14] == [0x86, 0xdd] => {
            redirect(tables.ipv6(header[38..].first_chunk().expect("16 bytes are left")))
        }
        _ => PASS,
    }
}

/// Packets of one family to such addresses.
fn batch(count: usize, is_v6: bool, mut address: impl FnMut() -> u128) -> Batch {
    let mut arena = Arena::new(count * LENGTH).expect("memory for the packets");
    for slot in arena.chunks_exact_mut(LENGTH) {
        let address = address().to_be_bytes();
        if is_v6 {
            slot[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
            slot[38..54].copy_from_slice(&address);
        } else {
            slot[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
            slot[30..34].copy_from_slice(&address[..4]);
        }
    }
    let descriptors = (0..count).map(|i| Descriptor { offset: (i * LENGTH) as u32, length: LENGTH as u32 });
    Carver::new(arena, None).carve(descriptors.collect(), Vec::new(), Room::None).expect("slots do not overlap")
}

fn session(text: &str, words: u32, routes: &[Route]) -> Box<dyn Session> {
    let text = format!("//! map routes: lpm key={words} value=1 entries={}\n{text}", routes.len());
    let program = wgsl::compile(&Source::new("lookup.wgsl", text), &ProgramOptions::default());
    let program: Arc<Program> = Arc::new(program.unwrap_or_else(|errors| panic!("{}", errors.render())));
    let options = LoadOptions { threads: NonZeroUsize::new(1), ..LoadOptions::default() };
    let mut session = Cpu::new().load(&program, &options).expect("the CPU takes it");
    let started = Instant::now();
    let mut table = MapTable::new(&program.maps()[0], Vec::new());
    routes.iter().for_each(|route| table.set(&route.key(words), &[route.next_hop]).expect("there is room"));
    let (at, words) = table.changes();
    println!("{} routes made ready in {:.0} ms", routes.len(), started.elapsed().as_secs_f64() * 1e3);
    session.set_map_words(0, at, words).expect("they lie in the map");
    session
}

fn main() {
    let (packets, rounds, share) = if only_testing() { (1000, 1, 100) } else { (1 << 20, 15, 1) };
    let mut table = Table::new("longest prefix match, one thread", "ours", "DIR-24-8");
    let v4 = routes::ipv4(1_000_000 / share, 200, 1);
    let v6 = routes::ipv6(200_000 / share, 200, 2);
    type Lookup = fn(&Dir24, &[u8]) -> u32;
    let families: [(&str, &[Route], &str, Lookup); 2] =
        [("IPv4", &v4, LOOKUP_V4, lookup_v4), ("IPv6", &v6, LOOKUP_V6, lookup_v6)];
    for (name, routes, text, lookup) in families {
        let is_v6 = name == "IPv6";
        let tables = Dir24::new(routes);
        let mut session = session(text, if is_v6 { 4 } else { 1 }, routes);
        for (which, in_routes) in [("any address", false), ("addresses of routes", true)] {
            let mut random = Random(7);
            let packed = batch(packets, is_v6, || {
                let route = routes[random.next() as usize % routes.len()];
                let address = random.address();
                match in_routes {
                    true => route.address | address & !mask(route.length),
                    // Of IPv6 only an eighth is in use at all.
                    false if is_v6 => 1 << 125 | address >> 3,
                    false => address,
                }
            });
            let batch = RefCell::new(Some(packed));
            let mut ours = |check: Option<&[u32]>| {
                let given = batch.borrow_mut().take().expect("it came back");
                let done = session.run(given).expect("the CPU does not fail");
                if let Some(theirs) = check {
                    assert!((0..packets).all(|i| done.verdicts.get(i).to_return() == theirs[i]), "{name}, {which}");
                }
                black_box(&done.verdicts);
                *batch.borrow_mut() = Some(done.batch);
            };
            let theirs = |out: &mut Vec<u32>| {
                out.clear();
                out.extend(
                    batch.borrow().as_ref().expect("it came back").packets().map(|packet| lookup(&tables, packet)),
                );
                black_box(out);
            };
            let mut out = Vec::with_capacity(packets);
            theirs(&mut out);
            ours(Some(&out));
            let pair = in_turn(rounds, || ours(None), || theirs(&mut out));
            table.rates(&format!("{name}, {which}"), packets, pair);
        }
    }
    table.print();
}
