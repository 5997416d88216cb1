// An index that is too large or negative accesses the last element.
// probe: expect=pass

struct Row {
    cells: array<u32, 3>,
    tail: u32,
}

var<private> table: array<u32, 5>;
var<private> rows: array<Row, 2>;
const SQUARES = array<u32, 6>(0u, 1u, 4u, 9u, 16u, 25u);

fn pick(index: u32) -> u32 {
    var squares = SQUARES;
    return squares[index];
}

fn xdp_filter(pkt: u32) -> u32 {
    let zero = load_u8(pkt, 0xffffffffu);
    for (var i = 0u; i < 5u; i++) { table[i] = 100u + i; }
    if table[zero + 4u] != 104u || table[zero + 5u] != 104u || table[zero - 1u] != 104u { return redirect(1u); }
    if table[i32(zero) - 1i] != 104u || table[i32(zero) - 2147483647i] != 104u { return redirect(2u); }
    table[zero + 1000u] = 7u;
    if table[4] != 7u || table[3] != 103u || table[0] != 100u { return redirect(3u); }
    if pick(zero + 3u) != 9u || pick(zero + 6u) != 25u || pick(0xffffffffu - zero) != 25u { return redirect(4u); }
    rows[zero + 9u].cells[zero + 9u] = 5u;
    rows[zero + 1u].tail = 6u;
    if rows[1].cells[2] != 5u || rows[0].cells[2] != 0u || rows[zero + 3u].tail != 6u { return redirect(5u); }
    var v = vec4<u32>(1u, 2u, 3u, 4u);
    if v[zero + 2u] != 3u || v[zero + 4u] != 4u || v[i32(zero) - 1i] != 4u { return redirect(6u); }
    v[zero + 77u] = 9u;
    if v.w != 9u || v.z != 3u { return redirect(7u); }
    // Indices from the packet, as in filters.
    var sum = 0u;
    for (var i = 0u; i < 8u; i++) { sum += table[load_u8(pkt, i)] - table[min(load_u8(pkt, i), 4u)]; }
    if sum != 0u { return redirect(8u); }
    return XDP_PASS;
}
