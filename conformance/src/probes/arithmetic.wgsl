// 32-bit integer operations on extreme values. Operands depend on a load that always gives 0, so
// that no compiler folds the results.
// probe: expect=pass

fn signed(zero: i32) -> u32 {
    let lowest = zero + (-2147483647i - 1i);
    let minus = zero - 1i;
    if lowest / minus != lowest { return 1u; }
    if lowest % minus != 0i { return 2u; }
    if (zero + 7i) / zero != 7i { return 3u; }
    if (zero - 7i) / zero != -7i { return 4u; }
    if (zero + 7i) % zero != 0i { return 5u; }
    if (zero - 7i) / 2i != -3i || (zero - 7i) % 2i != -1i { return 6u; }
    if (zero + 7i) / (minus - 1i) != -3i || (zero + 7i) % (minus - 1i) != 1i { return 7u; }
    if (zero - 7i) % (minus - 2i) != -1i { return 8u; }
    if lowest - 1i != 2147483647i || (zero + 2147483647i) + 1i != lowest { return 9u; }
    if -lowest != lowest || abs(lowest) != lowest { return 10u; }
    if lowest * minus != lowest { return 11u; }
    if (zero - 8i) >> 1u != -4i { return 12u; }
    if (zero - 8i) >> u32(zero + 33i) != -4i { return 13u; }
    if (zero + 1i) << u32(zero + 31i) != lowest { return 14u; }
    if minus >> 31u != -1i { return 15u; }
    if !(minus < zero) || !(lowest < minus) || minus > zero { return 16u; }
    if max(minus, zero) != 0i || min(minus, zero) != -1i { return 17u; }
    if clamp(zero - 5i, -3i, 3i) != -3i { return 18u; }
    if sign(zero - 9i) != -1i || sign(zero) != 0i || sign(zero + 3i) != 1i { return 19u; }
    if u32(minus) != 0xffffffffu || bitcast<i32>(0x80000000u + u32(zero)) != lowest { return 20u; }
    return 0u;
}

fn unsigned(zero: u32) -> u32 {
    let ones = zero - 1u;
    if ones != 0xffffffffu || ones + 1u != 0u { return 31u; }
    if (zero + 9u) / zero != 9u || (zero + 9u) % zero != 0u { return 32u; }
    if ones / (zero + 3u) != 0x55555555u || ones % (zero + 10u) != 5u { return 33u; }
    if ones * ones != 1u || (zero + 0x10001u) * (zero + 0x10001u) != 0x20001u { return 34u; }
    if (zero + 1u) << (zero + 32u) != 1u || (zero + 1u) << (zero + 35u) != 8u { return 35u; }
    if ones >> (zero + 64u) != ones || ones >> (zero + 63u) != 1u { return 36u; }
    if (ones ^ 0x0f0f0f0fu) != 0xf0f0f0f0u || ~(zero + 5u) != 0xfffffffau { return 37u; }
    if ones < zero || !(ones > 0x7fffffffu) { return 38u; }
    if min(ones, zero) != 0u || max(ones, zero) != ones { return 39u; }
    return 0u;
}

fn bits(zero: u32) -> u32 {
    if countOneBits(zero + 0xf0f1u) != 9u || countOneBits(zero) != 0u { return 51u; }
    if countLeadingZeros(zero) != 32u || countLeadingZeros(zero + 0x00ff0000u) != 8u { return 52u; }
    if countTrailingZeros(zero) != 32u || countTrailingZeros(zero + 0x00ff0000u) != 16u { return 53u; }
    if firstLeadingBit(zero) != 0xffffffffu || firstLeadingBit(zero + 0x00ff0000u) != 23u { return 54u; }
    if firstTrailingBit(zero) != 0xffffffffu || firstTrailingBit(zero + 0x00ff0000u) != 16u { return 55u; }
    if firstLeadingBit(i32(zero) - 1i) != -1i || firstLeadingBit(i32(zero) - 256i) != 7i { return 56u; }
    if reverseBits(zero + 1u) != 0x80000000u || reverseBits(zero + 0x0000f00eu) != 0x700f0000u { return 57u; }
    if extractBits(zero + 0x12345678u, 8u, 8u) != 0x56u { return 58u; }
    if extractBits(i32(zero) + 0x1234f678i, 8u, 8u) != -10i { return 59u; }
    if extractBits(zero + 0x12345678u, zero + 28u, zero + 99u) != 1u { return 60u; }
    if extractBits(zero + 0x12345678u, zero + 40u, zero + 4u) != 0u { return 61u; }
    if insertBits(zero + 0xffffffffu, zero, 4u, 8u) != 0xfffff00fu { return 62u; }
    if insertBits(zero, zero + 0xffu, zero + 28u, zero + 8u) != 0xf0000000u { return 63u; }
    return 0u;
}

fn xdp_filter(pkt: u32) -> u32 {
    let zero = load_u8(pkt, 0xffffffffu);
    var wrong = signed(i32(zero));
    if wrong == 0u { wrong = unsigned(zero); }
    if wrong == 0u { wrong = bits(zero); }
    if wrong != 0u { return redirect(wrong); }
    return XDP_PASS;
}
