// flow_stats: counts packets and bytes of every flow, and notes when it began and when it was last
// seen.
//
// PASS  always
//
// A flow is what has the same addresses, ports and protocol (of IPv6 the next header), in one
// direction. TCP, UDP and SCTP have ports, but for later fragments; elsewhere they count as 0. What
// is neither IPv4 nor IPv6 belongs to no flow, nor does a packet whose fixed header is cut off.
//
// Fields have the names that they have in NetFlow. `doctets` are bytes on the wire from the IP
// header on. `first` and `last` are seconds since 1970 (IPFIX's flowStartSeconds and
// flowEndSeconds), and 0 is written as 1.
//
// Reads, behind an Ethernet header and one VLAN tag or none: version and IHL, fragment offset,
// protocol, addresses, ports.

//! map flows: hash key=11 value=5 entries=65536 fields=srcaddr:ip,dstaddr:ip,srcport,dstport,prot,dpkts,doctets:u64,first,last

// Packets of flows that there was no room for.
//! map missed: counter entries=1

// For other compilers.
#ifndef PORTCULLIS
PORTCULLIS_KEYS(flows, const uint *)
PORTCULLIS_VALUES(flows)
PORTCULLIS_COUNTER(missed)
#endif

#define ETH_HLEN 14
#define VLAN_HLEN 4
#define FRAGMENT_OFFSET 0x1fff

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
    uint addresses[8];
} __attribute__((packed));

struct flow {
    uint source[4], destination[4], source_port, destination_port, protocol;
};

// Words of a flow's value.
enum { PACKETS, BYTES, BYTES_HIGH, FIRST, LAST };

// Whether the packet belongs to a flow, and to which: `at` is behind its Ethernet header.
bool flow_of(bytes at, bytes end, uint ethertype, struct flow *flow)
{
    __global struct iphdr *ip = (__global struct iphdr *)at;
    __global struct ip6hdr *ip6 = (__global struct ip6hdr *)at;
    bytes ports;
    bool has_ports = true;

    if (ethertype == ETH_P_IP && (bytes)(ip + 1) <= end && at[0] >= 0x45 && at[0] <= 0x4f) {
        // Addresses as IPv6 has them: ::ffff:a.b.c.d.
        flow->source[2] = flow->destination[2] = 0xffff;
        flow->source[3] = ntohl(ip->source);
        flow->destination[3] = ntohl(ip->destination);
        flow->protocol = ip->protocol;
        ports = at + (ip->version_ihl & 0xf) * 4;
        has_ports = (ntohs(ip->fragment) & FRAGMENT_OFFSET) == 0;
    } else if (ethertype == ETH_P_IPV6 && (bytes)(ip6 + 1) <= end && at[0] >> 4 == 6) {
        for (int i = 0; i < 4; i++) {
            flow->source[i] = ntohl(ip6->addresses[i]);
            flow->destination[i] = ntohl(ip6->addresses[4 + i]);
        }
        flow->protocol = ip6->next;
        ports = (bytes)(ip6 + 1);
    } else {
        return false;
    }
    switch (flow->protocol) {
    case IPPROTO_TCP:
    case IPPROTO_UDP:
    case IPPROTO_SCTP:
        if (has_ports) {
            flow->source_port = load_be16(ports, 0);
            flow->destination_port = load_be16(ports, 2);
        }
    }
    return true;
}

uint xdp_filter(bytes pkt, uint len)
{
    struct flow flow = {.protocol = 0};
    bytes at = pkt + ETH_HLEN;
    uint ethertype = load_be16(at, -2);
    if (ethertype == ETH_P_8021Q || ethertype == ETH_P_8021AD) {
        at += VLAN_HLEN;
        ethertype = load_be16(at, -2);
    }
    if (!flow_of(at, pkt + len, ethertype, &flow))
        return XDP_PASS;
    uint entry = flows_insert((const uint *)&flow);
    if (entry == MAP_FULL) {
        missed_add(0, 1);
        return XDP_PASS;
    }
    // These functions give the same result in any order of packets. Times are in seconds because
    // milliseconds wrap within 50 days: of three of them, each may be later than the one before. A
    // time of 0 stands for none.
    uint now = max((uint)(pkt_time(pkt) / 1000000000), 1u);
    flows_add(entry, PACKETS, 1);
    flows_add64(entry, BYTES, pkt_wire_len(pkt) - (uint)(at - pkt));
    flows_min_nonzero(entry, FIRST, now);
    flows_max(entry, LAST, now);
    return XDP_PASS;
}
