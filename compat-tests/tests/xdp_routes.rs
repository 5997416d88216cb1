//! XDP programs that look up routes (`bpf_fib_lookup`, `bpf_check_mtu`), in a network namespace
//! with routes of every kind. The kernel answers from its own tables, every device from maps filled
//! from those; answers and packets must be identical.
#![cfg(target_os = "linux")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use portcullis::packet_io::routes;
use portcullis::packet_io::synth::Random;
use portcullis::routes::RouteMaps;
use portcullis_compat_tests::kernel::{self, Entries, KernelProgram, KernelRun};
use portcullis_compat_tests::objects::{self, FORMS};
use portcullis_compat_tests::{devices, oracle};
use portcullis_conformance::corpora::Packet;
use portcullis_conformance::layout::GuardedArena;
use portcullis_core::device::{Device, LoadOptions};
use portcullis_core::map::Table;
use portcullis_core::packet::{Metadata, ResizeRoom};
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_core::routes::RoutingTables;
use portcullis_live_tests::Namespace;
use portcullis_xdp::Object;

/// Arguments of `ip`, in order. All addresses are for documentation or private.
const NETWORK: &str = "
    link add d0 address 02:00:00:00:00:d0 type veth peer name e0
    link add d1 address 02:00:00:00:00:d1 mtu 1400 type veth peer name e1
    link add d2 address 02:00:00:00:00:d2 type veth peer name e2
    link add v0 address 02:00:00:00:01:00 mtu 9000 type veth peer name v1
    link set d0 up
    link set e0 up
    link set d1 up
    link set e1 up
    link set d2 up
    link set e2 up
    link set v0 up
    link set v1 up
    addr add 10.0.0.1/24 dev d0
    addr add 10.0.9.1/24 dev d0
    addr add 10.1.0.1/24 dev d1
    addr add 10.2.0.1/24 dev d2
    addr add 10.3.0.1/24 dev v0
    addr add 2001:db8::1/64 dev d0
    addr add 2001:db8:1::1/64 dev d1
    addr add 2001:db8:3::1/64 dev v0
    neigh add 10.0.0.254 lladdr 02:aa:00:00:00:01 dev d0 nud permanent
    neigh add 10.0.0.9 lladdr 02:aa:00:00:00:02 dev d0 nud stale
    neigh add 10.0.0.66 dev d0 nud failed
    neigh add 10.1.0.254 lladdr 02:aa:00:00:00:03 dev d1 nud permanent
    neigh add 10.2.0.254 lladdr 02:aa:00:00:00:04 dev d2 nud noarp
    neigh add 10.3.0.254 lladdr 02:aa:00:00:00:05 dev v0 nud permanent
    neigh add 203.0.113.9 lladdr 02:aa:00:00:00:06 dev v0 nud permanent
    neigh add fe80::99 lladdr 02:bb:00:00:00:01 dev d0 nud permanent
    neigh add 2001:db8::fe lladdr 02:bb:00:00:00:02 dev d0 nud permanent
    neigh add 2001:db8:1::fe lladdr 02:bb:00:00:00:03 dev d1 nud permanent
    neigh add 2001:db8:3::fe lladdr 02:bb:00:00:00:04 dev v0 nud permanent
    route add default via 10.0.0.254
    route add 192.0.2.0/24 via 10.1.0.254
    route add 192.0.2.128/25 via 10.3.0.254
    route add 198.51.100.0/24 via 10.0.0.77
    route add 203.0.113.0/24 dev v0
    route add 203.0.113.7/32 via 10.3.0.254
    route add blackhole 100.64.0.0/16
    route add unreachable 100.65.0.0/16
    route add prohibit 100.66.0.0/16
    route add throw 100.67.0.0/16
    route add 100.68.0.0/16 via 10.0.0.254 mtu lock 1200
    route add 100.69.0.0/16 via 10.0.0.254 mtu 1200
    route add 100.70.0.0/16 via 10.1.0.254 metric 20
    route add 100.70.0.0/16 via 10.3.0.254 metric 10
    route add 100.71.0.0/16 tos 0x10 via 10.1.0.254
    route add 100.71.0.0/16 via 10.3.0.254
    route add 100.72.0.0/16 via inet6 2001:db8:1::fe dev d1
    route add 100.73.0.0/16 via 10.0.0.254 src 10.3.0.1
    route add 100.74.0.0/16 via 10.0.9.7
    route add 100.75.0.0/16 via 10.2.0.254
    route add 100.80.0.0/16 via 10.1.0.254 table 100
    route add default via 10.3.0.254 table 100
    route add blackhole 192.0.2.0/26 table 100
    -6 route add default via fe80::99 dev d0
    -6 route add 2001:db8:10::/48 via 2001:db8:1::fe
    -6 route add 2001:db8:10:8000::/49 via 2001:db8:3::fe
    -6 route add 2001:db8:11::/48 via 2001:db8::77
    -6 route add 2001:db8:12::/48 dev v0
    -6 route add 2001:db8:12::7/128 via 2001:db8:3::fe
    -6 route add blackhole 2001:db8:20::/48
    -6 route add unreachable 2001:db8:21::/48
    -6 route add prohibit 2001:db8:22::/48
    -6 route add throw 2001:db8:23::/48
    -6 route add 2001:db8:24::/48 via 2001:db8::fe mtu lock 1300
    -6 route add 2001:db8:25::/48 via 2001:db8::fe mtu 1300
    -6 route add 2001:db8:26::/48 via 2001:db8:1::fe metric 20
    -6 route add 2001:db8:26::/48 via 2001:db8:3::fe metric 10
    -6 route add 2001:db8:27::/48 via 2001:db8::fe src 2001:db8:3::1
    -6 route add local 2001:db8:28::/48 dev lo
    -6 route add 2001:db8:28:1::/64 via 2001:db8::fe
    -6 route add 2001:db8:29::/48 via 2001:db8:1::fe table 100
    -6 route add default via 2001:db8:3::fe table 100
