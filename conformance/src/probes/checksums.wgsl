// The checksum helpers, compared with sums over all words (RFC 1071, RFC 1624).
// probe: expect=pass

// The header checksum of RFC 1071 over ten words, of which the one at `skip` counts as zero.
fn slow(words: ptr<function, array<u32, 10>>, skip: u32) -> u32 {
    var sum = 0u;
    for (var i = 0u; i < 10u; i++) {
        if i != skip { sum += (*words)[i]; }
    }
    while sum > 0xffffu { sum = (sum & 0xffffu) + (sum >> 16u); }
    return sum ^ 0xffffu;
}

fn xdp_filter(pkt: u32) -> u32 {
    let zero = load_u8(pkt, 0xffffffffu);
    if csum_add(zero + 0xffffffffu, 1u) != 1u || csum_add(zero + 0xfffffff0u, 0x20u) != 0x11u { return redirect(1u); }
    if csum_add(zero + 5u, 6u) != 11u || csum_add(zero + 0xffffffffu, 0xffffffffu) != 0xffffffffu { return redirect(2u); }
    if csum_fold(zero + 0x12345678u) != 0x68acu || csum_fold(zero + 0xffffffffu) != 0xffffu { return redirect(3u); }
    if csum_fold(zero + 0xffff0001u) != 1u || csum_fold(zero + 0x1fffeu) != 0xffffu || csum_fold(zero) != 0u { return redirect(4u); }
    // The example of RFC 1624, section 4.
    if csum_replace16(zero + 0xdd2fu, 0x5555u, 0x3285u) != 0u { return redirect(5u); }

    // A header made of the packet's first bytes, never all zero; its words are updated one by one.
    var words: array<u32, 10>;
    for (var i = 0u; i < 10u; i++) { words[i] = load_be16(pkt, 2u * i) | (4u >> i); }
    let before = slow(&words, 5u);
    let old_word = words[4];
    words[4] = (old_word * 7u + 1u) & 0xffffu;
    if csum_replace16(before, old_word, words[4]) != slow(&words, 5u) { return redirect(6u); }
    let between = slow(&words, 5u);
    let old_pair = (words[8] << 16u) | words[9];
    words[8] ^= 0xff01u;
    words[9] = (words[9] + 0x8001u) & 0xffffu;
    if csum_replace32(between, old_pair, (words[8] << 16u) | words[9]) != slow(&words, 5u) { return redirect(7u); }
    return XDP_PASS;
}
