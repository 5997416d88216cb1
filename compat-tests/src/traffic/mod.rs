//! Realistic traffic generated from a seed: many concurrent TCP connections with losses and
//! retransmissions, SYN floods, datagrams and their fragments, stray packets, and some truncated or
//! damaged ones. Timestamps increase from packet to packet.

mod connection;
pub mod frame;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub use portcullis_conformance::corpora::Packet;

use connection::Connection;
use frame::{ACK, FIN, Frame, PSH, RST, SYN};
use portcullis::packet_io::synth::Random;
use portcullis_core::packet::Metadata;

/// Parameters of the traffic.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Seed; equal seeds give equal packets.
    pub seed: u64,
    /// Number of packets.
    pub packets: usize,
    /// Number of concurrent TCP connections.
    pub connections: usize,
    /// Number of client hosts, each of which reuses a few ports.
    pub clients: u32,
    /// Average time between packets, in nanoseconds.
    pub gap: u64,
    /// Timestamp of the first packet, in nanoseconds.
    pub start: u64,
}

/// A time in March 2026, in nanoseconds, twenty seconds before the number of milliseconds passes a
/// multiple of 2^32.
const BEFORE_A_WRAP: u64 = (413 << 32) * 1_000_000 - 20_000_000_000;

impl Default for Spec {
    fn default() -> Spec {
        let (packets, connections, clients, gap) = (6000, 60, 40, 2_000_000);
        Spec { seed: 1, packets, connections, clients, gap, start: BEFORE_A_WRAP }
    }
}

/// Generates the packets in order of arrival. Packets from clients have ingress port 0, those from
/// servers port 1.
pub fn traffic(spec: &Spec) -> Vec<Packet> {
    let mut maker =
        TrafficGenerator { random: Random::new(spec.seed, 31), spec, flood: None, waiting: Vec::new(), last: None };
    let mut connections: Vec<Connection> = Vec::new();
    let (mut packets, mut now) = (Vec::with_capacity(spec.packets), spec.start);
    while packets.len() < spec.packets {
        while connections.len() < spec.connections {
            connections.push(maker.connection());
        }
        let (frame, port) = match maker.random.below(100) {
            0..70 => {
                let index = maker.random.below(connections.len() as u32) as usize;
                match connections[index].next_frame(&mut maker.random) {
                    Some(next) => next,
                    None => {
                        maker.last = Some(connections.swap_remove(index).ends());
                        continue;
                    }
                }
            }
            kind => {
                // About half of these packets use the addresses of an open connection.
                let index = maker.random.below(2 * connections.len() as u32) as usize;
                let ends = connections.get(index).map(Connection::ends);
                (maker.other(kind, ends), 0)
            }
        };
        let (bytes, wire_length) = maker.on_the_way(frame.bytes());
        now += maker.pause();
        // The clocks of two interfaces differ slightly.
        let skew = if maker.random.one_in(100) { u64::from(maker.random.below(300_000_000)) } else { 0 };
        packets.push(Packet { bytes, metadata: Metadata::new(wire_length, port, now - skew) });
    }
    packets
}

struct TrafficGenerator<'a> {
    random: Random,
    spec: &'a Spec,
    /// The victim of a flood, its source network, and the number of remaining packets.
    flood: Option<(SocketAddr, IpAddr, u32)>,
    /// Remaining fragments of the previous datagram.
    waiting: Vec<Frame>,
    /// Addresses of the last connection that ended.
    last: Option<(SocketAddr, SocketAddr)>,
}

