//! What was found wrong once, small.

use std::sync::Arc;

use super::model::compare::{Comparison, compare, compile};
use super::model::{Code, Instruction, MapSpec, op};
use super::{EXIT, VALUE, code, held_to_the_model};
use portcullis_core::device::{Device, LoadOptions};
use portcullis_core::interp::InterpDevice;
use portcullis_core::packet::{Batch, Verdict};
use portcullis_core::program::Program;

/// Holds a program to the model over packets with these first bytes.
#[track_caller]
fn check(instructions: &[Instruction], packets: &[[u8; 8]]) {
    let packets: Vec<Vec<u8>> = packets.iter().map(|first| [&first[..], &[7; 24]].concat()).collect();
    held_to_the_model(instructions, &packets);
}

#[track_caller]
fn refused(instructions: &[Instruction], why: &str) {
    refused_with(instructions, &[0], why);
}

/// Of a program with functions that begin at these instructions.
#[track_caller]
fn refused_with(instructions: &[Instruction], functions: &[usize], why: &str) {
    let code = Code { functions: functions.to_vec(), ..code(instructions) };
    match compare(&code, &[vec![0; 64]]) {
        Ok(Comparison::Refused(said)) => assert!(said.contains(why), "{said}"),
        other => panic!("{other:?}"),
    }
}

/// The packet's first 8 bytes in r2, and its first byte's place in r6; or nothing.
const LOADED: [Instruction; 7] = [
    op(0x61, 6, 1, 0, 0),
    op(0x61, 7, 1, 4, 0),
    op(0xbf, 3, 6, 0, 0),
    op(0x07, 3, 0, 0, 16),
    op(0xb7, 0, 0, 0, 1),
    op(0x2d, 3, 7, 0, 0),
    op(0x79, 2, 6, 0, 0),
];

/// Behind that these, and an end that the jump leads to.
fn with(rest: &[Instruction]) -> Vec<Instruction> {
    let mut all = [&LOADED[..], rest, &[EXIT]].concat();
    all[5].off = (all.len() - 7) as i16;
    all
}

const FIRSTS: [[u8; 8]; 4] = [[0; 8], [1, 0, 0, 0, 0, 0, 0, 0], [255; 8], [0, 0, 0, 0, 1, 0, 0, 0x80]];

/// A count of 31 to 46 is not 31: modulo 32 it is anything.
#[test]
fn shifts_by_a_range_that_reaches_the_width() {
    for shift in [0x6c, 0x7c, 0xcc] {
        let rest = [op(0xbf, 3, 2, 0, 0), op(0x57, 3, 0, 0, 15), op(0x07, 3, 0, 0, 31), op(shift, 2, 3, 0, 0)];
        check(&with(&[&rest[..], &[op(0x7b, 6, 2, 8, 0), op(0xb7, 0, 0, 0, 2)]].concat()), &FIRSTS);
    }
}

/// -1 is kept in one block, and half of it written over in the next: the other half is still that of -1.
#[test]
fn half_of_a_known_number_on_the_stack_stays_when_the_other_is_written() {
    for (off, size) in [(-24, 0x62), (-20, 0x62), (-22, 0x6a), (-18, 0x6a), (-24, 0x72), (-17, 0x72)] {
        let rest = [
            op(0xb7, 4, 0, 0, -1),
            op(0x7b, 10, 4, -24, 0),
            op(0x05, 0, 0, 0, 0),
            op(size, 10, 0, off, 63),
            op(0x05, 0, 0, 0, 0),
            op(0x79, 2, 10, -24, 0),
            op(0x7b, 6, 2, 8, 0),
            op(0xb7, 0, 0, 0, 2),
        ];
        check(&with(&rest), &FIRSTS);
    }
}

