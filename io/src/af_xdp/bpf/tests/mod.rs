//! The generated XDP program, run by the kernel on frames of all kinds, against a [`model`] of the
//! rules.

mod frames;
mod model;

use libbpf_sys as bpf;

use super::insn::Insn;
use super::steer::{MatchAction, program};
use super::sys::{LoadError, Program, XskMap};
use crate::af_xdp::rules::{Rule, Rules, Steering, Transport};
use crate::synth::{Random, hostile};

const TAKEN: u32 = 77;
const PASSED: u32 = bpf::XDP_PASS;
/// BPF_PROG_TEST_RUN requires a complete Ethernet header.
const MIN_FRAME: usize = 14;
/// BPF_PROG_TEST_RUN requires single-buffer frames to fit in a page.
const MAX_FRAME: usize = 3000;

/// Whether programs can be loaded here; if `PORTCULLIS_REQUIRE` names `af-xdp` they must be.
fn can_load() -> bool {
    let Err(error) = XskMap::create(1) else { return true };
    let required = std::env::var("PORTCULLIS_REQUIRE").unwrap_or_default();
    assert!(
        !required.split(',').any(|name| name == "af-xdp"),
        "af-xdp is required, and no program can be loaded: {error}"
    );
    println!("skipped: no program can be loaded: {error}");
    false
}

fn load(insns: &[Insn]) -> Program {
    match Program::load(bpf::BPF_PROG_TYPE_XDP, c"portcullis_test", insns, 0) {
        Ok(program) => program,
        Err(LoadError { error, log }) => panic!("{error}\n{log}"),
    }
}

/// A loaded program, with counts of its decisions.
struct TestedProgram {
    steer: Steering,
    program: Program,
    taken: u32,
    passed: u32,
}

impl TestedProgram {
    fn new(steer: Steering) -> TestedProgram {
        let program = load(&program(&steer, MatchAction::ExitCode(TAKEN as i32)));
        TestedProgram { steer, program, taken: 0, passed: 0 }
    }

    fn only(text: &str) -> TestedProgram {
        TestedProgram::new(Steering::Only(text.parse().unwrap()))
    }

    fn takes(&self, frame: &[u8]) -> bool {
        match self.program.test_run(frame) {
            Ok(TAKEN) => true,
            Ok(PASSED) => false,
            other => panic!("{other:?} for {frame:02x?}"),
        }
    }

    fn assert_agrees(&mut self, frame: &[u8]) {
        if frame.len() < MIN_FRAME {
            return;
        }
        let taken = self.takes(frame);
        assert_eq!(
            taken,
            model::is_redirected(&self.steer, frame),
            "{}: {} bytes, {frame:02x?}",
            self.steer,
            frame.len()
        );
        *if taken { &mut self.taken } else { &mut self.passed } += 1;
    }
}

fn rule(random: &mut Random) -> Rule {
    let rule = match random.below(8) {
        0 => Rule::EtherType(random.pick(&frames::ETHERTYPES)),
        1 | 2 => Rule::Protocol(random.pick(&frames::PROTOCOLS)),
        _ => {
            let [one, other] = [0; 2].map(|_| random.pick(&frames::PORTS));
            let ports = if random.one_in(2) { one..=one } else { one.min(other)..=one.max(other) };
            Rule::Port(random.pick(&Transport::ALL), ports)
        }
    };
    match Rules::new(vec![rule]) {
        Ok(rules) => rules.as_slice()[0].clone(),
        Err(_) => self::rule(random),
    }
}

fn rules(random: &mut Random) -> Steering {
    let max = random.pick(&[1, 1, 2, 4, 64]);
    let count = 1 + random.below(max);
    Steering::Only(Rules::new((0..count).map(|_| rule(random)).collect()).unwrap())
}

#[test]
fn the_program_and_the_model_agree() {
    if !can_load() {
        return;
    }
    let random = &mut Random::new(5, 0);
    // Each kind of rule alone, which yields the smallest programs.
    let alone =
        ["ethertype/0x0800", "ethertype/0x86dd", "ethertype/0x0806", "proto/58", "tcp", "udp/80", "tcp/79-8000"];
    let mut all: Vec<Steering> = alone.iter().map(|text| Steering::Only(text.parse().unwrap())).collect();
    all.push(Steering::Default);
    let common = all.len();
    all.extend((0..100).map(|_| rules(random)));
    let (mut taken, mut passed) = (0, 0);
    for (i, steer) in all.into_iter().enumerate() {
        let mut tested = TestedProgram::new(steer);
        for _ in 0..2500 {
            let mut frame = frames::frame(random);
            frames::corrupt(random, &mut frame);
            tested.assert_agrees(&frame);
        }
        taken += tested.taken;
        passed += tested.passed;
        assert!(i >= common || tested.taken > 10 && tested.passed > 10, "{}: {} taken", tested.steer, tested.taken);
    }
    println!("{taken} frames taken, {passed} passed");
    assert!(taken > 10_000 && passed > 10_000);
}

