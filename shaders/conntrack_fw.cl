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
// and is over after a RST, or when nothing has passed for ESTABLISHED seconds, opening and closing
// for TRANSITORY seconds (RFC 5382, REQ-5; up to 2000000). A SYN that opens has neither ACK, FIN
// nor RST. Sequence numbers are not looked at.
//
// Reads, behind an Ethernet header and one VLAN tag or none, the headers of IP and TCP; the
// packet's time.

#ifndef ESTABLISHED
#define ESTABLISHED 7440u
#endif
#ifndef TRANSITORY
#define TRANSITORY 240u
#endif

// The lower endpoint first. `last` is when something passed, in milliseconds modulo 2^32.
//! map connections: lru_hash key=10 value=2 entries=65536 fields=addr0:ip,port0,addr1:ip,port1,state,last

// For other compilers.
#ifndef PORTCULLIS
PORTCULLIS_KEYS(connections, const uint *)
PORTCULLIS_VALUES(connections)
#endif

// Words of a connection.
enum { STATE, LAST };

// Bits of a state. That of FIN is that of the lower end, and the next one that of the upper.
#define OPENED_BY_UPPER 1
#define IS_ESTABLISHED 2
#define FINISHED 4
#define CLOSING 12

// TCP's flags (RFC 9293, section 3.1).
#define FIN 1
#define SYN 2
#define RST 4
#define ACK 16

#define ETH_HLEN 14
#define VLAN_HLEN 4
#define IP_OFFSET_MF 0x3fff

typedef __global uchar *bytes;

struct iphdr {
    uchar version_ihl, tos;
    ushort length, id, fragment;
    uchar ttl, protocol;
    ushort checksum;
    uint source, destination;
} __attribute__((packed));

struct ip6hdr {
    uint version_class_flow;
    ushort length;
    uchar next, hop_limit;
    uint source[4], destination[4];
} __attribute__((packed));

struct tcphdr {
    ushort source, destination;
    uint sequence, acknowledgement;
    uchar offset, flags;
} __attribute__((packed));

struct endpoint {
    uint address[4], port;
};

// A connection's key.
struct ends {
    struct endpoint lower, upper;
};

struct segment {
    struct ends ends;
    // Whether the upper end has sent it.
    uint upper;
    uint flags;
};

bool is_above(struct endpoint a, struct endpoint b)
{
    for (int i = 0; i < 4; i++) {
        if (a.address[i] != b.address[i])
            return a.address[i] > b.address[i];
    }
    return a.port > b.port;
}

// Whether the packet is a segment of TCP's, and which.
bool segment_of(bytes pkt, uint len, struct segment *segment)
{
    struct endpoint source = {.port = 0}, destination = {.port = 0};
    bytes at = pkt + ETH_HLEN;
    uint ethertype = load_be16(at, -2);
    if (ethertype == ETH_P_8021Q || ethertype == ETH_P_8021AD) {
        at += VLAN_HLEN;
        ethertype = load_be16(at, -2);
    }
    __global struct iphdr *ip = (__global struct iphdr *)at;
    __global struct ip6hdr *ip6 = (__global struct ip6hdr *)at;
    __global struct tcphdr *tcp;

    if (ethertype == ETH_P_IP && at[0] >= 0x45 && at[0] <= 0x4f && ip->protocol == IPPROTO_TCP
        && !(ntohs(ip->fragment) & IP_OFFSET_MF)) {
        // Addresses as IPv6 has them: ::ffff:a.b.c.d.
        source.address[2] = destination.address[2] = 0xffff;
        source.address[3] = ntohl(ip->source);
        destination.address[3] = ntohl(ip->destination);
        tcp = (__global struct tcphdr *)(at + (ip->version_ihl & 0xf) * 4);
    } else if (ethertype == ETH_P_IPV6 && at[0] >> 4 == 6 && ip6->next == IPPROTO_TCP) {
        for (int i = 0; i < 4; i++) {
            source.address[i] = ntohl(ip6->source[i]);
            destination.address[i] = ntohl(ip6->destination[i]);
        }
        tcp = (__global struct tcphdr *)(ip6 + 1);
    } else {
        return false;
    }
    if (&tcp->flags + 1 > pkt + len)
        return false;
    source.port = ntohs(tcp->source);
    destination.port = ntohs(tcp->destination);
    segment->flags = tcp->flags;
    segment->upper = is_above(source, destination);
    segment->ends.lower = segment->upper ? destination : source;
    segment->ends.upper = segment->upper ? source : destination;
    return true;
}

