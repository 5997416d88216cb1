//! Compares every stock filter with maps, in both languages and on every device, with its model:
//! verdicts, packets and final maps. Batch sizes and thread counts vary.

use std::collections::{BTreeMap, BTreeSet};

use portcullis::packet_io::synth::Random;
use portcullis_compat_tests::devices;
use portcullis_compat_tests::models::Outcome;
use portcullis_compat_tests::stateful::{
    self, Model, Outcomes, Phase, blacklist, conntrack_fw, ecpri_reorder, flow_stats, gtpu_decap, maglev_lb, policer,
    router, syn_flood, token_bucket,
};
use portcullis_compat_tests::traffic::frame::ones_complement;
use portcullis_compat_tests::traffic::{Packet, Spec, traffic};
use portcullis_core::packet::{Metadata, Verdict};

/// Compares a filter with its model on every device.
fn check(name: &str, parameters: &[(&str, &str)], phases: &[Phase], model: &mut dyn Model) -> Outcomes {
    let want = stateful::expected(model, phases);
    let programs = stateful::programs(name, parameters);
    devices::on_each(&format!("{name} and its model"), |device| {
        for program in &programs {
            stateful::check(device, program, phases, &want);
        }
    });
    want
}

/// Asserts that each verdict occurs often enough, and that no other verdict occurs.
fn assert_verdicts(outcomes: &Outcomes, least: &[(&str, usize)]) {
    let mut counts = BTreeMap::new();
    for outcome in &outcomes.packets {
        *counts.entry(outcome.verdict.action().name()).or_insert(0) += 1;
    }
    assert!(counts.keys().all(|action| least.iter().any(|(known, _)| known == action)), "{counts:?}");
    for (action, least) in least {
        assert!(counts.get(action).is_some_and(|count| count >= least), "too few {action}: {counts:?}");
    }
}

fn packets(seed: u64) -> Vec<Packet> {
    traffic(&Spec { seed, ..Spec::default() })
}

#[test]
fn gtpu_decap() {
    let phases = [Phase { writes: gtpu_decap::writes(), packets: gtpu_decap::tunnelled(&packets(1), 1) }];
    let outcomes = check("gtpu_decap", &[], &phases, &mut gtpu_decap::GtpuDecap::default());
    assert_verdicts(&outcomes, &[("redirect", 1000), ("drop", 500), ("pass", 1000)]);
}