/// `x += 2 * x`, `x += x` and `x *= x + x` of a map's value: what is added is made of what is there.
#[test]
fn what_is_added_to_a_value_may_be_made_of_it() {
    for (load, store) in [(0x79, 0x7b), (0x61, 0x63), (0x69, 0x6b), (0x71, 0x73)] {
        for made in [
            &[op(0xbf, 2, 1, 0, 0), op(0x67, 2, 0, 0, 1), op(0x0f, 1, 2, 0, 0)][..],
            &[op(0x0f, 1, 1, 0, 0)],
            &[op(0xbf, 2, 1, 0, 0), op(0x0f, 1, 1, 0, 0), op(0x2f, 1, 2, 0, 0)],
            &[op(0xbf, 2, 1, 0, 0), op(0x07, 1, 0, 0, 5), op(0x0f, 1, 2, 0, 0)],
        ] {
            let first = [op(0x62, 0, 0, 0, 3), op(0x62, 0, 0, 4, -1), op(load, 1, 0, 0, 0)];
            let last = [op(store, 0, 1, 0, 0), op(0xbf, 0, 1, 0, 0), op(0x57, 0, 0, 0, 3), EXIT];
            check(&[&VALUE[..], &first, made, &last].concat(), &FIRSTS[..1]);
        }
    }
}

/// In a loop that leaves two halves where there was a register, and a register where there were two halves.
#[test]
fn a_loop_may_keep_other_things_in_the_same_place() {
    let rest = [
        op(0xb7, 9, 0, 0, 0),
        op(0x7b, 10, 2, -8, 0),
        op(0x79, 4, 10, -8, 0),
        op(0x07, 4, 0, 0, 3),
        op(0x63, 10, 4, -8, 0),
        op(0x07, 9, 0, 0, 1),
        op(0xa5, 9, 0, 1, 5),
        op(0x05, 0, 0, 3, 0),
        op(0x25, 9, 0, -7, 2),
        op(0x7b, 10, 9, -8, 0),
        op(0x05, 0, 0, -9, 0),
        op(0x79, 4, 10, -8, 0),
        op(0x7b, 6, 4, 8, 0),
        op(0xb7, 0, 0, 0, 2),
    ];
    check(&with(&rest), &FIRSTS);
}

/// Where a pointer may be in front of the packet, or further behind it than 32 bits reach.
#[test]
fn places_outside_the_packet_are_in_order() {
    for off in [-5, -300, 0, 14, 600] {
        for condition in [0x1d, 0x2d, 0x3d, 0x5d, 0xad, 0xbd] {
            for (to, more) in [(4, 0), (0, 0), (4, 1), (4, 2)] {
                let rest = [
                    op(0xbf, 4, 6, 0, 0),
                    op(0x07, 4, 0, 0, off),
                    // Nothing, 32 bits of the packet's, or 64.
                    op(0xb7, 5, 0, 0, 0),
                    if more > 0 { op(if more == 1 { 0xbc } else { 0xbf }, 5, 2, 0, 0) } else { op(0x05, 0, 0, 0, 0) },
                    op(0x0f, 4, 5, 0, 0),
                    if to == 4 { op(0xbf, 5, 7, 0, 0) } else { op(0xbf, 5, 6, 0, 0) },
                    op(0xb7, 0, 0, 0, 3),
                    op(condition, 4, 5, 1, 0),
                    op(0xb7, 0, 0, 0, 2),
                ];
                let firsts = [[0; 8], [255, 255, 255, 255, 0, 0, 0, 0], [0xf8, 255, 255, 255, 0, 0, 0, 0], [9; 8]];
                // Beyond 2^40 there are no addresses.
                check(&with(&rest), if more == 2 { &firsts[..3] } else { &firsts });
            }
        }
    }
}

/// A key of four bytes, of which one is beyond the top.
#[test]
fn keys_lie_in_the_stack_as_a_whole() {
    let before = [op(0xbf, 2, 10, 0, 0), op(0x07, 2, 0, 0, -3), op(0x18, 1, 1, 0, 0), op(0, 0, 0, 0, 0)];
    let after = [op(0x85, 0, 0, 0, 1), op(0xb7, 0, 0, 0, 2), EXIT];
    refused(&[&before[..], &after].concat(), "the stack is accessed at offset -3");
}

