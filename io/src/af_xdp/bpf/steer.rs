//! The program that carries out a [`Steering`]: a parser of headers that knows what it looks for.
//!
//! What is taken and what is not is said in [`rules`](crate::af_xdp::rules). The kernel's verifier has to see that no
//! byte outside the frame is read: before every load from the frame there is a comparison with its end.
//!
//! It counts nothing: what it takes, the sockets count, and what the interface counts beside stays with the kernel.

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
// Protocols, include/uapi/linux/in.h and in6.h.
const IPPROTO_HOPOPTS: i32 = 0;
const IPPROTO_ROUTING: i32 = 43;
const IPPROTO_FRAGMENT: i32 = 44;
const IPPROTO_ICMPV6: u8 = 58;
const IPPROTO_DSTOPTS: i32 = 60;
/// Router solicitation to redirect, RFC 4861, section 4.
const NEIGHBOUR_DISCOVERY: RangeInclusive<u8> = 133..=137;
/// VLAN tags that are looked through.
const MAX_TAGS: usize = 2;

// `struct xdp_md`, include/uapi/linux/bpf.h.
const XDP_MD_DATA: i16 = 0;
const XDP_MD_DATA_END: i16 = 4;
const XDP_MD_RX_QUEUE_INDEX: i16 = 16;

// What the registers hold.
const RESULT: Reg = Reg::R0;
/// For a value that the next instructions are done with.
const SCRATCH: Reg = Reg::R4;
/// Not 0: what is here is a later fragment, and no header follows.
const LATER_FRAGMENT: Reg = Reg::R5;
/// `struct xdp_md`.
const CONTEXT: Reg = Reg::R6;
/// Where the next header is in the frame.
const CURSOR: Reg = Reg::R7;
/// Where the frame ends.
const END: Reg = Reg::R8;
/// The EtherType, then the protocol, then the destination port.
const FIELD: Reg = Reg::R9;

/// What is done with a frame that user space is to have.
#[derive(Debug, Clone, Copy)]
pub enum Take {
    /// It goes to the socket which this XSKMAP has for its queue; it stays with the kernel if there is none.
    ToSocket(RawFd),
    /// The program ends with this code, so that tests can see it.
    #[cfg(test)]
    Code(i32),
}

/// The program, of type XDP.
pub fn program(steer: &Steering, take: Take) -> Vec<Insn> {
    let mut asm = Assembler::default();
    let labels = Labels { take: asm.label(), pass: asm.label() };
    let mut generator = Generator { asm, labels, wanted: &Wanted::of(steer) };
    generator.asm.mov(CONTEXT, Reg::R1);
    if *steer != Steering::All {
        generator.frame();
    }
    generator.ends(steer, take)
}

/// Rules, sorted by the header that they ask.
struct Wanted<'a> {
    ethertypes: BTreeSet<u16>,
    protocols: BTreeSet<u8>,
    ports: BTreeMap<Transport, Vec<&'a RangeInclusive<u16>>>,
}

