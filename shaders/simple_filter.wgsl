// simple_filter: drops what comes from one IPv4 address, passes the rest of TCP and UDP, drops
// everything else.
//
// DROP  source address `blocked`; neither TCP nor UDP; not IPv4; IPv4 header cut off
// PASS  TCP and UDP over IPv4 from any other source, fragments included
//
// Reads bytes 12-29: EtherType, version and IHL, protocol, source address.

// 192.168.0.1
override blocked: u32 = 0xc0a80001u;

fn xdp_filter(pkt: u32) -> u32 {
    // One check for the Ethernet header and the fixed part of the IPv4 header.
    if pkt_len(pkt) < 34u || load_be16(pkt, 12u) != ETH_P_IP {
        return XDP_DROP;
    }
    // Version 4 and an IHL of 5 to 15: 0x45 to 0x4f.
    if load_u8(pkt, 14u) - 0x45u > 10u {
        return XDP_DROP;
    }
    let protocol = load_u8(pkt, 23u);
    if protocol != IPPROTO_TCP && protocol != IPPROTO_UDP {
        return XDP_DROP;
    }
    return select(XDP_PASS, XDP_DROP, load_be32(pkt, 26u) == blocked);
}
