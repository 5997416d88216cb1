// gateway: a firewall and NAT gateway for a small network in one filter. Ethernet with up to two
// VLAN tags; IPv4 and IPv6 with extension headers; TCP, UDP and ICMP; inspection of TLS, HTTP and
// DNS; static address translation with checksum updates; load balancing by flow hash.
//
// A realistic source for benchmarks of the front end.

#include <portcullis.h>

#ifndef WORKERS
#define WORKERS 16u
#endif
#ifndef INSIDE
#define INSIDE 0x0a640000 // 10.100.0.0
#endif
#ifndef INSIDE_MASK
#define INSIDE_MASK 0xffff0000
#endif
#ifndef MAX_TTL_LOSS
#define MAX_TTL_LOSS 1
#endif

#define ETH_ALEN 6
#define ETH_HLEN 14
#define VLAN_HLEN 4
#define VLAN_VID(tci) ((tci) & 0x0fff)
#define MAX_TAGS 2
#define MAX_EXTENSION_HEADERS 6
#define MAX_LABELS 12
#define IP_OFFSET 0x1fff
#define TLS_HANDSHAKE 22
#define TLS_CLIENT_HELLO 1
#define ARRAY_SIZE(array) (sizeof(array) / sizeof((array)[0]))
#define IS_TAG(type) ((type) == ETH_P_8021Q || (type) == ETH_P_8021AD)
#define TH_FIN 0x01
#define TH_SYN 0x02
#define TH_RST 0x04
#define TH_ACK 0x10

typedef __global uchar *bytes;

struct ethhdr {
    uchar destination[ETH_ALEN], source[ETH_ALEN];
    ushort type;
} __attribute__((packed));

struct vlanhdr {
    ushort tci, type;
} __attribute__((packed));

struct iphdr {
    uchar version_ihl, tos;
    ushort length, id, fragment;
    uchar ttl, protocol;
    ushort checksum;
    uint source, destination;
} __attribute__((packed));

struct ip6hdr {
    uint version_class_label;
    ushort length;
    uchar next, hop_limit;
    uint source[4], destination[4];
} __attribute__((packed));

struct tcphdr {
    ushort source, destination;
    uint sequence, acknowledgement;
    uchar offset, flags;
    ushort window, checksum, urgent;
} __attribute__((packed));

struct udphdr {
    ushort source, destination, length, checksum;
} __attribute__((packed));

struct dnshdr {
    ushort id, flags, questions, answers, authorities, additional;
} __attribute__((packed));

enum verdict { LET_THROUGH, FORBIDDEN, MALFORMED, NOT_OURS };

enum application { OTHER, HTTP, TLS, DNS, SSH };

struct flow {
    uint source[4], destination[4];
    ushort source_port, destination_port;
    uchar protocol, tags;
    ushort vlan;
    enum application application;
};

struct rule {
    ushort first_port, last_port;
    uchar protocol;
    uchar allowed;
};

struct translation {
    uint outside, inside;
    ushort port, inside_port;
};

__constant struct rule rules[] = {
    {.first_port = 80, .last_port = 80, .protocol = 6, .allowed = 1},
    {.first_port = 443, .last_port = 443, .protocol = 6, .allowed = 1},
    {.first_port = 443, .last_port = 443, .protocol = 17, .allowed = 1},
    {.first_port = 53, .last_port = 53, .protocol = 17, .allowed = 1},
    {.first_port = 123, .last_port = 123, .protocol = 17, .allowed = 1},
    {.first_port = 22, .last_port = 23, .protocol = 6},
    {.first_port = 135, .last_port = 139, .protocol = 6},
    {.first_port = 1024, .last_port = 65535, .protocol = 6, .allowed = 1},
};

__constant struct translation translations[4] = {
    {0xcb007101, 0x0a640001, 80, 8080},
    {0xcb007101, 0x0a640002, 443, 8443},
    {0xcb007102, 0x0a640003, 53, 53},
    {0xcb007103, 0x0a640004, 123, 123},
};

__constant uchar blocked_name[] = "\007tracker\007example";

static uint mix(uint hash, uint word)
{
    hash ^= word * 0xcc9e2d51;
    hash = rotate(hash, 13u) * 5 + 0xe6546b64;
    return hash;
}