impl<'a> Wanted<'a> {
    fn of(steer: &'a Steering) -> Wanted<'a> {
        let mut wanted = Wanted { ethertypes: BTreeSet::new(), protocols: BTreeSet::new(), ports: BTreeMap::new() };
        match steer {
            Steering::Default => wanted.ethertypes.extend([ETH_P_IP, ETH_P_IPV6]),
            Steering::All => {}
            Steering::Only(rules) => rules.as_slice().iter().for_each(|rule| wanted.add(rule)),
        }
        wanted
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

    /// All of IPv6 is wanted but neighbour discovery.
    fn whole_ipv6(&self) -> bool {
        self.ethertypes.contains(&ETH_P_IPV6)
    }

    /// Whether it matters what is in a packet with this EtherType, IPv4's or IPv6's.
    fn asks_into(&self, ethertype: u16) -> bool {
        match self.ethertypes.contains(&ethertype) {
            true => ethertype == ETH_P_IPV6,
            false => !self.protocols.is_empty() || !self.ports.is_empty(),
        }
    }
}

#[derive(Clone, Copy)]
struct Labels {
    /// The frame goes to user space.
    take: Label,
    /// The frame stays with the kernel.
    pass: Label,
}

struct Generator<'a> {
    asm: Assembler,
    labels: Labels,
    wanted: &'a Wanted<'a>,
}

impl Generator<'_> {
    /// From the frame's first byte until its fate is known.
    fn frame(&mut self) {
        let (ipv4, ipv6, protocol) = (self.asm.label(), self.asm.label(), self.asm.label());
        self.asm.load(Size::Word, CURSOR, CONTEXT, XDP_MD_DATA);
        self.asm.load(Size::Word, END, CONTEXT, XDP_MD_DATA_END);
        self.ethernet();
        for (ethertype, header) in [(ETH_P_IP, ipv4), (ETH_P_IPV6, ipv6)] {
            if self.wanted.asks_into(ethertype) {
                self.asm.jump_if(FIELD, Cond::Eq, i32::from(ethertype), header);
            }
        }
        for ethertype in &self.wanted.ethertypes {
            self.asm.jump_if(FIELD, Cond::Eq, i32::from(*ethertype), self.labels.take);
        }
        self.asm.jump(self.labels.pass);
        if self.wanted.asks_into(ETH_P_IP) {
            self.asm.place(ipv4);
            self.ipv4();
            self.asm.jump(protocol);
        }
        if self.wanted.asks_into(ETH_P_IPV6) {
            self.asm.place(ipv6);
            self.ipv6();
        }
        // Code that nothing leads to is refused.
        if self.wanted.asks_into(ETH_P_IP) || self.wanted.asks_into(ETH_P_IPV6) && !self.wanted.whole_ipv6() {
            self.asm.place(protocol);
            self.protocol();
        }
    }

    /// Goes to the label unless the frame has so many more bytes.
    fn need(&mut self, bytes: i32, beyond: Label) {
        self.asm.mov(SCRATCH, CURSOR);
        self.asm.add(SCRATCH, bytes);
        self.asm.jump_if(SCRATCH, Cond::Gt, END, beyond);
    }

    /// The EtherType behind the tags.
    fn ethernet(&mut self) {
        let untagged = self.asm.label();
        self.need(14, self.labels.pass);
        self.asm.load_be16(FIELD, CURSOR, 12);
        self.asm.add(CURSOR, 14);
        for _ in 0..MAX_TAGS {
            let tag = self.asm.label();
            self.asm.jump_if(FIELD, Cond::Eq, i32::from(ETH_P_8021Q), tag);
            self.asm.jump_if(FIELD, Cond::Ne, i32::from(ETH_P_8021AD), untagged);
            self.asm.place(tag);
            self.need(4, self.labels.pass);
            self.asm.load_be16(FIELD, CURSOR, 2);
            self.asm.add(CURSOR, 4);
        }
        self.asm.place(untagged);
    }

