// The prelude: functions for filters to access their packet. This source is the definition
// (docs/reference/semantics.md explains it); the reference interpreter runs it as it is, and a
// backend may replace a body only by one with the same results.
//
// Names that begin with pc_ are reserved: a filter cannot use them.

// enum xdp_action, linux/bpf.h
const XDP_ABORTED: u32 = 0u;
const XDP_DROP: u32 = 1u;
const XDP_PASS: u32 = 2u;
const XDP_TX: u32 = 3u;
const XDP_REDIRECT: u32 = 4u;

// EtherTypes, IEEE 802 Numbers (IANA)
const ETH_P_IP: u32 = 0x0800u;
const ETH_P_ARP: u32 = 0x0806u;
const ETH_P_8021Q: u32 = 0x8100u;
const ETH_P_IPV6: u32 = 0x86ddu;
const ETH_P_MPLS_UC: u32 = 0x8847u;
const ETH_P_8021AD: u32 = 0x88a8u;

// Assigned Internet Protocol Numbers (IANA)
const IPPROTO_HOPOPTS: u32 = 0u;
const IPPROTO_ICMP: u32 = 1u;
const IPPROTO_IGMP: u32 = 2u;
const IPPROTO_IPIP: u32 = 4u;
const IPPROTO_TCP: u32 = 6u;
const IPPROTO_UDP: u32 = 17u;
const IPPROTO_IPV6: u32 = 41u;
const IPPROTO_ROUTING: u32 = 43u;
const IPPROTO_FRAGMENT: u32 = 44u;
const IPPROTO_GRE: u32 = 47u;
const IPPROTO_ESP: u32 = 50u;
const IPPROTO_AH: u32 = 51u;
const IPPROTO_ICMPV6: u32 = 58u;
const IPPROTO_NONE: u32 = 59u;
const IPPROTO_DSTOPTS: u32 = 60u;
const IPPROTO_SCTP: u32 = 132u;
const IPPROTO_MH: u32 = 135u;

// The batch, laid out as in docs/reference/abi.md. Group 1 is reserved for maps.
struct pc_metadata {
    wire_length: u32,
    ingress: u32,
    time_low: u32,
    time_high: u32,
    time_ms: u32,
}
@group(0) @binding(0) var<storage, read_write> pc_arena: array<u32>;
@group(0) @binding(1) var<storage, read_write> pc_descriptors: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read> pc_metadata_of: array<pc_metadata>;

// The packet of this invocation: the current offset of its first byte in the arena and its current
// length, and the limits to which adjust_head and adjust_tail may move its ends.
var<private> pc_offset: u32;
var<private> pc_length: u32;
var<private> pc_first: u32;
var<private> pc_last: u32;

// Called before the filter.
fn pc_enter(pkt: u32) {
    let at = pc_descriptors[pkt];
    pc_offset = at.x;
    pc_length = at.y;
    pc_first = at.x - 128u;
    pc_last = at.x + at.y + 128u;
}

// Called after the filter if it may change lengths.
fn pc_leave(pkt: u32) {
    pc_descriptors[pkt] = vec2<u32>(pc_offset, pc_length);
}

// Normalises a filter's return value: every value that is not a verdict becomes XDP_ABORTED.
fn pc_verdict(value: u32) -> u32 {
    if ((value & 0xffu) == XDP_REDIRECT) | ((value >= XDP_DROP) & (value <= XDP_TX)) {
        return value;
    }
    return XDP_ABORTED;
}

// Whether the bytes off .. off + size are in the packet; size is at most 4. If the packet is
// shorter than size, the difference wraps, but then the first comparison fails. `&` instead of
// `&&`: a branch would cost more than the second comparison.
fn pc_inside(off: u32, size: u32) -> bool {
    return (pc_length >= size) & (off <= pc_length - size);
}

// The four bytes from `at` on, the lowest address in the lowest byte. The arena is readable past
// its end, so the second word always exists.
fn pc_word(at: u32) -> u32 {
    let shift = (at & 3u) * 8u;
    let low = pc_arena[at >> 2u];
    let high = pc_arena[(at >> 2u) + 1u];
    // high << (32 - shift), which is 0 for shift 0
    return (low >> shift) | ((high << (31u - shift)) << 1u);
}

// Writes the lowest `bits` bits (8, 16 or 32) of value from `at` on, lowest byte first. No two
// packets share a word, so a read-modify-write disturbs no other packet.
fn pc_put(at: u32, value: u32, bits: u32) {
    let shift = (at & 3u) * 8u;
    let mask = 0xffffffffu >> (32u - bits);
    let word = at >> 2u;
    pc_arena[word] = (pc_arena[word] & ~(mask << shift)) | ((value & mask) << shift);
    if shift + bits > 32u {
        let next = (mask >> (31u - shift)) >> 1u;
        pc_arena[word + 1u] = (pc_arena[word + 1u] & ~next) | (((value & mask) >> (31u - shift)) >> 1u);
    }
}

// Clears `count` bytes from `at` on.
fn pc_clear(at: u32, count: u32) {
    for (var i = 0u; i < count; i = i + 1u) {
        pc_put(at + i, 0u, 8u);
    }
}

fn pc_swap16(value: u32) -> u32 {
    return ((value & 0xffu) << 8u) | ((value >> 8u) & 0xffu);
}

fn pc_swap32(value: u32) -> u32 {
    return (value << 24u) | ((value & 0xff00u) << 8u) | ((value >> 8u) & 0xff00u) | (value >> 24u);
}

// Number of captured bytes, after any change of length.
fn pkt_len(pkt: u32) -> u32 {
    return pc_length;
}