// Packets of a connection come one at a time, in the order of their arrival, whichever end has sent
// them: sums of both ends are the same both ways. What is no connection's may come in any order.
uint xdp_flow(bytes pkt, uint len)
{
    bytes at = pkt + ETH_HLEN;
    uint ethertype = load_be16(at, -2);
    if (ethertype == ETH_P_8021Q || ethertype == ETH_P_8021AD) {
        at += VLAN_HLEN;
        ethertype = load_be16(at, -2);
    }
    __global struct iphdr *ip = (__global struct iphdr *)at;
    __global struct ip6hdr *ip6 = (__global struct ip6hdr *)at;
    __global struct tcphdr *tcp;
    uint sum = 0;

    if (ethertype == ETH_P_IP) {
        // As IPv6 has them, below: a connection may be of both.
        sum = 2 * 0xffff * 31 + ntohl(ip->source) + ntohl(ip->destination);
        tcp = (__global struct tcphdr *)(at + (ip->version_ihl & 0xf) * 4);
    } else if (ethertype == ETH_P_IPV6) {
        for (int i = 0; i < 4; i++)
            sum = sum * 31 + ntohl(ip6->source[i]) + ntohl(ip6->destination[i]);
        tcp = (__global struct tcphdr *)(ip6 + 1);
    } else {
        return (uint)pkt_time(pkt);
    }
    return sum * 0x9e3779b1u + ntohs(tcp->source) + ntohs(tcp->destination);
}

bool is_over(uint state, uint last, uint now)
{
    bool is_transitory = !(state & IS_ESTABLISHED) || (state & CLOSING) == CLOSING;
    // A clock that goes back a little has not gone far ahead.
    return (int)(now - last) > (int)((is_transitory ? TRANSITORY : ESTABLISHED) * 1000);
}

uint xdp_filter(bytes pkt, uint len)
{
    struct segment segment;
    if (!segment_of(pkt, len, &segment))
        return XDP_DROP;
    struct ends ends = segment.ends;
    uint now = pkt_time_ms(pkt), flags = segment.flags;
    bool opens = (flags & (SYN | ACK | FIN | RST)) == SYN;
    uint connection = connections_find((const uint *)&ends), state = connections_read(connection, STATE);

    if (connection == MAP_NONE || is_over(state, connections_read(connection, LAST), now)
        || (opens && (state & CLOSING) == CLOSING)) {
        if (!opens)
            return XDP_DROP;
        connection = connections_insert((const uint *)&ends);
        if (connection == MAP_FULL)
            return XDP_DROP;
        state = segment.upper ? OPENED_BY_UPPER : 0;
    } else if (flags & RST) {
        connections_remove((const uint *)&ends);
        return XDP_PASS;
    } else if (!(state & IS_ESTABLISHED)) {
        bool is_answer = segment.upper != (state & OPENED_BY_UPPER);
        if (!opens && !(is_answer && (flags & (SYN | FIN)) == SYN))
            return XDP_DROP;
        if (is_answer)
            state |= IS_ESTABLISHED;
    } else if (flags & FIN) {
        state |= FINISHED << segment.upper;
    }
    connections_write(connection, STATE, state);
    connections_write(connection, LAST, now);
    return XDP_PASS;
}
