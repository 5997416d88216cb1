// hash_lb: spreads TCP and UDP over IPv4 on WORKERS ports by a hash of the flow.
//
// REDIRECT  TCP and UDP over IPv4, to FNV-1a % WORKERS
// PASS      everything else
//
// The hash is FNV-1a of 32 bits over 12 bytes: source address, destination address, source port,
// destination port, each taken as a number and that number's lowest byte first. A port that is not
// there counts as 0: in a later fragment, and in a packet cut off before the port's end.
//
// Reads bytes 12-33: EtherType, version and IHL, fragment offset, protocol, addresses; then the
// ports, where the IHL says they are.

#ifndef WORKERS
#define WORKERS 8u
#endif

struct iphdr {
    uchar version_ihl, tos;
    ushort length, id, fragment;
    uchar ttl, protocol;
    ushort checksum;
    uint source, destination;
} __attribute__((packed));

struct ports {
    ushort source, destination;
} __attribute__((packed));

struct flow {
    uint source, destination;
    ushort source_port, destination_port;
};

// http://www.isthe.com/chongo/tech/comp/fnv/
#define FNV_BASIS 2166136261u
#define FNV_PRIME 16777619u

void fnv_byte(uint *hash, uchar byte)
{
    *hash = (*hash ^ byte) * FNV_PRIME;
}

void fnv_16(uint *hash, ushort value)
{
    fnv_byte(hash, value);
    fnv_byte(hash, value >> 8);
}

void fnv_32(uint *hash, uint value)
{
    fnv_16(hash, value);
    fnv_16(hash, value >> 16);
}

uint hash_of(struct flow flow)
{
    uint hash = FNV_BASIS;
    fnv_32(&hash, flow.source);
    fnv_32(&hash, flow.destination);
    fnv_16(&hash, flow.source_port);
    fnv_16(&hash, flow.destination_port);
    return hash;
}

uint xdp_filter(__global uchar *pkt, uint len)
{
    __global struct iphdr *ip = (__global struct iphdr *)(pkt + 14);

    // One check for the Ethernet header and the fixed part of the IPv4 header.
    if (len < 34 || load_be16(pkt, 12) != ETH_P_IP)
        return XDP_PASS;
    // Version 4 and an IHL of 5 to 15.
    if (ip->version_ihl < 0x45 || ip->version_ihl > 0x4f)
        return XDP_PASS;
    if (ip->protocol != IPPROTO_TCP && ip->protocol != IPPROTO_UDP)
        return XDP_PASS;

    struct flow flow = {.source = ntohl(ip->source), .destination = ntohl(ip->destination)};
    if ((ntohs(ip->fragment) & 0x1fff) == 0) {
        __global struct ports *ports = (__global struct ports *)((__global uchar *)ip + (ip->version_ihl & 0xf) * 4);
        flow.source_port = ntohs(ports->source);
        flow.destination_port = ntohs(ports->destination);
    }
    return redirect(hash_of(flow) % WORKERS);
}
