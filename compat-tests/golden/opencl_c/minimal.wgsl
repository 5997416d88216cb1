fn xdp_filter(pkt_19: u32) -> u32 {
    return 2u;
}