/// Fields that mean nothing in an instruction are zero (the kernel: "uses reserved fields").
#[test]
fn reserved_fields_are_refused() {
    for it in [
        op(0x0f, 0, 0, 1, 0),
        op(0x3f, 0, 0, 2, 0),
        op(0xb7, 0, 0, 8, 0),
        op(0xbc, 0, 0, 32, 0),
        op(0x8f, 0, 0, 0, 0),
        op(0xdf, 0, 0, 0, 16),
        op(0xd7, 0, 0, 1, 16),
    ] {
        refused(&[op(0xb7, 0, 0, 0, 1), it, EXIT], "unknown instruction");
    }
    for register in 11..16 {
        refused(&[op(0xb7, 0, 0, 0, 1), op(0xb7, register, 0, 0, 1), EXIT], "there is no register");
        refused(&[op(0xbf, 0, register, 0, 0), EXIT], "there is no register");
    }
    refused(&[op(0x85, 0, 4, 0, 8), EXIT], "unknown kind of call");
    refused(&[op(0xb7, 1, 0, 0, 1), op(0x8d, 1, 0, 0, 0), EXIT], "0x8d, a call through a register");
}

/// What stands in an ELF's header (elf(5)): class, byte order, machine.
#[test]
fn objects_for_others_are_refused_with_what_builds_them() {
    for (class, order, machine, why) in [
        (2, 2, [0, 247], "for big-endian BPF"),
        (2, 2, [0, 22], "not for BPF: build it with `clang -target bpf`"),
        (1, 1, [3, 0], "not for BPF: build it with `clang -target bpf`"),
        (2, 1, [62, 0], "for machine 62, and BPF is 247: build it with `clang -target bpf`"),
    ] {
        let mut header = [0; 64];
        header[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, order, 1]);
        (header[16], header[18], header[19], header[20], header[52]) = (1, machine[0], machine[1], 1, 64);
        let said = crate::object::Object::read("x.o", &header).map(|_| ()).unwrap_err().to_string();
        assert!(said.contains(why), "{said}");
        assert_eq!(said.contains("bpfel"), machine == [0, 247], "{said}");
    }
}

#[test]
fn maps_of_targets_have_sizes_that_targets_have() {
    // r0 = bpf_redirect_map(the map, 0, 0)
    let instructions = [
        op(0x18, 1, 1, 0, 0),
        op(0, 0, 0, 0, 0),
        op(0xb7, 2, 0, 0, 0),
        op(0xb7, 3, 0, 0, 0),
        op(0x85, 0, 0, 0, 51),
        EXIT,
    ];
    for (ty, key, value) in [(25, 4, 0), (25, 8, 4), (14, 4, 12)] {
        let maps = vec![MapSpec { ty, key, value, entries: 4 }];
        let code = Code { instructions: instructions.to_vec(), functions: vec![0], maps };
        match compare(&code, &[vec![0; 64]]) {
            Ok(Comparison::Refused(said)) => assert!(said.contains("which a map of type"), "{said}"),
            other => panic!("{ty}, {key}, {value}: {other:?}"),
        }
    }
}

/// A register that is set under a condition, and read where that is asked again: on the way there it is.
#[test]
fn what_is_set_on_one_way_and_read_on_it() {
    for (set, read) in [
        // A pointer into the packet, and what it points to.
        (op(0xbf, 9, 6, 0, 0), op(0x71, 0, 9, 3, 0)),
        // A number.
        (op(0xbf, 9, 2, 0, 0), op(0xbf, 0, 9, 0, 0)),
    ] {
        let rest = [
            op(0xb7, 8, 0, 0, 0),
            op(0xbf, 3, 2, 0, 0),
            op(0x57, 3, 0, 0, 1),
            op(0x15, 3, 0, 2, 0),
            set,
            op(0xb7, 8, 0, 0, 1),
            op(0xb7, 0, 0, 0, 2),
            op(0x15, 8, 0, 2, 0),
            read,
            op(0x57, 0, 0, 0, 3),
        ];
        check(&with(&rest), &FIRSTS);
    }
}

