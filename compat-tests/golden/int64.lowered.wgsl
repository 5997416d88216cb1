const MULTIPLIER: vec2<u32> = vec2<u32>(1284865837u, 1481765933u);
fn load_be64_(pkt_1: u32, off_2: u32) -> vec2<u32> {
    let _e4 = load_be32_(pkt_1, off_2);
    let _e7 = pc_u64_shl(vec2<u32>(_e4, 0u), 32u);
    let _e9 = load_be32_(pkt_1, (off_2 + 4u));
    return (_e7 | vec2<u32>(_e9, 0u));
}
fn xdp_filter(pkt_2: u32) -> u32 {
    var seed: vec2<u32>;
    var sums: array<vec2<u32>, 2> = array<vec2<u32>, 2>(vec2<u32>(0u, 0u), vec2<u32>(4294967295u, 4294967295u));
    var i: u32 = 0u;

    let _e18 = load_be64_(pkt_2, 0u);
    seed = _e18;
    loop {
        let _e20 = i;
        if (_e20 < 4u) {
        } else {
            break;
        }
        {
            let _e22 = seed;
            let _e23 = pc_u64_mul(_e22, MULTIPLIER);
            let _e24 = pc_u64_add(_e23, vec2<u32>(1u, 0u));
            seed = _e24;
            let _e25 = i;
            let _e29 = sums[min((_e25 & 1u), 1u)];
            let _e30 = seed;
            let _e31 = pc_u64_shr(_e30, 33u);
            let _e32 = pc_u64_add(_e29, _e31);
            sums[min((_e25 & 1u), 1u)] = _e32;
        }
        continuing {
            let _e33 = i;
            i = (_e33 + 1u);
        }
    }
    let _e36 = sums[0];
    let _e38 = sums[1];
    let _e39 = pc_i64_less(_e36, _e38);
    if _e39 {
        return XDP_DROP;
    }
    let _e40 = seed;
    let _e41 = pc_u64_mod(_e40, vec2<u32>(5u, 0u));
    return _e41.x;
}
@compute @workgroup_size(64, 1, 1)
fn main(@builtin(global_invocation_id) invocation: vec3<u32>) {
    pc_enter(invocation.x);
    let _e4 = xdp_filter(invocation.x);
    let _e5 = pc_verdict(_e4);
    pc_arena[invocation.x] = _e5;
    return;
}
