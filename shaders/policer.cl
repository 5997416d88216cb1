// policer: a two-rate three-colour marker for every source (RFC 2698), which marks assured
// forwarding (RFC 2597).
//
// PASS  green and yellow packets, with their new DSCP; of a source without a profile, or that there
//       is no room for, and what is neither IPv4 nor IPv6 or has its fixed header cut off: as they
//       are
// DROP  red packets; where DROP_RED is false they pass, marked
//
// The host sets profiles by source: committed and peak rate in bytes a second, committed and peak
// burst in bytes. That of :: is everybody's who has none of their own. What counts are bytes on the
// wire from the IP header on.
//
// Green, yellow and red become AFx1, AFx2 and AFx3, x being AF (1 to 4). With AWARE a packet's own
// DSCP is its colour before, if it is one of assured forwarding of any class; else it is green. ECN
// bits stay as they are.
//
// Reads, behind an Ethernet header and one VLAN tag or none: version and IHL, DSCP, source address,
// IPv4's checksum; the packet's time and wire length. Writes the DSCP and, for IPv4, the checksum.

#ifndef AF
#define AF 1u
#endif
#ifndef AWARE
#define AWARE false
#endif
#ifndef DROP_RED
#define DROP_RED true
#endif

//! map profiles: hash key=4 value=4 entries=65536 fields=srcaddr:ip,cir,cbs,pir,pbs

// The two buckets, in thousandths of bytes.
//! map meters: lru_hash key=4 value=5 entries=65536 fields=srcaddr:ip,committed:u64,peak:u64,last

// For other compilers.
#ifndef PORTCULLIS
PORTCULLIS_KEYS(profiles, uint4)
PORTCULLIS_VALUES(profiles)
PORTCULLIS_KEYS(meters, uint4)
PORTCULLIS_VALUES(meters)
#endif

// Words of a profile, and of a meter, of 64 bits each but for the last.
enum { CIR, CBS, PIR, PBS };
enum { COMMITTED, PEAK = 2, LAST = 4 };

enum { GREEN = 1, YELLOW, RED };

#define ETH_HLEN 14
#define VLAN_HLEN 4

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

// Where an IP header is: behind the Ethernet header and one VLAN tag or none.
bytes ip_header(bytes pkt)
{
    uint outer = load_be16(pkt, 12);
    return pkt + ETH_HLEN + (outer == ETH_P_8021Q || outer == ETH_P_8021AD ? VLAN_HLEN : 0);
}

// Whether there is an IP header as a whole, and the packet's source; that of IPv4 as IPv6 has it:
// ::ffff:a.b.c.d.
bool source_of(bytes at, bytes end, uint4 *source)
{
    __global struct iphdr *ip = (__global struct iphdr *)at;
    __global struct ip6hdr *ip6 = (__global struct ip6hdr *)at;
    uint ethertype = load_be16(at, -2);

    if (ethertype == ETH_P_IP && (bytes)(ip + 1) <= end && at[0] >= 0x45 && at[0] <= 0x4f) {
        *source = (uint4)(0, 0, 0xffff, ntohl(ip->source));
        return true;
    }
    if (ethertype == ETH_P_IPV6 && (bytes)(ip6 + 1) <= end && at[0] >> 4 == 6) {
        *source = (uint4)(ntohl(ip6->source[0]), ntohl(ip6->source[1]), ntohl(ip6->source[2]), ntohl(ip6->source[3]));
        return true;
    }
    return false;
}

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

// Packets of a source come one at a time, in the order of their arrival. What has none may come in
// any.
uint xdp_flow(bytes pkt, uint len)
{
    uint4 source;
    return source_of(ip_header(pkt), pkt + len, &source) ? hash_of(source) : (uint)pkt_time(pkt);
}

ulong read64(uint meter, uint word)
{
    return (ulong)meters_read(meter, word + 1) << 32 | meters_read(meter, word);
}

void write64(uint meter, uint word, ulong value)
{
    meters_write(meter, word, (uint)value);
    meters_write(meter, word + 1, (uint)(value >> 32));
}

// A bucket after some milliseconds. At r bytes a second each brings r thousandths.
ulong filled(ulong there, uint elapsed, uint rate, ulong full)
{
    return min(there + (ulong)elapsed * rate, full);
}

// The colour of a packet of so many bytes that had a colour before (section 3).
uint colour_of(uint meter, uint profile, uint now, uint count, uint before)
{
    ulong size = (ulong)count * 1000;
    ulong committed_full = (ulong)profiles_read(profile, CBS) * 1000, committed = committed_full;
    ulong peak_full = (ulong)profiles_read(profile, PBS) * 1000, peak = peak_full;
    uint last = now, colour = before;

    if (!map_is_new(meter)) {
        // Where a clock goes back, time stands still.
        last = meters_read(meter, LAST);
        uint elapsed = max((int)(now - last), 0);
        last += elapsed;
        committed = filled(read64(meter, COMMITTED), elapsed, profiles_read(profile, CIR), committed_full);
        peak = filled(read64(meter, PEAK), elapsed, profiles_read(profile, PIR), peak_full);
    }
    if (peak < size)
        colour = RED;
    else if (committed < size && before == GREEN)
        colour = YELLOW;
    if (colour == GREEN)
        committed -= size;
    if (colour != RED)
        peak -= size;
    write64(meter, COMMITTED, committed);
    write64(meter, PEAK, peak);
    meters_write(meter, LAST, last);
    return colour;
}

// The colour that a DSCP means: AFxy is 8 x + 2 y.
uint colour_before(uint dscp)
{
    uint precedence = (dscp & 7) >> 1;
    bool is_assured = !(dscp & 1) && precedence != 0 && dscp >= 8 && dscp < 40;
    return AWARE && is_assured ? precedence : GREEN;
}

uint xdp_filter(bytes pkt, uint len)
{
    bytes at = ip_header(pkt);
    __global struct iphdr *ip = (__global struct iphdr *)at;
    uint4 source;
    if (!source_of(at, pkt + len, &source))
        return XDP_PASS;
    uint profile = profiles_find(source);
    if (profile == MAP_NONE)
        profile = profiles_find((uint4)(0));
    if (profile == MAP_NONE)
        return XDP_PASS;
    uint meter = meters_insert(source);
    if (meter == MAP_FULL)
        return XDP_PASS;

    // The DSCP lies in these 16 bits: in IPv4 from bit 2 on, in IPv6 from bit 6.
    uint head = load_be16(at, 0), shift = head >> 12 == 4 ? 2 : 6;
    uint before = colour_before(head >> shift & 0x3f);
    uint colour = colour_of(meter, profile, pkt_time_ms(pkt), pkt_wire_len(pkt) - (uint)(at - pkt), before);
    if (colour == RED && DROP_RED)
        return XDP_DROP;
    uint marked = (head & ~(0x3fu << shift)) | (AF * 8 + colour * 2) << shift;
    if (marked != head) {
        store_be16(at, 0, marked);
        if (head >> 12 == 4)
            ip->checksum = htons(csum_replace16(ntohs(ip->checksum), head, marked));
    }
    return XDP_PASS;
}
