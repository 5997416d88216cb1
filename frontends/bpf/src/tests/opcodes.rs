//! Every instruction, with operands at all corner cases.

use super::*;

/// Operands at which operations overflow, change sign or saturate.
const CORNERS: [u32; 18] =
    [0, 1, 2, 3, 7, 8, 15, 31, 32, 33, 60, 255, 256, 0x7fff_ffff, 0x8000_0000, 0x8000_0001, 0xffff_fffe, 0xffff_ffff];

/// A packet of three big-endian words.
fn packet(a: u32, x: u32, expected: u32) -> Vec<u8> {
    [a, x, expected].iter().flat_map(|number| number.to_be_bytes()).collect()
}

/// Compares what an instruction leaves in A, or in X, with the reference for every A and X in
/// [`CORNERS`].
#[track_caller]
fn check_instruction(instruction: Code, in_x: bool) {
    let before: &[Code] =
        &[(0x20, 0, 0, 4), (0x07, 0, 0, 0), (0x02, 0, 0, 5), (0x20, 0, 0, 0), (0x02, 0, 0, 7), instruction];
    let value = if in_x { (0x03, 0, 0, 0) } else { (0x02, 0, 0, 0) };
    // Compares the result with the packet's third word.
    let compare = [value, (0x20, 0, 0, 8), (0x61, 0, 0, 0), (0x1d, 0, 1, 0), (0x06, 0, 0, 1), (0x06, 0, 0, 0)];
    let whole = program(&[before, &compare].concat());
    let read: &[Code] = if in_x { &[(0x87, 0, 0, 0), (0x16, 0, 0, 0)] } else { &[(0x16, 0, 0, 0)] };
    let result_program = program(&[before, read].concat());
    let mut packets = Vec::new();
    for a in CORNERS {
        for x in CORNERS {
            let packet_of = |expected| packet(a, x, expected);
            let expected = reference::run(&result_program, Input::new(&packet_of(0)), MAX_REFERENCE_STEPS).unwrap();
            packets.extend([packet_of(expected), packet_of(expected ^ 1), packet_of(expected ^ 1 << 31)]);
        }
    }
    let accepted = check_packets(&whole, &packets);
    // Division by zero rejects the packet.
    let rejects = matches!(instruction.0, 0x3c | 0x9c);
    let expected_accepted = if rejects { 17 * 18 } else { 18 * 18 };
    // So does a load past the end: always, or for some values of X.
    let loads = matches!(instruction.0, 0x20 | 0x28 | 0x30 | 0x40 | 0x48 | 0x50 | 0xb1);
    assert!(accepted == expected_accepted || loads, "{accepted} of {expected_accepted}");
}

#[test]
fn arithmetic_wraps_at_32_bits() {
    for code in [0x04, 0x14, 0x24, 0x34, 0x44, 0x54, 0x64, 0x74, 0x94, 0xa4] {
        check_instruction((code | 8, 0, 0, 99), false);
        for k in CORNERS {
            if k != 0 || !matches!(code, 0x34 | 0x94) {
                check_instruction((code, 0, 0, k), false);
            }
        }
    }
    check_instruction((0x84, 0, 0, 0), false);
}

#[test]
fn moves_copy_between_registers_and_scratch_memory() {
    for k in CORNERS {
        check_instruction((0x00, 0, 0, k), false);
        check_instruction((0x01, 0, 0, k), true);
    }
    for in_x in [false, true] {
        check_instruction((0x07, 0, 0, 0), in_x);
        check_instruction((0x87, 0, 0, 0), in_x);
        check_instruction((0x80, 0, 0, 0), in_x);
        check_instruction((0x81, 0, 0, 0), in_x);
        for k in 0..16 {
            for code in [0x60, 0x61, 0x02, 0x03] {
                check_instruction((code, 0, 0, k), in_x);
            }
        }
    }
}

#[test]
fn loads_are_big_endian_and_reject_past_the_end() {
    // The packet has twelve bytes.
    for k in (0..16).chain([0x7fff_ffff, 0x8000_0000, 0xffdf_ffff, 0xffff_fffc, 0xffff_ffff]) {
        for code in [0x20, 0x28, 0x30] {
            check_instruction((code, 0, 0, k), false);
            check_instruction((code ^ 0x60, 0, 0, k), false);
        }
        check_instruction((0xb1, 0, 0, k), true);
    }
    for k in CORNERS.into_iter().chain([9, 10, 11, 12, 13]) {
        for code in [0x40, 0x48, 0x50] {
            check_instruction((code, 0, 0, k), false);
        }
    }
}

#[test]
fn indexed_offsets_do_not_wrap() {
    // `ldb [x + 2]` with X = -1 is past the end.
    let code = program(&[(0x01, 0, 0, u32::MAX), (0x50, 0, 0, 2), (0x06, 0, 0, 1)]);
    assert_eq!(check_packets(&code, &[vec![0; 64]]), 0);
    // As is a load whose X comes from the packet and whose sum exceeds 32 bits.
    let code = program(&[(0x20, 0, 0, 0), (0x07, 0, 0, 0), (0x40, 0, 0, 0xffff_fff0), (0x06, 0, 0, 1)]);
    let packets: Vec<_> = (0..64_u32).map(|x| [&x.to_be_bytes()[..], &[0; 60]].concat()).collect();
    assert_eq!(check_packets(&code, &packets), 0);
}

