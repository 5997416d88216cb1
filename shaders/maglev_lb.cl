// maglev_lb: spreads traffic to virtual addresses over backends by consistent hashing (Maglev;
// Eisenbud and others, NSDI 2016).
//
// REDIRECT  TCP and UDP over IPv4 to an address of `vips`: to its backend's port, with the
//           backend's IP and MAC address as the destination, what was the destination's MAC address
//           as the source, and checksums mended (RFC 1624)
// PASS      everything else
// DROP      such a packet for which there is no healthy backend
//
// A flow (addresses, ports, protocol) stays with its backend while that is healthy. Otherwise it
// goes to the backend that stands in `table` at the flow's hash modulo 65537, or where that is not
// healthy at the next hash, and so on 64 times. So nothing moves but the flows of a backend that
// fails. Fragments have no ports here (0), so that those of a packet stay together. The hash begins
// at 0 and takes in word after word of the key: exclusive or, then MurmurHash3's finaliser. The
// next one is the finaliser of the hash plus 1.
//
// The host fills the maps but for `flows`. Backends have numbers from 1 on; 0 is nobody.
// `portcullis::maglev` makes the table, with weights (examples/maglev.rs). What answers a packet
// has the backend's address, and is not this filter's.
//
// Reads, behind an Ethernet header and one VLAN tag or none, the headers of IP and TCP or UDP;
// writes MAC addresses, destination and checksums.

//! map vips: hash key=1 value=0 entries=1024 fields=vip:ipv4
//! map table: array value=1 entries=65537 fields=place,backend
//! map backends: array value=5 entries=1024 fields=backend,healthy,address:ipv4,mac:mac,port
//! map flows: lru_hash key=5 value=1 entries=65536 fields=srcaddr:ipv4,dstaddr:ipv4,srcport,dstport,prot,backend

// For other compilers.
#ifndef PORTCULLIS
PORTCULLIS_KEYS(vips, uint)
PORTCULLIS_VALUES(table)
PORTCULLIS_VALUES(backends)
PORTCULLIS_KEYS(flows, const uint *)
PORTCULLIS_VALUES(flows)
#endif

#define PLACES 65537
#define TRIES 64

#define ETH_HLEN 14
#define VLAN_HLEN 4
#define IP_OFFSET 0x1fff
#define IP_OFFSET_MF 0x3fff

typedef __global uchar *bytes;

struct mac {
    ushort head;
    uint tail;
} __attribute__((packed));

struct ethhdr {
    struct mac destination, source;
    ushort ethertype;
} __attribute__((packed));

struct iphdr {
    uchar version_ihl, tos;
    ushort length, id, fragment;
    uchar ttl, protocol;
    ushort checksum;
    uint source, destination;
} __attribute__((packed));

struct flow {
    uint source, destination, source_port, destination_port, protocol;
};

// Words of a backend.
enum { HEALTHY, ADDRESS, MAC_0, MAC_2, PORT };

// https://github.com/aappleby/smhasher, fmix32
uint mix(uint word)
{
    uint h = (word ^ word >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    return h ^ h >> 16;
}

uint hash_of(struct flow f)
{
    return mix(mix(mix(mix(mix(f.source) ^ f.destination) ^ f.source_port) ^ f.destination_port) ^ f.protocol);
}

bool is_healthy(uint backend)
{
    return backend != 0 && backends_read(backend, HEALTHY) != 0;
}

// A healthy backend, or nobody.
uint choose(uint hash)
{
    for (int i = 0; i < TRIES; i++, hash = mix(hash + 1)) {
        uint backend = table_read(hash % PLACES, 0);
        if (is_healthy(backend))
            return backend;
    }
    return 0;
}

// The checksum of TCP or UDP when the destination has changed.
void mend(bytes check, uint protocol, uint old, uint new)
{
    uint before = load_be16(check, 0), after = csum_replace32(before, old, new);
    // UDP's may be left out (0), and what comes to 0 is written as its other form (RFC 768).
    if (protocol == IPPROTO_UDP) {
        if (before == 0)
            return;
        if (after == 0)
            after = 0xffff;
    }
    store_be16(check, 0, after);
}

uint xdp_filter(bytes pkt, uint len)
{
    __global struct ethhdr *eth = (__global struct ethhdr *)pkt;
    bytes at = pkt + ETH_HLEN;
    uint ethertype = load_be16(at, -2);
    if (ethertype == ETH_P_8021Q || ethertype == ETH_P_8021AD) {
        at += VLAN_HLEN;
        ethertype = load_be16(at, -2);
    }
    __global struct iphdr *ip = (__global struct iphdr *)at;
    if (ethertype != ETH_P_IP || (bytes)(ip + 1) > pkt + len || ip->version_ihl < 0x45 || ip->version_ihl > 0x4f)
        return XDP_PASS;
    if (ip->protocol != IPPROTO_TCP && ip->protocol != IPPROTO_UDP)
        return XDP_PASS;
    struct flow flow = {ntohl(ip->source), ntohl(ip->destination), 0, 0, ip->protocol};
    if (vips_find(flow.destination) == MAP_NONE)
        return XDP_PASS;
    bytes transport = at + (ip->version_ihl & 0xf) * 4;
    uint fragment = ntohs(ip->fragment);
    if ((fragment & IP_OFFSET_MF) == 0) {
        flow.source_port = load_be16(transport, 0);
        flow.destination_port = load_be16(transport, 2);
    }

    // Several packets of a flow may be here at a time, and all of them come to the same backend.
    // Where there is no room for the flow, nothing is read and nothing is written.
    uint entry = flows_insert((const uint *)&flow);
    uint backend = flows_read(entry, 0);
    if (!is_healthy(backend)) {
        backend = choose(hash_of(flow));
        flows_write(entry, 0, backend);
    }
    if (backend == 0)
        return XDP_DROP;

    uint address = backends_read(backend, ADDRESS);
    ip->destination = htonl(address);
    ip->checksum = htons(csum_replace32(ntohs(ip->checksum), flow.destination, address));
    // The transport's checksum is in the first fragment, and covers the address.
    if ((fragment & IP_OFFSET) == 0)
        mend(transport + (flow.protocol == IPPROTO_UDP ? 6 : 16), flow.protocol, flow.destination, address);
    eth->source = eth->destination;
    eth->destination.head = htons(backends_read(backend, MAC_0));
    eth->destination.tail = htonl(backends_read(backend, MAC_2));
    return redirect(backends_read(backend, PORT));
}
