//! Code generation for a [`Steering`]: a specialised header parser.
//!
//! The rules are documented in [`rules`](crate::af_xdp::rules). Before every load from the frame,
//! the program compares the position with the frame's end, as the kernel's verifier requires.
//!
//! The program keeps no counters: sockets count redirected frames, the interface all others.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::os::fd::RawFd;

use super::asm::{Assembler, Label};
use super::insn::{Cond, Insn, Reg, Size};
use crate::af_xdp::rules::{MAX_EXTENSION_HEADERS, Rule, Steering, Transport};

// EtherTypes, include/uapi/linux/if_ether.h.
const ETH_P_IP: u16 = 0x0800;
const ETH_P_8021Q: u16 = 0x8100;
const ETH_P_IPV6: u16 = 0x86dd;
const ETH_P_8021AD: u16 = 0x88a8;
// Protocol numbers, include/uapi/linux/in.h and in6.h.
const IPPROTO_HOPOPTS: i32 = 0;
const IPPROTO_ROUTING: i32 = 43;
const IPPROTO_FRAGMENT: i32 = 44;
const IPPROTO_ICMPV6: u8 = 58;
const IPPROTO_DSTOPTS: i32 = 60;
/// ICMPv6 types from router solicitation to redirect: RFC 4861, section 4.
const NEIGHBOUR_DISCOVERY: RangeInclusive<u8> = 133..=137;
/// Maximum number of VLAN tags that are skipped.
const MAX_TAGS: usize = 2;

// `struct xdp_md`, include/uapi/linux/bpf.h.
const XDP_MD_DATA: i16 = 0;
const XDP_MD_DATA_END: i16 = 4;
const XDP_MD_RX_QUEUE_INDEX: i16 = 16;

// Register allocation.
const RESULT: Reg = Reg::R0;
/// Short-lived values.
const SCRATCH: Reg = Reg::R4;
/// Nonzero in a later fragment, which has no transport header.
const LATER_FRAGMENT: Reg = Reg::R5;
/// `struct xdp_md`.
const CONTEXT: Reg = Reg::R6;
/// Position of the next header in the frame.
const CURSOR: Reg = Reg::R7;
/// End of the frame.
const END: Reg = Reg::R8;
/// The EtherType, then the protocol, then the destination port.
const FIELD: Reg = Reg::R9;

/// Action for frames that match the rules.
#[derive(Debug, Clone, Copy)]
pub enum MatchAction {
    /// Redirect to the socket that this XSKMAP has for the queue; pass if there is none.
    RedirectToSocket(RawFd),
    /// Exit with this code, for tests.
    #[cfg(test)]
    ExitCode(i32),
}

/// Generates the program, of type XDP.
pub fn program(steer: &Steering, take: MatchAction) -> Vec<Insn> {
    let mut asm = Assembler::default();
    let labels = Labels { take: asm.label(), pass: asm.label() };
    let mut generator = Generator { asm, labels, rules: &RuleIndex::of(steer) };
    generator.asm.mov(CONTEXT, Reg::R1);
    if *steer != Steering::All {
        generator.emit_parser();
    }
    generator.emit_exits(steer, take)
}

/// Rules by the header field that they match.
struct RuleIndex<'a> {
    ethertypes: BTreeSet<u16>,
    protocols: BTreeSet<u8>,
    ports: BTreeMap<Transport, Vec<&'a RangeInclusive<u16>>>,
}

impl<'a> RuleIndex<'a> {
    fn of(steer: &'a Steering) -> RuleIndex<'a> {
        let mut index = RuleIndex { ethertypes: BTreeSet::new(), protocols: BTreeSet::new(), ports: BTreeMap::new() };
        match steer {
            Steering::Default => index.ethertypes.extend([ETH_P_IP, ETH_P_IPV6]),
            Steering::All => {}
            Steering::Only(rules) => rules.as_slice().iter().for_each(|rule| index.add(rule)),
        }
        index
    }

    fn add(&mut self, rule: &'a Rule) {
        match rule {
            Rule::EtherType(value) => {
                self.ethertypes.insert(*value);
            }
            Rule::Protocol(value) => {
                self.protocols.insert(*value);
            }
            Rule::Port(transport, ports) => self.ports.entry(*transport).or_default().push(ports),
        }
    }

    /// Whether all of IPv6 except neighbour discovery matches.
    fn takes_all_ipv6(&self) -> bool {
        self.ethertypes.contains(&ETH_P_IPV6)
    }

    /// Whether the headers after this EtherType (IPv4 or IPv6) affect the decision.
    fn needs_parsing(&self, ethertype: u16) -> bool {
        match self.ethertypes.contains(&ethertype) {
            true => ethertype == ETH_P_IPV6,
            false => !self.protocols.is_empty() || !self.ports.is_empty(),
        }
    }
}

#[derive(Clone, Copy)]
struct Labels {
    /// Action for frames that match.
    take: Label,
    /// Pass to the kernel.
    pass: Label,
}

struct Generator<'a> {
    asm: Assembler,
    labels: Labels,
    rules: &'a RuleIndex<'a>,
}

