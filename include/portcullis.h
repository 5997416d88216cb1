// portcullis.h: what a filter in OpenCL C finds declared, for editors and for other compilers.
//
// Portcullis has all of it built in: its own compiler accepts `#include <portcullis.h>` and adds
// nothing. For any other compiler of OpenCL C 1.2 these are declarations only: to run a filter
// there, define the functions that access the packet; docs/reference/semantics.md says what they
// do. There, access the packet by them or through structures with __attribute__((packed)): other
// accesses are undefined if their address is misaligned. Only Portcullis defines the macro
// PORTCULLIS, so a filter can tell which compiler it is for.
//
// For clangd, in a file .clangd beside the filters:
//
//     CompileFlags:
//       Add: [-xcl, -cl-std=CL1.2, -Xclang, -finclude-default-header,
//             -include, /path/to/portcullis.h]

#ifndef PORTCULLIS_H
#define PORTCULLIS_H

// enum xdp_action, linux/bpf.h
#define XDP_ABORTED 0u
#define XDP_DROP 1u
#define XDP_PASS 2u
#define XDP_TX 3u
#define XDP_REDIRECT 4u

// EtherTypes, IEEE 802 Numbers (IANA)
#define ETH_P_IP 0x0800u
#define ETH_P_ARP 0x0806u
#define ETH_P_8021Q 0x8100u
#define ETH_P_IPV6 0x86ddu
#define ETH_P_MPLS_UC 0x8847u
#define ETH_P_8021AD 0x88a8u

// Assigned Internet Protocol Numbers (IANA)
#define IPPROTO_HOPOPTS 0u
#define IPPROTO_ICMP 1u
#define IPPROTO_IGMP 2u
#define IPPROTO_IPIP 4u
#define IPPROTO_TCP 6u
#define IPPROTO_UDP 17u
#define IPPROTO_IPV6 41u
#define IPPROTO_ROUTING 43u
#define IPPROTO_FRAGMENT 44u
#define IPPROTO_GRE 47u
#define IPPROTO_ESP 50u
#define IPPROTO_AH 51u
#define IPPROTO_ICMPV6 58u
#define IPPROTO_NONE 59u
#define IPPROTO_DSTOPTS 60u
#define IPPROTO_SCTP 132u
#define IPPROTO_MH 135u

// The packet: any pointer into it will do, and offsets count from there.

// Bytes captured, now; bytes on the wire, as it arrived; the port that it came from.
uint pkt_len(const __global void *pkt);
uint pkt_wire_len(const __global void *pkt);
uint pkt_port(const __global void *pkt);
// When it arrived, since 1970-01-01 00:00 UTC: in nanoseconds; in milliseconds, modulo 2^32.
ulong pkt_time(const __global void *pkt);
uint pkt_time_ms(const __global void *pkt);

// 0 where any byte lies outside the packet. be: highest byte first; le: lowest byte first.
uint load_u8(const __global void *pkt, uint off);
uint load_be16(const __global void *pkt, uint off);
uint load_be32(const __global void *pkt, uint off);
uint load_le16(const __global void *pkt, uint off);
uint load_le32(const __global void *pkt, uint off);

// Nothing where any byte lies outside the packet.
void store_u8(__global void *pkt, uint off, uint value);
void store_be16(__global void *pkt, uint off, uint value);
void store_be32(__global void *pkt, uint off, uint value);
void store_le16(__global void *pkt, uint off, uint value);
void store_le32(__global void *pkt, uint off, uint value);

// Move the packet's first byte, or its end, and return whether they did. Pointers keep their
// distance from the first byte.
bool adjust_head(__global void *pkt, int delta);
bool adjust_tail(__global void *pkt, int delta);

// The verdict that sends the packet out of a port, 0 to 2^24 - 1.
uint redirect(uint target);

// One's complement sums (RFC 1071), and checksums after a change (RFC 1624, equation 3).
uint csum_add(uint a, uint b);
uint csum_fold(uint sum);
uint csum_replace16(uint check, uint old_value, uint new_value);
uint csum_replace32(uint check, uint old_value, uint new_value);

// Network order to the host's, and back.
ushort ntohs(ushort value);
ushort htons(ushort value);
uint ntohl(uint value);
uint htonl(uint value);

// Maps (docs/guide/maps.md). In Portcullis a filter's `//! map` lines declare the maps' functions.
// For other compilers these macros do, in the filter's text between `#ifndef PORTCULLIS` and
// `#endif`:
//
//     //! map flows: hash key=4 value=2 entries=65536
//     PORTCULLIS_KEYS(flows, const uint *)    // `uint` for keys of one word
//     PORTCULLIS_VALUES(flows)
#define MAP_NONE 0xffffffffu
#define MAP_FULL 0xfffffffeu
bool map_is_new(uint entry);

// Of a hash and an lru_hash; of an lpm, which the host alone fills, PORTCULLIS_PREFIXES.
#define PORTCULLIS_KEYS(NAME, KEY) \
    uint NAME##_find(KEY key); \
    uint NAME##_insert(KEY key); \
    bool NAME##_remove(KEY key);
#define PORTCULLIS_PREFIXES(NAME, KEY) uint NAME##_find(KEY key);
// Of these with values, and of an array.
#define PORTCULLIS_VALUES(NAME) \
    uint NAME##_read(uint entry, uint word); \
    void NAME##_write(uint entry, uint word, uint value); \
    uint NAME##_add(uint entry, uint word, uint amount); \
    uint NAME##_compare_exchange(uint entry, uint word, uint expected, uint value); \
    void NAME##_add64(uint entry, uint word, uint amount); \
    void NAME##_add_sat(uint entry, uint word, uint amount); \
    void NAME##_min(uint entry, uint word, uint value); \
    void NAME##_min_nonzero(uint entry, uint word, uint value); \
    void NAME##_max(uint entry, uint word, uint value); \
    void NAME##_or(uint entry, uint word, uint value);
#define PORTCULLIS_COUNTER(NAME) void NAME##_add(uint index, uint amount);

#endif
