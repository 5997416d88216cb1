//! Compares longest prefix match on one CPU thread with hand-written DIR-24-8 in Rust and with the
//! kernel's LPM trie: `cargo bench --bench router`.
//!
//! With a million IPv4 routes, 200,000 IPv6 routes (`support/routes.rs`) and a million packets of
//! 64 bytes. Addresses are either uniformly random, or random within a random route each. Both
//! sides of a row return the same verdicts and, when forwarding, write the same bytes; they run in
//! turn.

mod hand_written {
    pub mod dir24;
    pub mod router;
}
mod support;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use portcullis::packet_io::synth::Random;
use portcullis_core::device::{Device, Session};
use portcullis_core::packet::Batch;
use portcullis_core::program::Program;
use portcullis_cpu::Cpu;

use hand_written::dir24::Dir24;
use hand_written::router::{self, DROP, NextHop, PASS, redirect};
#[cfg(target_os = "linux")]
use support::kernel::{Kernel, folded};
use support::routes::{self, Route, mask};
use support::{
    LENGTH, ReusedBatch, Sample, Table, compile, fill_map, is_test_run, sample_in_turn, threads, time, time_in_turn,
    written_batch,
};

/// A filter that returns `redirect(next_hop)`, or drops packets without a route.
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

fn verdict(next_hop: Option<u32>) -> u32 {
    next_hop.map_or(DROP, redirect)
}

fn lookup_v4(tables: &Dir24, packet: &[u8]) -> u32 {
    match packet.first_chunk::<34>() {
        Some(header) if header[12..14] == [0x08, 0x00] => {
            verdict(tables.ipv4(u32::from_be_bytes([header[30], header[31], header[32], header[33]])))
        }
        _ => PASS,
    }
}

fn lookup_v6(tables: &Dir24, packet: &[u8]) -> u32 {
    match packet.first_chunk::<54>() {
        Some(header) if header[12..14] == [0x86, 0xdd] => {
            verdict(tables.ipv6(header[38..].first_chunk().expect("16 bytes are left")))
        }
        _ => PASS,
    }
}

type Lookup = fn(&Dir24, &[u8]) -> u32;
type Router = fn(&Dir24, &[NextHop], &mut [u8]) -> u32;

/// An address family with its routes and filters.
struct AddressFamily {
    name: &'static str,
    is_v6: bool,
    routes: Vec<Route>,
    /// The lookup filter, and its hand-written counterpart.
    lookup: (&'static str, Lookup),
    /// The router filter, and its hand-written counterpart.
    router: (&'static str, Router),
}

impl AddressFamily {
    fn words(&self) -> u32 {
        if self.is_v6 { 4 } else { 1 }
    }

    /// Reproducible addresses: any, or each within one of the routes.
    fn addresses(&self, in_routes: bool) -> impl FnMut() -> u128 {
        let mut random = Random::new(7, 0);
        move || {
            let route = random.pick(&self.routes);
            let address = routes::address(&mut random);
            match in_routes {
                true => route.address | address & !mask(route.length),
                // Only an eighth of the IPv6 space is allocated.
                false if self.is_v6 => 1 << 125 | address >> 3,
                false => address,
            }
        }
    }

    /// Bytes of an address in a packet.
    fn bytes<'a>(&self, packet: &'a [u8]) -> &'a [u8] {
        if self.is_v6 { &packet[38..54] } else { &packet[30..34] }
    }