";

/// Destinations that exercise every route.
const ADDRESSES_V4: &str = "
    10.0.0.1 10.0.0.9 10.0.0.66 10.0.0.77 10.0.0.254 10.0.0.255 10.0.9.7 10.1.0.1 10.1.0.254
    10.2.0.254 10.3.0.254 10.3.0.1 8.8.0.1 192.0.2.1 192.0.2.129 198.51.100.1 203.0.113.7
    203.0.113.9 203.0.113.10 100.64.0.1 100.65.0.1 100.66.0.1 100.67.0.1 100.68.0.1 100.69.0.1
    100.70.0.1 100.71.0.1 100.72.0.1 100.73.0.1 100.74.0.1 100.75.0.1 100.80.0.1 127.0.0.1 224.0.0.1
";
/// IPv6 counterpart of [`ADDRESSES_V4`].
const ADDRESSES_V6: &str = "
    2001:db8::1 2001:db8:: 2001:db8::fe 2001:db8::77 2001:db8:1::fe 2001:db8:3::1 2001:db8:10::1
    2001:db8:10:8000::1 2001:db8:11::1 2001:db8:12::1 2001:db8:12::7 2001:db8:20::1 2001:db8:21::1
    2001:db8:22::1 2001:db8:23::1 2001:db8:24::1 2001:db8:25::1 2001:db8:26::1 2001:db8:27::1
    2001:db8:28::1 2001:db8:28:1::1 2001:db8:28:2::1 2001:db8:29::1 2001:4860::1 fe80::99 fe80::1
    febf::1 fec0::1 ff02::1 ::1 ::2 ::ffff:10.0.0.254
";

const SUITE: &str = "objects and routes";

/// A packet and the index of its receiving interface.
type ReceivedPacket = (Vec<u8>, u32);

