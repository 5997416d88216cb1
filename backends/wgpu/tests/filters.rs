//! What filters do on every device, compared with values computed by hand.

mod common;

use common::{devices, program_with, run, run_batch, tcp};
use portcullis_core::packet::{Batch, Verdict};
use portcullis_core::program::ProgramOptions;

#[test]
fn a_filter_that_reads_nothing() {
    for device in devices() {
        let packets = vec![vec![0; 60]; 3];
        let (verdicts, after) = run(&device, "fn xdp_filter(pkt: u32) -> u32 { return XDP_PASS; }", &packets);
        assert_eq!(verdicts, [Verdict::Pass; 3]);
        assert_eq!(after, packets);
    }
}

#[test]
fn ports_select_verdicts() {
    let text = "
        fn xdp_filter(pkt: u32) -> u32 {
            if load_be16(pkt, 12u) != ETH_P_IP || load_u8(pkt, 23u) != IPPROTO_TCP { return XDP_DROP; }
            let port = load_be16(pkt, 14u + (load_u8(pkt, 14u) & 15u) * 4u + 2u);
            if port == 80u || port == 443u { return XDP_PASS; }
            if port > 60000u { return redirect(port - 60000u); }
            return XDP_TX;
        }";
    let packets =
        [tcp(80, 54), tcp(22, 60), tcp(443, 61), tcp(60_007, 1514), vec![0; 54], vec![], tcp(80, 54)[..37].to_vec()];
    let expected = [
        Verdict::Pass,
        Verdict::Tx,
        Verdict::Pass,
        Verdict::Redirect(7),
        Verdict::Drop,
        Verdict::Drop,
        // One byte of the port is missing, so the load gives 0.
        Verdict::Tx,
    ];
    for device in devices() {
        let (verdicts, after) = run(&device, text, &packets);
        assert_eq!(verdicts, expected);
        assert_eq!(after, packets);
    }
}

#[test]
fn invalid_return_values_abort() {
    let text = "fn xdp_filter(pkt: u32) -> u32 { return load_le32(pkt, 0u); }";
    let values: [u32; 8] = [0, 1, 2, 3, 5, 0x102, 0x0000_0904, 0xffff_ff04];
    let expected = [
        Verdict::Aborted,
        Verdict::Drop,
        Verdict::Pass,
        Verdict::Tx,
        Verdict::Aborted,
        Verdict::Aborted,
        Verdict::Redirect(9),
        Verdict::Redirect(0xff_ffff),
    ];
    for device in devices() {
        assert_eq!(run(&device, text, &values.map(|v| v.to_le_bytes().to_vec())).0, expected);
    }
}

