// Variables without an initial value are zero, for each packet and each loop iteration; private
// globals are initialised again for each packet.
// probe: expect=pass

struct State {
    count: u32,
    seen: array<u32, 4>,
    low: vec2<i32>,
}

var<private> started: u32 = 41u;
var<private> state: State;
var<private> buffer: array<u32, 70>;

fn xdp_filter(pkt: u32) -> u32 {
    started++;
    if started != 42u { return redirect(1u); }
    if state.count != 0u || state.seen[3] != 0u || state.low.y != 0i { return redirect(2u); }
    var dirty = 0u;
    for (var i = 0u; i < 70u; i++) { dirty |= buffer[i]; }
    if dirty != 0u { return redirect(3u); }
    for (var i = 0u; i < 70u; i++) { buffer[i] = load_u8(pkt, i) + 1u; }
    state.count = 7u;
    state.seen = array<u32, 4>(1u, 2u, 3u, 4u);
    state.low = vec2<i32>(-1i, -2i);
    for (var round = 0u; round < 3u; round++) {
        var sum: u32;
        var cells: array<u32, 4>;
        sum += round + 1u;
        cells[round] += sum;
        if sum != round + 1u || cells[0] + cells[1] + cells[2] != round + 1u { return redirect(4u); }
    }
    return XDP_PASS;
}