#[test]
fn the_program_and_the_model_agree_on_hostile_packets() {
    if !can_load() {
        return;
    }
    let random = &mut Random::new(6, 0);
    let corpus = hostile::corpus();
    for steer in [Steering::Default].into_iter().chain((0..8).map(|_| rules(random))) {
        let mut tested = TestedProgram::new(steer);
        for packet in &corpus {
            tested.assert_agrees(&packet[..packet.len().min(MAX_FRAME)]);
        }
        println!("{}: {} packets taken, {} passed", tested.steer, tested.taken, tested.passed);
    }
}

#[test]
fn truncated_frames_agree_at_every_length() {
    if !can_load() {
        return;
    }
    let random = &mut Random::new(7, 0);
    let mut tested = TestedProgram::only("tcp/79-8000,udp/80,sctp/0-65535,proto/58,ethertype/0x8847");
    let mut default = TestedProgram::new(Steering::Default);
    for _ in 0..150 {
        let frame = frames::frame(random);
        for length in MIN_FRAME..=frame.len() {
            tested.assert_agrees(&frame[..length]);
            default.assert_agrees(&frame[..length]);
        }
    }
}

#[test]
fn every_frame_is_taken_with_steering_all() {
    if !can_load() {
        return;
    }
    let mut tested = TestedProgram::new(Steering::All);
    let random = &mut Random::new(8, 0);
    for _ in 0..200 {
        tested.assert_agrees(&frames::frame(random));
    }
    assert_eq!((tested.taken, tested.passed), (200, 0));
}