    /// Packets to these addresses, from arbitrary sources that routers forward.
    fn batch(&self, count: usize, mut address: impl FnMut() -> u128) -> Batch {
        let mut random = Random::new(8, 0);
        written_batch(count, |_, packet| {
            let (address, mut source) = (address().to_be_bytes(), routes::address(&mut random).to_be_bytes());
            source[0] = 0x20 | source[0] & 0x0f;
            if self.is_v6 {
                packet[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
                packet[20..22].copy_from_slice(&[17, 255]);
                packet[22..38].copy_from_slice(&source);
                packet[38..54].copy_from_slice(&address);
            } else {
                packet[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
                packet[22..24].copy_from_slice(&[255, 17]);
                packet[24..28].copy_from_slice(&source[12..]);
                packet[26..30].copy_from_slice(&source[..4]);
                packet[30..34].copy_from_slice(&address[..4]);
            }
        })
    }

    /// A filter with the routes in its map `routes`.
    fn load(&self, text: String) -> (Arc<Program>, Box<dyn Session>) {
        let program = compile("router", text);
        let mut session = Cpu::new().load(&program, &threads(1)).expect("the CPU loads the filter");
        let started = Instant::now();
        let words = self.words();
        let entries = self.routes.iter().map(|route| (route.key(words), [route.next_hop]));
        fill_map(&mut *session, &program, 0, entries);
        println!("{} routes inserted in {:.0} ms", self.routes.len(), started.elapsed().as_secs_f64() * 1e3);
        (program, session)
    }

    fn lookups(&self, tables: &Dir24, packets: usize, rounds: usize, rows: &mut Rows) {
        let (text, by_hand) = self.lookup;
        let declaration = format!("//! map routes: lpm key={} value=1 entries={}", self.words(), self.routes.len());
        let (_, mut session) = self.load(format!("{declaration}\n{text}"));
        #[cfg(target_os = "linux")]
        let mut kernel = self.kernel(packets);
        for (which, in_routes) in [("any address", false), ("addresses of routes", true)] {
            let name = format!("{}, {which}", self.name);
            let batch = ReusedBatch::new(self.batch(packets, self.addresses(in_routes)));
            let theirs = |out: &mut Vec<u32>| {
                out.clear();
                out.extend(batch.get().packets().map(|packet| by_hand(tables, packet)));
                black_box(out);
            };
            let mut out = Vec::with_capacity(packets);
            theirs(&mut out);
            assert!(
                batch.run(&mut *session).iter().map(|verdict| verdict.to_return()).eq(out.iter().copied()),
                "{name}"
            );
            let pair = time_in_turn(rounds, || batch.run(&mut *session), || theirs(&mut out));
            rows.lookups.rates(&name, packets, pair);
            #[cfg(target_os = "linux")]
            if let Some(kernel) = &mut kernel {
                let addresses: Vec<u8> = batch.get().packets().flat_map(|packet| self.bytes(packet)).copied().collect();
                kernel.set_addresses(&addresses).expect("the map has capacity");
                let answers = folded(out.iter().map(|&verdict| if verdict == DROP { 0 } else { (verdict >> 8) + 1 }));
                let pair = sample_in_turn(
                    rounds.div_ceil(3),
                    || time(|| batch.run(&mut *session)),
                    || {
                        let (took, given) = kernel.run().expect("the programs are loaded");
                        assert_eq!(given, answers, "{name}: answers of the kernel's trie");
                        Sample::wall(took)
                    },
                );
                rows.kernel.rates(&name, packets, pair);
            }
        }
    }

    /// The kernel's trie with these routes, if this process may create one.
    #[cfg(target_os = "linux")]
    fn kernel(&self, addresses: usize) -> Option<Kernel> {
        let bytes = 4 * self.words() as usize;
        let (mut keys, mut next_hops) = (Vec::new(), Vec::new());
        for route in &self.routes {
            keys.extend(route.length.to_ne_bytes());
            keys.extend(&route.address.to_be_bytes()[..bytes]);
            next_hops.extend(route.next_hop.to_ne_bytes());
        }
        let kernel = Kernel::new(&keys, &next_hops, self.routes.len() as u32, addresses as u32);
        kernel
            .inspect_err(|error| {
                println!("{}: the kernel's trie is not measured, as bpf(2) failed: {error}", self.name)
            })
            .ok()
    }

    fn whole(&self, tables: &Dir24, packets: usize, rounds: usize, rows: &mut Rows) {
        let (text, by_hand) = self.router;
        let (program, mut session) = self.load(text.into());
        let next_hops: Vec<NextHop> = (0..NEXT_HOPS).map(NextHop::new).collect();
        let entries = (0..).zip(&next_hops).map(|(number, next_hop)| ([number], next_hop.words()));
        fill_map(&mut *session, &program, 1, entries);
        for (which, in_routes) in [("any address", false), ("addresses of routes", true)] {
            let name = format!("{}, {which}", self.name);
            let batch = ReusedBatch::new(self.batch(packets, self.addresses(in_routes)));
            let mut copy = batch.get().packets().collect::<Vec<_>>().concat();
            let descriptors = batch.get().descriptors().to_vec();
            let mut verdicts = None;
            let ours = || verdicts = Some(batch.run(&mut *session));
            let mut out = Vec::with_capacity(packets);
            let theirs = || {
                out.clear();
                out.extend(descriptors.iter().map(|at| {
                    let packet = &mut copy[at.offset as usize..][..at.length as usize];
                    by_hand(tables, &next_hops, packet)
                }));
                black_box(&out);
            };
            let pair = time_in_turn(rounds, ours, theirs);
            rows.whole.rates(&name, packets, pair);
            let verdicts = verdicts.expect("at least one round");
            assert!((0..packets).all(|i| verdicts.get(i).to_return() == out[i]), "{name}: verdicts");
            assert!(batch.get().packets().eq(copy.chunks_exact(LENGTH)), "{name}: bytes");
        }
    }
}

/// Result tables.
struct Rows {
    lookups: Table,
    kernel: Table,
    whole: Table,
}

/// Number of next hops.
const NEXT_HOPS: u32 = 200;

fn main() {
    support::restore_sigpipe();
    let (packets, rounds, share) = if is_test_run() { (1024, 1, 100) } else { (1 << 20, 15, 1) };
    let mut rows = Rows {
        lookups: Table::new("longest prefix match, one thread", "ours", "DIR-24-8"),
        kernel: Table::new("longest prefix match, kernel net of an empty program", "ours", "kernel"),
        whole: Table::new("router_v4 and router_v6", "ours", "hand-written"),
    };
    let families = [
        AddressFamily {
            name: "IPv4",
            is_v6: false,
            routes: routes::ipv4(1_000_000 / share, NEXT_HOPS, 1),
            lookup: (LOOKUP_V4, lookup_v4),
            router: (include_str!("../shaders/router_v4.wgsl"), router::ipv4),
        },
        AddressFamily {
            name: "IPv6",
            is_v6: true,
            routes: routes::ipv6(200_000 / share, NEXT_HOPS, 2),
            lookup: (LOOKUP_V6, lookup_v6),
            router: (include_str!("../shaders/router_v6.wgsl"), router::ipv6),
        },
    ];
    for family in families {
        let tables = Dir24::new(&family.routes);
        family.lookups(&tables, packets, rounds, &mut rows);
        family.whole(&tables, packets, rounds, &mut rows);
    }
    rows.lookups.print();
    rows.kernel.print();
    rows.whole.print();
}
