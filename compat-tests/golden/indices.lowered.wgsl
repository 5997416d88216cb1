struct Table {
    entries: array<vec4<u32>, 3>,
}
const PRIMES: array<u32, 5> = array<u32, 5>(2u, 3u, 5u, 7u, 11u);
var<private> table: Table;
fn pick(from_these: ptr<function, array<u32, 8>>, i: i32) -> u32 {
    let _e6 = (*from_these)[min(bitcast<u32>(i), 7u)];
    return _e6;
}
fn xdp_filter(pkt_1: u32) -> u32 {
    var counts: array<u32, 8>;
    var grid: array<array<u32, 2>, 6>;
    var m: mat2x3<f32> = mat2x3<f32>(vec3<f32>(1f, 2f, 3f), vec3<f32>(4f, 5f, 6f));

    let _e8 = load_u8_(pkt_1, 0u);
    let _e14 = counts[min(_e8, 7u)];
    counts[min(_e8, 7u)] = (_e14 + 1u);
    counts[7] = _e8;
    grid[min(_e8, 5u)][min((_e8 >> 1u), 1u)] = PRIMES[min(_e8, 4u)];
    table.entries[min(_e8, 2u)][min((_e8 & 3u), 3u)] = 1u;
    let column = m[min(_e8, 1u)];
    let part = vec4<u32>(1u, 2u, 3u, 4u)[min(_e8, 3u)];
    let _e59 = counts[min(_e8, 7u)];
    let _e63 = grid[5][min(_e8, 1u)];
    let _e70 = table.entries[2][min(_e8, 3u)];
    let _e80 = pick((&counts), (i32(_e8) - 4i));
    return (((((_e59 + _e63) + _e70) + u32(column[min(_e8, 2u)])) + part) + _e80);
}
@compute @workgroup_size(64, 1, 1)
fn main(@builtin(global_invocation_id) invocation: vec3<u32>) {
    pc_enter(invocation.x);
    let _e4 = xdp_filter(invocation.x);
    let _e5 = pc_verdict(_e4);
    pc_arena[invocation.x] = _e5;
    return;
}
