fn xdp_filter(pkt_4: u32) -> u32 {
    var local: bool;

    let _e1 = pkt_len(pkt_4);
    if !((_e1 < 34u)) {
        let _e8 = load_be16_(pkt_4, 12u);
        local = (_e8 != ETH_P_IP);
    } else {
        local = true;
    }
    let _e12 = local;
    if _e12 {
        return XDP_DROP;
    }
    let _e15 = adjust_head(pkt_4, 4i);
    if _e15 {
        let _e17 = load_u8_(pkt_4, 0u);
        let _e18 = redirect(_e17);
        return _e18;
    }
    return XDP_PASS;
}
@compute @workgroup_size(64, 1, 1)
fn main(@builtin(global_invocation_id) invocation: vec3<u32>) {
    pc_enter(invocation.x);
    let _e4 = xdp_filter(invocation.x);
    let _e5 = pc_verdict(_e4);
    pc_leave(invocation.x);
    pc_arena[invocation.x] = _e5;
    return;
}
