// A bit of everything that a filter may contain.
diagnostic(off, derivative_uniformity);
alias word = u32;
struct Pair { @align(8) low: u32, high: u32 }
struct Nested { pairs: array<Pair, 2>, flag: bool }
const TABLE = array<u32, 4>(1u, 2u, 3u, 5u);
const MASK: u32 = (1u << 4u) - 1u;
override limit: u32 = 7u;
override on: bool = true;
@id(3) override delta: i32 = -2;
var<private> seen: array<u32, 8>;
var<private> total: u64;
const_assert MASK == 15u;

@must_use
fn sum(p: u32, at: u32) -> vec2<u32> {
    var acc = vec2<u32>();
    for (var i = 0u; i < 8u; i++) {
        if i == limit { continue; }
        acc.x += load_u8(p, at + i);
        acc.y = max(acc.y, load_be16(p, at + i * 2u)) % 255u;
        seen[i & 7u] ^= acc.x;
    }
    return acc;
}

fn bump(place: ptr<function, u32>, by: u32) { *place += by; }

fn xdp_filter(pkt: u32) -> u32 {
    var n = Nested();
    let s = sum(pkt, 14u).yx;
    n.pairs[s.x & 1u].high = TABLE[s.y];
    total = u64(s.x) * 3lu + u64(pkt_time(pkt).x) / 1000lu;
    var count: word = 0u;
    loop {
        bump(&count, 1u);
        if count > MASK { break; }
        continuing { seen[0] = count; break if count == limit; }
    }
    while count > 2u && on { count -= 2u; }
    switch count {
        case 0u, 1u: { store_be16(pkt, 0u, u32(total)); }
        case 2u { n.flag = all(vec2<bool>(true, s.x > 3u)) || any(s == vec2(1u)); }
        default { return redirect(count); }
    }
    let f = f32(s.x) * 0.5 + sqrt(abs(f32(delta)));
    if n.flag && !adjust_tail(pkt, delta) || bitcast<i32>(s.x) >> 1u < select(-1i, 4i, f > 2.0) {
        return XDP_DROP;
    } else if (countOneBits(s.x) + extractBits(s.y, 2u, 3u)) == unpack4xU8(s.x).z {
        return XDP_TX;
    }
    return XDP_PASS;
}
