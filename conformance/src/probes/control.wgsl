// Switches, loops with a continuing block, and every way to leave them.
// probe: expect=pass

fn classify(value: u32) -> u32 {
    var result = 0u;
    switch value {
        case 1u, 3u, 5u: { result = 10u; }
        default: { result = 20u; }
        case 2u: {
            if value == 2u { result = 30u; break; }
            result = 31u;
        }
        case 0xffffffffu: { return 40u; }
    }
    return result + 1u;
}

fn signed_switch(value: i32) -> u32 {
    switch value {
        case -1i: { return 1u; }
        case 0i, default: { return 2u; }
        case 2147483647i: { return 3u; }
    }
}

// The Collatz sequence; `continue` runs the continuing block.
fn steps(start: u32) -> u32 {
    var n = start;
    var count = 0u;
    loop {
        if n == 1u { break; }
        if (n & 1u) == 0u {
            n = n / 2u;
            continue;
        }
        n = 3u * n + 1u;
        continuing { count++; }
    }
    return count;
}

fn nested(zero: u32) -> u32 {
    var trace = 0u;
    for (var i = zero; i < 4u; i++) {
        for (var j = zero; ; j++) {
            switch (i + j) % 4u {
                case 0u: { continue; }
                case 1u: { trace += 1u; }
                case 2u: { trace += 10u; break; }
                default: { trace += 100u; }
            }
            if j >= 3u { break; }
            if trace > 100000u { return 0u; }
        }
        trace *= 3u;
    }
    return trace;
}

fn first_multiple(factor: u32, from_value: u32) -> u32 {
    var n = from_value;
    loop {
        continuing {
            n++;
            break if n % factor == 0u;
        }
    }
    return n;
}

fn xdp_filter(pkt: u32) -> u32 {
    let zero = load_u8(pkt, 0xffffffffu);
    if classify(zero + 1u) != 11u || classify(zero + 5u) != 11u || classify(zero) != 21u { return redirect(1u); }
    if classify(zero + 2u) != 31u || classify(zero - 1u) != 40u { return redirect(2u); }
    if signed_switch(i32(zero) - 1i) != 1u || signed_switch(i32(zero) - 2i) != 2u || signed_switch(2147483647i - i32(zero)) != 3u {
        return redirect(3u);
    }
    if steps(zero + 27u) != 111u || steps(zero + 1u) != 0u { return redirect(4u); }
    if nested(zero) != 13347u { return redirect(5u); }
    if first_multiple(zero + 7u, 100u) != 105u || first_multiple(zero + 1u, 5u) != 6u { return redirect(6u); }
    while zero == 0u {
        if pkt_len(pkt) < 20u { return XDP_PASS; }
        break;
    }
    return XDP_PASS;
}