/// Each packet holds operands; the results are written after them.
#[test]
fn arithmetic_has_wgsl_semantics() {
    let text = "
        fn xdp_filter(pkt: u32) -> u32 {
            let a = load_le32(pkt, 0u);
            let b = load_le32(pkt, 4u);
            store_le32(pkt, 8u, a / b);
            store_le32(pkt, 12u, a % b);
            store_le32(pkt, 16u, bitcast<u32>(bitcast<i32>(a) / bitcast<i32>(b)));
            store_le32(pkt, 20u, bitcast<u32>(bitcast<i32>(a) % bitcast<i32>(b)));
            store_le32(pkt, 24u, a << b);
            store_le32(pkt, 28u, a >> b);
            store_le32(pkt, 32u, bitcast<u32>(bitcast<i32>(a) >> b));
            let v = vec2<u32>(a, a) << vec2<u32>(b, 3u);
            store_le32(pkt, 36u, v.x ^ v.y);
            return XDP_PASS;
        }";
    let interesting =
        [0u32, 1, 2, 7, 31, 32, 33, 63, 64, 0x7fff_ffff, 0x8000_0000, 0x8000_0001, 0xffff_fffe, 0xffff_ffff];
    let pairs: Vec<(u32, u32)> = interesting.iter().flat_map(|&a| interesting.iter().map(move |&b| (a, b))).collect();
    let packets: Vec<Vec<u8>> = pairs
        .iter()
        .map(|(a, b)| {
            let mut packet = vec![0; 40];
            packet[..4].copy_from_slice(&a.to_le_bytes());
            packet[4..8].copy_from_slice(&b.to_le_bytes());
            packet
        })
        .collect();
    let expected = |a: u32, b: u32| -> [u32; 8] {
        let (sa, sb) = (a as i32, b as i32);
        [
            a.checked_div(b).unwrap_or(a),
            a.checked_rem(b).unwrap_or(0),
            // MIN / -1 wraps to MIN.
            if sb == 0 { a } else { sa.wrapping_div(sb) as u32 },
            if sb == 0 { 0 } else { sa.wrapping_rem(sb) as u32 },
            a << (b % 32),
            a >> (b % 32),
            (sa >> (b % 32)) as u32,
            (a << (b % 32)) ^ (a << 3),
        ]
    };
    for device in devices() {
        let (verdicts, after) = run(&device, text, &packets);
        assert!(verdicts.iter().all(|&v| v == Verdict::Pass));
        for (&(a, b), packet) in pairs.iter().zip(after) {
            let got: Vec<u32> = packet[8..].chunks(4).map(|w| u32::from_le_bytes(w.try_into().unwrap())).collect();
            assert_eq!(got, expected(a, b), "{a:#x} and {b:#x}");
        }
    }
}

#[test]
fn dynamic_indices_are_clamped() {
    let text = "
        fn xdp_filter(pkt: u32) -> u32 {
            var table = array<u32, 5>(10u, 11u, 12u, 13u, 14u);
            let index = load_le32(pkt, 0u);
            let whole = bitcast<i32>(index);
            store_le32(pkt, 4u, table[index] * 100u + table[whole]);
            return XDP_PASS;
        }";
    let indices = [0u32, 4, 5, 1000, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff];
    let packets = indices.map(|i| [i.to_le_bytes(), [0; 4]].concat());
    for device in devices() {
        let (_, after) = run(&device, text, &packets);
        for (index, packet) in indices.into_iter().zip(after) {
            let element = 10 + index.min(4);
            assert_eq!(packet[4..], (element * 101).to_le_bytes(), "{index:#x}");
        }
    }
}

#[test]
fn head_and_tail_move_within_their_room() {
    let text = "
        fn xdp_filter(pkt: u32) -> u32 {
            let how = load_u8(pkt, 0u);
            if how == 0u { if !adjust_head(pkt, 4) { return XDP_DROP; } return XDP_PASS; }
            if how == 1u { if !adjust_head(pkt, -128) { return XDP_DROP; } store_u8(pkt, 1u, 9u); return XDP_PASS; }
            if how == 2u { if !adjust_tail(pkt, 128) { return XDP_DROP; } return XDP_PASS; }
            if how == 3u { if !adjust_head(pkt, -129) { return XDP_TX; } return XDP_PASS; }
            if how == 4u { if !adjust_tail(pkt, -46) { return XDP_DROP; } return XDP_PASS; }
            if !adjust_tail(pkt, -47) { return XDP_TX; }
            return XDP_PASS;
        }";
    let packets: Vec<Vec<u8>> = (0..6u8).map(|how| (0..60u8).map(|i| if i == 0 { how } else { i }).collect()).collect();
    let mut expected = packets.clone();
    expected[0].drain(..4);
    expected[1].splice(0..0, [0; 128]);
    expected[1][1] = 9;
    expected[2].extend([0; 128]);
    expected[4].truncate(14);
    for device in devices() {
        let (verdicts, after) = run(&device, text, &packets);
        let (pass, tx) = (Verdict::Pass, Verdict::Tx);
        assert_eq!(verdicts, [pass, pass, pass, tx, pass, tx]);
        assert_eq!(after, expected);
    }
}