/// A program with the kernel's results.
struct Case {
    name: String,
    program: Arc<Program>,
    asked: Vec<ReceivedPacket>,
    ran: Vec<KernelRun>,
    maps: Vec<Option<Entries>>,
}

fn network() -> Namespace {
    let namespace = Namespace::new();
    for family in ["ipv4", "ipv6"] {
        for kind in ["all", "default"] {
            namespace.sysctl(&format!("net.{family}.conf.{kind}.forwarding"), "1");
        }
    }
    for line in NETWORK.lines().map(str::trim).filter(|line| !line.is_empty()) {
        namespace.ip(&line.split(' ').collect::<Vec<_>>());
    }
    for family in ["ipv4", "ipv6"] {
        namespace.sysctl(&format!("net.{family}.conf.d2.forwarding"), "0");
    }
    namespace
}

fn pick<T: Copy>(random: &mut Random, of: &[T]) -> T {
    of[random.below(of.len() as u32) as usize]
}

fn address(random: &mut Random, is_v4: bool) -> IpAddr {
    let texts = if is_v4 { ADDRESSES_V4 } else { ADDRESSES_V6 };
    let texts: Vec<&str> = texts.split_whitespace().collect();
    pick(random, &texts).parse().expect("a valid address")
}

/// Returns packets for `lookup.c`: `struct question`.
fn questions(random: &mut Random, interfaces: &[u32]) -> Vec<ReceivedPacket> {
    let mut all = Vec::new();
    for _ in 0..2500 {
        let family = pick(random, &[2, 2, 2, 2, 10, 10, 10, 10, 0, 7]);
        // Programs for one address family overwrite the fields of the other.
        let is_v4 = family != 10;
        let flags = match random.below(8) {
            0..=2 => 0,
            3 => 1 << random.below(7),
            4..=6 => random.below(64),
            _ => random.below(128),
        };
        let lengths = [0, 1, 1200, 1201, 1280, 1300, 1301, 1400, 1401, 1500, 1501, 9000, 9001, 0xffff];
        let mut params = [0_u8; 64];
        params[0] = family;
        params[1] = pick(random, &[6, 17]);
        params[2..6].copy_from_slice(&random.below(u32::MAX).to_ne_bytes());
        params[6..8].copy_from_slice(&(pick(random, &lengths) as u16).to_ne_bytes());
        params[8..12].copy_from_slice(&pick(random, interfaces).to_ne_bytes());
        params[12..16].copy_from_slice(&pick(random, &[0_u32, 0, 0x10, 0x14, 0x1c, 0xff, 0xb8]).to_ne_bytes());
        for at in [16, 32] {
            match address(random, is_v4) {
                IpAddr::V4(address) => {
                    params[at..at + 4].copy_from_slice(&address.octets());
                    params[at + 4..at + 16].fill(random.below(256) as u8);
                }
                IpAddr::V6(address) => params[at..at + 16].copy_from_slice(&address.octets()),
            }
        }
        params[48..52].copy_from_slice(&pick(random, &[0_u32, 253, 254, 255, 100, 77]).to_ne_bytes());
        params[52..56].copy_from_slice(&random.below(u32::MAX).to_ne_bytes());
        let mut packet = vec![0; 16];
        packet.extend(flags.to_ne_bytes());
        let length = pick(random, &[0, 1, 1385, 1386, 1387, 1399, 1400, 1401, 1500, 1501, 9000, 9001, 65536, u32::MAX]);
        packet.extend(length.to_ne_bytes());
        packet.extend([0; 4]);
        let more = pick(random, &[0, 1, -1, 1300, 1400, 8999, -1500, i32::MAX, i32::MIN]);
        packet.extend(more.to_ne_bytes());
        packet.extend(params);
        packet.resize(packet.len() + random.below(1400) as usize, 0);
        all.push((packet, pick(random, &interfaces[2..])));
    }
    all
}

