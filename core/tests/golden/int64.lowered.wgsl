const MULTIPLIER: vec2<u32> = vec2<u32>(1284865837u, 1481765933u);
var<private> pc_fuel: u32 = 32768u;
var<private> pc_aborted: bool = false;
var<private> pc_saved_length: u32 = 0u;
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

    let _e28 = load_be64_(pkt_2, 0u);
    seed = _e28;
    loop {
        let _e30 = pc_fuel;
        if (_e30 == 0u) {
            let _e32 = pc_aborted;
            if !(_e32) {
                pc_aborted = true;
                let _e34 = pc_length;
                let _e35 = pc_offset;
                pc_saved_length = _e34;
                pc_length = 0u;
                pc_first = _e35;
                pc_last = _e35;
            }
            break;
        }
        pc_fuel = (_e30 - 1u);
        let _e37 = i;
        if (_e37 < 4u) {
        } else {
            break;
        }
        {
            let _e39 = seed;
            let _e40 = pc_u64_mul(_e39, MULTIPLIER);
            let _e41 = pc_u64_add(_e40, vec2<u32>(1u, 0u));
            seed = _e41;
            let _e42 = i;
            let _e46 = sums[min((_e42 & 1u), 1u)];
            let _e47 = seed;
            let _e48 = pc_u64_shr(_e47, 33u);
            let _e49 = pc_u64_add(_e46, _e48);
            sums[min((_e42 & 1u), 1u)] = _e49;
        }
        continuing {
            let _e50 = i;
            i = (_e50 + 1u);
        }
    }
    let _e53 = sums[0];
    let _e55 = sums[1];
    let _e56 = pc_i64_less(_e53, _e55);
    if _e56 {
        return XDP_DROP;
    }
    let _e57 = seed;
    let _e58 = pc_u64_mod(_e57, vec2<u32>(5u, 0u));
    return _e58.x;
}
@compute @workgroup_size(64, 1, 1)
fn main(@builtin(global_invocation_id) invocation: vec3<u32>) {
    pc_enter(invocation.x);
    let _e4 = xdp_filter(invocation.x);
    let _e5 = pc_verdict(_e4);
    let _e10 = pc_aborted;
    if _e10 {
        let _e12 = pc_saved_length;
        pc_length = _e12;
    }
    pc_leave(invocation.x);
    pc_arena[invocation.x] = select(_e5, 0u, _e10);
    return;
}
