//! Filters with 64-bit integers wherever WGSL allows them.

/// Expressions for `filter_of`, by their type and separated by `;`: each operation with each kind
/// of operand.
const EXPRESSIONS: &[(&str, &str)] = &[
    (
        "u64",
        "
        x + y; x - y; y - x; x * y; x / y; y / x; x % y; y % x; x + 1lu; 1lu - x; x * 10lu;
        x / 10lu; x % 1000000007lu; ~x; x & y; x | y; x ^ y; x << w; x >> w; x << 63u; x >> 63u;
        x << 32u; x >> 32u; x << 0u; x >> (w & 0u); x << 1u >> 1u; select(x, y, b);
        select(y, x, x < y); u64(w); u64(s); u64(b); u64(f); u64(i); u64(x); u64(i64(f)); v.x; v[0];
        v[w]; v[s]; v[x]; v[i]; t[w % 3u]; (v + v)[w]; vec2<u64>(x, y)[w & 1u];
        array<u64, 2>(x, y)[w]; abs(x); min(x, y); max(x, y); clamp(x, y, x + 5lu);
        clamp(y, 3lu, x); dot(v, v); dot(t, t); countOneBits(x); countLeadingZeros(x);
        countTrailingZeros(x); firstLeadingBit(x); firstTrailingBit(x); reverseBits(x);
        extractBits(x, w, 5u); extractBits(x, 3u, w); extractBits(x, w, w); insertBits(x, y, w, 5u);
        insertBits(x, y, 3u, w); insertBits(x, y, w, w); 0lu; 18446744073709551615lu; u64();
        0x123456789abcdeflu; p.wide; p.pair.y; a[w].pair[s]; a[x].wide
        ",
    ),
    (
        "i64",
        "
        i + j; i - j; i * j; i / j; j / i; i % j; j % i; -i; ~i; i & j; i | j; i ^ j; i << w;
        i >> w; i >> 63u; i / -1li; i % -1li; i * -3li; select(i, j, i < j); i64(w); i64(s); i64(b);
        i64(f); i64(x); i64(-f); q.w; q[s]; q[j]; abs(i); sign(i); min(i, j); max(i, j);
        clamp(i, j, i); clamp(i, -5li, 5li); dot(q, q); countOneBits(i); countLeadingZeros(i);
        countTrailingZeros(i); firstLeadingBit(i); firstTrailingBit(i); reverseBits(i);
        extractBits(i, 3u, w); extractBits(i, w, 7u); insertBits(i, j, 3u, w);
        -9223372036854775807li - w64; p.narrow.x; i64()
        ",
    ),
    (
        "bool",
        "
        x == y; x != y; x < y; x <= y; x > y; x >= y; x == x; x <= x; i == j; i != j; i < j; i <= j;
        i > j; i >= j; i < 0li; all(v == v); any(q < q.wzyx); all(t != t); any(v > v.yx); bool(x);
        bool(i); x < y && i < j; !(x < y) || b
        ",
    ),
    ("u32", "u32(x); u32(i); u32(x >> 32u); w << u32(x); select(w, 3u, x > y); c[x]; c[i]"),
    ("i32", "i32(x); i32(i); i32(i >> w)"),
    ("f32", "f32(x); f32(i); f32(-i); f32(x >> w); f32(i >> w)"),
    (
        "vec2<u64>",
        "
        v + v; v - v.yx; v * v; v + 1lu; 1lu + v; v * x; x * v; v / v.yx; v / x; v % v.yx; x % v;
        ~v; v & v.yx; v | v; v << c; v >> c; select(v, v.yx, b); select(v, v.yx, m);
        select(v, v.yx, v < v.yx); vec2<u64>(c); vec2<u64>(m); vec2<u64>(vec2<f32>(c));
        vec2<u64>(x, y); v.yx; v.xx; min(v, v.yx); clamp(v, v.yx, v); countOneBits(v);
        firstTrailingBit(v); extractBits(v, w, w); insertBits(v, v.yx, w, w);
        array<vec2<u64>, 2>(v, v.yx)[1]; array<vec2<u64>, 2>(v, v.yx)[w]; vec2<u64>();
        vec2<u64>(5lu, 6lu); t.zx
        ",
    ),
    (
        "vec3<u64>",
        "
        t - t.zyx; t ^ t; vec3<u64>(x); vec3<u64>(x, v); vec3<u64>(v, x); vec3<u64>();
        vec3<u64>(1lu); t.yzx; max(t, t.zyx)
        ",
    ),
    ("vec4<u64>", "vec4<u64>(v, v); vec4<u64>(v, x, y); vec4<u64>(x, t); v.xxyy; vec4<u64>(q)"),
    ("vec2<i64>", "vec2<i64>(c); vec2<i64>(v); q.wx; p.narrow; sign(q.xy)"),
    (
        "vec4<i64>",
        "
        q + q; q / q.yzwx; q % q.wzyx; q * i; -q; ~q; q | q.yxwz; q.wzyx; q.xyz.zyxx;
        vec4<i64>(1li, 2li, 3li, -4li); abs(q); sign(q); max(q, q.yxwz); clamp(q, q.yxwz, q);
        countTrailingZeros(q); firstLeadingBit(q); reverseBits(q)
        ",
    ),
    ("vec2<bool>", "v == v.yx; v < v.yx; v >= v.yx; vec2<bool>(v)"),
    ("vec4<bool>", "q != q.yxwz; q <= q.yxwz"),
    ("vec2<u32>", "vec2<u32>(v); c << vec2<u32>(v)"),
    ("vec4<i32>", "vec4<i32>(q)"),
    ("vec2<f32>", "vec2<f32>(v)"),
];

