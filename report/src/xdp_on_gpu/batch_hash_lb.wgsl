// batch_hash_lb: as hash_lb, but the worker comes from another part of the hash.
//
// REDIRECT  TCP and UDP over IPv4, to (FNV-1a >> 16) % 8
// PASS      everything else
//
// Reads bytes 12-33: EtherType, version and IHL, fragment offset, protocol, addresses; then the
// ports, where the IHL says they are.

fn fnv_byte(hash: u32, byte: u32) -> u32 {
    return (hash ^ (byte & 0xffu)) * 16777619u;
}

fn fnv_16(hash: u32, value: u32) -> u32 {
    return fnv_byte(fnv_byte(hash, value), value >> 8u);
}

fn fnv_32(hash: u32, value: u32) -> u32 {
    return fnv_16(fnv_16(hash, value), value >> 16u);
}

fn xdp_filter(pkt: u32) -> u32 {
    if pkt_len(pkt) < 34u || load_be16(pkt, 12u) != ETH_P_IP {
        return XDP_PASS;
    }
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
    var hash = fnv_32(2166136261u, load_be32(pkt, 26u));
    hash = fnv_32(hash, load_be32(pkt, 30u));
    hash = fnv_16(hash, source_port);
    hash = fnv_16(hash, destination_port);
    return redirect((hash >> 16u) % 8u);
}
