//! What filters do on every device, compared with values computed by hand.

mod common;

use common::{devices, program_with, run, run_batch, tcp};
use portcullis_core::packet::{Batch, Verdict};
use portcullis_core::program::ProgramOptions;

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