/// The same where the condition says nothing of it.
#[test]
fn what_is_set_on_one_way_and_read_on_another() {
    let rest =
        [op(0xbf, 3, 2, 0, 0), op(0x57, 3, 0, 0, 1), op(0x15, 3, 0, 1, 0), op(0xbf, 9, 6, 0, 0), op(0x71, 0, 9, 3, 0)];
    refused(&with(&rest), "r9 is read, and was not set on every way");
}

/// A byte of the stack decides which way control goes, and lies where the stack is indexed behind that: it is memory on both ways.
#[test]
fn what_decides_may_lie_where_the_stack_is_indexed_later() {
    for (load, off) in [(0x71, -12), (0x69, -12), (0x61, -12), (0x79, -16)] {
        let rest = [
            op(0x62, 10, 0, -16, 9),
            op(0x62, 10, 0, -12, 0x0706_0505),
            op(load, 4, 10, off, 0),
            op(0x57, 4, 0, 0, 0xf),
            op(0x15, 4, 0, 1, 5),
            // Where the lowest four bits are not 5.
            op(0x7b, 6, 4, 0, 0),
            op(0xbf, 5, 2, 0, 0),
            op(0x57, 5, 0, 0, 3),
            op(0xbf, 3, 10, 0, 0),
            op(0x0f, 3, 5, 0, 0),
            op(0x71, 3, 3, -12, 0),
            op(0x7b, 6, 3, 8, 0),
            op(0xb7, 0, 0, 0, 2),
        ];
        check(&with(&rest), &FIRSTS);
    }
}

/// A jump to the next instruction, where results are kept apart since a pointer is stored at one of two places.
#[test]
fn both_sides_of_a_jump_may_lead_to_the_same_place() {
    for condition in [0x15, 0x55, 0xa5, 0x25] {
        let rest = [
            op(0xbf, 3, 10, 0, 0),
            op(0x07, 3, 0, 0, -8),
            op(0xbf, 4, 2, 0, 0),
            op(0x57, 4, 0, 0, 4),
            op(0x15, 4, 0, 1, 0),
            op(0x07, 3, 0, 0, -8),
            op(0x7b, 3, 6, 0, 0),
            op(0xbf, 0, 2, 0, 0),
            op(0x57, 0, 0, 0, 1),
            op(condition, 0, 0, 0, 0),
            op(0x07, 0, 0, 0, 2),
            op(0x7b, 6, 0, 8, 0),
        ];
        check(&with(&rest), &FIRSTS);
    }
}

/// A pointer that is not NULL on one way is kept on the stack, read through and moved: behind the first access it is none, in
/// whatever copy.
#[test]
fn what_was_read_through_is_not_null() {
    let rest = [
        op(0xb7, 9, 0, 0, 0),
        op(0xbf, 3, 2, 0, 0),
        op(0x57, 3, 0, 0, 1),
        op(0x15, 3, 0, 1, 0),
        op(0xbf, 9, 6, 0, 0),
        op(0x7b, 10, 9, -8, 0),
        op(0x71, 4, 9, 1, 0),
        op(0x79, 5, 10, -8, 0),
        op(0x07, 5, 0, 0, 2),
        op(0x71, 5, 5, 0, 0),
        op(0x0f, 4, 5, 0, 0),
        op(0x7b, 6, 4, 8, 0),
        op(0xb7, 0, 0, 0, 2),
    ];
    let firsts = FIRSTS.into_iter().filter(|first| first[0] & 1 == 1).collect::<Vec<_>>();
    check(&with(&rest), &firsts);
    let program = compile(&code(&with(&rest))).expect("it is the same as the model");
    let traps = &crate::ObjectInfo::of(&program).expect("it is of an object").traps;
    assert_eq!(traps.iter().map(|trap| trap.reason).collect::<Vec<_>>(), ["the pointer is NULL"]);
    assert_eq!(ran(&program, &[0; 32]), Verdict::Aborted);
}

