// hash_lb: spreads TCP and UDP over IPv4 on `workers` ports by a hash of the flow.
//
// REDIRECT  TCP and UDP over IPv4, to FNV-1a % workers
// PASS      everything else
//
// The hash is FNV-1a of 32 bits over 12 bytes: source address, destination address, source port,
// destination port, each taken as a number and that number's lowest byte first. A port that is not
// there counts as 0: in a later fragment, and in a packet cut off before the port's end.
//
// Reads bytes 12-33: EtherType, version and IHL, fragment offset, protocol, addresses; then the
// ports, where the IHL says they are.

override workers: u32 = 8u;

// http://www.isthe.com/chongo/tech/comp/fnv/
const FNV_BASIS: u32 = 2166136261u;
const FNV_PRIME: u32 = 16777619u;

fn fnv_byte(hash: u32, byte: u32) -> u32 {
    return (hash ^ (byte & 0xffu)) * FNV_PRIME;
}

fn fnv_16(hash: u32, value: u32) -> u32 {
    return fnv_byte(fnv_byte(hash, value), value >> 8u);
}

fn fnv_32(hash: u32, value: u32) -> u32 {
    return fnv_16(fnv_16(hash, value), value >> 16u);
}

fn xdp_filter(pkt: u32) -> u32 {
    // One check for the Ethernet header and the fixed part of the IPv4 header.
    if pkt_len(pkt) < 34u || load_be16(pkt, 12u) != ETH_P_IP {
        return XDP_PASS;
    }
    // Version 4 and an IHL of 5 to 15: 0x45 to 0x4f.
    let version_ihl = load_u8(pkt, 14u);
    if version_ihl - 0x45u > 10u {
        return XDP_PASS;
    }
    let protocol = load_u8(pkt, 23u);
    if protocol != IPPROTO_TCP && protocol != IPPROTO_UDP {
        return XDP_PASS;
    }
    var source_port = 0u;
    var destination_port = 0u;
    if (load_be16(pkt, 20u) & 0x1fffu) == 0u {
        let ports = 14u + (version_ihl & 0xfu) * 4u;
        source_port = load_be16(pkt, ports);
        destination_port = load_be16(pkt, ports + 2u);
    }
    var hash = fnv_32(FNV_BASIS, load_be32(pkt, 26u));
    hash = fnv_32(hash, load_be32(pkt, 30u));
    hash = fnv_16(hash, source_port);
    hash = fnv_16(hash, destination_port);
    return redirect(hash % workers);
}
