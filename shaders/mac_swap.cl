// mac_swap: sends every packet back to where it came from, its Ethernet addresses swapped.
//
// TX    every packet with an Ethernet header
// DROP  shorter than an Ethernet header, 14 bytes
//
// Reads and writes bytes 0-11: destination and source address.

struct mac {
    uint head;
    ushort tail;
} __attribute__((packed));

struct ethhdr {
    struct mac destination, source;
    ushort ethertype;
} __attribute__((packed));

uint xdp_filter(__global uchar *pkt, uint len)
{
    __global struct ethhdr *eth = (__global struct ethhdr *)pkt;

    if (len < sizeof(*eth))
        return XDP_DROP;
    struct mac destination = eth->destination;
    eth->destination = eth->source;
    eth->source = destination;
    return XDP_TX;
}