/// The stack of a function is gone when it has returned: no pointer to it may be left (`prepare_func_exit`,
/// `check_stack_write_fixed_off`, kernel/bpf/verifier.c).
#[test]
fn pointers_to_the_stack_of_a_function_that_has_returned() {
    let call = op(0x85, 0, 1, 0, 2);
    let end = [op(0xb7, 0, 0, 0, 2), EXIT];
    let own = [op(0xbf, 0, 10, 0, 0), op(0x07, 0, 0, 0, -8), op(0x7a, 0, 0, 0, 1)];
    // It is returned, and read.
    let main = [op(0x85, 0, 1, 0, 3), op(0x79, 0, 0, 0, 0), end[0], EXIT];
    refused_with(&[&main[..], &own, &[EXIT]].concat(), &[0, 4], "a function returns a pointer to its own stack");
    // It is put where its caller said, and read there; or by another function.
    let main = [op(0xbf, 1, 10, 0, 0), op(0x07, 1, 0, 0, -16), op(0x85, 0, 1, 0, 4)];
    let read = [op(0x79, 1, 10, -16, 0), op(0x79, 0, 1, 0, 0)];
    let put = [&own[..], &[op(0x7b, 1, 0, 0, 0), end[0], EXIT]].concat();
    let why = "a pointer to the stack is stored in the stack of a function's caller";
    refused_with(&[&main[..], &read, &end, &put].concat(), &[0, 7], why);
    let read = [op(0xbf, 1, 10, 0, 0), op(0x07, 1, 0, 0, -16), op(0x85, 0, 1, 0, 8)];
    let main = [main[0], main[1], op(0x85, 0, 1, 0, 5)];
    let reads = [op(0x79, 1, 1, 0, 0), op(0x79, 0, 1, 0, 0), EXIT];
    refused_with(&[&main[..], &read, &end, &put, &reads].concat(), &[0, 8, 14], why);
    // That to the caller's own stack may come back.
    let main = [op(0xbf, 1, 10, 0, 0), op(0x07, 1, 0, 0, -16), op(0x7a, 1, 0, 0, 3), call];
    let read = [op(0x79, 0, 0, 0, 0), EXIT];
    let code = Code { functions: vec![0, 6], ..code(&[&main[..], &read, &[op(0xbf, 0, 1, 0, 0), EXIT]].concat()) };
    assert_eq!(compare(&code, &[vec![0; 64]]), Ok(Comparison::Same(1, None)));
}

/// A loop that fills the stack below a pointer that is kept there, and ends where a counter is a number: where it stores is
/// proved. By width, first and last count, step, and what is before the first place.
#[test]
fn loops_that_end_at_a_number_store_where_they_do() {
    for (store, (first, last, step), base) in [
        (0x73, (0, 56, 1), -64),
        (0x73, (0, 500, 1), -508),
        (0x6b, (0, 48, 2), -64),
        (0x63, (0, 56, 4), -64),
        (0x7b, (0, 56, 8), -64),
        (0x63, (3, 51, 12), -59),
        (0x73, (0, 55, 5), -64),
        (0x73, (55, -1, -1), -64),
        (0x73, (56, 0, -1), -65),
        (0x63, (56, 0, -4), -68),
        (0x7b, (56, 0, -8), -72),
    ] {
        let rest = [
            op(0x7b, 10, 6, -8, 0),
            op(0xb7, 3, 0, 0, first),
            op(0xbf, 4, 10, 0, 0),
            op(0x07, 4, 0, 0, base),
            op(0x0f, 4, 3, 0, 0),
            op(store, 4, 2, 0, 0),
            op(0x07, 3, 0, 0, step),
            op(0x55, 3, 0, -6, last),
            op(0x79, 5, 10, -8, 0),
            op(0x7b, 5, 3, 8, 0),
            op(0xb7, 0, 0, 0, 2),
        ];
        check(&with(&rest), &FIRSTS);
        let program = compile(&code(&with(&rest))).expect("it is the same as the model");
        let traps = &crate::ObjectInfo::of(&program).expect("it is of an object").traps;
        // Below zero numbers are large ones here, and what goes there is anything.
        assert!(traps.is_empty() || last == -1, "{store:#x} {first} {last} {step}: {traps:?}");
    }
}

