// complex_filter: several rules at once, on length, protocol, source network and port.
//
// DROP  length below 64 or above 1500 bytes, whatever the packet is; ICMP over IPv4; TCP and UDP
//       over IPv4 from 10.0/16, 172.16/16 or 192.168/16 to a port below 1024 other than 80 and 443
// PASS  everything else: also what is not IPv4, and what has no port to be read (a later fragment,
//       cut off before the port's end)
//
// Reads bytes 12-29: EtherType, version and IHL, fragment offset, protocol, source address; then
// the destination port, where the IHL says it is.

struct ethhdr {
    uchar destination[6], source[6];
    ushort ethertype;
} __attribute__((packed));

struct iphdr {
    uchar version_ihl, tos;
    ushort length, id, fragment;
    uchar ttl, protocol;
    ushort checksum;
    uchar source[4], destination[4];
} __attribute__((packed));

bool is_private(ushort network)
{
    switch (network) {
    case 0x0a00: // 10.0/16
    case 0xac10: // 172.16/16
    case 0xc0a8: // 192.168/16
        return true;
    default:
        return false;
    }
}

uint xdp_filter(__global uchar *pkt, uint len)
{
    // At least 64 bytes from here on: the fixed part of the IPv4 header is there.
    if (len < 64 || len > 1500)
        return XDP_DROP;
    __global struct ethhdr *eth = (__global struct ethhdr *)pkt;
    __global struct iphdr *ip = (__global struct iphdr *)(eth + 1);
    // Version 4 and an IHL of 5 to 15.
    if (ntohs(eth->ethertype) != ETH_P_IP || ip->version_ihl < 0x45 || ip->version_ihl > 0x4f)
        return XDP_PASS;

    switch (ip->protocol) {
    case IPPROTO_ICMP:
        return XDP_DROP;
    case IPPROTO_TCP:
    case IPPROTO_UDP:
        break;
    default:
        return XDP_PASS;
    }

    // A port that lies outside the packet would read as 0 and look like a port below 1024.
    __global uchar *ports = (__global uchar *)ip + (ip->version_ihl & 0xf) * 4;
    bool first_fragment = (ntohs(ip->fragment) & 0x1fff) == 0;
    if (!is_private(load_be16(ip->source, 0)) || !first_fragment || ports + 4 > pkt + len)
        return XDP_PASS;
    uint port = load_be16(ports, 2);
    return port < 1024 && port != 80 && port != 443 ? XDP_DROP : XDP_PASS;
}