impl Generator<'_> {
    /// Generates the parser, from the Ethernet header to the decision.
    fn emit_parser(&mut self) {
        let (ipv4, ipv6, protocol) = (self.asm.label(), self.asm.label(), self.asm.label());
        self.asm.load(Size::Word, CURSOR, CONTEXT, XDP_MD_DATA);
        self.asm.load(Size::Word, END, CONTEXT, XDP_MD_DATA_END);
        self.emit_ethernet();
        for (ethertype, header) in [(ETH_P_IP, ipv4), (ETH_P_IPV6, ipv6)] {
            if self.rules.needs_parsing(ethertype) {
                self.asm.jump_if(FIELD, Cond::Eq, i32::from(ethertype), header);
            }
        }
        for ethertype in &self.rules.ethertypes {
            self.asm.jump_if(FIELD, Cond::Eq, i32::from(*ethertype), self.labels.take);
        }
        self.asm.jump(self.labels.pass);
        if self.rules.needs_parsing(ETH_P_IP) {
            self.asm.place(ipv4);
            self.emit_ipv4();
            self.asm.jump(protocol);
        }
        if self.rules.needs_parsing(ETH_P_IPV6) {
            self.asm.place(ipv6);
            self.emit_ipv6();
        }
        // The verifier rejects unreachable code.
        if self.rules.needs_parsing(ETH_P_IP) || self.rules.needs_parsing(ETH_P_IPV6) && !self.rules.takes_all_ipv6() {
            self.asm.place(protocol);
            self.emit_protocol();
        }
    }

    /// Jumps to `beyond` unless the frame has `bytes` more bytes.
    fn emit_bounds_check(&mut self, bytes: i32, beyond: Label) {
        self.asm.mov(SCRATCH, CURSOR);
        self.asm.add(SCRATCH, bytes);
        self.asm.jump_if(SCRATCH, Cond::Gt, END, beyond);
    }

    /// Parses Ethernet and VLAN tags: loads the EtherType after them.
    fn emit_ethernet(&mut self) {
        let untagged = self.asm.label();
        self.emit_bounds_check(14, self.labels.pass);
        self.asm.load_be16(FIELD, CURSOR, 12);
        self.asm.add(CURSOR, 14);
        for _ in 0..MAX_TAGS {
            let tag = self.asm.label();
            self.asm.jump_if(FIELD, Cond::Eq, i32::from(ETH_P_8021Q), tag);
            self.asm.jump_if(FIELD, Cond::Ne, i32::from(ETH_P_8021AD), untagged);
            self.asm.place(tag);
            self.emit_bounds_check(4, self.labels.pass);
            self.asm.load_be16(FIELD, CURSOR, 2);
            self.asm.add(CURSOR, 4);
        }
        self.asm.place(untagged);
    }

    /// Parses IPv4 (RFC 791): loads the protocol and advances to its header.
    fn emit_ipv4(&mut self) {
        self.emit_bounds_check(20, self.labels.pass);
        // Version 4 and a header length of at least 5 words.
        self.asm.load(Size::Byte, SCRATCH, CURSOR, 0);
        self.asm.jump_if(SCRATCH, Cond::Lt, 0x45, self.labels.pass);
        self.asm.jump_if(SCRATCH, Cond::Gt, 0x4f, self.labels.pass);
        self.asm.load(Size::Byte, FIELD, CURSOR, 9);
        self.asm.load_be16(LATER_FRAGMENT, CURSOR, 6);
        self.asm.and(LATER_FRAGMENT, 0x1fff);
        self.asm.and(SCRATCH, 0x0f);
        self.asm.shl(SCRATCH, 2);
        self.asm.add(CURSOR, SCRATCH);
    }

    /// Parses IPv6 (RFC 8200): loads the protocol after the extension headers and advances to its
    /// header.
    fn emit_ipv6(&mut self) {
        let whole = self.rules.takes_all_ipv6();
        // An unparsable packet is not neighbour discovery, and matches no protocol.
        let unknown = if whole { self.labels.take } else { self.labels.pass };
        let (known, protocol) = (self.asm.label(), self.asm.label());
        self.emit_bounds_check(40, unknown);
        self.asm.load(Size::Byte, SCRATCH, CURSOR, 0);
        self.asm.and(SCRATCH, 0xf0);
        self.asm.jump_if(SCRATCH, Cond::Ne, 0x60, unknown);
        self.asm.load(Size::Byte, FIELD, CURSOR, 6);
        self.asm.mov(LATER_FRAGMENT, 0);
        self.asm.add(CURSOR, 40);
        for _ in 0..MAX_EXTENSION_HEADERS {
            self.emit_extension_header(known, protocol, unknown);
        }
        self.asm.place(known);
        if whole || self.rules.protocols.contains(&IPPROTO_ICMPV6) {
            self.emit_neighbour_discovery(protocol);
        }
        self.asm.place(protocol);
        if whole {
            self.asm.jump(self.labels.take);
        }
    }

    /// Skips the header in [`FIELD`] if it is an extension header.
    fn emit_extension_header(&mut self, known: Label, later_fragment: Label, unknown: Label) {
        let (options, next) = (self.asm.label(), self.asm.label());
        for header in [IPPROTO_HOPOPTS, IPPROTO_ROUTING, IPPROTO_DSTOPTS] {
            self.asm.jump_if(FIELD, Cond::Eq, header, options);
        }
        self.asm.jump_if(FIELD, Cond::Ne, IPPROTO_FRAGMENT, known);
        // RFC 8200, section 4.5: the offset is the upper 13 bits.
        self.emit_bounds_check(8, unknown);
        self.asm.load(Size::Byte, FIELD, CURSOR, 0);
        self.asm.load_be16(LATER_FRAGMENT, CURSOR, 2);
        self.asm.and(LATER_FRAGMENT, 0xfff8);
        self.asm.add(CURSOR, 8);
        self.asm.jump_if(LATER_FRAGMENT, Cond::Ne, 0, later_fragment);
        self.asm.jump(next);
        // Sections 4.3, 4.4 and 4.6: the length is in units of 8 bytes, not counting the first.
        self.asm.place(options);
        self.emit_bounds_check(2, unknown);
        self.asm.load(Size::Byte, FIELD, CURSOR, 0);
        self.asm.load(Size::Byte, SCRATCH, CURSOR, 1);
        self.asm.add(SCRATCH, 1);
        self.asm.shl(SCRATCH, 3);
        self.asm.add(CURSOR, SCRATCH);
        self.asm.jump_if(CURSOR, Cond::Gt, END, unknown);
        self.asm.place(next);
    }

    /// Passes neighbour discovery to the kernel; jumps to `other` for everything else.
    fn emit_neighbour_discovery(&mut self, other: Label) {
        self.asm.jump_if(FIELD, Cond::Ne, i32::from(IPPROTO_ICMPV6), other);
        self.emit_bounds_check(1, other);
        self.asm.load(Size::Byte, SCRATCH, CURSOR, 0);
        self.asm.jump_if(SCRATCH, Cond::Lt, i32::from(*NEIGHBOUR_DISCOVERY.start()), other);
        self.asm.jump_if(SCRATCH, Cond::Le, i32::from(*NEIGHBOUR_DISCOVERY.end()), self.labels.pass);
    }

    /// Decides by protocol and destination port.
    fn emit_protocol(&mut self) {
        let rules = self.rules;
        for protocol in &rules.protocols {
            self.asm.jump_if(FIELD, Cond::Eq, i32::from(*protocol), self.labels.take);
        }
        if rules.ports.is_empty() {
            return;
        }
        self.asm.jump_if(LATER_FRAGMENT, Cond::Ne, 0, self.labels.pass);
        for (transport, ranges) in &rules.ports {
            let other = self.asm.label();
            self.asm.jump_if(FIELD, Cond::Ne, i32::from(transport.protocol()), other);
            self.emit_bounds_check(4, self.labels.pass);
            self.asm.load_be16(FIELD, CURSOR, 2);
            for range in ranges {
                let below = self.asm.label();
                self.asm.jump_if(FIELD, Cond::Lt, i32::from(*range.start()), below);
                self.asm.jump_if(FIELD, Cond::Le, i32::from(*range.end()), self.labels.take);
                self.asm.place(below);
            }
            self.asm.jump(self.labels.pass);
            self.asm.place(other);
        }
    }

    /// Generates the two exits. Control that falls through passes the frame to the kernel.
    fn emit_exits(mut self, steer: &Steering, take: MatchAction) -> Vec<Insn> {
        const XDP_PASS: i32 = libbpf_sys::XDP_PASS as i32;
        // The verifier rejects unreachable code.
        if *steer != Steering::All {
            self.asm.place(self.labels.pass);
            self.asm.mov(RESULT, XDP_PASS);
            self.asm.exit();
        }
        self.asm.place(self.labels.take);
        match take {
            MatchAction::RedirectToSocket(xskmap) => {
                self.asm.load_map(Reg::R1, xskmap);
                self.asm.load(Size::Word, Reg::R2, CONTEXT, XDP_MD_RX_QUEUE_INDEX);
                // The result if the map has no socket for the queue.
                self.asm.mov(Reg::R3, XDP_PASS);
                self.asm.call(libbpf_sys::BPF_FUNC_redirect_map);
            }
            #[cfg(test)]
            MatchAction::ExitCode(code) => self.asm.mov(RESULT, code),
        }
        self.asm.exit();
        self.asm.finish()
    }
}
