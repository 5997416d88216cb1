// Structures and arrays are values: assignments copy them, and functions get copies.
// probe: expect=pass

struct Flow {
    address: array<u32, 4>,
    ports: vec2<u32>,
    flags: u32,
}

struct Pair {
    a: Flow,
    b: Flow,
}

var<private> kept: Pair;

fn turned(flow: Flow) -> Flow {
    var other = flow;
    other.ports = flow.ports.yx;
    other.address[0] += 1u;
    return other;
}

fn raise(flow: ptr<function, Flow>) { (*flow).flags |= 0x80u; }

fn add(value: ptr<function, u32>, more: u32) { *value += more; }

fn total(flow: Flow) -> u32 {
    var sum = flow.ports.x + 10u * flow.ports.y + flow.flags;
    for (var i = 0u; i < 4u; i++) {
        var address = flow.address;
        sum += address[i] << (8u * i);
    }
    return sum;
}

fn xdp_filter(pkt: u32) -> u32 {
    let zero = load_u8(pkt, 0xffffffffu);
    var flow = Flow(array<u32, 4>(1u, 2u, 3u, 4u), vec2<u32>(5u, 6u + zero), zero);
    let copy = flow;
    flow.address[zero + 1u] = 9u;
    flow.flags = 3u;
    if copy.address[1] != 2u || copy.flags != 0u { return redirect(1u); }
    let other = turned(flow);
    if other.ports.x != 6u || other.address[0] != 2u || other.address[1] != 9u || flow.address[0] != 1u { return redirect(2u); }
    kept.a = flow;
    kept.b = turned(kept.a);
    kept.a.ports.y = 77u;
    if kept.b.ports.x != 6u || kept.a.ports.x != 5u || kept.b.flags != 3u { return redirect(3u); }
    raise(&flow);
    if flow.flags != 0x83u || kept.a.flags != 3u { return redirect(4u); }
    // Pointers to parts of a variable.
    add(&flow.flags, 2u);
    add(&flow.address[3u], 5u);
    if flow.flags != 0x85u || flow.address[3] != 9u || flow.address[2] != 3u { return redirect(7u); }
    if total(copy) != 65u + 1u + 0x200u + 0x30000u + 0x4000000u { return redirect(5u); }
    var grid: array<array<u32, 3>, 2>;
    grid[zero + 1u][zero + 2u] = 8u;
    let row = grid[1];
    grid[1][2] = 1u;
    if row[2] != 8u || grid[0][2] != 0u || grid[zero + 1u][2] != 1u { return redirect(6u); }
    return XDP_PASS;
}
