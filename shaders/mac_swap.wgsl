// mac_swap: sends every packet back to where it came from, its Ethernet addresses swapped.
//
// TX    every packet with an Ethernet header
// DROP  shorter than an Ethernet header, 14 bytes
//
// Reads and writes bytes 0-11: destination and source address.

fn xdp_filter(pkt: u32) -> u32 {
    if pkt_len(pkt) < 14u {
        return XDP_DROP;
    }
    // All loads before the first store: the two addresses overlap in no word, but the packet is
    // written in place.
    let destination_0 = load_le32(pkt, 0u);
    let destination_4 = load_le16(pkt, 4u);
    let source_0 = load_le32(pkt, 6u);
    let source_4 = load_le16(pkt, 10u);
    store_le32(pkt, 0u, source_0);
    store_le16(pkt, 4u, source_4);
    store_le32(pkt, 6u, destination_0);
    store_le16(pkt, 10u, destination_4);
    return XDP_TX;
}