#[test]
fn conditional_jumps_match_the_reference() {
    for code in [0x15, 0x25, 0x35, 0x45] {
        for (code, ks) in [(code, &CORNERS[..]), (code | 8, &CORNERS[..1])] {
            for &k in ks {
                let code = program(&[
                    (0x20, 0, 0, 4),
                    (0x07, 0, 0, 0),
                    (0x20, 0, 0, 0),
                    (code, 1, 2, k),
                    (0x06, 0, 0, 0),
                    (0x06, 0, 0, 1),
                    (0x06, 0, 0, 0),
                ]);
                let packets: Vec<_> = CORNERS.iter().flat_map(|&a| CORNERS.map(|x| packet(a, x, 0))).collect();
                check_packets(&code, &packets);
            }
        }
    }
}

#[test]
fn nonzero_return_values_accept() {
    for k in [0, 1, 2, 4, 262_144, u32::MAX] {
        assert_eq!(check_packets(&program(&[(0x06, 0, 0, k)]), &[vec![]]), usize::from(k != 0));
        let code = program(&[(0x20, 0, 0, 0), (0x16, 0, 0, 0)]);
        assert_eq!(check_packets(&code, &[k.to_be_bytes().to_vec()]), usize::from(k != 0));
    }
    // A, X and scratch memory start at zero.
    for code in [0x87, 0x60] {
        assert_eq!(check_packets(&program(&[(code, 0, 0, 0), (0x16, 0, 0, 0)]), &[vec![]]), 0);
    }
}

#[test]
fn len_is_the_wire_length_and_loads_see_captured_bytes() {
    let longer = program(&[(0x80, 0, 0, 0), (0x25, 0, 1, 100), (0x06, 0, 0, 1), (0x06, 0, 0, 0)]);
    let loads = program(&[(0x30, 0, 0, 63), (0x06, 0, 0, 1)]);
    let packet = [0; 60];
    for wire_length in [60, 100, 101, 1500] {
        let input = Input { packet: &packet, wire_length, port: 0 };
        assert_eq!(check(&longer, &[input]), usize::from(wire_length > 100));
        assert_eq!(check(&loads, &[input]), 0);
    }
}

#[test]
fn ancillary_loads_match_linux() {
    let ancillary = |number: i32| (-0x1000 + number) as u32;
    let frames = |ty: u16, payload: &[u8]| {
        let mut frame = vec![0xff; 12];
        frame.extend(ty.to_be_bytes());
        frame.extend(payload);
        frame
    };
    let packets: Vec<_> = [0, 0x26, 0x5ff, 0x600, 0x800, 0x8100, 0xffff]
        .into_iter()
        .flat_map(|ty| [&[][..], &[0xff], &[0xff, 0xff], &[0xaa, 0xaa, 3, 1, 1, 1]].map(|payload| frames(ty, payload)))
        .chain([vec![], vec![0; 13]])
        .collect();
    for size in [0x20, 0x28, 0x30] {
        for (number, values) in
            [(0, &[1, 4, 0x600, 0x800, 0x8100][..]), (28, &[0, 1]), (44, &[0, 1]), (48, &[0, 1]), (60, &[0, 1])]
        {
            let mut accepted = 0;
            for &value in values {
                let code =
                    program(&[(size, 0, 0, ancillary(number)), (0x15, 0, 1, value), (0x06, 0, 0, 1), (0x06, 0, 0, 0)]);
                accepted += check_packets(&code, &packets);
            }
            assert!(accepted >= 10, "{number}: {accepted}");
        }
        for port in [0, 3] {
            let code = program(&[(size, 0, 0, ancillary(8)), (0x15, 0, 1, 3), (0x06, 0, 0, 1), (0x06, 0, 0, 0)]);
            let input = Input { packet: &[], wire_length: 0, port };
            assert_eq!(check(&code, &[input]), usize::from(port == 3));
        }
        // Relative to the network header and to the link header.
        for (base, at) in [(0xfff0_0000, 0), (0xfff0_0000, 1), (0xffe0_0000, 12), (0xffe0_0000, 0)] {
            let code = program(&[(size, 0, 0, base + at), (0x45, 0, 1, 0xff), (0x06, 0, 0, 1), (0x06, 0, 0, 0)]);
            assert!(check_packets(&code, &packets) > 2);
        }
    }
    // A ^= X
    let code = [(0x20, 0, 0, 4), (0x07, 0, 0, 0), (0x20, 0, 0, 0), (0x20, 0, 0, ancillary(40)), (0x16, 0, 0, 0)];
    let packets: Vec<_> = CORNERS.iter().flat_map(|&a| CORNERS.map(|x| packet(a, x, 0))).collect();
    assert_eq!(check_packets(&program(&code), &packets), 18 * 17);
}
