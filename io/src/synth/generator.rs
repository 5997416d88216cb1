//! The packet generator.

use portcullis_core::packet::Metadata;

use super::fronthaul::Fronthaul;
use super::headers::{Addresses, Headers, checksum, pseudo_sum_ipv4, pseudo_sum_ipv6, sum};
use super::random::Random;
use crate::synth_spec::{Kind, Size, Spec};

/// Time of the first packet: 2023-11-14 22:13:20 UTC, in nanoseconds since the epoch.
const EPOCH: u64 = 1_700_000_000_000_000_000;

/// Maximum gap between packets in nanoseconds; gaps from 1 on average to about a million packets a
/// second.
const MAX_GAP: u32 = 2000;

// EtherTypes (IANA, IEEE 802 Numbers) and protocol numbers (IANA, Assigned Internet Protocol
// Numbers).
const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const VLAN: u16 = 0x8100;
const IPV6: u16 = 0x86dd;
const PROVIDER_VLAN: u16 = 0x88a8;
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const ICMPV6: u8 = 58;
const DESTINATION_OPTIONS: u8 = 60;
/// 3GPP TS 29.281, section 4.4.2.
const GTP_U_PORT: u16 = 2152;

/// A pair of hosts with their ports.
#[derive(Debug, Clone, Copy)]
struct Flow {
    /// Client address, server address.
    addresses: Addresses,
    ports: [u16; 2],
}

/// Random bytes that payloads are cut from, with prefix sums, so that a payload's checksum takes
/// two look-ups.
#[derive(Debug)]
struct Payloads {
    bytes: Vec<u8>,
    /// Prefix sums of the 16-bit words.
    sums: Vec<u32>,
}

impl Payloads {
    /// Room for the longest payload at 10,000 different offsets.
    const LEN: usize = 32 << 10;

    fn new(random: &mut Random) -> Payloads {
        let mut bytes = vec![0; Self::LEN];
        random.fill(&mut bytes);
        let mut sums = vec![0; Self::LEN / 2 + 1];
        for (i, word) in bytes.chunks_exact(2).enumerate() {
            sums[i + 1] = sums[i] + u32::from(u16::from_be_bytes([word[0], word[1]]));
        }
        Payloads { bytes, sums }
    }

    /// Sum of `len` bytes from the even offset `start` on.
    fn sum(&self, start: usize, len: usize) -> u64 {
        let words = self.sums[start / 2 + len / 2] - self.sums[start / 2];
        u64::from(words) + sum(&self.bytes[start + len / 2 * 2..start + len])
    }
}

/// A range of [`Payloads`].
#[derive(Debug, Clone, Copy)]
struct Payload {
    start: usize,
    len: usize,
}

/// Transport protocol and message of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    Tcp,
    Udp,
    /// ICMP or ICMPv6 echo.
    Echo,
    /// ICMPv6 neighbour solicitation.
    Neighbour,
}

impl Transport {
    fn header(self) -> usize {
        match self {
            Transport::Tcp => 20,
            Transport::Udp | Transport::Echo => 8,
            Transport::Neighbour => 32,
        }
    }

