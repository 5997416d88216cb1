// maglev_lb: spreads traffic to virtual addresses over backends by consistent hashing (Maglev;
// Eisenbud and others, NSDI 2016).
//
// REDIRECT  TCP and UDP over IPv4 to an address of `vips`: to its backend's port, with the
//           backend's IP and MAC address as the destination, what was the destination's MAC address
//           as the source, and checksums mended (RFC 1624)
// PASS      everything else
// DROP      such a packet for which there is no healthy backend
//
// A flow (addresses, ports, protocol) stays with its backend while that is healthy. Otherwise it
// goes to the backend that stands in `table` at the flow's hash modulo 65537, or where that is not
// healthy at the next hash, and so on 64 times. So nothing moves but the flows of a backend that
// fails. Fragments have no ports here (0), so that those of a packet stay together. The hash begins
// at 0 and takes in word after word of the key: exclusive or, then MurmurHash3's finaliser. The
// next one is the finaliser of the hash plus 1.
//
// The host fills the maps but for `flows`. Backends have numbers from 1 on; 0 is nobody.
// `portcullis::maglev` makes the table, with weights (examples/maglev.rs). What answers a packet
// has the backend's address, and is not this filter's.
//
// Reads, behind an Ethernet header and one VLAN tag or none, the headers of IP and TCP or UDP;
// writes MAC addresses, destination and checksums.

//! map vips: hash key=1 value=0 entries=1024 fields=vip:ipv4
//! map table: array value=1 entries=65537 fields=place,backend
//! map backends: array value=5 entries=1024 fields=backend,healthy,address:ipv4,mac:mac,port
//! map flows: lru_hash key=5 value=1 entries=65536 fields=srcaddr:ipv4,dstaddr:ipv4,srcport,dstport,prot,backend

const PLACES: u32 = 65537u;
const TRIES: u32 = 64u;

// Words of a backend.
const HEALTHY: u32 = 0u;
const ADDRESS: u32 = 1u;
const MAC: u32 = 2u;
const PORT: u32 = 4u;

// https://github.com/aappleby/smhasher, fmix32
fn mix(word: u32) -> u32 {
    var h = (word ^ (word >> 16u)) * 0x85ebca6bu;
    h = (h ^ (h >> 13u)) * 0xc2b2ae35u;
    return h ^ (h >> 16u);
}

fn hash_of(key: array<u32, 5>) -> u32 {
    return mix(mix(mix(mix(mix(key[0]) ^ key[1]) ^ key[2]) ^ key[3]) ^ key[4]);
}

fn is_healthy(backend: u32) -> bool {
    return backend != 0u && backends_read(backend, HEALTHY) != 0u;
}

// A healthy backend, or nobody.
fn choose(flow: u32) -> u32 {
    var hash = flow;
    for (var i = 0u; i < TRIES; i++) {
        let backend = table_read(hash % PLACES, 0u);
        if is_healthy(backend) {
            return backend;
        }
        hash = mix(hash + 1u);
    }
    return 0u;
}

fn xdp_filter(pkt: u32) -> u32 {
    let outer = load_be16(pkt, 12u);
    let ip = select(14u, 18u, outer == ETH_P_8021Q || outer == ETH_P_8021AD);
    let version_ihl = load_u8(pkt, ip);
    if load_be16(pkt, ip - 2u) != ETH_P_IP || version_ihl - 0x45u > 10u || pkt_len(pkt) < ip + 20u {
        return XDP_PASS;
    }
    let protocol = load_u8(pkt, ip + 9u);
    let vip = load_be32(pkt, ip + 16u);
    if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP) || vips_find(vip) == MAP_NONE {
        return XDP_PASS;
    }
    let transport = ip + (version_ihl & 0xfu) * 4u;
    let fragment = load_be16(pkt, ip + 6u);
    var key = array<u32, 5>(load_be32(pkt, ip + 12u), vip, 0u, 0u, protocol);
    if (fragment & 0x3fffu) == 0u {
        key[2] = load_be16(pkt, transport);
        key[3] = load_be16(pkt, transport + 2u);
    }

    // Several packets of a flow may be here at a time, and all of them come to the same backend.
    // Where there is no room for the flow, nothing is read and nothing is written.
    let flow = flows_insert(key);
    var backend = flows_read(flow, 0u);
    if !is_healthy(backend) {
        backend = choose(hash_of(key));
        flows_write(flow, 0u, backend);
    }
    if backend == 0u {
        return XDP_DROP;
    }

    let address = backends_read(backend, ADDRESS);
    store_be32(pkt, ip + 16u, address);
    store_be16(pkt, ip + 10u, csum_replace32(load_be16(pkt, ip + 10u), vip, address));
    // TCP's and UDP's checksum is in the first fragment. It covers the address. UDP's may be left
    // out (0), and what comes to 0 is written as its other form (RFC 768).
    if (fragment & 0x1fffu) == 0u {
        let at = transport + select(16u, 6u, protocol == IPPROTO_UDP);
        let before = load_be16(pkt, at);
        var check = csum_replace32(before, vip, address);
        if protocol == IPPROTO_UDP {
            check = select(select(check, 0xffffu, check == 0u), 0u, before == 0u);
        }
        store_be16(pkt, at, check);
    }
    let own_0 = load_be16(pkt, 0u);
    let own_2 = load_be32(pkt, 2u);
    store_be16(pkt, 0u, backends_read(backend, MAC));
    store_be32(pkt, 2u, backends_read(backend, MAC + 1u));
    store_be16(pkt, 6u, own_0);
    store_be32(pkt, 8u, own_2);
    return redirect(backends_read(backend, PORT));
}
