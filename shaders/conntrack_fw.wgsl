// conntrack_fw: a stateful firewall for TCP over IPv4 and IPv6. A SYN opens a connection, and what
// belongs to it passes in both directions until it is closed.
//
// PASS  a SYN that opens a connection, and what belongs to one that is open
// DROP  everything else: TCP that belongs to none, other protocols, fragments, IPv6 with extension
//       headers, what is cut off before TCP's flags, a SYN for which there is no room
//
// A connection is between two endpoints, address and port. It is
//
//   opening      after its SYN, which may come again. The other end answers with a SYN, or with SYN
//                and ACK
//   established  after that: all passes
//   closing      after a FIN of both ends: all passes, and a SYN opens it anew
//
// and is over after a RST, or when nothing has passed for `established` seconds, opening and
// closing for `transitory` seconds (RFC 5382, REQ-5; up to 2000000). A SYN that opens has neither
// ACK, FIN nor RST. Sequence numbers are not looked at.
//
// Reads, behind an Ethernet header and one VLAN tag or none, the headers of IP and TCP; the
// packet's time.

override established: u32 = 7440u;
override transitory: u32 = 240u;

// The lower endpoint first. `last` is when something passed, in milliseconds modulo 2^32.
//! map connections: lru_hash key=10 value=2 entries=65536 fields=addr0:ip,port0,addr1:ip,port1,state,last

const STATE: u32 = 0u;
const LAST: u32 = 1u;

// Bits of a state. That of FIN is that of the lower end, and the next one that of the upper.
const OPENED_BY_UPPER: u32 = 1u;
const ESTABLISHED: u32 = 2u;
const FINISHED: u32 = 4u;
const CLOSING: u32 = 12u;

// TCP's flags (RFC 9293, section 3.1).
const FIN: u32 = 1u;
const SYN: u32 = 2u;
const RST: u32 = 4u;
const ACK: u32 = 16u;

struct Segment {
    is_tcp: bool,
    // The connection's key, and whether the upper end has sent this.
    key: array<u32, 10>,
    upper: u32,
    flags: u32,
}

fn segment_of(pkt: u32) -> Segment {
    var segment: Segment;
    var source: array<u32, 5>;
    var destination: array<u32, 5>;
    let outer = load_be16(pkt, 12u);
    let ip = select(14u, 18u, outer == ETH_P_8021Q || outer == ETH_P_8021AD);
    let ethertype = load_be16(pkt, ip - 2u);
    let version_ihl = load_u8(pkt, ip);
    var tcp = ip + 40u;
    if ethertype == ETH_P_IP && version_ihl - 0x45u <= 10u && load_u8(pkt, ip + 9u) == IPPROTO_TCP
        && (load_be16(pkt, ip + 6u) & 0x3fffu) == 0u {
        // Addresses as IPv6 has them: ::ffff:a.b.c.d.
        source[2] = 0xffffu;
        source[3] = load_be32(pkt, ip + 12u);
        destination[2] = 0xffffu;
        destination[3] = load_be32(pkt, ip + 16u);
        tcp = ip + (version_ihl & 0xfu) * 4u;
    } else if ethertype == ETH_P_IPV6 && (version_ihl >> 4u) == 6u && load_u8(pkt, ip + 6u) == IPPROTO_TCP {
        for (var i = 0u; i < 4u; i++) {
            source[i] = load_be32(pkt, ip + 8u + i * 4u);
            destination[i] = load_be32(pkt, ip + 24u + i * 4u);
        }
    } else {
        return segment;
    }
    if pkt_len(pkt) < tcp + 14u {
        return segment;
    }
    source[4] = load_be16(pkt, tcp);
    destination[4] = load_be16(pkt, tcp + 2u);

    // The first word that is not the same decides which end is the upper one.
    for (var i = 5u; i > 0u; i--) {
        if source[i - 1u] != destination[i - 1u] {
            segment.upper = select(0u, 1u, source[i - 1u] > destination[i - 1u]);
        }
    }
    for (var i = 0u; i < 5u; i++) {
        segment.key[i] = select(source[i], destination[i], segment.upper == 1u);
        segment.key[i + 5u] = select(destination[i], source[i], segment.upper == 1u);
    }
    segment.flags = load_u8(pkt, tcp + 13u);
    segment.is_tcp = true;
    return segment;
}

// Packets of a connection come one at a time, in the order of their arrival, whichever end has sent
// them: sums of both ends are the same both ways. What is no connection's may come in any order.
fn xdp_flow(pkt: u32) -> u32 {
    let outer = load_be16(pkt, 12u);
    let ip = select(14u, 18u, outer == ETH_P_8021Q || outer == ETH_P_8021AD);
    let ethertype = load_be16(pkt, ip - 2u);
    var sum = 0u;
    var tcp = ip + 40u;
    if ethertype == ETH_P_IP {
        // As IPv6 has them, below: a connection may be of both.
        sum = 2u * 0xffffu * 31u + load_be32(pkt, ip + 12u) + load_be32(pkt, ip + 16u);
        tcp = ip + (load_u8(pkt, ip) & 0xfu) * 4u;
    } else if ethertype == ETH_P_IPV6 {
        for (var i = 8u; i < 24u; i += 4u) {
            sum = sum * 31u + load_be32(pkt, ip + i) + load_be32(pkt, ip + 16u + i);
        }
    } else {
        return pkt_time(pkt).x;
    }
    return sum * 0x9e3779b1u + load_be16(pkt, tcp) + load_be16(pkt, tcp + 2u);
}

fn is_over(state: u32, last: u32, now: u32) -> bool {
    let is_transitory = (state & ESTABLISHED) == 0u || (state & CLOSING) == CLOSING;
    // A clock that goes back a little has not gone far ahead.
    return i32(now - last) > i32(select(established, transitory, is_transitory) * 1000u);
}

fn xdp_filter(pkt: u32) -> u32 {
    let segment = segment_of(pkt);
    if !segment.is_tcp {
        return XDP_DROP;
    }
    let now = pkt_time_ms(pkt);
    let flags = segment.flags;
    let opens = (flags & (SYN | ACK | FIN | RST)) == SYN;
    var connection = connections_find(segment.key);
    var state = connections_read(connection, STATE);
    if connection == MAP_NONE || is_over(state, connections_read(connection, LAST), now)
        || (opens && (state & CLOSING) == CLOSING) {
        if !opens {
            return XDP_DROP;
        }
        connection = connections_insert(segment.key);
        if connection == MAP_FULL {
            return XDP_DROP;
        }
        state = segment.upper * OPENED_BY_UPPER;
    } else if (flags & RST) != 0u {
        connections_remove(segment.key);
        return XDP_PASS;
    } else if (state & ESTABLISHED) == 0u {
        let is_answer = segment.upper != (state & OPENED_BY_UPPER);
        if !(opens || (is_answer && (flags & (SYN | FIN)) == SYN)) {
            return XDP_DROP;
        }
        state |= select(0u, ESTABLISHED, is_answer);
    } else if (flags & FIN) != 0u {
        state |= FINISHED << segment.upper;
    }
    connections_write(connection, STATE, state);
    connections_write(connection, LAST, now);
    return XDP_PASS;
}
