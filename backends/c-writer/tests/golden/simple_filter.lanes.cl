__constant uint ETH_P_IP = 2048u;
__constant uint IPPROTO_TCP = 6u;
__constant uint IPPROTO_UDP = 17u;
__constant uint blocked = 3232235521u;
__constant uint XDP_DROP = 1u;
__constant uint XDP_PASS = 2u;

static uint xdp_filter(pc_packet *pkt)
{
    uint protocol = load_u8(pkt, 23u);
    bool t1 = load_be32(pkt, 26u) == blocked;
    bool t2 = ((protocol != IPPROTO_TCP) & (protocol != IPPROTO_UDP)) | t1;
    bool t3 = (load_u8(pkt, 14u) - 69u > 10u) | t2;
    return (pkt_len(pkt) < 34u) | (load_be16(pkt, 12u) != ETH_P_IP) | t3 ? XDP_DROP : XDP_PASS;
}
