// Floating-point results may differ between devices, but operations must run and end.
// probe: expect=pass

fn xdp_filter(pkt: u32) -> u32 {
    let a = f32(load_be32(pkt, 0u));
    let b = f32(i32(load_be32(pkt, 4u)));
    var sum = 0.0;
    for (var i = 0u; i < 8u; i++) {
        sum = sum + sqrt(abs(a * b)) / (b - f32(i)) - floor(a / 3.0) * exp2(-f32(i));
    }
    let wild = u32(sum) + u32(i32(sum * 1e30)) + u32(1.0 / (b - b));
    // True for every value, which the compiler cannot know.
    if pkt_len(pkt) > 0x7fffffffu && wild == 5u { return XDP_DROP; }
    return XDP_PASS;
}