    /// IPv4 (RFC 791): the protocol, and where its header is.
    fn ipv4(&mut self) {
        self.need(20, self.labels.pass);
        // Version 4 and a header of 5 words or more.
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

    /// IPv6 (RFC 8200): the protocol behind extension headers, and where its header is.
    fn ipv6(&mut self) {
        let whole = self.wanted.whole_ipv6();
        // What cannot be read on is no neighbour discovery, and has no protocol.
        let unknown = if whole { self.labels.take } else { self.labels.pass };
        let (known, protocol) = (self.asm.label(), self.asm.label());
        self.need(40, unknown);
        self.asm.load(Size::Byte, SCRATCH, CURSOR, 0);
        self.asm.and(SCRATCH, 0xf0);
        self.asm.jump_if(SCRATCH, Cond::Ne, 0x60, unknown);
        self.asm.load(Size::Byte, FIELD, CURSOR, 6);
        self.asm.mov(LATER_FRAGMENT, 0);
        self.asm.add(CURSOR, 40);
        for _ in 0..MAX_EXTENSION_HEADERS {
            self.extension_header(known, protocol, unknown);
        }
        self.asm.place(known);
        if whole || self.wanted.protocols.contains(&IPPROTO_ICMPV6) {
            self.neighbour_discovery(protocol);
        }
        self.asm.place(protocol);
        if whole {
            self.asm.jump(self.labels.take);
        }
    }

    /// Looks through the header that [`FIELD`] names if it is an extension header.
    fn extension_header(&mut self, known: Label, later_fragment: Label, unknown: Label) {
        let (options, next) = (self.asm.label(), self.asm.label());
        for header in [IPPROTO_HOPOPTS, IPPROTO_ROUTING, IPPROTO_DSTOPTS] {
            self.asm.jump_if(FIELD, Cond::Eq, header, options);
        }
        self.asm.jump_if(FIELD, Cond::Ne, IPPROTO_FRAGMENT, known);
        // RFC 8200, section 4.5: the offset is in the upper 13 bits.
        self.need(8, unknown);
        self.asm.load(Size::Byte, FIELD, CURSOR, 0);
        self.asm.load_be16(LATER_FRAGMENT, CURSOR, 2);
        self.asm.and(LATER_FRAGMENT, 0xfff8);
        self.asm.add(CURSOR, 8);
        self.asm.jump_if(LATER_FRAGMENT, Cond::Ne, 0, later_fragment);
        self.asm.jump(next);
        // Sections 4.3, 4.4 and 4.6: the length is in units of 8 bytes, of which the first is not counted.
        self.asm.place(options);
        self.need(2, unknown);
        self.asm.load(Size::Byte, FIELD, CURSOR, 0);
        self.asm.load(Size::Byte, SCRATCH, CURSOR, 1);
        self.asm.add(SCRATCH, 1);
        self.asm.shl(SCRATCH, 3);
        self.asm.add(CURSOR, SCRATCH);
        self.asm.jump_if(CURSOR, Cond::Gt, END, unknown);
        self.asm.place(next);
    }

    /// Leaves neighbour discovery to the kernel, and goes to the label with all else.
    fn neighbour_discovery(&mut self, other: Label) {
        self.asm.jump_if(FIELD, Cond::Ne, i32::from(IPPROTO_ICMPV6), other);
        self.need(1, other);
        self.asm.load(Size::Byte, SCRATCH, CURSOR, 0);
        self.asm.jump_if(SCRATCH, Cond::Lt, i32::from(*NEIGHBOUR_DISCOVERY.start()), other);
        self.asm.jump_if(SCRATCH, Cond::Le, i32::from(*NEIGHBOUR_DISCOVERY.end()), self.labels.pass);
    }

    /// Decides by the protocol and the destination port.
    fn protocol(&mut self) {
        let wanted = self.wanted;
        for protocol in &wanted.protocols {
            self.asm.jump_if(FIELD, Cond::Eq, i32::from(*protocol), self.labels.take);
        }
        if wanted.ports.is_empty() {
            return;
        }
        self.asm.jump_if(LATER_FRAGMENT, Cond::Ne, 0, self.labels.pass);
        for (transport, ranges) in &wanted.ports {
            let other = self.asm.label();
            self.asm.jump_if(FIELD, Cond::Ne, i32::from(transport.protocol()), other);
            self.need(4, self.labels.pass);
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

    /// The two ways in which the program ends. What comes here undecided stays with the kernel.
    fn ends(mut self, steer: &Steering, take: Take) -> Vec<Insn> {
        const XDP_PASS: i32 = libbpf_sys::XDP_PASS as i32;
        // Code that nothing leads to is refused.
        if *steer != Steering::All {
            self.asm.place(self.labels.pass);
            self.asm.mov(RESULT, XDP_PASS);
            self.asm.exit();
        }
        self.asm.place(self.labels.take);
        match take {
            Take::ToSocket(xskmap) => {
                self.asm.load_map(Reg::R1, xskmap);
                self.asm.load(Size::Word, Reg::R2, CONTEXT, XDP_MD_RX_QUEUE_INDEX);
                // The result where the map has no socket for the queue.
                self.asm.mov(Reg::R3, XDP_PASS);
                self.asm.call(libbpf_sys::BPF_FUNC_redirect_map);
            }
            #[cfg(test)]
            Take::Code(code) => self.asm.mov(RESULT, code),
        }
        self.asm.exit();
        self.asm.finish()
    }
}
