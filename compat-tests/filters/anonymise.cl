// Anonymises the host part of IPv4 addresses and keeps the network: a hash replaces the last two
// bytes of an address, a number with the local bit set replaces an Ethernet address, and a mix of
// both the payload's first bytes.

#define ETH_HLEN 14

uint mix(uint x)
{
    ulong wide = (ulong)x * 0x9e3779b97f4a7c15ul;
    // Both halves, and within them both halves again.
    uint2 halves = as_uint2(wide);
    ushort2 quarters = as_ushort2(halves.x ^ halves.y);
    return as_uint((ushort2)(quarters.y, quarters.x)) + as_ushort4(wide).w;
}

uint anonymous(uint address)
{
    // The first byte of an address is the highest of its number.
    uchar4 bytes = as_uchar4(address), hash = as_uchar4(mix(address));
    bytes.xy = hash.zw ^ hash.xy;
    // 0 and 255 would be the network's own addresses.
    char2 ends = as_char2((ushort)(as_ushort2(bytes).x + 1));
    if (ends.x == -1 || ends.x == 0)
        bytes.x = 77;
    return as_uint(bytes);
}

uint xdp_filter(__global uchar *pkt, uint len)
{
    if (len < ETH_HLEN + 20 || load_be16(pkt, 12) != ETH_P_IP)
        return XDP_PASS;
    uint before[2] = { load_be32(pkt, 26), load_be32(pkt, 30) };
    ushort checksum = load_be16(pkt, 24);
    for (uint i = 0; i < 2; i++) {
        uint after = anonymous(before[i]);
        store_be32(pkt, 26 + 4 * i, after);
        checksum = csum_replace32(checksum, before[i], after);
        uchar4 station = as_uchar4(mix(~before[i])), rest = as_uchar4(as_int(station) >> 3);
        pkt[6 * i] = (station.x & 0xfc) | 2;
        pkt[6 * i + 1] = rest.x;
        pkt[6 * i + 2] = rest.z;
        pkt[6 * i + 3] = rest.w;
    }
    store_be16(pkt, 24, checksum);
    uint4 all = (uint4)(before[0], before[1], as_uint(1.5f), checksum);
    ulong2 pairs = as_ulong2(all);
    short4 small = as_short4(pairs.x ^ pairs.y);
    if (len >= ETH_HLEN + 28)
        store_be32(pkt, 34, as_uint3(all).z + small.w);
    return small.y < 0 ? XDP_TX : XDP_PASS;
}
