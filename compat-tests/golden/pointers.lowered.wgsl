struct Flow {
    packets: u32,
    ports: array<u32, 4>,
}
var<private> flows: array<Flow, 3>;
fn count(at: ptr<private, u32>) {
    let _e1 = (*at);
    (*at) = (_e1 + 1u);
    return;
}
fn count_1(at_1: ptr<private, Flow>) {
    let at_6 = (&(*at_1).packets);
    let _e2 = (*at_6);
    (*at_6) = (_e2 + 1u);
    return;
}
fn count_2(at_2: ptr<private, Flow>, param: u32) {
    let at_7 = (&(*at_2).ports[param]);
    let _e4 = (*at_7);
    (*at_7) = (_e4 + 1u);
    return;
}
fn count_3(param_1: u32) {
    let at_8 = (&flows[param_1].packets);
    let _e4 = (*at_8);
    (*at_8) = (_e4 + 1u);
    return;
}
fn count_4(param_2: u32, param_3: u32) {
    let at_9 = (&flows[param_2].ports[param_3]);
    let _e6 = (*at_9);
    (*at_9) = (_e6 + 1u);
    return;
}
fn count_5() {
    let at_10 = (&flows[1].packets);
    let _e3 = (*at_10);
    (*at_10) = (_e3 + 1u);
    return;
}
fn count_6(param_4: u32) {
    let at_11 = (&flows[1].ports[param_4]);
    let _e5 = (*at_11);
    (*at_11) = (_e5 + 1u);
    return;
}
fn note(flow: ptr<private, Flow>, port: u32) {
    count_1(flow);
    let _e7 = min((port & 3u), 3u);
    count_2(flow, _e7);
    return;
}
fn note_1(param_5: u32, port_1: u32) {
    let flow_1 = (&flows[param_5]);
    count_3(param_5);
    let _e9 = min((port_1 & 3u), 3u);
    count_4(param_5, _e9);
    return;
}
fn note_2(port_2: u32) {
    let flow_2 = (&flows[1]);
    count_5();
    let _e8 = min((port_2 & 3u), 3u);
    count_6(_e8);
    return;
}
fn xdp_filter(pkt_2: u32) -> u32 {
    let _e4 = load_u8_(pkt_2, 26u);
    let _e5 = min(_e4, 2u);
    let _e8 = load_be16_(pkt_2, 36u);
    note_1(_e5, _e8);
    note_2(443u);
    let _e17 = flows[0].packets;
    return select(XDP_DROP, XDP_PASS, (_e17 == 1u));
}
@compute @workgroup_size(64, 1, 1)
fn main(@builtin(global_invocation_id) invocation: vec3<u32>) {
    pc_enter(invocation.x);
    let _e4 = xdp_filter(invocation.x);
    let _e5 = pc_verdict(_e4);
    pc_arena[invocation.x] = _e5;
    return;
}
