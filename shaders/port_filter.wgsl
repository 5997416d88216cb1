// port_filter: decides by the destination port of TCP and UDP over IPv4.
//
// DROP  port 22 or 23, or another below 1024; no port to be read: neither TCP nor UDP, a later
//       fragment, not IPv4, cut off before the port's end
// PASS  port 80, 443, or 1024 and above
//
// Reads bytes 12-23: EtherType, version and IHL, fragment offset, protocol; then the destination
// port, where the IHL says it is.

fn xdp_filter(pkt: u32) -> u32 {
    // One check for the Ethernet header and the fixed part of the IPv4 header.
    if pkt_len(pkt) < 34u || load_be16(pkt, 12u) != ETH_P_IP {
        return XDP_DROP;
    }
    // Version 4 and an IHL of 5 to 15: 0x45 to 0x4f.
    let version_ihl = load_u8(pkt, 14u);
    if version_ihl - 0x45u > 10u {
        return XDP_DROP;
    }
    // The port is in the first fragment only.
    if (load_be16(pkt, 20u) & 0x1fffu) != 0u {
        return XDP_DROP;
    }
    let protocol = load_u8(pkt, 23u);
    if protocol != IPPROTO_TCP && protocol != IPPROTO_UDP {
        return XDP_DROP;
    }
    // A port that lies outside the packet reads as 0, which drops: no check of its own. 22 and 23
    // need no line either, being neither of the two nor above 1023.
    let port = load_be16(pkt, 14u + (version_ihl & 0xfu) * 4u + 2u);
    if port == 80u || port == 443u || port >= 1024u {
        return XDP_PASS;
    }
    return XDP_DROP;
}
