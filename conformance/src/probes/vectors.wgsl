// Integer vectors: operations are element-wise, with the special cases of the scalar operations.
// probe: expect=pass

fn xdp_filter(pkt: u32) -> u32 {
    let zero = load_u8(pkt, 0xffffffffu);
    let a = vec4<u32>(1u, 2u, 3u, 4u) + vec4<u32>(zero);
    if any(a * a != vec4<u32>(1u, 4u, 9u, 16u)) { return redirect(1u); }
    if any(a / vec4<u32>(zero, 2u, zero + 5u, 3u) != vec4<u32>(1u, 1u, 0u, 1u)) { return redirect(2u); }
    if any(a % vec4<u32>(zero, 2u, zero + 5u, 3u) != vec4<u32>(0u, 0u, 3u, 1u)) { return redirect(3u); }
    if any((a << vec4<u32>(zero + 32u, zero + 33u, zero, 31u)) != vec4<u32>(1u, 4u, 3u, 0u)) { return redirect(4u); }
    if any(a.wzyx != vec4<u32>(4u, 3u, 2u, 1u)) || any(a.yy != vec2<u32>(2u, 2u)) { return redirect(5u); }
    if a.x != 1u || a.wx.y != 1u || dot(a, a) != 30u || dot(a.xyz, vec3<u32>(1u, 10u, 100u)) != 321u { return redirect(6u); }
    let s = vec3<i32>(-7i, 7i, i32(zero));
    if any(s / 2i != vec3<i32>(-3i, 3i, 0i)) || any(s % vec3<i32>(4i, -4i, i32(zero)) != vec3<i32>(-3i, 3i, 0i)) { return redirect(7u); }
    if any(abs(s) != vec3<i32>(7i, 7i, 0i)) || any(-s != vec3<i32>(7i, -7i, 0i)) || any((s >> vec3<u32>(1u)) != vec3<i32>(-4i, 3i, 0i)) {
        return redirect(8u);
    }
    if any(max(s, vec3<i32>(0i)) != vec3<i32>(0i, 7i, 0i)) || any(clamp(s, vec3<i32>(-1i), vec3<i32>(1i)) != vec3<i32>(-1i, 1i, 0i)) {
        return redirect(9u);
    }
    if any(select(s, vec3<i32>(5i), vec3<bool>(true, false, zero == 0u)) != vec3<i32>(5i, 7i, 5i)) { return redirect(10u); }
    if any(select(s, vec3<i32>(5i), zero != 0u) != s) { return redirect(11u); }
    if all(a > vec4<u32>(1u)) || !any(a > vec4<u32>(3u)) || any(a >= vec4<u32>(5u)) { return redirect(12u); }
    if any(vec4<u32>(vec4<i32>(-1i)) != vec4<u32>(0xffffffffu)) || any(bitcast<vec3<u32>>(s).xy != vec2<u32>(0xfffffff9u, 7u)) {
        return redirect(13u);
    }
    var v = vec4<u32>();
    v.y = zero + 6u;
    v[2] = 7u;
    v += vec4<u32>(1u, 0u, 0u, 2u);
    if any(v != vec4<u32>(1u, 6u, 7u, 2u)) || any((v & a) != vec4<u32>(1u, 2u, 3u, 0u)) || any(~v != vec4<u32>(0xffffffffu) - v) {
        return redirect(14u);
    }
    if any(vec4<u32>(a.xy, v.zw) != vec4<u32>(1u, 2u, 7u, 2u)) || any(!(vec2<bool>(zero == 0u, zero == 1u)) != vec2<bool>(false, true)) {
        return redirect(15u);
    }
    if any(countOneBits(a) != vec4<u32>(1u, 1u, 2u, 1u)) || any(firstLeadingBit(a) != vec4<u32>(0u, 1u, 1u, 2u)) { return redirect(16u); }
    return XDP_PASS;
}