/// The expressions of the corpus, with their types.
pub(super) fn expressions() -> impl Iterator<Item = (&'static str, &'static str)> {
    EXPRESSIONS.iter().flat_map(|&(ty, all)| all.split(';').map(move |expression| (ty, expression.trim())))
}

/// Complete filters, for language constructs other than expressions.
pub(super) const FILTERS: &[&str] = &[
    // Constants of the module and of the function, and expressions of them.
    "const A = 0x123456789lu; const B: i64 = -5li; const C = vec2<u64>(A, 7lu); const D = array<u64, 3>(A, A, 1lu);
     const E = vec4<u64>(C, C); const F = vec3<i64>(B); const G = array<vec2<u64>, 2>(C, vec2<u64>());
     const H = C.y; const I = u64(4294967296lu); const J = i64(A);
     fn xdp_filter(pkt: u32) -> u32 {
        const here = E.wzyx;
        var d = D; var g = G; var e = E; var z = array<vec3<u64>, 2>();
        let k = load_u8(pkt, 0u);
        let sum = d[k] + g[k].y + e[k] + C.y + u64(F.z) + here.x + H + I + u64(B) + u64(J) + z[k].x;
        return u32(sum % 5lu);
     }",
    // Initialised variables, private and local.
    "var<private> p: u64 = 7lu; var<private> q: vec3<i64> = vec3<i64>(1li, 2li, 3li); var<private> r: array<i64, 4>;
     var<private> s: vec2<u64> = vec2<u64>(vec2<u64>(1lu, 2lu));
     fn xdp_filter(pkt: u32) -> u32 {
        var a: u64; var b: u64 = 9lu; var c = vec2<u64>(1lu, 2lu); var d: vec4<u64>;
        for (var k = 0u; k < 4u; k++) { var inside: i64; inside += i64(k); r[k] += inside; var fresh = 5lu; a += fresh; }
        p += a; q.y -= r[1]; q[load_u8(pkt, 0u)] = -q.z; s.x <<= 3u; d = vec4<u64>(c, s);
        b ^= p; c[b & 1lu] = d.w;
        return u32(b + c.x);
     }",
    // Functions: arguments, results, pointers, nested calls.
    "fn two(a: u64, b: i64) -> vec2<u64> { return vec2<u64>(a, u64(b)); }
     fn by(p: ptr<function, u64>, n: u64) { *p = *p * n; }
     fn swap(p: ptr<function, vec2<u64>>) { let t = (*p).x; (*p).x = (*p).y; (*p).y = t; }
     fn fill(p: ptr<function, array<i64, 4>>) { for (var i = 0; i < 4; i++) { (*p)[i] = i64(i) - 2li; } }
     fn nothing() -> i64 { return 0li; }
     fn xdp_filter(pkt: u32) -> u32 {
        var a = u64(load_be32(pkt, 0u));
        by(&a, 3lu); by(&a, two(a, nothing() - 4li).y);
        var v = two(a, i64(a)); swap(&v);
        var f: array<i64, 4>; fill(&f);
        nothing();
        return u32(v.x) + u32(f[a % 4lu]);
     }",
    // Structs and arrays of them, by value and by pointer.
    "struct Flow { key: u64, count: u32, pair: vec2<i64> }
     struct Table { flows: array<Flow, 3>, sum: vec3<u64>, last: Flow }
     var<private> table: Table;
     fn make(k: u64) -> Flow { return Flow(k, u32(k), vec2<i64>(i64(k))); }
     var<private> one: Flow;
     fn bump(f: ptr<private, Flow>) { (*f).count += 1u; (*f).key ^= 0xff00ff00ff00ff00lu; }
     fn xdp_filter(pkt: u32) -> u32 {
        let n = load_u8(pkt, 3u) % 3u;
        table.flows[n] = make(u64(load_be32(pkt, 4u)) << 20u);
        table.last = table.flows[0];
        table.sum[n] = table.last.key;
        bump(&one); table.last = one;
        let copy = table;
        var all = table.flows;
        all[n].pair.y = i64(copy.sum.z);
        let p = &all[n];
        (*p).key = 1lu;
        return u32(all[n].pair[n & 1u]) + u32(copy.last.key) + (*p).count;
     }",
    // Control flow.
    "fn xdp_filter(pkt: u32) -> u32 {
        var n = u64(load_be32(pkt, 0u)); var steps = 0lu;
        while n != 1lu && steps < 50lu { if n % 2lu == 0lu { n /= 2lu; } else { n = 3lu * n + 1lu; } steps++; }
        loop { if steps == 0lu { break; } continuing { steps -= 1lu; break if n > steps; } }
        switch u32(steps) { case 1u, 2u: { n = 5lu; } case 3u { return XDP_TX; } default: { n -= 1lu; } }
        for (var i: i64 = 10li; i >= 0li; i -= 3li) { if i < 4li { continue; } n += u64(i); }
        if n > 3lu || (steps < 2lu && n != 1lu) { return XDP_DROP; } else if n == 2lu { return XDP_TX; }
        { let n = 8lu; if bool(n) { return u32(n); } }
        return XDP_PASS;
     }",
    // 64-bit integers as indices and shift counts.
    "fn xdp_filter(pkt: u32) -> u32 {
        let k = u64(load_u8(pkt, 0u)); let s = i64(k) - 3li;
        var a = array<u32, 8>(1, 2, 3, 4, 5, 6, 7, 8); var v = vec4<u32>(1, 2, 3, 4); let f = vec4<f32>(1.0);
        a[k] = v[s]; v[k] = a[s];
        return a[k] + v[s] + u32(f[k]);
     }",
    // Calls of the prelude.
    "fn load_be64(pkt: u32, off: u32) -> u64 {
        return (u64(load_be32(pkt, off)) << 32u) | u64(load_be32(pkt, off + 4u));
     }
     fn store_be64(pkt: u32, off: u32, v: u64) { store_be32(pkt, off, u32(v >> 32u)); store_be32(pkt, off + 4u, u32(v)); }
     fn xdp_filter(pkt: u32) -> u32 {
        let t = pkt_time(pkt);
        let now = u64(t.x) | (u64(t.y) << 32u);
        store_be64(pkt, 6u, load_be64(pkt, 0u) * 6364136223846793005lu + now);
        if adjust_tail(pkt, i32(now % 64lu)) { return redirect(u32(now >> 60u)); }
        return XDP_PASS;
     }",
    // Operations on constants, which the front end does not evaluate.
    "const A = 12345678901lu; const C = vec2<u64>(A, 5lu);
     fn xdp_filter(pkt: u32) -> u32 {
        var a = 3lu * 4lu; var b = 1lu << 40u; var c = C * 3lu; var d = (C * C).y; var e = array<u64, 2>(A * A, 1lu);
        var f = 5lu == 6lu; var g = vec2<u64>(1lu, 2lu).y; var h = select(1lu, 2lu, 3lu < 4lu); var i = A / 7lu;
        for (var n = 0lu; n < 3lu * 2lu; n++) { var fresh = 7lu * 9lu; fresh += n; i += fresh; }
        return 1u + u32((a + b + c.x + d + e[1] + u64(f) + g + h + i) % 3lu);
     }",
    // A single conversion or literal.
    "fn xdp_filter(pkt: u32) -> u32 { return u32(u64(load_u8(pkt, 0u))); }",
    "fn xdp_filter(pkt: u32) -> u32 { let unused = 5lu; return XDP_PASS; }",
    "const UNUSED: u64 = 5lu; fn xdp_filter(pkt: u32) -> u32 { return XDP_PASS; }",
];
