// Provider bridging (IEEE 802.1ad): rewrites the outer tag's VLAN by a table, removes the inner tag
// if there are two, and drops priority-tagged frames and VLAN 4095.

#define VLAN_VID_MASK 0x0fff
#define VLAN_PRIO_SHIFT 13
#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

struct vlan_ethhdr {
    uchar h_dest[6];
    uchar h_source[6];
    ushort h_vlan_proto;
    ushort h_vlan_TCI;
    ushort h_vlan_encapsulated_proto;
} __attribute__((packed));

// Addresses and one tag.
struct head {
    uint words[4];
} __attribute__((packed));

struct translation {
    ushort from, to;
    uchar priority;
};

__constant struct translation translations[] = {
    {.from = 10, .to = 110, .priority = 1},
    {100, 200, 2},
    {.from = 5, .to = 7},
    {1, 2, 7},
};

static const __constant struct translation *find(ushort vid)
{
    const __constant struct translation *t = translations;

    for (uint i = 0; i < ARRAY_SIZE(translations); ++i, ++t)
        if (t->from == vid)
            return t;
    return translations + ARRAY_SIZE(translations);
}

static bool is_tag(ushort proto)
{
    return proto == htons(ETH_P_8021Q) || proto == htons(ETH_P_8021AD);
}

uint xdp_filter(__global uchar *pkt, uint len)
{
    __global struct vlan_ethhdr *vlan = (__global struct vlan_ethhdr *)pkt;

    if (len < sizeof(struct vlan_ethhdr) || !is_tag(vlan->h_vlan_proto))
        return XDP_PASS;

    ushort tci = ntohs(vlan->h_vlan_TCI), vid = tci & VLAN_VID_MASK;
    if (vid == 0 || vid == VLAN_VID_MASK)
        return XDP_DROP;

    const __constant struct translation *t = find(vid);
    if (t != &translations[ARRAY_SIZE(translations)]) {
        tci = t->to | (t->priority << VLAN_PRIO_SHIFT) | (tci & 0x1000);
        vlan->h_vlan_TCI = htons(tci);
    }
    if (is_tag(vlan->h_vlan_encapsulated_proto) && len >= sizeof(*vlan) + 4) {
        // Moves the addresses and the outer tag over the inner one.
        struct head head = *(__global struct head *)pkt;
        *(__global struct head *)(pkt + 4) = head;
        if (!adjust_head(pkt, 4))
            return XDP_ABORTED;
    }
    return XDP_TX;
}
