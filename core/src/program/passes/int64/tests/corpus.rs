//! Filters with 64-bit integers in every place where WGSL lets them stand.

/// Expressions for `filter_of`, one for each operation and each kind of operand.
pub(super) const EXPRESSIONS: &[&str] = &[
    // arithmetic
    "x + y",
    "i + j",
    "v + v",
    "q + q",
    "v + 1lu",
    "1lu + v",
    "x - y",
    "i - j",
    "v - v",
    "t - t",
    "x * y",
    "i * j",
    "v * v",
    "v * x",
    "x * v",
    "q * i",
    "x / y",
    "i / j",
    "v / v",
    "q / q",
    "v / x",
    "x % y",
    "i % j",
    "v % v",
    "q % q",
    "x % v",
    "-i",
    "-q",
    "~x",
    "~i",
    "~v",
    "~q",
    "x & y",
    "i & j",
    "v & v",
    "x | y",
    "q | q",
    "x ^ y",
    "t ^ t",
    "x << w",
    "i << w",
    "x >> w",
    "i >> w",
    "v << c",
    "v >> c",
    "x << 63u",
    "i >> 63u",
    // comparisons
    "x == y",
    "x != y",
    "x < y",
    "x <= y",
    "x > y",
    "x >= y",
    "i == j",
    "i != j",
    "i < j",
    "i <= j",
    "i > j",
    "i >= j",
    "v == v",
    "q != q",
    "v < v",
    "q <= q",
    "t > t",
    "q >= q",
    "all(v == v)",
    "any(q < q)",
    "all(t != t)",
    // choice
    "select(x, y, b)",
    "select(v, v, b)",
    "select(v, v, m)",
    "select(i, j, i < j)",
    // conversions
    "u64(w)",
    "u64(s)",
    "u64(b)",
    "u64(f)",
    "u64(i)",
    "u64(x)",
    "i64(w)",
    "i64(s)",
    "i64(b)",
    "i64(f)",
    "i64(x)",
    "u32(x)",
    "u32(i)",
    "i32(x)",
    "i32(i)",
    "bool(x)",
    "bool(i)",
    "f32(x)",
    "f32(i)",
    "vec2<u64>(c)",
    "vec2<i64>(c)",
    "vec2<u64>(m)",
    "vec2<f32>(v)",
    "vec2<u32>(v)",
    "vec4<i32>(q)",
    "vec2<bool>(v)",
    "vec2<i64>(v)",
    "vec4<u64>(q)",
    "vec2<u64>(vec2<f32>(c))",
    "vec4<f32>(q)",
    // composition
    "vec2<u64>(x, y)",
    "vec3<u64>(x)",
    "vec4<u64>(v, v)",
    "vec4<u64>(v, x, y)",
    "vec3<u64>(x, v)",
    "vec3<u64>()",
    "vec4<i64>(1li, 2li, 3li, -4li)",
    "u64()",
    "i64()",
    "array<u64, 2>(x, y)",
    "array<vec2<u64>, 2>(v, v)[1]",
    // access
    "v.x",
    "v.yx",
    "v.xxyy",
    "q.wzyx",
    "q.xyz.zy",
    "v[0]",
    "v[w]",
    "q[s]",
    "t[w % 3u]",
    "(v + v)[w]",
    // built-in functions
    "abs(x)",
    "abs(i)",
    "abs(q)",
    "sign(i)",
    "sign(q)",
    "min(x, y)",
    "min(i, j)",
    "min(v, v)",
    "max(x, y)",
    "max(i, j)",
    "max(q, q)",
    "clamp(x, y, x)",
    "clamp(i, j, i)",
    "clamp(v, v, v)",
    "clamp(q, q, q)",
    "dot(v, v)",
    "dot(q, q)",
    "dot(t, t)",
    "countOneBits(x)",
    "countOneBits(i)",
    "countOneBits(v)",
    "countLeadingZeros(x)",
    "countLeadingZeros(i)",
    "countTrailingZeros(x)",
    "countTrailingZeros(q)",
    "firstLeadingBit(x)",
    "firstLeadingBit(i)",
    "firstLeadingBit(q)",
    "firstTrailingBit(x)",
    "firstTrailingBit(v)",
    "reverseBits(x)",
    "reverseBits(q)",
    "extractBits(x, w, 5u)",
    "extractBits(i, 3u, w)",
    "extractBits(v, w, w)",
    "insertBits(x, y, w, 5u)",
    "insertBits(i, j, 3u, w)",
    "insertBits(v, v, w, w)",
    // literals
    "0lu",
    "18446744073709551615lu",
    "-9223372036854775807li - 1li",
];

/// Whole filters, for everything that is not an expression.
pub(super) const FILTERS: &[&str] = &[
    // constants, of the module and of the function, and what is made of them
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
    // variables with initial values, private and local
    "var<private> p: u64 = 7lu; var<private> q: vec3<i64> = vec3<i64>(1li, 2li, 3li); var<private> r: array<i64, 4>;
     var<private> s: vec2<u64> = vec2<u64>(vec2<u64>(1lu, 2lu));
     fn xdp_filter(pkt: u32) -> u32 {
        var a: u64; var b: u64 = 9lu; var c = vec2<u64>(1lu, 2lu); var d: vec4<u64>;
        for (var k = 0u; k < 4u; k++) { var inside: i64; inside += i64(k); r[k] += inside; var fresh = 5lu; a += fresh; }
        p += a; q.y -= r[1]; q[load_u8(pkt, 0u)] = -q.z; s.x <<= 3u; d = vec4<u64>(c, s);
        b ^= p; c[b & 1lu] = d.w;
        return u32(b + c.x);
     }",
    // functions: arguments, results, pointers, nested calls
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
    // structs and arrays of them, by value and by pointer
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
    // control flow
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
    // 64-bit integers as indices and shift counts
    "fn xdp_filter(pkt: u32) -> u32 {
        let k = u64(load_u8(pkt, 0u)); let s = i64(k) - 3li;
        var a = array<u32, 8>(1, 2, 3, 4, 5, 6, 7, 8); var v = vec4<u32>(1, 2, 3, 4); let f = vec4<f32>(1.0);
        a[k] = v[s]; v[k] = a[s];
        return a[k] + v[s] + u32(f[k]);
     }",
    // the prelude around them
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
    // nothing but a conversion, and nothing but a literal
    "fn xdp_filter(pkt: u32) -> u32 { return u32(u64(load_u8(pkt, 0u))); }",
    "fn xdp_filter(pkt: u32) -> u32 { let unused = 5lu; return XDP_PASS; }",
    "const UNUSED: u64 = 5lu; fn xdp_filter(pkt: u32) -> u32 { return XDP_PASS; }",
];
