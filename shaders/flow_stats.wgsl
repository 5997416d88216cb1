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

const PACKETS: u32 = 0u;
const BYTES: u32 = 1u;
const FIRST: u32 = 3u;
const LAST: u32 = 4u;

struct Flow {
    is_ip: bool,
    key: array<u32, 11>,
}

// The flow of the packet whose IP header is at `ip`.
fn flow_of(pkt: u32, ip: u32) -> Flow {
    var flow: Flow;
    let ethertype = load_be16(pkt, ip - 2u);
    let version_ihl = load_u8(pkt, ip);
    var ports = ip + 40u;
    var has_ports = true;
    if ethertype == ETH_P_IP && version_ihl - 0x45u <= 10u && pkt_len(pkt) >= ip + 20u {
        // Addresses as IPv6 has them: ::ffff:a.b.c.d.
        flow.key[2] = 0xffffu;
        flow.key[3] = load_be32(pkt, ip + 12u);
        flow.key[6] = 0xffffu;
        flow.key[7] = load_be32(pkt, ip + 16u);
        flow.key[10] = load_u8(pkt, ip + 9u);
        ports = ip + (version_ihl & 0xfu) * 4u;
        has_ports = (load_be16(pkt, ip + 6u) & 0x1fffu) == 0u;
    } else if ethertype == ETH_P_IPV6 && (version_ihl >> 4u) == 6u && pkt_len(pkt) >= ip + 40u {
        for (var i = 0u; i < 8u; i++) {
            flow.key[i] = load_be32(pkt, ip + 8u + i * 4u);
        }
        flow.key[10] = load_u8(pkt, ip + 6u);
    } else {
        return flow;
    }
    let protocol = flow.key[10];
    if has_ports && (protocol == IPPROTO_TCP || protocol == IPPROTO_UDP || protocol == IPPROTO_SCTP) {
        flow.key[8] = load_be16(pkt, ports);
        flow.key[9] = load_be16(pkt, ports + 2u);
    }
    flow.is_ip = true;
    return flow;
}

// Nanoseconds, the low word first, by 10^9: both are divided by 2^9, and then digits of 11 bits and
// fewer by 5^9, which leaves 21 bits at most.
fn seconds(time: vec2<u32>) -> u32 {
    let high = time.y >> 9u;
    let low = time.y << 23u | time.x >> 9u;
    let a = high % 1953125u << 11u | low >> 21u;
    let b = a % 1953125u << 11u | (low >> 10u & 0x7ffu);
    let c = b % 1953125u << 10u | (low & 0x3ffu);
    return (a / 1953125u << 21u) + (b / 1953125u << 10u) + c / 1953125u;
}

fn xdp_filter(pkt: u32) -> u32 {
    let outer = load_be16(pkt, 12u);
    let ip = select(14u, 18u, outer == ETH_P_8021Q || outer == ETH_P_8021AD);
    let flow = flow_of(pkt, ip);
    if !flow.is_ip {
        return XDP_PASS;
    }
    let entry = flows_insert(flow.key);
    if entry == MAP_FULL {
        missed_add(0u, 1u);
        return XDP_PASS;
    }
    // These functions give the same result in any order of packets. Times are in seconds because
    // milliseconds wrap within 50 days: of three of them, each may be later than the one before. A
    // time of 0 stands for none.
    let now = max(seconds(pkt_time(pkt)), 1u);
    flows_add(entry, PACKETS, 1u);
    flows_add64(entry, BYTES, pkt_wire_len(pkt) - ip);
    flows_min_nonzero(entry, FIRST, now);
    flows_max(entry, LAST, now);
    return XDP_PASS;
}
