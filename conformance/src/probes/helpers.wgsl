// Helper functions: early returns, results through pointers, and evaluation order, which side
// effects make visible.
// probe: expect=pass

var<private> trace: u32;

fn mark(digit: u32) -> u32 {
    trace = trace * 10u + digit;
    return digit;
}

fn truth(digit: u32, answer: bool) -> bool {
    trace = trace * 10u + digit;
    return answer;
}

fn band(value: u32) -> u32 {
    if value < 10u {
        if value < 5u { return 1u; }
        if value == 7u { return 2u; }
    } else if value > 1000u {
        return 3u;
    }
    for (var i = 0u; i < 20u; i++) {
        if i * i > value { return 100u + i; }
        switch i {
            case 15u: { return 4u; }
            default: {}
        }
    }
    return 5u;
}

fn add_to(sum: ptr<function, u32>, value: u32) -> bool {
    if value == 0u { return false; }
    *sum += value;
    return true;
}

fn no_result(sum: ptr<function, u32>) {
    if *sum > 10u { return; }
    *sum = 11u;
}

fn gcd(a: u32, b: u32) -> u32 {
    var x = a;
    var y = b;
    while y != 0u {
        let rest = x % y;
        x = y;
        y = rest;
    }
    return x;
}

fn twice(value: u32) -> u32 { return gcd(value, 0u) + gcd(0u, value); }

fn xdp_filter(pkt: u32) -> u32 {
    let zero = load_u8(pkt, 0xffffffffu);
    if band(zero) != 1u || band(zero + 7u) != 2u || band(zero + 1001u) != 3u || band(zero + 999u) != 4u { return redirect(1u); }
    if band(zero + 8u) != 103u || band(zero + 10u) != 104u || band(zero + 224u) != 115u || band(zero + 225u) != 4u { return redirect(2u); }
    var sum = zero;
    if add_to(&sum, zero) || !add_to(&sum, 4u) || sum != 4u { return redirect(3u); }
    no_result(&sum);
    no_result(&sum);
    if sum != 11u { return redirect(4u); }
    if gcd(zero + 84u, 36u) != 12u || twice(zero + 21u) != 42u { return redirect(5u); }

    trace = zero;
    let ordered = mark(1u) + mark(2u) * mark(3u);
    if ordered != 7u || trace != 123u { return redirect(6u); }
    trace = zero;
    // The right operand is evaluated only if the left one does not decide.
    if (truth(1u, false) && truth(2u, true)) || truth(3u, true) || truth(4u, true) { trace = trace * 10u + 9u; }
    if trace != 139u { return redirect(7u); }
    trace = zero;
    if truth(1u, true) && (truth(2u, false) || truth(3u, false)) { return redirect(8u); }
    if trace != 123u { return redirect(9u); }
    trace = zero;
    let both = truth(1u, false) & truth(2u, true);
    if both || trace != 12u { return redirect(10u); }
    return XDP_PASS;
}
