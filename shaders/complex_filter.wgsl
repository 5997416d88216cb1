// complex_filter: several rules at once, on length, protocol, source network and port.
//
// DROP  length below 64 or above 1500 bytes, whatever the packet is; ICMP over IPv4; TCP and UDP
//       over IPv4 from 10.0/16, 172.16/16 or 192.168/16 to a port below 1024 other than 80 and 443
// PASS  everything else: also what is not IPv4, and what has no port to be read (a later fragment,
//       cut off before the port's end)
//
// Reads bytes 12-29: EtherType, version and IHL, fragment offset, protocol, source address; then
// the destination port, where the IHL says it is.

fn xdp_filter(pkt: u32) -> u32 {
    // At least 64 bytes from here on: the fixed part of the IPv4 header is there.
    let length = pkt_len(pkt);
    if length < 64u || length > 1500u {
        return XDP_DROP;
    }
    // Version 4 and an IHL of 5 to 15: 0x45 to 0x4f.
    let version_ihl = load_u8(pkt, 14u);
    if load_be16(pkt, 12u) != ETH_P_IP || version_ihl - 0x45u > 10u {
        return XDP_PASS;
    }
    let protocol = load_u8(pkt, 23u);
    if protocol == IPPROTO_ICMP {
        return XDP_DROP;
    }
    if protocol != IPPROTO_TCP && protocol != IPPROTO_UDP {
        return XDP_PASS;
    }
    let network = load_be16(pkt, 26u);
    let private_source = network == 0x0a00u || network == 0xac10u || network == 0xc0a8u;
    // A port that lies outside the packet would read as 0 and look like a port below 1024.
    let at = 14u + (version_ihl & 0xfu) * 4u + 2u;
    let first_fragment = (load_be16(pkt, 20u) & 0x1fffu) == 0u;
    if !private_source || !first_fragment || at + 2u > length {
        return XDP_PASS;
    }
    let port = load_be16(pkt, at);
    return select(XDP_PASS, XDP_DROP, port < 1024u && port != 80u && port != 443u);
}