static uint hash_of(struct flow flow)
{
    uint hash = flow.protocol | (uint)flow.vlan << 8;

    // Symmetric: equal for both directions of a flow.
    for (int i = 0; i < 4; i++)
        hash = mix(hash, flow.source[i] ^ flow.destination[i]);
    hash = mix(hash, flow.source_port ^ flow.destination_port);
    hash ^= hash >> 16;
    hash *= 0x85ebca6b;
    return hash ^ hash >> 13;
}

static bool allowed(const struct flow *flow)
{
    for (uint i = 0; i < ARRAY_SIZE(rules); i++) {
        if (rules[i].protocol != flow->protocol)
            continue;
        if (flow->destination_port >= rules[i].first_port && flow->destination_port <= rules[i].last_port)
            return rules[i].allowed;
    }
    return false;
}

static bool is_inside(uint address)
{
    return (address & INSIDE_MASK) == (INSIDE & INSIDE_MASK);
}

// Whether a name contains the blocked labels consecutively.
static bool is_blocked(bytes name, bytes end)
{
    for (int label = 0; label < MAX_LABELS && name < end && *name != 0 && *name < 64; label++) {
        uint same = 0;

        while (same < sizeof(blocked_name) - 1 && name + same < end) {
            uchar letter = name[same];

            if (letter >= 'A' && letter <= 'Z')
                letter += 'a' - 'A';
            if (letter != blocked_name[same])
                break;
            same++;
        }
        if (same == sizeof(blocked_name) - 1)
            return true;
        name += *name + 1;
    }
    return false;
}

static enum application application_of(bytes payload, bytes end, const struct flow *flow)
{
    if (payload + 6 > end)
        return OTHER;
    if (flow->protocol == IPPROTO_UDP)
        return flow->destination_port == 53 ? DNS : OTHER;
    switch (load_be32(payload, 0)) {
    case 0x47455420: // "GET "
    case 0x504f5354: // "POST"
    case 0x48454144: // "HEAD"
    case 0x50555420: // "PUT "
        return HTTP;
    case 0x5353482d: // "SSH-"
        return SSH;
    default:
        break;
    }
    if (payload[0] == TLS_HANDSHAKE && payload[1] == 3 && payload[5] == TLS_CLIENT_HELLO)
        return TLS;
    return OTHER;
}

static enum verdict look_at_tcp(bytes segment, bytes end, struct flow *flow)
{
    __global struct tcphdr *tcp = (__global struct tcphdr *)segment;
    uint offset = (tcp->offset >> 4) * 4;

    if (segment + sizeof(*tcp) > end || offset < sizeof(*tcp) || segment + offset > end)
        return MALFORMED;
    flow->source_port = ntohs(tcp->source);
    flow->destination_port = ntohs(tcp->destination);
    switch (tcp->flags & (TH_FIN | TH_SYN | TH_RST | TH_ACK)) {
    case 0:
    case TH_SYN | TH_FIN:
    case TH_SYN | TH_RST:
    case TH_FIN:
        return MALFORMED;
    default:
        break;
    }
    flow->application = application_of(segment + offset, end, flow);
    // SSH is allowed on its own port only.
    if (flow->application == SSH && flow->destination_port != 22)
        return FORBIDDEN;
    return tcp->flags & TH_ACK || allowed(flow) ? LET_THROUGH : FORBIDDEN;
}

static enum verdict look_at_udp(bytes datagram, bytes end, struct flow *flow)
{
    __global struct udphdr *udp = (__global struct udphdr *)datagram;
    bytes payload = datagram + sizeof(*udp);

    if (payload > end || ntohs(udp->length) < sizeof(*udp))
        return MALFORMED;
    flow->source_port = ntohs(udp->source);
    flow->destination_port = ntohs(udp->destination);
    flow->application = application_of(payload, end, flow);
    if (flow->application == DNS) {
        __global struct dnshdr *dns = (__global struct dnshdr *)payload;

        if (payload + sizeof(*dns) > end || ntohs(dns->questions) > 4)
            return MALFORMED;
        if (is_blocked(payload + sizeof(*dns), end))
            return FORBIDDEN;
    }
    return allowed(flow) ? LET_THROUGH : FORBIDDEN;
}

static enum verdict look_at_transport(bytes at, bytes end, struct flow *flow)
{
    switch (flow->protocol) {
    case IPPROTO_TCP:
        return look_at_tcp(at, end, flow);
    case IPPROTO_UDP:
        return look_at_udp(at, end, flow);
    case IPPROTO_ICMP:
    case IPPROTO_ICMPV6:
        return at + 8 <= end && at[0] != 5 ? LET_THROUGH : FORBIDDEN;
    default:
        return NOT_OURS;
    }
}

