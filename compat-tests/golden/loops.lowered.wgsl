var<private> pc_fuel: u32 = 32768u;
var<private> pc_aborted: bool = false;
var<private> pc_saved_length: u32 = 0u;
fn walk(pkt_1: u32, from_byte: u32) -> u32 {
    var at: u32;

    at = from_byte;
    loop {
        let _e21 = pc_fuel;
        if (_e21 == 0u) {
            let _e24 = pc_aborted;
            if !(_e24) {
                pc_aborted = true;
                let _e26 = pc_length;
                let _e27 = pc_offset;
                pc_saved_length = _e26;
                pc_length = 0u;
                pc_first = _e27;
                pc_last = _e27;
            }
            break;
        }
        pc_fuel = (_e21 - 1u);
        let _e3 = at;
        let _e4 = load_u8_(pkt_1, _e3);
        if (_e4 != 0u) {
        } else {
            break;
        }
        {
            let _e7 = at;
            at = (_e7 + 1u);
        }
    }
    let _e10 = at;
    return _e10;
}
fn xdp_filter(pkt_4: u32) -> u32 {
    var sum: u32 = 0u;
    var i: u32 = 0u;
    var j: u32;
    var round_: u32 = 0u;
    var k: u32;

    loop {
        let _e61 = pc_fuel;
        if (_e61 == 0u) {
            let _e64 = pc_aborted;
            if !(_e64) {
                pc_aborted = true;
                let _e66 = pc_length;
                let _e67 = pc_offset;
                pc_saved_length = _e66;
                pc_length = 0u;
                pc_first = _e67;
                pc_last = _e67;
            }
            break;
        }
        pc_fuel = (_e61 - 1u);
        let _e5 = i;
        let _e6 = pkt_len(pkt_4);
        if (_e5 < _e6) {
        } else {
            break;
        }
        {
            j = 0u;
            loop {
                let _e82 = pc_fuel;
                if (_e82 == 0u) {
                    let _e85 = pc_aborted;
                    if !(_e85) {
                        pc_aborted = true;
                        let _e87 = pc_length;
                        let _e88 = pc_offset;
                        pc_saved_length = _e87;
                        pc_length = 0u;
                        pc_first = _e88;
                        pc_last = _e88;
                    }
                    break;
                }
                pc_fuel = (_e82 - 1u);
                let _e10 = j;
                if (_e10 < 4u) {
                } else {
                    break;
                }
                {
                    let _e13 = j;
                    let _e14 = load_u8_(pkt_4, _e13);
                    if (_e14 == 7u) {
                        continue;
                    }
                    let _e17 = sum;
                    let _e18 = j;
                    sum = (_e17 + _e18);
                }
                continuing {
                    let _e21 = j;
                    j = (_e21 + 1u);
                }
            }
        }
        continuing {
            let _e24 = i;
            i = (_e24 + 1u);
        }
    }
    loop {
        let _e68 = pc_fuel;
        if (_e68 == 0u) {
            let _e71 = pc_aborted;
            if !(_e71) {
                pc_aborted = true;
                let _e73 = pc_length;
                let _e74 = pc_offset;
                pc_saved_length = _e73;
                pc_length = 0u;
                pc_first = _e74;
                pc_last = _e74;
            }
            break;
        }
        pc_fuel = (_e68 - 1u);
        let _e28 = round_;
        switch _e28 {
            case 3u: {
                let _e30 = round_;
                store_u8_(pkt_4, 0u, _e30);
            }
            case 4u: {
                let _e31 = round_;
                let _e32 = walk(pkt_4, _e31);
                return _e32;
            }
            default: {
                let _e33 = round_;
                let _e34 = sum;
                round_ = (_e33 + _e34);
            }
        }
        continuing {
            k = 3u;
            loop {
                let _e75 = pc_fuel;
                if (_e75 == 0u) {
                    let _e78 = pc_aborted;
                    if !(_e78) {
                        pc_aborted = true;
                        let _e80 = pc_length;
                        let _e81 = pc_offset;
                        pc_saved_length = _e80;
                        pc_length = 0u;
                        pc_first = _e81;
                        pc_last = _e81;
                    }
                    break;
                }
                pc_fuel = (_e75 - 1u);
                let _e38 = k;
                if (_e38 > 0u) {
                } else {
                    break;
                }
                {
                    let _e41 = k;
                    k = (_e41 - 1u);
                }
            }
            let _e44 = round_;
            round_ = (_e44 + 1u);
            let _e47 = round_;
            break if (_e47 > 9u);
        }
    }
    return XDP_PASS;
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
    pc_arena[invocation.x] = select(_e5, 0u, _e10);
    return;
}
