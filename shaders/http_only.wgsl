// http_only: passes TCP to two ports, over IPv4 and IPv6, with or without one VLAN tag.
//
// PASS  TCP to port `http` or `https`
// DROP  everything else: also a later fragment, a packet cut off before the port's end, more than
//       one VLAN tag, more than 8 IPv6 extension headers
//
// Reads bytes 12-13, the EtherType (16-17 behind a tag); of IPv4 the version, IHL, fragment offset
// and protocol; of IPv6 the version and the chain of headers; then the destination port.

// The two ports. 0 is none: then only the other passes.
override http: u32 = 80u;
override https: u32 = 443u;

// Extension headers that are looked past.
const MAX_EXTENSION_HEADERS: u32 = 8u;

// The loads below make no length check of their own. What lies outside the packet reads as 0, and
// where that misleads the way to the port (a next header of 0 is a hop-by-hop header), the port
// lies still further out and reads as 0 too, which is no port.

fn port_matches(port: u32) -> bool {
    return port != 0u && (port == http || port == https);
}

// The TCP destination port of the IPv4 packet at `at`; 0 where there is none.
fn port_ipv4(pkt: u32, at: u32) -> u32 {
    // Version 4 and an IHL of 5 to 15: 0x45 to 0x4f.
    let version_ihl = load_u8(pkt, at);
    if version_ihl - 0x45u > 10u || load_u8(pkt, at + 9u) != IPPROTO_TCP {
        return 0u;
    }
    // The port is in the first fragment only.
    if (load_be16(pkt, at + 6u) & 0x1fffu) != 0u {
        return 0u;
    }
    return load_be16(pkt, at + (version_ihl & 0xfu) * 4u + 2u);
}

// The TCP destination port of the IPv6 packet at `at`; 0 where there is none.
fn port_ipv6(pkt: u32, at: u32) -> u32 {
    if (load_u8(pkt, at) >> 4u) != 6u {
        return 0u;
    }
    var header = load_u8(pkt, at + 6u);
    var start = at + 40u;
    for (var i = 0u; i < MAX_EXTENSION_HEADERS && header != IPPROTO_TCP; i++) {
        // Every extension header begins with the number of the next one and, but for the fragment
        // header, its own length.
        let next = load_u8(pkt, start);
        let length = load_u8(pkt, start + 1u);
        switch header {
            case IPPROTO_HOPOPTS, IPPROTO_ROUTING, IPPROTO_DSTOPTS, IPPROTO_MH: {
                // In units of 8 bytes, the first not counted (RFC 8200, section 4.3).
                start += (length + 1u) * 8u;
            }
            case IPPROTO_AH: {
                // In units of 4 bytes, the first two not counted (RFC 4302, section 2.2).
                start += (length + 2u) * 4u;
            }
            case IPPROTO_FRAGMENT: {
                // The port is in the first fragment only (RFC 8200, section 4.5).
                if (load_be16(pkt, start + 2u) & 0xfff8u) != 0u {
                    return 0u;
                }
                start += 8u;
            }
            default: {
                return 0u;
            }
        }
        header = next;
    }
    if header != IPPROTO_TCP {
        return 0u;
    }
    return load_be16(pkt, start + 2u);
}

fn xdp_filter(pkt: u32) -> u32 {
    // No packet that passes is shorter: Ethernet, IPv4 and the ports.
    if pkt_len(pkt) < 38u {
        return XDP_DROP;
    }
    let outer = load_be16(pkt, 12u);
    if outer == ETH_P_IP {
        return select(XDP_DROP, XDP_PASS, port_matches(port_ipv4(pkt, 14u)));
    }
    if outer == ETH_P_IPV6 {
        return select(XDP_DROP, XDP_PASS, port_matches(port_ipv6(pkt, 14u)));
    }
    if outer == ETH_P_8021Q || outer == ETH_P_8021AD {
        let inner = load_be16(pkt, 16u);
        if inner == ETH_P_IP {
            return select(XDP_DROP, XDP_PASS, port_matches(port_ipv4(pkt, 18u)));
        }
        if inner == ETH_P_IPV6 {
            return select(XDP_DROP, XDP_PASS, port_matches(port_ipv6(pkt, 18u)));
        }
    }
    return XDP_DROP;
}
