// gtpu_decap: takes user packets out of GTP-U tunnels (3GPP TS 29.281) and sends each to the port
// of its tunnel's slice.
//
// REDIRECT  the packet in a G-PDU of a known tunnel, over IPv4 or IPv6, to the slice's port, with a
//           new Ethernet header
// PASS      everything else that is not such a G-PDU: also GTP-U's other messages, a tunnel that is
//           not known (whose sender is due an Error Indication) and fragments, which are put
//           together first
// DROP      a G-PDU of a known tunnel that is broken: no whole IPv4 or IPv6 header in it, an
//           extension header of length 0, more than 4 of those; a slice that has no MAC address yet
//
// The host fills the maps. A MAC address is two words: its first 2 bytes, then its last 4.
//
// Reads, behind an Ethernet header and one VLAN tag or none, the headers of IP, UDP and GTP; moves
// the packet's head to 14 bytes before the inner header, and writes those.

//! map tunnels: hash key=1 value=1 entries=65536 fields=teid,slice
//! map slices: array value=5 entries=256 fields=slice,port,destination:mac,source:mac

const GTPU_PORT: u32 = 2152u;
const G_PDU: u32 = 255u;
const MAX_EXTENSION_HEADERS: u32 = 4u;

// The UDP header in a packet that is no fragment; 0 where there is none. What is cut off has no
// port of GTP-U's.
fn udp_header(pkt: u32) -> u32 {
    let outer = load_be16(pkt, 12u);
    let ip = select(14u, 18u, outer == ETH_P_8021Q || outer == ETH_P_8021AD);
    let ethertype = load_be16(pkt, ip - 2u);
    let version_ihl = load_u8(pkt, ip);
    if ethertype == ETH_P_IP && version_ihl - 0x45u <= 10u && load_u8(pkt, ip + 9u) == IPPROTO_UDP
        && (load_be16(pkt, ip + 6u) & 0x3fffu) == 0u {
        return ip + (version_ihl & 0xfu) * 4u;
    }
    if ethertype == ETH_P_IPV6 && (version_ihl >> 4u) == 6u && load_u8(pkt, ip + 6u) == IPPROTO_UDP {
        return ip + 40u;
    }
    return 0u;
}

// What is in a G-PDU; 0 where its extension headers make no sense (section 5.2.1).
fn user_packet(pkt: u32, gtp: u32) -> u32 {
    let flags = load_u8(pkt, gtp);
    // With any of E, S and PN all of their fields are there; that of E is the type of the first
    // extension header.
    if (flags & 7u) == 0u {
        return gtp + 8u;
    }
    var at = gtp + 12u;
    var header = select(0u, load_u8(pkt, at - 1u), (flags & 4u) != 0u);
    for (var i = 0u; i < MAX_EXTENSION_HEADERS && header != 0u; i++) {
        // It begins with its length in units of 4 bytes, and ends with the next one's type. A
        // length of 0 leads nowhere, until there are too many.
        at += load_u8(pkt, at) * 4u;
        header = load_u8(pkt, at - 1u);
    }
    return select(0u, at, header == 0u);
}

// The EtherType for an IP header; 0 where there is none as a whole.
fn ethertype_of(pkt: u32, at: u32) -> u32 {
    let version_ihl = load_u8(pkt, at);
    if version_ihl - 0x45u <= 10u && pkt_len(pkt) >= at + 20u {
        return ETH_P_IP;
    }
    if (version_ihl >> 4u) == 6u && pkt_len(pkt) >= at + 40u {
        return ETH_P_IPV6;
    }
    return 0u;
}

fn xdp_filter(pkt: u32) -> u32 {
    let udp = udp_header(pkt);
    if udp == 0u || load_be16(pkt, udp + 2u) != GTPU_PORT {
        return XDP_PASS;
    }
    let gtp = udp + 8u;
    // Version 1, and GTP rather than GTP'.
    if (load_u8(pkt, gtp) & 0xf0u) != 0x30u || load_u8(pkt, gtp + 1u) != G_PDU || pkt_len(pkt) < gtp + 8u {
        return XDP_PASS;
    }
    let tunnel = tunnels_find(load_be32(pkt, gtp + 4u));
    if tunnel == MAP_NONE {
        return XDP_PASS;
    }
    let slice = tunnels_read(tunnel, 0u);
    let destination_0 = slices_read(slice, 1u);
    let destination_2 = slices_read(slice, 2u);
    let inner = user_packet(pkt, gtp);
    let ethertype = ethertype_of(pkt, inner);
    if inner == 0u || ethertype == 0u || (destination_0 | destination_2) == 0u {
        return XDP_DROP;
    }
    // At least 34 bytes are left, so this cannot fail.
    adjust_head(pkt, i32(inner - 14u));
    store_be16(pkt, 0u, destination_0);
    store_be32(pkt, 2u, destination_2);
    store_be16(pkt, 6u, slices_read(slice, 3u));
    store_be32(pkt, 8u, slices_read(slice, 4u));
    store_be16(pkt, 12u, ethertype);
    return redirect(slices_read(slice, 0u));
}