impl TrafficGenerator<'_> {
    fn client(&mut self) -> SocketAddr {
        let (host, port) = (self.random.below(self.spec.clients), 40_000 + self.random.below(8) as u16);
        let ip: IpAddr = match host % 4 {
            3 => Ipv6Addr::new(0x2001, 0xdb8, 0, host as u16 % 3, 0, 0, 0, host as u16).into(),
            1 => Ipv4Addr::new(203, 0, 113, host as u8).into(),
            _ => Ipv4Addr::new(10, 1, (host % 5) as u8, host as u8).into(),
        };
        SocketAddr::new(ip, port)
    }

    /// Picks a server of the client's address family.
    fn server(&mut self, client: SocketAddr) -> SocketAddr {
        let (host, port) = (self.random.between(1, 6), self.random.pick(&[80, 443, 22, 50_000]));
        let ip: IpAddr = match client.ip() {
            IpAddr::V4(_) => Ipv4Addr::new(192, 0, 2, host as u8).into(),
            IpAddr::V6(_) => Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, host as u16).into(),
        };
        SocketAddr::new(ip, port)
    }

    fn connection(&mut self) -> Connection {
        let (mut client, mut server) = self.ends();
        // Reuse the ports of an old connection.
        if let Some(last) = self.last.take().filter(|_| self.random.one_in(3)) {
            (client, server) = last;
        }
        Connection::new(client, server, &mut self.random)
    }

    fn ends(&mut self) -> (SocketAddr, SocketAddr) {
        let client = self.client();
        let server = self.server(client);
        // Some hosts connect to themselves.
        let server = if self.random.one_in(20) { SocketAddr::new(client.ip(), server.port()) } else { server };
        (client, server)
    }

    /// Generates a frame that belongs to no connection, though it may have the addresses of one.
    fn other(&mut self, kind: u32, ends: Option<(SocketAddr, SocketAddr)>) -> Frame {
        if let Some(fragment) = self.waiting.pop() {
            return fragment;
        }
        let (client, server) = ends.unwrap_or_else(|| self.ends());
        match kind {
            70..80 => self.syn_of_a_flood(),
            80..87 => self.datagram(client, server),
            87..93 => self.stray(client, server),
            93..95 => {
                // An echo request.
                let (protocol, kind) = if client.is_ipv4() { (1, 8) } else { (58, 128) };
                Frame::new(client.ip(), server.ip(), protocol, vec![kind, 0, 0, 0, 0, 7, 0, 1])
            }
            95..97 => {
                let mut frame = Frame::udp(client, server, b"twice tagged");
                frame.tags = vec![(0x88a8, 7), (0x8100, 100)];
                frame
            }
            // IPv6 with a header between, or IPv4 in IPv4.
            _ if client.is_ipv6() => {
                let inner = Frame::tcp(client, server, SYN, [1, 0], &[]);
                let payload = [&[inner.protocol, 0, 1, 4, 0, 0, 0, 0], &inner.payload[..]].concat();
                Frame { protocol: 60, payload, ..inner }
            }
            _ => Frame::new(client.ip(), server.ip(), 4, Frame::udp(client, server, b"inner").bytes()[14..].to_vec()),
        }
    }

    fn syn_of_a_flood(&mut self) -> Frame {
        let (victim, network, left) = match self.flood.take() {
            Some(flood) => flood,
            None => {
                let client = self.client();
                (self.server(client), client.ip(), self.random.between(50, 300))
            }
        };
        if left > 0 {
            self.flood = Some((victim, network, left - 1));
        }
        // The sources are hosts of one network, one of which sends the most.
        let host = if self.random.one_in(3) { self.random.u32() as u8 } else { 66 };
        let ip = match network {
            IpAddr::V4(ip) => Ipv4Addr::from_octets([ip.octets()[0], ip.octets()[1], ip.octets()[2], host]).into(),
            IpAddr::V6(ip) => IpAddr::from(Ipv6Addr::from(u128::from(ip) >> 64 << 64 | u128::from(host))),
        };
        let source = SocketAddr::new(ip, self.random.between(1024, 65_535) as u16);
        Frame::tcp(source, victim, SYN, [self.random.u32(), 0], &[])
    }

    fn datagram(&mut self, client: SocketAddr, server: SocketAddr) -> Frame {
        let mut data = vec![0; self.random.below(900) as usize];
        self.random.fill(&mut data);
        let (from, to) = if self.random.one_in(2) { (client, server) } else { (server, client) };
        let mut frame = Frame::udp(from, to, &data);
        frame.identification = self.random.u32() as u16;
        frame.class = self.random.pick(&[0, 0, 0x28, 0xb8, 0x03]);
        match (from, self.random.one_in(8)) {
            // The sender has omitted the checksum (RFC 768).
            (SocketAddr::V4(_), true) => frame.payload[6..8].fill(0),
            (SocketAddr::V6(_), _) => return frame,
            _ => {}
        }
        if !self.random.one_in(3) {
            return frame;
        }
        self.waiting = frame.fragments(256);
        let first = self.waiting.remove(0);
        self.waiting.reverse();
        first
    }

    /// Generates a segment that no endpoint expects.
    fn stray(&mut self, client: SocketAddr, server: SocketAddr) -> Frame {
        let flags = self.random.pick(&[ACK, RST, RST | ACK, FIN | ACK, SYN | ACK, SYN | FIN, PSH | ACK, 0, 0xff]);
        let (from, to) = if self.random.one_in(2) { (client, server) } else { (server, client) };
        let mut frame = Frame::tcp(from, to, flags, [self.random.u32(), self.random.u32()], b"stray");
        if client.is_ipv4() {
            frame.options = self.random.pick(&[0, 1, 10]);
        }
        frame
    }

    /// Truncates or damages some frames; returns the bytes that arrive and the wire length.
    fn on_the_way(&mut self, mut bytes: Vec<u8>) -> (Vec<u8>, u32) {
        let length = bytes.len() as u32;
        match self.random.below(100) {
            0..3 => bytes.truncate(self.random.below(length.min(90)) as usize),
            3..5 => {
                let at = self.random.below(length.min(60)) as usize;
                bytes[at] = self.random.u32() as u8;
            }
            // Short frames are padded to the Ethernet minimum.
            _ if length < 60 => {
                bytes.resize(60, 0);
                return (bytes, 60);
            }
            _ => {}
        }
        (bytes, length)
    }

    fn pause(&mut self) -> u64 {
        let gap = self.spec.gap;
        match self.random.below(400) {
            0 => gap * u64::from(self.random.between(100, 4000)),
            1..40 => 0,
            _ => gap * u64::from(self.random.below(2000)) / 1000,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::frame::{ones_complement, transport_checksum, update_checksum};
    use super::*;

    #[test]
    fn traffic_depends_on_the_seed_alone() {
        let spec = Spec { packets: 500, ..Spec::default() };
        assert_eq!(traffic(&spec), traffic(&spec));
        assert_ne!(traffic(&spec), traffic(&Spec { seed: 2, ..spec }));
    }

    /// The example in RFC 1624, section 4: 0xdd2f becomes 0 when 0x5555 becomes 0x3285.
    #[test]
    fn checksums_are_updated_as_rfc_1624_specifies() {
        let mut check = [0xdd, 0x2f];
        update_checksum(&mut check, &[0x55, 0x55], &[0x32, 0x85]);
        assert_eq!(check, [0, 0]);
    }

    #[test]
    fn frames_are_well_formed() {
        let (a, b) = (SocketAddr::from(([10, 0, 0, 1], 1234)), SocketAddr::from(([192, 0, 2, 1], 80)));
        let tcp = Frame::tcp(a, b, SYN, [7, 0], b"odd");
        let bytes = tcp.bytes();
        assert_eq!(bytes.len(), 14 + 20 + 20 + 3);
        assert_eq!(ones_complement(&bytes[14..34]), 0xffff);
        assert_eq!(transport_checksum(a.ip(), b.ip(), 6, &bytes[34..]), 0);
        assert_eq!(bytes[16..18], 43_u16.to_be_bytes());
        let udp = Frame::udp(a, b, &[5; 600]);
        let fragments = udp.fragments(256);
        let offsets: Vec<u16> = fragments.iter().map(|fragment| fragment.fragment).collect();
        assert_eq!(offsets, [0x2000, 0x2020, 64]);
        assert_eq!(fragments.iter().flat_map(|fragment| fragment.payload.clone()).collect::<Vec<_>>(), udp.payload);
        assert_eq!(transport_checksum(a.ip(), b.ip(), 17, &udp.payload), 0);
        let six = Frame {
            tags: vec![(0x8100, 5)],
            class: 0xb8,
            ..Frame::new("::1".parse().unwrap(), "::2".parse().unwrap(), 59, vec![])
        };
        let bytes = six.bytes();
        assert_eq!(bytes[12..22], [0x81, 0, 0, 5, 0x86, 0xdd, 0x6b, 0x80, 0, 0]);
        assert_eq!((bytes.len(), bytes[18 + 6], bytes[18 + 39]), (58, 59, 2));
    }

    /// Checks that the traffic contains enough of each kind of packet.
    #[test]
    fn every_kind_of_traffic_occurs() {
        let spec = Spec::default();
        let packets = traffic(&spec);
        assert_eq!(packets.len(), spec.packets);
        let count = |is: &dyn Fn(&Packet) -> bool| packets.iter().filter(|packet| is(packet)).count();
        let at = |packet: &Packet, at: usize| packet.bytes.get(at).copied().unwrap_or(0);
        let is_ipv4 = |packet: &Packet| (at(packet, 12), at(packet, 13)) == (8, 0);
        let is_tcp = |packet: &Packet| is_ipv4(packet) && at(packet, 14) == 0x45 && at(packet, 23) == 6;
        for (name, found) in [
            ("TCP", count(&|packet| is_tcp(packet))),
            ("SYN", count(&|packet| is_tcp(packet) && at(packet, 47) == SYN)),
            ("SYN and ACK", count(&|packet| is_tcp(packet) && at(packet, 47) == SYN | ACK)),
            ("FIN", count(&|packet| is_tcp(packet) && at(packet, 47) == FIN | ACK)),
            ("RST", count(&|packet| is_tcp(packet) && at(packet, 47) & RST != 0)),
            ("from servers", count(&|packet| packet.metadata.port == 1)),
            ("IPv6", count(&|packet| (at(packet, 12), at(packet, 13)) == (0x86, 0xdd))),
            ("one tag", count(&|packet| at(packet, 12) == 0x81 && at(packet, 16) != 0x81)),
            ("fragments", count(&|packet| is_ipv4(packet) && at(packet, 21) != 0)),
            ("cut off", count(&|packet| packet.bytes.len() < packet.metadata.wire_length as usize)),
        ] {
            assert!(found >= 50, "{name}: {found}");
        }
        let backwards = packets.windows(2).filter(|pair| pair[0].metadata.time_ns() > pair[1].metadata.time_ns());
        assert!(backwards.count() >= 10);
        let halves = packets.iter().map(|packet| packet.metadata.time_ms >> 31).collect::<HashSet<_>>();
        assert_eq!(halves.len(), 2, "milliseconds pass 2^32");
        let ends = packets.iter().filter(|packet| is_tcp(packet)).filter_map(|packet| packet.bytes.get(26..38));
        let flows = ends.collect::<HashSet<_>>();
        assert!(flows.len() > 200, "{}", flows.len());
    }
}