/// Some byte counts start near 2^32, so that sums overflow a word, and some packets have arbitrary
/// times.
#[test]
fn flow_stats() {
    let mut packets = packets(2);
    for (number, packet) in packets.iter_mut().enumerate().filter(|(number, _)| number % 5 == 0) {
        let Metadata { wire_length, port, .. } = packet.metadata;
        packet.metadata = Metadata::new(wire_length, port, (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
    for (number, packet) in packets.iter_mut().enumerate().filter(|(number, _)| number % 4 == 0) {
        packet.metadata.wire_length = u32::MAX - number as u32;
    }
    let outcomes =
        check("flow_stats", &[], &[Phase { writes: Vec::new(), packets }], &mut flow_stats::FlowStats::default());
    assert_verdicts(&outcomes, &[("pass", 6000)]);
    let flows = &outcomes.maps["flows"];
    let count = |is: &dyn Fn(&[u32], &[u32]) -> bool| flows.iter().filter(|(key, value)| is(key, value)).count();
    assert!(count(&|key, _| key[2] != 0xffff) > 100, "IPv6");
    assert!(count(&|_, value| value[0] > 10) > 50, "flows of many packets");
    assert!(count(&|_, value| value[2] > 0) > 10, "sums above 32 bits");
    assert!(count(&|_, value| value[4] - value[3] > 1 << 31) > 50, "flows whose first and last times are far apart");
}

/// A backend fails and returns, and others are added and removed.
#[test]
fn maglev_lb() {
    let mut packets = packets(3);
    maglev_lb::nearly_zero(&mut packets[..2000]);
    let mut parts = packets.chunks(packets.len() / 5 + 1);
    let mut next = |writes| Phase { writes, packets: parts.next().unwrap().to_vec() };
    let phases = [
        next(maglev_lb::pool(&[3, 1, 2, 1])),
        next(vec![maglev_lb::healthy(3, 0)]),
        next([maglev_lb::pool(&[1, 1, 1, 0, 5]), vec![maglev_lb::healthy(4, 1)]].concat()),
        next((1..=5).map(|number| maglev_lb::healthy(number, u32::from(number == 2))).collect()),
        next(vec![maglev_lb::healthy(2, 0)]),
    ];
    let outcomes = check("maglev_lb", &[], &phases, &mut maglev_lb::MaglevLb::default());
    assert_verdicts(&outcomes, &[("redirect", 1000), ("pass", 1000), ("drop", 50)]);
}

/// If a backend fails, only its own flows move to other backends.
#[test]
fn maglev_lb_moves_the_flows_of_a_failed_backend_alone() {
    let packets = packets(4);
    let ports = |failed: &[u32]| {
        let writes = failed.iter().map(|number| maglev_lb::healthy(*number, 0));
        let writes = [maglev_lb::pool(&[1; 6]), writes.collect()].concat();
        let phases = [Phase { writes, packets: packets.clone() }];
        stateful::expected(&mut maglev_lb::MaglevLb::default(), &phases).packets
    };
    let (before, after) = (ports(&[]), ports(&[2]));
    let port = |outcome: &Outcome| match outcome.verdict {
        Verdict::Redirect(port) => Some(port),
        _ => None,
    };
    let moved = before.iter().zip(&after).filter(|(before, after)| port(before) != port(after));
    let from: BTreeSet<_> = moved.clone().map(|(before, _)| port(before)).collect();
    let to: BTreeSet<_> = moved.map(|(_, after)| port(after)).collect();
    assert_eq!(from, [Some(22)].into());
    assert!(to.len() == 5 && !to.contains(&Some(22)), "flows move to all other backends: {to:?}");
}

/// Phases are seconds apart, so that some silent connections expire.
#[test]
fn conntrack_fw() {
    let phases = [Phase { writes: Vec::new(), packets: packets(5) }];
    let parameters = [("established", "6"), ("transitory", "2")];
    let mut model = conntrack_fw::ConntrackFw::new(6, 2);
    let outcomes = check("conntrack_fw", &parameters, &phases, &mut model);
    assert_verdicts(&outcomes, &[("pass", 2000), ("drop", 1000)]);
    let states: BTreeSet<u32> = outcomes.maps["connections"].values().map(|value| value[0]).collect();
    assert_eq!(states, [0, 1, 2, 3, 6, 7, 10, 11, 14, 15].into(), "every state occurs in the end");
}

/// Some routes change halfway through the packets.
fn routes(name: &str, is_v6: bool) {
    // One client in four has an IPv6 address.
    let all = traffic(&Spec { seed: 5, packets: if is_v6 { 16_000 } else { 6000 }, ..Spec::default() });
    let all = router::routed(&all, is_v6, 5);
    let (first, then) = all.split_at(all.len() / 2);
    let phases = [(first, 5), (then, 6)]
        .map(|(packets, seed)| Phase { writes: router::writes(is_v6, seed), packets: packets.to_vec() });
    let outcomes = check(name, &[], &phases, &mut router::Router::new(is_v6));
    assert_verdicts(&outcomes, &[("redirect", 1000), ("pass", 2000)]);
    let ports: BTreeSet<_> = outcomes.packets.iter().map(|outcome| outcome.verdict.to_return()).collect();
    assert!(ports.len() > 6, "{ports:?}");
    // Nearly all packets had a correct checksum before, so they must have one after.
    let is_right = |bytes: &[u8]| ones_complement(&bytes[14..34]) == 0xffff;
    let forwarded = || outcomes.packets.iter().filter(|outcome| outcome.verdict != Verdict::Pass);
    let right = forwarded().filter(|outcome| is_v6 || is_right(&outcome.bytes)).count();
    assert!(right * 20 > forwarded().count() * 19, "{right} of {}", forwarded().count());
}

#[test]
fn router_v4() {
    routes("router_v4", false);
}

#[test]
fn router_v6() {
    routes("router_v6", true);
}

#[test]
fn blacklist() {
    let (packets, more) = (packets(8), packets(9));
    let phases = [
        Phase { writes: blacklist::writes(&packets, 8), packets },
        Phase { writes: blacklist::writes(&more, 9), packets: more },
    ];
    let outcomes = check("blacklist", &[], &phases, &mut blacklist::Blacklist::default());
    assert_verdicts(&outcomes, &[("drop", 1000), ("pass", 1000)]);
    for map in ["blocked_v4", "blocked_v6"] {
        assert!(
            outcomes.maps[map].values().filter(|value| value[0] > 20).count() > 3,
            "{map}: {:?}",
            outcomes.maps[map]
        );
    }
}

/// Some clients have limits of their own; all others get one halfway through the packets.
#[test]
fn token_bucket() {
    let packets = packets(6);
    let (first, second) = packets.split_at(packets.len() / 2);
    let phases = [(token_bucket::limits(None), first), (token_bucket::limits(Some(10)), second)]
        .map(|(writes, packets)| Phase { writes, packets: packets.to_vec() });
    let outcomes = check("token_bucket", &[], &phases, &mut token_bucket::TokenBucket::default());
    assert_verdicts(&outcomes, &[("pass", 2000), ("drop", 400)]);
}

#[test]
fn policer() {
    let phases = [Phase { writes: policer::profiles(), packets: packets(7) }];
    let outcomes = check("policer", &[], &phases, &mut policer::Policer::new(false, false));
    assert_verdicts(&outcomes, &[("pass", 2000), ("drop", 400)]);
}

#[test]
fn policer_that_sees_colours() {
    let phases = [Phase { writes: policer::profiles(), packets: packets(8) }];
    let mut model = policer::Policer::new(true, true);
    let outcomes = check("policer", &[("aware", "true"), ("drop_red", "false")], &phases, &mut model);
    assert_verdicts(&outcomes, &[("pass", 6000)]);
}

#[test]
fn syn_flood() {
    let phases = [Phase { writes: Vec::new(), packets: packets(9) }];
    let mut model = syn_flood::SynFlood::new(2000, 12);
    let outcomes = check("syn_flood", &[("window", "2000"), ("limit", "12")], &phases, &mut model);
    assert_verdicts(&outcomes, &[("pass", 4000), ("drop", 60)]);
}

/// Runs `ecpri_reorder` with these parameters and returns the counts of its events.
fn reorder(cell: ecpri_reorder::Cell, phases: &[Phase]) -> [u32; ecpri_reorder::EVENTS] {
    let parameters = cell.parameters();
    let parameters: Vec<_> = parameters.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let mut model = ecpri_reorder::EcpriReorder::new(cell);
    let outcomes = check("ecpri_reorder", &parameters, phases, &mut model);
    assert_verdicts(&outcomes, &[("drop", 500), ("pass", 50)]);
    let events = &outcomes.maps["events"];
    std::array::from_fn(|event| events.get(&vec![event as u32]).map_or(0, |sum| sum[0]))
}

/// Block floating point of 9 bits, and no window: messages of slots that have been overtaken are
/// late.
#[test]
fn ecpri_reorder() {
    let cell = ecpri_reorder::Cell::default();
    let phases = ecpri_reorder::phases(&cell, &[0, 1, 2, 3], &Vec::new(), false, 10);
    let [written, duplicate, late, early, out_of_range, malformed, unsupported] = reorder(cell, &phases);
    assert!(written > 5000 && duplicate > 500 && late > 20 && early == 0, "{written} {duplicate} {late} {early}");
    assert!(out_of_range > 20 && malformed > 20 && unsupported > 5, "{out_of_range} {malformed} {unsupported}");
}

/// 16 bits without compression headers, listed eAxCs, and a window that the host moves.
#[test]
fn ecpri_reorder_in_a_window() {
    let cell = ecpri_reorder::Cell {
        eaxc: 65_536,
        ports: 3,
        slots: 5,
        slots_per_subframe: 1,
        carrier_prbs: 106,
        prb_bytes: 48,
        comp_header: None,
    };
    let eaxcs = [0x0108, 0x4001, 0x0003];
    let mut writes: stateful::Writes = (0..).zip(eaxcs).map(|(port, eaxc)| ("eaxcs", vec![eaxc], vec![port])).collect();
    // A port that the cell does not have.
    writes.push(("eaxcs", vec![7], vec![3]));
    let phases = ecpri_reorder::phases(&cell, &[eaxcs[0], 7, eaxcs[1], eaxcs[2]], &writes, true, 11);
    let [written, duplicate, late, early, ..] = reorder(cell, &phases);
    assert!(written > 1000 && duplicate > 100 && late > 20 && early > 20, "{written} {duplicate} {late} {early}");
}

/// Block floating point of 14 bits takes 43 bytes, which end in the middle of a word. More ports
/// and slots than the maps have room for.
#[test]
fn ecpri_reorder_of_a_cell_that_is_too_large() {
    let cell = ecpri_reorder::Cell {
        eaxc: 0x100,
        ports: 30,
        slots: 10,
        slots_per_subframe: 4,
        carrier_prbs: 273,
        prb_bytes: 43,
        comp_header: Some(0xe1),
    };
    let phases = ecpri_reorder::phases(&cell, &[0x100, 0x10a, 0x11d, 0x11e], &Vec::new(), false, 12);
    let [written, duplicate, late, _, out_of_range, ..] = reorder(cell, &phases);
    assert!(written > 500 && duplicate > 50 && late > 10, "{written} {duplicate} {late}");
    assert!(out_of_range > 1000, "{out_of_range}");
}

/// Flipped bits anywhere in the headers, in order: PRBs may claim positions of others, and the
/// first one stays.
#[test]
fn ecpri_reorder_of_arbitrary_headers_in_order() {
    let interp = portcullis::devices::open("interp").unwrap();
    let cell = ecpri_reorder::Cell::default();
    let parameters = cell.parameters();
    let parameters: Vec<_> = parameters.iter().map(|(name, value)| (*name, value.as_str())).collect();
    for windows in [false, true] {
        let mut phases = ecpri_reorder::phases(&cell, &[0, 1, 2, 3], &Vec::new(), windows, 13);
        let mut random = Random::new(13, 0);
        for packet in phases.iter_mut().flat_map(|phase| &mut phase.packets) {
            for _ in 0..random.below(4) {
                if let Some(byte) = packet.bytes.get_mut(random.between(12, 60) as usize) {
                    *byte ^= 1 << random.below(8);
                }
            }
        }
        let want = stateful::expected(&mut ecpri_reorder::EcpriReorder::new(cell), &phases);
        for program in stateful::programs("ecpri_reorder", &parameters) {
            stateful::check(&interp, &program, &phases, &want);
        }
    }
}