    fn protocol(self, is_ipv6: bool) -> u8 {
        match self {
            Transport::Tcp => TCP,
            Transport::Udp => UDP,
            _ if is_ipv6 => ICMPV6,
            _ => ICMP,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fragment {
    Whole,
    First,
    Later,
}

/// Properties of an IP packet that are decided before its lengths.
#[derive(Debug, Clone, Copy)]
struct PacketShape {
    is_ipv6: bool,
    transport: Transport,
    fragment: Fragment,
    /// Whether the packet has IPv4 options or IPv6 extension headers.
    has_options: bool,
}

impl PacketShape {
    fn plain(is_ipv6: bool, transport: Transport) -> PacketShape {
        PacketShape { is_ipv6, transport, fragment: Fragment::Whole, has_options: false }
    }
}

/// Generates an endless sequence of packets from a seed.
#[derive(Debug)]
pub struct Generator {
    random: Random,
    flows: Vec<Flow>,
    payloads: Payloads,
    /// Packet kinds with cumulative weights.
    kinds: Vec<(Kind, u32)>,
    size: Size,
    time: u64,
    headers: Headers,
    fronthaul: Fronthaul,
}

impl Generator {
    /// Maximum length of a generated packet in bytes.
    pub const MAX_PACKET: usize = Size::LIMITS.1 as usize;

    /// Creates a generator for the packets that `spec` describes.
    pub fn new(spec: &Spec) -> Generator {
        // Separate random streams, so that the number of flows does not affect the payloads.
        let mut of_flows = Random::new(spec.seed, 1);
        let flows = (0..spec.flows).map(|_| flow(&mut of_flows)).collect();
        let mut total = 0;
        let kinds = spec
            .mix
            .weights()
            .iter()
            .map(|&(kind, weight)| {
                total += weight;
                (kind, total)
            })
            .collect();
        Generator {
            random: Random::new(spec.seed, 0),
            flows,
            payloads: Payloads::new(&mut Random::new(spec.seed, 2)),
            kinds,
            size: spec.size,
            time: EPOCH,
            headers: Headers::new(),
            fronthaul: Fronthaul::default(),
        }
    }

    /// Writes the next packet to the start of `into`; returns its captured length and metadata.
    ///
    /// # Panics
    /// If `into` is shorter than [`Generator::MAX_PACKET`].
    pub fn next_packet(&mut self, into: &mut [u8]) -> (usize, Metadata) {
        self.time += u64::from(self.random.between(1, MAX_GAP));
        let mut flow = self.flows[self.random.below(self.flows.len() as u32) as usize];
        // Every fourth packet goes from server to client.
        if self.random.one_in(4) {
            flow.addresses.swap(0, 1);
            flow.ports.swap(0, 1);
        }
        let size = draw_size(self.size, &mut self.random);
        let drawn = self.draw_kind();
        let kind = if drawn == Kind::Short { self.random.pick(&TRUNCATABLE_KINDS) } else { drawn };
        let payload = self.build(kind, flow, size);
        let header = self.headers.len();
        let wire = header + payload.len;
        into[..header].copy_from_slice(self.headers.bytes());
        into[header..wire].copy_from_slice(&self.payloads.bytes[payload.start..payload.start + payload.len]);
        let captured = match drawn {
            // Half of the truncated packets end within the headers.
            Kind::Short if self.random.one_in(2) => self.random.below(wire.min(80) as u32) as usize,
            Kind::Short => self.random.below(wire as u32) as usize,
            _ => wire,
        };
        (captured, Metadata::new(wire as u32, 0, self.time))
    }

    fn draw_kind(&mut self) -> Kind {
        let total = self.kinds.last().map_or(0, |&(_, sum)| sum);
        let drawn = self.random.below(total);
        self.kinds.iter().find(|&&(_, sum)| drawn < sum).expect("a mix is not empty").0
    }

    /// Builds the headers of a packet of `size` bytes; returns its payload.
    fn build(&mut self, kind: Kind, flow: Flow, size: usize) -> Payload {
        self.headers.clear();
        let mut shape = match kind {
            Kind::Tcp4 => PacketShape::plain(false, Transport::Tcp),
            Kind::Udp4 => PacketShape::plain(false, Transport::Udp),
            Kind::Icmp4 => PacketShape::plain(false, Transport::Echo),
            Kind::Tcp6 => PacketShape::plain(true, Transport::Tcp),
            Kind::Udp6 => PacketShape::plain(true, Transport::Udp),
            Kind::Icmp6 => PacketShape::plain(true, self.random.pick(&[Transport::Echo, Transport::Neighbour])),
            Kind::Options4 | Kind::First4 | Kind::Later4 => PacketShape::plain(false, self.tcp_or_udp()),
            Kind::Extension6 | Kind::First6 | Kind::Later6 => PacketShape::plain(true, self.tcp_or_udp()),
            Kind::Vlan | Kind::QinQ => PacketShape::plain(self.random.one_in(3), self.tcp_or_udp()),
            Kind::Arp => return self.arp(flow),
            Kind::GtpU => return self.gtp_u(flow, size),
            Kind::Ecpri => return self.ecpri(),
            Kind::Short => unreachable!("short packets are cut from other kinds"),
        };
        shape.has_options = matches!(kind, Kind::Options4 | Kind::Extension6);
        shape.fragment = match kind {
            Kind::First4 | Kind::First6 => Fragment::First,
            Kind::Later4 | Kind::Later6 => Fragment::Later,
            _ => Fragment::Whole,
        };
        let inner = if shape.is_ipv6 { IPV6 } else { IPV4 };
        match kind {
            Kind::Vlan => {
                self.headers.ethernet(flow.addresses, VLAN);
                self.tag(inner);
            }
            Kind::QinQ => {
                self.headers.ethernet(flow.addresses, PROVIDER_VLAN);
                self.tag(VLAN);
                self.tag(inner);
            }
            _ => self.headers.ethernet(flow.addresses, inner),
        }
        self.ip(shape, flow, size)
    }

    fn tcp_or_udp(&mut self) -> Transport {
        self.random.pick(&[Transport::Tcp, Transport::Tcp, Transport::Udp])
    }

    /// Appends a VLAN tag with a random priority and a VLAN ID from 1 to 4094.
    fn tag(&mut self, ether_type: u16) {
        let control = self.random.below(8) << 13 | self.random.between(1, 4094);
        self.headers.vlan(control as u16, ether_type);
    }

    /// Builds an IP packet such that the frame has `size` bytes, if its headers leave room for
    /// that.
    fn ip(&mut self, shape: PacketShape, flow: Flow, size: usize) -> Payload {
        let mut options = [1u8; 40];
        let mut chain = ExtensionChain::default();
        let mut extra = 0;
        if shape.is_ipv6 {
            if shape.has_options {
                chain = ExtensionChain::draw(&mut self.random);
            }
            if shape.fragment != Fragment::Whole {
                chain.push(FRAGMENT, 8);
            }
        } else if shape.has_options {
            // Router alert (RFC 2113), then no-operations.
            extra = self.random.between(1, 10) as usize * 4;
            if self.random.one_in(2) {
                options[..4].copy_from_slice(&[0x94, 4, 0, 0]);
            }
        }
        let l4 = if shape.fragment == Fragment::Later { 0 } else { shape.transport.header() };
        let l3 = if shape.is_ipv6 { 40 + chain.len() } else { 20 + extra };
        let mut len = size.saturating_sub(self.headers.len() + l3 + l4);
        if shape.transport == Transport::Neighbour {
            len = 0;
        }
        let mut more = false;
        let mut offset = 0;
        let mut rest = 0;
        match shape.fragment {
            Fragment::Whole => {}
            Fragment::First => {
                // All fragments but the last carry a multiple of 8 bytes.
                len = (l4 + len.max(4)) / 8 * 8 - l4;
                rest = self.random.between(8, 1000) as usize;
                more = true;
            }
            Fragment::Later => {
                offset = self.random.between(1, 180) as u16;
                more = self.random.one_in(2);
                len = if more { len.max(8) / 8 * 8 } else { len };
            }
        }
        let payload = self.payload(len);
        let protocol = shape.transport.protocol(shape.is_ipv6);
        if shape.is_ipv6 {
            let class_and_label = self.random.u32();
            let hops = if shape.transport == Transport::Neighbour { 255 } else { self.random.between(1, 255) as u8 };
            let first = chain.first(protocol);
            self.headers.ipv6(flow.addresses, first, class_and_label, hops, chain.len() + l4 + len);
            chain.write(&mut self.headers, protocol, offset << 3 | u16::from(more), &mut self.random);
        } else {
            let flags = match shape.fragment {
                Fragment::Whole => 0x4000 * self.random.below(2) as u16,
                _ => u16::from(more) << 13 | offset,
            };
            let (tos, ttl) = (self.random.u32() as u8, self.random.between(1, 255) as u8);
            let identification = self.random.u32() as u16;
            let options = &options[..extra];
            self.headers.ipv4(flow.addresses, protocol, tos, ttl, identification, flags, options, l4 + len);
        }
        if shape.fragment != Fragment::Later {
            self.transport(shape, flow, Payload { len: len + rest, ..payload });
        }
        payload
    }

    /// Chooses a payload of `len` bytes at one of 10,000 offsets.
    fn payload(&mut self, len: usize) -> Payload {
        Payload { start: draw_payload(&mut self.random), len }
    }

    /// Appends the transport header of a datagram that carries all of `payload`, checksum included.
    fn transport(&mut self, shape: PacketShape, flow: Flow, payload: Payload) {
        let random = &mut self.random;
        let headers = &mut self.headers;
        let start = headers.len();
        let at = match shape.transport {
            Transport::Tcp => {
                // ACK; PSH and ACK; SYN; SYN and ACK; FIN and ACK; RST.
                let flags = random.pick(&[0x10, 0x10, 0x10, 0x18, 0x18, 0x02, 0x12, 0x11, 0x04]);
                let (sequence, acknowledgement, window) = (random.u32(), random.u32(), random.u32() as u16);
                headers.tcp(flow.ports, sequence, acknowledgement, flags, window)
            }
            Transport::Udp => headers.udp(flow.ports, payload.len),
            Transport::Echo => {
                let request = random.one_in(2);
                headers.u8(match (shape.is_ipv6, request) {
                    (false, true) => 8,
                    (false, false) => 0,
                    (true, true) => 128,
                    (true, false) => 129,
                });
                headers.u8(0);
                headers.u16(0);
                // Identifier and sequence number.
                headers.u32(random.u32());
                start + 2
            }
            Transport::Neighbour => {
                // RFC 4861, section 4.3, with the source link-layer address option.
                headers.put(&[135, 0, 0, 0, 0, 0, 0, 0]);
                headers.put(&[0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0]);
                headers.u32(flow.addresses[1]);
                headers.put(&[1, 1, 0x02, 0x00]);
                headers.u32(flow.addresses[0]);
                start + 2
            }
        };
        let length = shape.transport.header() + payload.len;
        let pseudo = match (shape.is_ipv6, shape.transport) {
            (true, transport) => pseudo_sum_ipv6(flow.addresses, transport.protocol(true), length),
            // RFC 792: ICMP has no pseudo-header.
            (false, Transport::Echo | Transport::Neighbour) => 0,
            (false, transport) => pseudo_sum_ipv4(flow.addresses, transport.protocol(false), length),
        };
        let sum = pseudo + self.headers.sum_from(start) + self.payloads.sum(payload.start, payload.len);
        self.headers.set16(at, checksum(sum));
    }

    /// Builds the packet of the fronthaul that arrives next.
    fn ecpri(&mut self) -> Payload {
        let spec = self.size;
        let size = |random: &mut Random| draw_size(spec, random);
        let message = self.fronthaul.next_message(&mut self.random, size, draw_payload);
        message.write(&mut self.headers);
        Payload { start: message.payload, len: message.payload_len() }
    }

    /// Builds an ARP packet (RFC 826), padded to Ethernet's minimum length.
    fn arp(&mut self, flow: Flow) -> Payload {
        let [sender, target] = flow.addresses;
        let request = self.random.one_in(2);
        let headers = &mut self.headers;
        headers.ethernet(flow.addresses, ARP);
        headers.put(&[0, 1, 8, 0, 6, 4, 0, if request { 1 } else { 2 }]);
        headers.put(&[0x02, 0x00]);
        headers.u32(sender);
        headers.u32(sender);
        headers.put(if request { &[0, 0] } else { &[0x02, 0x00] });
        headers.u32(if request { 0 } else { target });
        headers.u32(target);
        headers.put(&[0; 18]);
        Payload { start: 0, len: 0 }
    }

    /// Builds a G-PDU (3GPP TS 29.281) in UDP in IPv4; half of them have the PDU session container
    /// of TS 38.415.
    fn gtp_u(&mut self, flow: Flow, size: usize) -> Payload {
        let inner = PacketShape::plain(false, self.tcp_or_udp());
        let tunnel = Flow {
            // Tunnel endpoints: one of 16 base stations, and the gateway.
            addresses: [0x0a64_0000 | self.random.below(16), 0x0a64_0100],
            ports: [GTP_U_PORT, GTP_U_PORT],
        };
        let container = self.random.one_in(2);
        let gtp = if container { 16 } else { 8 };
        let inner_header = 20 + inner.transport.header();
        let headers = 14 + 20 + 8 + gtp + inner_header;
        let len = size.saturating_sub(headers);
        let payload = self.payload(len);
        let (ttl, identification) = (self.random.between(1, 255) as u8, self.random.u32() as u16);
        let tunnel_id = self.random.u32();
        self.headers.ethernet(tunnel.addresses, IPV4);
        let datagram = gtp + inner_header + len;
        self.headers.ipv4(tunnel.addresses, UDP, 0, ttl, identification, 0x4000, &[], 8 + datagram);
        let outer = self.headers.len();
        let at = self.headers.udp(tunnel.ports, datagram);
        self.headers.put(&[if container { 0x34 } else { 0x30 }, 255]);
        self.headers.u16((datagram - 8) as u16);
        self.headers.u32(tunnel_id);
        if container {
            // No sequence number, no N-PDU number, next extension header type 0x85; then the
            // container of one 4-byte unit, the last extension header.
            self.headers.put(&[0, 0, 0, 0x85, 1, 0x00, 0x09, 0]);
        }
        let (ttl, identification) = (self.random.between(1, 255) as u8, self.random.u32() as u16);
        let protocol = inner.transport.protocol(false);
        let inside = inner.transport.header() + len;
        self.headers.ipv4(flow.addresses, protocol, 0, ttl, identification, 0x4000, &[], inside);
        self.transport(inner, flow, payload);
        let sum = pseudo_sum_ipv4(tunnel.addresses, UDP, 8 + datagram)
            + self.headers.sum_from(outer)
            + self.payloads.sum(payload.start, payload.len);
        self.headers.set16(at, checksum(sum));
        payload
    }
}

/// Draws a packet's length in bytes.
fn draw_size(size: Size, random: &mut Random) -> usize {
    match size {
        Size::Range(low, high) => random.between(low, high) as usize,
        Size::Imix => [64, 64, 64, 64, 64, 64, 64, 594, 594, 594, 594, 1518][random.below(12) as usize],
    }
}

/// Draws one of 10,000 even offsets of [`Payloads`].
fn draw_payload(random: &mut Random) -> usize {
    2 * random.below(10_000) as usize
}

/// The kinds that truncated packets are made from.
const TRUNCATABLE_KINDS: [Kind; 16] = [
    Kind::Tcp4,
    Kind::Udp4,
    Kind::Icmp4,
    Kind::Options4,
    Kind::First4,
    Kind::Later4,
    Kind::Tcp6,
    Kind::Udp6,
    Kind::Icmp6,
    Kind::Extension6,
    Kind::First6,
    Kind::Later6,
    Kind::Arp,
    Kind::Vlan,
    Kind::QinQ,
    Kind::GtpU,
];

/// Draws a client, often in a network that filters commonly match, and a server, often with a
/// well-known port.
fn flow(random: &mut Random) -> Flow {
    let host = random.below(1 << 16);
    let client = match random.below(8) {
        0 => 0xc0a8_0001,                             // 192.168.0.1
        1 => 0xc0a8_0000 | host,                      // 192.168.0.0/16
        2 => 0x0a00_0000 | host,                      // 10.0.0.0/16
        3 => 0xac10_0000 | host,                      // 172.16.0.0/16
        4 => 0xc633_6400 | (host & 0xff),             // 198.51.100.0/24, RFC 5737
        _ => 0x1400_0000 + random.below(0xc800_0000), // from 20.0.0.0 to 219.255.255.255
    };
    let server = match random.below(4) {
        0 => 0xcb00_7100 | random.below(256), // 203.0.113.0/24, RFC 5737
        1 => 0x0a00_0000 | random.below(1 << 16),
        _ => 0x1400_0000 + random.below(0xc800_0000),
    };
    let port = match random.below(16) {
        0..=2 => 80,
        3..=6 => 443,
        7 => 22,
        8 => 23,
        9 => 53,
        10 => 8080,
        11..=12 => random.between(1, 1023),
        _ => random.between(1024, 65_535),
    };
    Flow { addresses: [client, server], ports: [random.between(1024, 65_535) as u16, port as u16] }
}

/// A chain of IPv6 extension headers.
#[derive(Debug, Clone, Copy, Default)]
struct ExtensionChain {
    /// Type and length in bytes of each header.
    headers: [(u8, u8); 9],
    count: usize,
}

impl ExtensionChain {
    /// Draws 1 to 8 headers of at most 144 bytes in total, with at most one authentication header.
    fn draw(random: &mut Random) -> ExtensionChain {
        let mut chain = ExtensionChain::default();
        let mut authenticated = false;
        for i in 0..random.between(1, 8) {
            match random.below(4) {
                // Hop-by-hop options come first or not at all.
                0 if i == 0 => chain.push(0, 8 * random.between(1, 2) as u8),
                1 => chain.push(ROUTING, 8),
                2 if !authenticated => {
                    authenticated = true;
                    chain.push(AUTHENTICATION, 24);
                }
                _ => chain.push(DESTINATION_OPTIONS, 8 * random.between(1, 2) as u8),
            }
        }
        chain
    }

    fn push(&mut self, kind: u8, len: u8) {
        self.headers[self.count] = (kind, len);
        self.count += 1;
    }

    fn headers(&self) -> &[(u8, u8)] {
        &self.headers[..self.count]
    }

    fn len(&self) -> usize {
        self.headers().iter().map(|&(_, len)| usize::from(len)).sum()
    }

    /// The next-header value of the IPv6 header.
    fn first(&self, protocol: u8) -> u8 {
        self.headers().first().map_or(protocol, |&(kind, _)| kind)
    }

    /// Appends the headers: RFC 8200, section 4; RFC 4302 for the authentication header.
    fn write(&self, into: &mut Headers, protocol: u8, offset_and_more: u16, random: &mut Random) {
        for (i, &(kind, len)) in self.headers().iter().enumerate() {
            let next = self.headers().get(i + 1).map_or(protocol, |&(kind, _)| kind);
            match kind {
                FRAGMENT => {
                    into.put(&[next, 0]);
                    into.u16(offset_and_more);
                    into.u32(random.u32());
                }
                AUTHENTICATION => {
                    // Length in 4-byte units minus 2; SPI, sequence number, a 12-byte integrity
                    // check value.
                    into.put(&[next, 4, 0, 0]);
                    for _ in 0..5 {
                        into.u32(random.u32());
                    }
                }
                // An experimental type (RFC 4727) with no segments left, which receivers skip.
                ROUTING => into.put(&[next, 0, 253, 0, 0, 0, 0, 0]),
                _ => {
                    // A single PadN option.
                    into.put(&[next, len / 8 - 1, 1, len - 4]);
                    into.put(&[0; 12][..usize::from(len) - 4]);
                }
            }
        }
    }
}