// Translates the public address to the inside one, and updates all checksums.
static void translate(__global struct iphdr *ip, bytes transport, struct flow *flow)
{
    for (int i = 0; i < 4; i++) {
        __constant struct translation *t = &translations[i];
        uint before = ntohl(ip->destination);

        if (before != t->outside || flow->destination_port != t->port)
            continue;
        ip->destination = htonl(t->inside);
        ip->checksum = htons(csum_replace32(ntohs(ip->checksum), before, t->inside));
        uint at = flow->protocol == IPPROTO_TCP ? 16 : 6, check = load_be16(transport, at);
        if (flow->protocol == IPPROTO_TCP || check != 0) {
            check = csum_replace32(check, before, t->inside);
            store_be16(transport, at, csum_replace16(check, t->port, t->inside_port));
        }
        store_be16(transport, 2, t->inside_port);
        flow->destination[3] = t->inside;
        return;
    }
}

static enum verdict look_at_ipv4(bytes at, bytes end, struct flow *flow)
{
    __global struct iphdr *ip = (__global struct iphdr *)at;

    if (at + sizeof(*ip) > end || ip->version_ihl < 0x45 || ip->version_ihl > 0x4f)
        return MALFORMED;
    bytes transport = at + (ip->version_ihl & 0xf) * 4;
    flow->protocol = ip->protocol;
    flow->source[3] = ntohl(ip->source);
    flow->destination[3] = ntohl(ip->destination);
    if (is_inside(flow->source[3]) || ntohs(ip->fragment) & IP_OFFSET)
        return FORBIDDEN;
    if (ip->ttl <= MAX_TTL_LOSS)
        return MALFORMED;
    enum verdict verdict = look_at_transport(transport, end, flow);
    if (verdict != LET_THROUGH || flow->protocol == IPPROTO_ICMP)
        return verdict;
    translate(ip, transport, flow);
    ushort before = load_be16(at, 8);
    ip->ttl -= MAX_TTL_LOSS;
    ip->checksum = htons(csum_replace16(ntohs(ip->checksum), before, load_be16(at, 8)));
    return LET_THROUGH;
}

static enum verdict look_at_ipv6(bytes at, bytes end, struct flow *flow)
{
    __global struct ip6hdr *ip = (__global struct ip6hdr *)at;
    uchar header = ip->next;

    if (at + sizeof(*ip) > end || ntohl(ip->version_class_label) >> 28 != 6 || ip->hop_limit == 0)
        return MALFORMED;
    for (int i = 0; i < 4; i++) {
        flow->source[i] = ntohl(ip->source[i]);
        flow->destination[i] = ntohl(ip->destination[i]);
    }
    at += sizeof(*ip);
    for (int i = 0; i < MAX_EXTENSION_HEADERS; i++) {
        if (header != IPPROTO_HOPOPTS && header != IPPROTO_DSTOPTS && header != IPPROTO_ROUTING)
            break;
        header = at[0];
        at += (at[1] + 1) * 8;
    }
    flow->protocol = header;
    return header == IPPROTO_FRAGMENT ? FORBIDDEN : look_at_transport(at, end, flow);
}

uint xdp_filter(__global uchar *pkt, uint len)
{
    __global struct ethhdr *eth = (__global struct ethhdr *)pkt;
    bytes at = pkt + ETH_HLEN, end = pkt + len;
    struct flow flow = {.application = OTHER};
    enum verdict verdict = NOT_OURS;

    if (len < ETH_HLEN + 20)
        return XDP_DROP;
    ushort type = ntohs(eth->type);
    for (; IS_TAG(type) && flow.tags < MAX_TAGS; flow.tags++, at += VLAN_HLEN) {
        __global struct vlanhdr *vlan = (__global struct vlanhdr *)at;

        flow.vlan = VLAN_VID(ntohs(vlan->tci));
        type = ntohs(vlan->type);
    }
    if (type == ETH_P_IP)
        verdict = look_at_ipv4(at, end, &flow);
    else if (type == ETH_P_IPV6)
        verdict = look_at_ipv6(at, end, &flow);
    switch (verdict) {
    case LET_THROUGH:
        return redirect(hash_of(flow) % WORKERS);
    case NOT_OURS:
        return XDP_PASS;
    default:
        return XDP_DROP;
    }
}
