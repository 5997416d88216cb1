// dscp_mark: sets the DSCP (RFC 2474) of IPv4 and IPv6 packets and leaves their ECN bits alone.
//
// PASS  always; without a change what is neither IPv4 nor IPv6, has its fixed header (20 or 40
//       bytes) cut off, or carries the DSCP already
//
// Reads bytes 12-15 and 24-25 (IPv4's header checksum); writes bytes 14-15 and, for IPv4, 24-25.

// Expedited forwarding, RFC 3246. 0 to 63; higher bits are ignored.
override dscp: u32 = 46u;

fn xdp_filter(pkt: u32) -> u32 {
    let length = pkt_len(pkt);
    if length < 34u {
        return XDP_PASS;
    }
    let ethertype = load_be16(pkt, 12u);
    let before = load_be16(pkt, 14u);
    // IPv4: version and IHL, then the DSCP in the second byte's upper six bits. Version 4 and an
    // IHL of 5 to 15 make the first byte 0x45 to 0x4f.
    if ethertype == ETH_P_IP && (before >> 8u) - 0x45u <= 10u {
        let after = (before & 0xff03u) | ((dscp & 0x3fu) << 2u);
        if after != before {
            store_be16(pkt, 14u, after);
            store_be16(pkt, 24u, csum_replace16(load_be16(pkt, 24u), before, after));
        }
    }
    // IPv6: version, then the DSCP in the traffic class's upper six bits. No checksum covers it.
    if ethertype == ETH_P_IPV6 && length >= 54u && (before >> 12u) == 6u {
        let after = (before & 0xf03fu) | ((dscp & 0x3fu) << 6u);
        if after != before {
            store_be16(pkt, 14u, after);
        }
    }
    return XDP_PASS;
}