/// A store where the packet says, which may hit a pointer that is kept on the stack: that it does not is checked.
#[test]
fn kept_pointers_that_a_store_may_hit() {
    for (store, mask, hits) in [(0x73, 63, 56..64), (0x7b, 56, 56..64), (0x63, 60, 56..64)] {
        let rest = [
            op(0x7b, 10, 6, -8, 0),
            op(0xbf, 3, 2, 0, 0),
            op(0x57, 3, 0, 0, mask),
            op(0xbf, 4, 10, 0, 0),
            op(0x07, 4, 0, 0, -64),
            op(0x0f, 4, 3, 0, 0),
            op(store, 4, 3, 0, 0),
            op(0x79, 5, 10, -8, 0),
            op(0x7b, 5, 3, 8, 0),
            op(0xb7, 0, 0, 0, 2),
        ];
        let firsts = [0, 1, 7, 8, 48, 55].map(|at| [at, 0, 0, 0, 0, 0, 0, 0]);
        check(&with(&rest), &firsts);
        let program = compile(&code(&with(&rest))).expect("it is the same as the model");
        let traps: Vec<_> =
            crate::ObjectInfo::of(&program).expect("it is of an object").traps.iter().map(|trap| trap.reason).collect();
        assert_eq!(traps, ["a spilled pointer would be overwritten"]);
        for at in 0..64 {
            let mut packet = vec![0; 32];
            packet[0] = at;
            let verdict = ran(&program, &packet);
            assert_eq!(
                verdict == Verdict::Aborted,
                hits.contains(&(at & mask as u8)),
                "{store:#x} at {at}: {verdict:?}"
            );
        }
    }
}

/// What becomes of a packet.
fn ran(program: &Arc<Program>, packet: &[u8]) -> Verdict {
    let mut session =
        InterpDevice::new().load(program, &LoadOptions::default()).expect("the reference takes any program");
    session.run(Batch::from_packets(&[packet]).expect("it fits")).expect("it runs").verdicts.get(0)
}

/// What is done to a value by compare and exchange is tried as often as others come in between, so that none of it is lost; and
/// that is no round of the program's, which would pay for it.
#[test]
fn changes_of_a_value_are_no_rounds() {
    let or_and_xor_exchange = [0x40, 0x41, 0x50, 0x51, 0xa0, 0xa1, 0xe1];
    let atomics = or_and_xor_exchange.into_iter().flat_map(|it| [op(0xc3, 0, 1, 0, it), op(0xdb, 0, 1, 8, it)]);
    let stored = [0x6b, 0x73].map(|store| [op(store, 0, 1, 0, 0)]);
    let added = [(0x69, 0x6b), (0x71, 0x73)]
        .map(|(load, store)| [op(load, 2, 0, 2, 0), op(0x0f, 2, 1, 0, 0), op(store, 0, 2, 2, 0)]);
    let all = atomics.map(|it| vec![it]).chain(stored.map(Vec::from)).chain(added.map(Vec::from));
    for change in all {
        let first = [op(0xb7, 1, 0, 0, 0x1234_5678)];
        let last = [op(0xb7, 0, 0, 0, 2), EXIT];
        let instructions = [&VALUE[..], &first, &change, &last].concat();
        check(&instructions, &FIRSTS[..1]);
        let program = compile(&code(&instructions)).expect("it is the same as the model");
        assert_eq!(program.facts().max_iterations, Some(0), "{change:?}");
        assert!(!program.maps()[0].read_only, "{change:?}");
    }
}
