// Pointers to parts of variables: what calls take, and hand on.
struct Flow {
    packets: u32,
    ports: array<u32, 4>,
}

var<private> flows: array<Flow, 3>;

fn count(at: ptr<private, u32>) {
    *at = *at + 1u;
}

fn note(flow: ptr<private, Flow>, port: u32) {
    count(&(*flow).packets);
    count(&(*flow).ports[port & 3u]);
}

fn xdp_filter(pkt: u32) -> u32 {
    note(&flows[load_u8(pkt, 26u)], load_be16(pkt, 36u));
    note(&flows[1], 443u);
    return select(XDP_DROP, XDP_PASS, flows[0].packets == 1u);
}