/// Returns packets for `forward.c`.
fn packets(random: &mut Random, interfaces: &[u32]) -> Vec<ReceivedPacket> {
    let mut all = Vec::new();
    for _ in 0..1500 {
        let is_v4 = random.below(2) == 0;
        let most = pick(random, &[60, 1500, 3000]);
        let length = 40 + random.below(most) as u16;
        let mut packet = vec![0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2];
        match (address(random, is_v4), address(random, is_v4)) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let [a, b] = length.to_be_bytes();
                packet.extend([8, 0, 0x45, pick(random, &[0, 0, 0x10, 0xb8]), a, b, 0, 1, 0, 0]);
                packet.extend([pick(random, &[0, 1, 2, 64]), 17, 0x12, 0x34]);
                packet.extend(from.octets());
                packet.extend(to.octets());
            }
            (from, to) => {
                let [from, to] = [from, to].map(|it| match it {
                    IpAddr::V6(it) => it,
                    IpAddr::V4(it) => it.to_ipv6_mapped(),
                });
                let [a, b] = (length - 40).to_be_bytes();
                packet.extend([0x86, 0xdd, 0x60, 0, 0, 0, a, b, 17, pick(random, &[0, 1, 2, 64])]);
                packet.extend(from.octets());
                packet.extend(to.octets());
            }
        }
        packet.resize(14 + usize::from(length), 0x5a);
        packet.truncate(pick(random, &[4000, 4000, 4000, 4000, 30]));
        all.push((packet, pick(random, &interfaces[2..])));
    }
    all
}

/// Returns every program with the kernel's results in this thread's network namespace.
fn cases(tables: &RoutingTables) -> Vec<Case> {
    kernel::on_first_processor();
    // Index 0, an absent one, and all existing interfaces.
    let mut interfaces = vec![0, 999];
    interfaces.extend(tables.interfaces.iter().map(|interface| interface.number));
    let mut random = Random::new(69, 1);
    let (questions, packets) = (questions(&mut random, &interfaces), packets(&mut random, &interfaces));
    let mut cases = Vec::new();
    for stem in ["lookup", "forward"] {
        let source = objects::folder_of_routes().join(format!("{stem}.c"));
        let asked = if stem == "lookup" { &questions } else { &packets };
        for (processor, level) in FORMS {
            let bytes = objects::compile_with(&source, processor, &[level.into()]);
            let bytes = bytes.unwrap_or_else(|error| panic!("{stem}: {error}"));
            let object = Object::read(stem, &bytes).unwrap_or_else(|error| panic!("{stem}: {error}"));
            for function in object.programs() {
                let name = format!("{stem}:{} ({processor} {level})", function.name);
                let there = KernelProgram::load(&object, &function.name).unwrap_or_else(|e| panic!("{name}: {e}"));
                let here = objects::program(stem, &bytes, &function.name, &ProgramOptions::default());
                let run = |(packet, interface): &ReceivedPacket| {
                    there.run_at(packet, *interface).unwrap_or_else(|error| panic!("{name}: {error}"))
                };
                let ran = asked.iter().map(run).collect();
                let origin = portcullis_xdp::ObjectInfo::of(&here).expect("compiled from an object");
                let maps = origin.maps.iter().map(|map| {
                    let number = object.maps.iter().position(|it| Some(it) == map.as_ref())?;
                    there.entries(number).unwrap_or_else(|error| panic!("{name}: {error}"))
                });
                let maps = maps.collect();
                cases.push(Case { name, asked: asked.clone(), ran, maps, program: here });
            }
        }
    }
    cases
}

