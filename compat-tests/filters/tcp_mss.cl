// Drops TCP segments with invalid combinations of flags, clamps the MSS that a SYN offers, and
// updates the checksum.

#ifndef MSS
#define MSS 1360
#endif

#define TH_FIN 0x01
#define TH_SYN 0x02
#define TH_RST 0x04
#define TH_PSH 0x08
#define TH_ACK 0x10
#define TH_URG 0x20

#define TCPOPT_EOL 0
#define TCPOPT_NOP 1
#define TCPOPT_MAXSEG 2

struct tcphdr {
    ushort source, dest;
    uint seq, ack_seq;
    uchar doff, flags;
    ushort window, check, urg_ptr;
} __attribute__((packed));

static int bad_flags(uchar flags)
{
    switch (flags & (TH_FIN | TH_SYN | TH_RST | TH_ACK)) {
    case TH_SYN | TH_FIN:
    case TH_SYN | TH_RST:
    case TH_SYN | TH_FIN | TH_ACK:
    case TH_FIN:
    case 0:
        return 1;
    default:
        return (flags & (TH_FIN | TH_PSH | TH_URG)) == (TH_FIN | TH_PSH | TH_URG) && !(flags & TH_ACK);
    }
}

static void clamp_mss(__global struct tcphdr *tcp, uint length)
{
    __global uchar *options = (__global uchar *)(tcp + 1);
    uint i = 0;

    while (i < length) {
        uchar kind = options[i], size;

        if (kind == TCPOPT_EOL)
            break;
        if (kind == TCPOPT_NOP) {
            i++;
            continue;
        }
        size = options[i + 1];
        if (size < 2 || i + size > length)
            break;
        if (kind == TCPOPT_MAXSEG && size == 4) {
            ushort mss = load_be16(options, i + 2);
            ushort clamped = min(mss, (ushort)MSS);

            if (clamped != mss) {
                store_be16(options, i + 2, clamped);
                // An option at an odd offset is summed with its bytes swapped.
                ushort before = i & 1 ? rotate(mss, (ushort)8) : mss, after = i & 1 ? rotate(clamped, (ushort)8) : clamped;
                tcp->check = htons(csum_replace16(ntohs(tcp->check), before, after));
            }
            break;
        }
        i += size;
    }
}

uint xdp_filter(__global uchar *pkt, uint len)
{
    if (len < 54 || load_be16(pkt, 12) != ETH_P_IP || load_u8(pkt, 23) != IPPROTO_TCP)
        return XDP_PASS;
    uint ihl = (pkt[14] & 0xf) * 4u;
    if (pkt[14] >> 4 != 4 || ihl < 20 || (load_be16(pkt, 20) & 0x1fff) != 0)
        return XDP_PASS;
    __global struct tcphdr *tcp = (__global struct tcphdr *)(pkt + 14 + ihl);
    uint doff = (tcp->doff >> 4) * 4u;
    if (14 + ihl + 20 > len)
        return XDP_PASS;
    if (doff < sizeof(*tcp) || 14 + ihl + doff > len || bad_flags(tcp->flags))
        return XDP_DROP;
    if ((tcp->flags & (TH_SYN | TH_RST)) == TH_SYN)
        clamp_mss(tcp, doff - sizeof(*tcp));
    return XDP_PASS;
}
