// syn_flood: drops the SYNs of sources that send too many.
//
// DROP  a SYN (without ACK) of a source that has sent more than LIMIT in the last WINDOW
//       milliseconds, as estimated
// PASS  everything else: also TCP in later fragments and behind IPv6 extension headers
//
// Sources belong to groups by their network, /24 in IPv4 and /64 in IPv6: to one of 4096, by the
// network's hash. Each group has a count-min sketch of its own (Cormode and Muthukrishnan 2005): 4
// rows of 32 counters, of which a source's SYN counts one up in each row, also when it is dropped.
// There are two such sketches, for the window that is now and the one before, of which as much
// counts as still lies in the last WINDOW milliseconds. The smallest sum of a source's counters is
// the estimate; it is never too small.
//
// Groups share nothing, and packets of a group come in order. Hashes begin at 0 and take in word
// after word: exclusive or, then MurmurHash3's finaliser. Words are the IPv6 address's
// (::ffff:a.b.c.d for IPv4); of an IPv6 network its two, of an IPv4 network 0 and its 24 bits. A
// group is a hash's lowest 12 bits; a column in row r (0 to 3) is the highest 5 bits of the
// finaliser of the source's hash plus r.
//
// Reads, behind an Ethernet header and one VLAN tag or none, the headers of IP and TCP; the
// packet's time.

// Up to 1000000000.
#ifndef WINDOW
#define WINDOW 1000u
#endif
#ifndef LIMIT
#define LIMIT 100u
#endif

// Of each group four entries, for its rows: 32 counters of one window, then those of the other.
//! map sketches: array value=64 entries=16384
// When the group's window began, and which half of its rows counts it: 1 or 2, 0 where there has
// been no SYN.
//! map windows: array value=2 entries=4096 fields=group,begun,side
//! map dropped: counter entries=4096 fields=group,packets:u64

// For other compilers.
#ifndef PORTCULLIS
PORTCULLIS_VALUES(sketches)
PORTCULLIS_VALUES(windows)
PORTCULLIS_COUNTER(dropped)
#endif

#define GROUPS 4096
#define ROWS 4
#define COLUMNS 32

// Words of a group's window.
enum { BEGUN, SIDE };

#define SYN 2
#define ACK 16

#define ETH_HLEN 14
#define VLAN_HLEN 4
#define IP_OFFSET 0x1fff

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

// https://github.com/aappleby/smhasher, fmix32
uint mix(uint word)
{
    uint h = (word ^ word >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    return h ^ h >> 16;
}

uint hash_of(uint4 address)
{
    return mix(mix(mix(mix(address.x) ^ address.y) ^ address.z) ^ address.w);
}

struct syn {
    uint4 source;
    uint group;
};

// Whether the packet is a SYN, and whose.
bool syn_of(bytes pkt, struct syn *syn)
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

    if (ethertype == ETH_P_IP && at[0] >= 0x45 && at[0] <= 0x4f && ip->protocol == IPPROTO_TCP
        && !(ntohs(ip->fragment) & IP_OFFSET)) {
        tcp = (__global struct tcphdr *)(at + (ip->version_ihl & 0xf) * 4);
        syn->source = (uint4)(0, 0, 0xffff, ntohl(ip->source));
        syn->group = mix(mix(0) ^ syn->source.w >> 8) % GROUPS;
    } else if (ethertype == ETH_P_IPV6 && at[0] >> 4 == 6 && ip6->next == IPPROTO_TCP) {
        tcp = (__global struct tcphdr *)(ip6 + 1);
        syn->source = (uint4)(ntohl(ip6->source[0]), ntohl(ip6->source[1]), ntohl(ip6->source[2]), ntohl(ip6->source[3]));
        syn->group = mix(mix(syn->source.x) ^ syn->source.y) % GROUPS;
    } else {
        return false;
    }
    return (tcp->flags & (SYN | ACK)) == SYN;
}

// SYNs of a group come one at a time, in the order of their arrival. All else may come in any.
uint xdp_flow(bytes pkt, uint len)
{
    struct syn syn;
    return syn_of(pkt, &syn) ? syn.group : (uint)pkt_time(pkt);
}

void clear(uint group, uint side)
{
    for (uint row = 0; row < ROWS; row++) {
        for (uint column = 0; column < COLUMNS; column++)
            sketches_write(group * ROWS + row, side * COLUMNS + column, 0);
    }
}

// Milliseconds since the group's window began, after windows that have passed are left behind.
uint turn_to(uint group, uint now)
{
    uint side = windows_read(group, SIDE), begun = windows_read(group, BEGUN);
    // Where a clock goes back, time stands still.
    uint elapsed = max((int)(now - begun), 0);

    if (side != 0 && elapsed < WINDOW)
        return elapsed;
    if (side != 0 && elapsed < 2 * WINDOW) {
        windows_write(group, SIDE, 3 - side);
        windows_write(group, BEGUN, begun + WINDOW);
        clear(group, 2 - side);
        return elapsed - WINDOW;
    }
    windows_write(group, SIDE, 1);
    windows_write(group, BEGUN, now);
    clear(group, 0);
    clear(group, 1);
    return 0;
}

// Counts a SYN; how many there were of the source in the last window, times a window's
// milliseconds.
ulong count(struct syn syn, uint elapsed)
{
    uint side = windows_read(syn.group, SIDE) - 1, hash = hash_of(syn.source);
    ulong least = ~0ul;
    for (uint row = 0; row < ROWS; row++) {
        uint entry = syn.group * ROWS + row, column = mix(hash + row) >> 27;
        uint now = sketches_add(entry, side * COLUMNS + column, 1) + 1;
        uint before = sketches_read(entry, (1 - side) * COLUMNS + column);
        least = min(least, (ulong)now * WINDOW + (ulong)before * (WINDOW - elapsed));
    }
    return least;
}

uint xdp_filter(bytes pkt, uint len)
{
    struct syn syn;
    if (!syn_of(pkt, &syn))
        return XDP_PASS;
    if (count(syn, turn_to(syn.group, pkt_time_ms(pkt))) <= (ulong)LIMIT * WINDOW)
        return XDP_PASS;
    dropped_add(syn.group, 1);
    return XDP_DROP;
}
