// `bpf_check_mtu` (net/core/filter.c: bpf_xdp_check_mtu): returns its result, and the new
// `*mtu_len`.

fn x_check_mtu(pkt: u32, number: u32, length: u32, more: u32, flags: u32) -> vec2<u32> {
    // -EINVAL
    if flags != 0u { return vec2<u32>(0xffffffeau, length); }
    var at = number;
    if at == 0u { at = pkt_port(pkt); }
    let device = INTERFACES_find(at);
    // -ENODEV
    if device == MAP_NONE { return vec2<u32>(0xffffffedu, length); }
    let mtu = INTERFACES_read(device, 2u);
    // The MTU is without the link header, the packet length with it.
    let header = INTERFACES_read(device, 4u);
    let has = select(length + header, pkt_len(pkt), length == 0u) + more;
    let is_long = bitcast<i32>(has) > bitcast<i32>(mtu + header);
    return vec2<u32>(select(0u, 1u, is_long), mtu);
}
