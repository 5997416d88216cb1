// Dynamic indices into all that a filter can index: arrays, arrays of arrays, vectors, matrices, in
// function and private memory, through a pointer, and into values. Constant ones stay as they are.
struct Table {
    entries: array<vec4<u32>, 3>,
}

var<private> table: Table;
const PRIMES = array<u32, 5>(2u, 3u, 5u, 7u, 11u);

fn pick(from_these: ptr<function, array<u32, 8>>, i: i32) -> u32 {
    return (*from_these)[i];
}

fn xdp_filter(pkt: u32) -> u32 {
    let i = load_u8(pkt, 0u);
    var counts: array<u32, 8>;
    counts[i] = counts[i] + 1u;
    counts[7] = i;
    var grid: array<array<u32, 2>, 6>;
    grid[i][i >> 1u] = PRIMES[i];
    table.entries[i][i & 3u] = 1u;
    var m = mat2x3<f32>(1.0, 2.0, 3.0, 4.0, 5.0, 6.0);
    let column = m[i];
    let part = vec4<u32>(1u, 2u, 3u, 4u)[i];
    return counts[i] + grid[5][i] + table.entries[2][i] + u32(column[i]) + part + pick(&counts, i32(i) - 4);
}