/// Hand-written frames, as a check that is independent of the model.
#[test]
fn hand_written_frames_go_where_the_documentation_says() {
    if !can_load() {
        return;
    }
    let ethernet = |ethertype: u16, rest: &[u8]| [&[2; 12], &ethertype.to_be_bytes()[..], rest].concat();
    let ipv4 = |protocol, offset: u8, rest: &[u8]| {
        let header = [0x45, 0, 0, 60, 0, 1, 0x20, offset, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        ethernet(0x0800, &[&header, rest].concat())
    };
    let ipv6 = |next, rest: &[u8]| {
        let header = [&[0x60, 0, 0, 0, 0, 60, next, 255], &[0xfe; 32][..]].concat();
        ethernet(0x86dd, &[&header, rest].concat())
    };
    let tagged = |frame: &[u8], tag: [u8; 4]| [&frame[..12], &tag, &frame[12..]].concat();
    let ports = [0x30, 0x39, 0, 80, 0, 0, 0, 0];
    let solicitation = [135, 0, 0, 0, 0, 0, 0, 0];
    let hop_by_hop = |next| [next, 0, 1, 4, 0, 0, 0, 0];
    let arp = ethernet(0x0806, &[0, 1, 8, 0, 6, 4, 0, 1]);
    let tcp4 = ipv4(6, 0, &ports);
    let tcp6 = ipv6(6, &ports);
    let cases: &[(&str, Vec<u8>, &str)] = &[
        // Expected decisions with the default, then with the three rule lists below.
        ("T T - -", tcp4.clone(), "TCP over IPv4"),
        ("T - - T", ipv4(17, 0, &ports), "UDP over IPv4"),
        ("T - - -", ipv4(6, 1, &ports), "a later fragment of TCP"),
        ("T - - T", ipv4(17, 1, &ports), "a later fragment of UDP"),
        ("T T T -", tcp6.clone(), "TCP over IPv6"),
        ("T T - -", tagged(&tcp4, [0x81, 0, 0, 7]), "TCP, tagged"),
        ("T T T -", tagged(&tagged(&tcp6, [0x81, 0, 0, 7]), [0x88, 0xa8, 0, 8]), "TCP, tagged twice"),
        (
            "- - - -",
            tagged(&tagged(&tagged(&tcp6, [0x81, 0, 0, 7]), [0x81, 0, 0, 8]), [0x88, 0xa8, 0, 9]),
            "three tags",
        ),
        ("- - - -", arp.clone(), "ARP"),
        ("- - - -", tagged(&arp, [0x81, 0, 0, 7]), "ARP, tagged"),
        ("- - - -", ipv6(58, &solicitation), "a neighbour solicitation"),
        ("- - - -", ipv6(0, &[hop_by_hop(58), solicitation].concat()), "one behind hop-by-hop options"),
        ("- - - -", tagged(&ipv6(58, &solicitation), [0x81, 0, 0, 7]), "one with a tag"),
        ("T - T -", ipv6(58, &[128, 0, 0, 0, 0, 0, 0, 0]), "an ICMPv6 echo"),
        ("T - T -", ipv6(58, &[132, 0, 0, 0, 0, 0, 0, 0]), "multicast listener done"),
        ("T - T -", ipv6(58, &[138, 0, 0, 0, 0, 0, 0, 0]), "router renumbering"),
        ("T T T -", ipv6(0, &[hop_by_hop(6), ports].concat()), "TCP behind hop-by-hop options"),
        ("T - T -", ipv6(51, &[hop_by_hop(6), ports].concat()), "TCP behind an authentication header"),
        ("T - T -", ipv6(44, &[[6, 0, 0, 8, 0, 0, 0, 0], ports].concat()), "a later fragment of TCP over IPv6"),
        ("T T T -", ipv6(44, &[[6, 0, 0, 1, 0, 0, 0, 0], ports].concat()), "the first fragment of TCP over IPv6"),
        ("- - - -", ethernet(0x88cc, &[0; 46]), "LLDP"),
        ("T - - -", ethernet(0x0800, &[]), "nothing of IPv4"),
        ("T - T -", ethernet(0x86dd, &[]), "nothing of IPv6"),
    ];
    let lists = [
        TestedProgram::new(Steering::Default),
        TestedProgram::only("tcp/80,udp/443"),
        TestedProgram::only("ethertype/0x86dd,udp/53"),
        TestedProgram::only("udp,proto/47"),
    ];
    for (wanted, frame, what) in cases {
        let verdicts: Vec<&str> = lists.iter().map(|tested| if tested.takes(frame) { "T" } else { "-" }).collect();
        assert_eq!(verdicts.join(" "), *wanted, "{what}");
    }
    assert!(TestedProgram::only("ethertype/0x0806").takes(&arp));
    assert!(!TestedProgram::only("proto/58").takes(&ipv6(58, &solicitation)));
}

#[test]
fn the_longest_program_is_far_below_the_kernel_limits() {
    if !can_load() {
        return;
    }
    // Distinct rules of all kinds, none of which subsumes another.
    let rules: Vec<Rule> = (0..Rules::MAX as u16)
        .map(|i| match i % 5 {
            0 => Rule::EtherType(0x9000 + i),
            1 => Rule::Protocol(58 + i as u8),
            _ => Rule::Port(Transport::ALL[usize::from(i % 3)], i * 100..=i * 100 + 50),
        })
        .collect();
    let insns = program(&Steering::Only(Rules::new(rules).unwrap()), MatchAction::ExitCode(0));
    let verified = load(&insns).verified_insns().unwrap();
    println!("{} instructions, of which the verifier goes through {verified}", insns.len());
    // Before Linux 5.2, and for unprivileged users, programs are limited to 4,096 instructions; the
    // verifier processes at most a million.
    assert!(insns.len() < 1_000, "{}", insns.len());
    assert!(verified < 100_000, "{verified}");
}

/// The program as attached: without a socket for its queue, a frame is passed.
#[test]
fn a_queue_without_a_socket_passes() {
    if !can_load() {
        return;
    }
    let sockets = XskMap::create(4).unwrap();
    for flags in [0, bpf::BPF_F_XDP_HAS_FRAGS] {
        for steer in [Steering::All, Steering::Default, Steering::Only("tcp/80".parse().unwrap())] {
            let insns = program(&steer, MatchAction::RedirectToSocket(sockets.as_raw_fd()));
            let program = Program::load(bpf::BPF_PROG_TYPE_XDP, c"portcullis_test", &insns, flags);
            let program = program.unwrap_or_else(|LoadError { error, log }| panic!("{steer}: {error}\n{log}"));
            assert_eq!(program.test_run(&[&[2; 12], &[8, 0, 0x45][..], &[0; 40]].concat()).unwrap(), PASSED, "{steer}");
        }
    }
}

#[test]
fn the_verifier_log_is_returned() {
    if !can_load() {
        return;
    }
    // R0 is not set.
    let refused = Program::load(bpf::BPF_PROG_TYPE_XDP, c"portcullis_test", &[Insn::exit()], 0).unwrap_err();
    assert!(refused.log.contains("R0 !read_ok"), "{refused:?}");
}