#[test]
fn running_out_of_fuel_aborts_and_keeps_writes() {
    let text = "
        fn xdp_filter(pkt: u32) -> u32 {
            var rounds = load_le32(pkt, 0u);
            loop {
                if rounds == 0u { break; }
                rounds = rounds - 1u;
                store_le32(pkt, 4u, load_le32(pkt, 4u) + 1u);
            }
            store_u8(pkt, 8u, 1u);
            return XDP_PASS;
        }";
    let rounds = [0u32, 1, 98, 99, 100, 101, 0xffff_ffff];
    let packets = rounds.map(|r| [&r.to_le_bytes()[..], &[0; 8]].concat());
    for device in devices() {
        // The round that finds nothing left to do costs fuel as well.
        let program = program_with(text, &ProgramOptions::default().with_fuel(100));
        let (verdicts, after) = run_batch(&device, &program, Batch::from_packets(&packets).unwrap());
        for ((rounds, verdict), packet) in rounds.into_iter().zip(verdicts).zip(after) {
            let ends = rounds <= 99;
            assert_eq!(verdict, if ends { Verdict::Pass } else { Verdict::Aborted }, "{rounds}");
            assert_eq!(packet[4..8], rounds.min(100).to_le_bytes(), "{rounds}");
            assert_eq!(packet[8..], [u8::from(ends), 0, 0, 0], "{rounds}");
        }
    }
}

#[test]
fn no_driver_cuts_loops_short() {
    // 32,768 rounds, which no driver may cut short.
    let text = "
        fn xdp_filter(pkt: u32) -> u32 {
            for (var i = 0u; i < load_le32(pkt, 0u); i = i + 1u) { store_le32(pkt, 4u, i); }
            return XDP_PASS;
        }";
    let packets = [32_766u32, 32_767, 32_768].map(|rounds| [rounds.to_le_bytes(), [0; 4]].concat());
    for device in devices() {
        let (verdicts, after) = run(&device, text, &packets);
        assert_eq!(verdicts, [Verdict::Pass, Verdict::Pass, Verdict::Aborted]);
        assert_eq!(after[2][4..], 32_767u32.to_le_bytes());
    }
}

#[test]
fn sixty_four_bit_arithmetic_is_exact() {
    let text = "
        fn xdp_filter(pkt: u32) -> u32 {
            let a = (u64(load_be32(pkt, 0u)) << 32u) | u64(load_be32(pkt, 4u));
            let b = a * 6364136223846793005lu + 1442695040888963407lu;
            store_be32(pkt, 0u, u32(b >> 32u));
            store_be32(pkt, 4u, u32(b));
            return XDP_PASS;
        }";
    let values = [0u64, 1, u64::MAX, 0x0123_4567_89ab_cdef];
    for device in devices() {
        let (_, after) = run(&device, text, &values.map(|v| v.to_be_bytes().to_vec()));
        for (value, packet) in values.into_iter().zip(after) {
            let expected = value.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            assert_eq!(packet, expected.to_be_bytes());
        }
    }
}

#[test]
fn spirv_output_has_one_compute_entry_point() {
    let program = program_with("fn xdp_filter(pkt: u32) -> u32 { return XDP_PASS; }", &ProgramOptions::default());
    let words = portcullis_wgpu::spirv(&program).unwrap();
    // SPIR-V specification, 2.3: the magic number; 3.32.5: OpEntryPoint is operation 15, and 5 is
    // the execution model GLCompute.
    assert_eq!(words[0], 0x0723_0203);
    let mut at = 5;
    let mut entries = 0;
    while at < words.len() {
        let (operation, length) = (words[at] & 0xffff, (words[at] >> 16) as usize);
        if operation == 15 && words[at + 1] == 5 {
            assert_eq!(words[at + 3].to_le_bytes(), *b"main");
            entries += 1;
        }
        at += length;
    }
    assert_eq!((at, entries), (words.len(), 1));
}
