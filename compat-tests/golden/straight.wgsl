// No loop and no index: the passes leave it as it is.
fn xdp_filter(pkt: u32) -> u32 {
    if pkt_len(pkt) < 34u || load_be16(pkt, 12u) != ETH_P_IP { return XDP_DROP; }
    if adjust_head(pkt, 4i) { return redirect(load_u8(pkt, 0u)); }
    return XDP_PASS;
}
