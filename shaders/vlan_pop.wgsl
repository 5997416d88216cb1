// vlan_pop: takes off the outermost VLAN tag (IEEE 802.1Q, TPID 0x8100 or 0x88a8).
//
// PASS  always: 4 bytes shorter where there was a tag; without a change where there was none, or
//       where the packet ends before the EtherType behind the tag, at 18 bytes
//
// Reads bytes 0-13, writes bytes 4-15, and moves the packet's head by 4 bytes.

fn xdp_filter(pkt: u32) -> u32 {
    let tpid = load_be16(pkt, 12u);
    if pkt_len(pkt) < 18u || (tpid != ETH_P_8021Q && tpid != ETH_P_8021AD) {
        return XDP_PASS;
    }
    // The addresses move over the tag: all loads before the first store, for the two places
    // overlap. Then the packet begins where the addresses do.
    let address_0 = load_le32(pkt, 0u);
    let address_4 = load_le32(pkt, 4u);
    let address_8 = load_le32(pkt, 8u);
    store_le32(pkt, 4u, address_0);
    store_le32(pkt, 8u, address_4);
    store_le32(pkt, 12u, address_8);
    // At least 14 of the 18 bytes are left, so this cannot fail.
    adjust_head(pkt, 4i);
    return XDP_PASS;
}