// Number of bytes on the wire when the packet arrived.
fn pkt_wire_len(pkt: u32) -> u32 {
    return pc_metadata_of[pkt].wire_length;
}

// The port that the packet arrived on.
fn pkt_port(pkt: u32) -> u32 {
    return pc_metadata_of[pkt].ingress;
}

// Nanoseconds since the epoch, low word first.
fn pkt_time(pkt: u32) -> vec2<u32> {
    return vec2<u32>(pc_metadata_of[pkt].time_low, pc_metadata_of[pkt].time_high);
}

// Milliseconds since the epoch, modulo 2^32.
fn pkt_time_ms(pkt: u32) -> u32 {
    return pc_metadata_of[pkt].time_ms;
}

// Loads return 0 if any byte is outside the packet.
fn load_u8(pkt: u32, off: u32) -> u32 {
    if !pc_inside(off, 1u) { return 0u; }
    let at = pc_offset + off;
    return (pc_arena[at >> 2u] >> ((at & 3u) * 8u)) & 0xffu;
}

fn load_le16(pkt: u32, off: u32) -> u32 {
    if !pc_inside(off, 2u) { return 0u; }
    return pc_word(pc_offset + off) & 0xffffu;
}

fn load_be16(pkt: u32, off: u32) -> u32 {
    if !pc_inside(off, 2u) { return 0u; }
    return pc_swap16(pc_word(pc_offset + off));
}

fn load_le32(pkt: u32, off: u32) -> u32 {
    if !pc_inside(off, 4u) { return 0u; }
    return pc_word(pc_offset + off);
}

fn load_be32(pkt: u32, off: u32) -> u32 {
    if !pc_inside(off, 4u) { return 0u; }
    return pc_swap32(pc_word(pc_offset + off));
}

// Stores write the value's lowest bits, and nothing if any byte is outside the packet.
fn store_u8(pkt: u32, off: u32, value: u32) {
    if pc_inside(off, 1u) { pc_put(pc_offset + off, value, 8u); }
}

fn store_le16(pkt: u32, off: u32, value: u32) {
    if pc_inside(off, 2u) { pc_put(pc_offset + off, value, 16u); }
}

fn store_be16(pkt: u32, off: u32, value: u32) {
    if pc_inside(off, 2u) { pc_put(pc_offset + off, pc_swap16(value), 16u); }
}

fn store_le32(pkt: u32, off: u32, value: u32) {
    if pc_inside(off, 4u) { pc_put(pc_offset + off, value, 32u); }
}

fn store_be32(pkt: u32, off: u32, value: u32) {
    if pc_inside(off, 4u) { pc_put(pc_offset + off, pc_swap32(value), 32u); }
}

// Moves the packet's first byte by delta: forward cuts bytes off, backward adds zero bytes, at most
// 128 in front of where the packet began. At least 14 bytes must remain. Returns false and changes
// nothing if that is impossible.
fn adjust_head(pkt: u32, delta: i32) -> bool {
    if delta >= 0i {
        let cut = u32(delta);
        if (pc_length < 14u) | (cut > pc_length - 14u) { return false; }
        pc_offset = pc_offset + cut;
        pc_length = pc_length - cut;
        return true;
    }
    // -delta, correct for the smallest i32 as well
    let add = ~u32(delta) + 1u;
    if (add > pc_offset - pc_first) | (pc_length + add < 14u) { return false; }
    pc_offset = pc_offset - add;
    pc_length = pc_length + add;
    pc_clear(pc_offset, add);
    return true;
}

// Moves the packet's end by delta: backward cuts bytes off, forward adds zero bytes, at most 128
// behind where the packet ended. At least 14 bytes must remain. Returns false and changes nothing
// if that is impossible.
fn adjust_tail(pkt: u32, delta: i32) -> bool {
    if delta < 0i {
        let cut = ~u32(delta) + 1u;
        if (pc_length < 14u) | (cut > pc_length - 14u) { return false; }
        pc_length = pc_length - cut;
        return true;
    }
    let add = u32(delta);
    let end = pc_offset + pc_length;
    if (add > pc_last - end) | (pc_length + add < 14u) { return false; }
    pc_length = pc_length + add;
    pc_clear(end, add);
    return true;
}

// The verdict that sends the packet out of `port`; XDP_ABORTED from 2^24 on.
fn redirect(port: u32) -> u32 {
    if port >= 0x1000000u { return XDP_ABORTED; }
    return (port << 8u) | XDP_REDIRECT;
}

// One's complement sum of two 32-bit words (RFC 1071), with an end-around carry.
fn csum_add(a: u32, b: u32) -> u32 {
    let sum = a + b;
    if sum < a { return sum + 1u; }
    return sum;
}

// Folds a one's complement sum to 16 bits, not complemented (RFC 1071).
fn csum_fold(sum: u32) -> u32 {
    let once = (sum & 0xffffu) + (sum >> 16u);
    return (once & 0xffffu) + (once >> 16u);
}

// The checksum after a 16-bit word of the data changed from old_value to new_value (RFC 1624,
// equation 3).
fn csum_replace16(check: u32, old_value: u32, new_value: u32) -> u32 {
    let sum = (~check & 0xffffu) + (~old_value & 0xffffu) + (new_value & 0xffffu);
    return ~csum_fold(sum) & 0xffffu;
}

// The checksum after a 32-bit word of the data changed, likewise.
fn csum_replace32(check: u32, old_value: u32, new_value: u32) -> u32 {
    let sum = csum_add(csum_add(~check & 0xffffu, ~old_value), new_value);
    return ~csum_fold(sum) & 0xffffu;
}