/// Returns the first difference on a device.
fn first_difference(device: &dyn Device, case: &Case, tables: &RoutingTables) -> Option<String> {
    let Case { asked, ran, program, .. } = case;
    let mut session = device.load(program, &LoadOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    if let Some(mut routed) = RouteMaps::from_program(program) {
        routed.apply_tables(tables, &mut *session).unwrap_or_else(|error| panic!("{error}"));
    }
    let packet = |(bytes, interface): &ReceivedPacket| Packet {
        bytes: bytes.clone(),
        metadata: Metadata::new(bytes.len() as u32, *interface, 0),
    };
    let packets: Vec<Packet> = asked.iter().map(packet).collect();
    let (batches, _watched) =
        GuardedArena::lay_out(&packets, 500, ResizeRoom::None).expect("the arena can be allocated");
    let mut number = 0;
    for batch in batches {
        let done = session.run(batch).unwrap_or_else(|error| panic!("{error}"));
        for index in 0..done.batch.len() {
            let (want, got) = (&ran[number], done.batch.packet(index));
            let verdict = objects::of_ours(done.verdicts.get(index));
            if verdict != objects::of_kernel(want.verdict) || got != want.packet {
                return Some(format!(
                    "packet {number} by interface {}: {:02x?}\n  {verdict:?} {:02x?}\n  the kernel {:?} {:02x?}",
                    asked[number].1,
                    &asked[number].0[..asked[number].0.len().min(96)],
                    &got[..got.len().min(96)],
                    objects::of_kernel(want.verdict),
                    &want.packet[..want.packet.len().min(96)],
                ));
            }
            number += 1;
        }
    }
    let origin = portcullis_xdp::ObjectInfo::of(program)?;
    for (number, (map, definition)) in program.maps().iter().zip(&origin.maps).enumerate() {
        let (Some(definition), Some(want)) = (definition, &case.maps[number]) else { continue };
        let words = session.map_words(number).unwrap_or_else(|error| panic!("{error}"));
        let got = objects::entries(map, definition, &Table::new(map, words));
        if got != *want {
            return Some(format!("the map {}: {got:02x?}\n  the kernel {want:02x?}", definition.name));
        }
    }
    None
}

#[test]
fn routes_agree_with_the_kernel() {
    if objects::is_kernel_missing(SUITE) || objects::is_missing(SUITE) {
        return;
    }
    let namespace = network();
    let (tables, cases) = namespace.run(|| {
        let tables = routes::read().unwrap_or_else(|error| panic!("{error}"));
        let cases = cases(&tables);
        // The kernel must not have learnt neighbours meanwhile.
        assert_eq!(routes::read().unwrap_or_else(|error| panic!("{error}")), tables);
        (tables, cases)
    });
    // The test must reach every kind of answer.
    let result = |ran: &KernelRun| i32::from_ne_bytes(ran.packet[24..28].try_into().expect("four bytes"));
    let any = cases.iter().find(|case| case.name.starts_with("lookup:lookup_any (v3")).expect("lookup_any is a case");
    let answers: std::collections::BTreeSet<i32> = any.ran.iter().map(result).collect();
    println!("{} routes; answers {answers:?}", tables.routes.len());
    assert!([-97, -22, -19, 0, 1, 2, 3, 4, 5, 7, 8].iter().all(|answer| answers.contains(answer)), "{answers:?}");
    devices::on_each(SUITE, |device| {
        let some = devices::share_of_all(device, &cases, 8, |case| oracle::parts(&case.program));
        let differences = some.into_iter().filter_map(|case| {
            first_difference(&**device, case, &tables).map(|difference| format!("{}: {difference}", case.name))
        });
        let differences: Vec<String> = differences.collect();
        assert!(differences.is_empty(), "{}", differences.join("\n\n"));
    });
}

/// Address constants parse as addresses of their family.
#[test]
fn addresses_parse() {
    assert!(ADDRESSES_V4.split_whitespace().all(|it| it.parse::<Ipv4Addr>().is_ok()));
    assert!(ADDRESSES_V6.split_whitespace().all(|it| it.parse::<Ipv6Addr>().is_ok()));
}
