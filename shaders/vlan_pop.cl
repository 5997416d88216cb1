// vlan_pop: takes off the outermost VLAN tag (IEEE 802.1Q, TPID 0x8100 or 0x88a8).
//
// PASS  always: 4 bytes shorter where there was a tag; without a change where there was none, or
//       where the packet ends before the EtherType behind the tag, at 18 bytes
//
// Reads bytes 0-13, writes bytes 4-15, and moves the packet's head by 4 bytes.

struct addresses {
    uint words[3];
} __attribute__((packed));

uint xdp_filter(__global uchar *pkt, uint len)
{
    uint tpid = load_be16(pkt, 12);

    if (len < 18 || (tpid != ETH_P_8021Q && tpid != ETH_P_8021AD))
        return XDP_PASS;
    // The addresses move over the tag, and the two places overlap: out of the packet as a whole,
    // and in again. Then the packet begins where they do.
    struct addresses addresses = *(__global struct addresses *)pkt;
    *(__global struct addresses *)(pkt + 4) = addresses;
    // At least 14 of the 18 bytes are left, so this cannot fail.
    adjust_head(pkt, 4);
    return XDP_PASS;
}
