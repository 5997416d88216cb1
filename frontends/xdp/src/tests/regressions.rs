//! Regression tests: minimal programs for faults that were found and fixed.

use std::sync::Arc;

use super::model::compare::{Comparison, compare, compile};
use super::model::{Code, Instruction, MapSpec, op};
use super::{EXIT, VALUE, assert_matches_model, code};
use portcullis_core::device::{Device, LoadOptions};
use portcullis_core::interp::InterpDevice;
use portcullis_core::packet::{Batch, Verdict};
use portcullis_core::program::Program;

/// Asserts that a program agrees with the model on packets with these first bytes.
#[track_caller]
fn check(instructions: &[Instruction], packets: &[[u8; 8]]) {
    let packets: Vec<Vec<u8>> = packets.iter().map(|first| [&first[..], &[7; 24]].concat()).collect();
    assert_matches_model(instructions, &packets);
}

#[track_caller]
fn refused(instructions: &[Instruction], why: &str) {
    refused_with(instructions, &[0], why);
}

/// Asserts that a program with functions starting at these instructions is rejected.
#[track_caller]
fn refused_with(instructions: &[Instruction], functions: &[usize], why: &str) {
    let code = Code { functions: functions.to_vec(), ..code(instructions) };
    match compare(&code, &[vec![0; 64]]) {
        Ok(Comparison::Refused(said)) => assert!(said.contains(why), "{said}"),
        other => panic!("{other:?}"),
    }
}

/// Loads the packet's first 8 bytes to r2, with a pointer to them in r6; returns if the packet is
/// too short.
const LOADED: [Instruction; 7] = [
    op(0x61, 6, 1, 0, 0),
    op(0x61, 7, 1, 4, 0),
    op(0xbf, 3, 6, 0, 0),
    op(0x07, 3, 0, 0, 16),
    op(0xb7, 0, 0, 0, 1),
    op(0x2d, 3, 7, 0, 0),
    op(0x79, 2, 6, 0, 0),
];

/// Appends these instructions and an exit, which the length check jumps to.
fn with(rest: &[Instruction]) -> Vec<Instruction> {
    let mut all = [&LOADED[..], rest, &[EXIT]].concat();
    all[5].off = (all.len() - 7) as i16;
    all
}

const FIRSTS: [[u8; 8]; 4] = [[0; 8], [1, 0, 0, 0, 0, 0, 0, 0], [255; 8], [0, 0, 0, 0, 1, 0, 0, 0x80]];

/// A count of 31 to 46 may be anything modulo 32.
#[test]
fn shift_counts_may_exceed_the_width() {
    for shift in [0x6c, 0x7c, 0xcc] {
        let rest = [op(0xbf, 3, 2, 0, 0), op(0x57, 3, 0, 0, 15), op(0x07, 3, 0, 0, 31), op(shift, 2, 3, 0, 0)];
        check(&with(&[&rest[..], &[op(0x7b, 6, 2, 8, 0), op(0xb7, 0, 0, 0, 2)]].concat()), &FIRSTS);
    }
}

/// -1 is stored in one block, and half of it overwritten in the next.
#[test]
fn overwriting_half_of_a_constant_keeps_the_other_half() {
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

/// `x += 2 * x`, `x += x` and `x *= x + x` on a map's value: the amount depends on the value.
#[test]
fn an_amount_may_depend_on_the_value_it_is_added_to() {
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

/// A loop that spills a register where there were two words, and stores words where there was a
/// register.
#[test]
fn a_loop_may_store_different_types_in_one_slot() {
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

/// Pointers in front of the packet, or moved beyond 32 bits.
#[test]
fn pointers_outside_the_packet_compare_by_offset() {
    for off in [-5, -300, 0, 14, 600] {
        for condition in [0x1d, 0x2d, 0x3d, 0x5d, 0xad, 0xbd] {
            for (to, more) in [(4, 0), (0, 0), (4, 1), (4, 2)] {
                let rest = [
                    op(0xbf, 4, 6, 0, 0),
                    op(0x07, 4, 0, 0, off),
                    // No move, one by 32 bits of the packet, or by 64.
                    op(0xb7, 5, 0, 0, 0),
                    if more > 0 { op(if more == 1 { 0xbc } else { 0xbf }, 5, 2, 0, 0) } else { op(0x05, 0, 0, 0, 0) },
                    op(0x0f, 4, 5, 0, 0),
                    if to == 4 { op(0xbf, 5, 7, 0, 0) } else { op(0xbf, 5, 6, 0, 0) },
                    op(0xb7, 0, 0, 0, 3),
                    op(condition, 4, 5, 1, 0),
                    op(0xb7, 0, 0, 0, 2),
                ];
                let firsts = [[0; 8], [255, 255, 255, 255, 0, 0, 0, 0], [0xf8, 255, 255, 255, 0, 0, 0, 0], [9; 8]];
                // Beyond 2^40 the model has no addresses.
                check(&with(&rest), if more == 2 { &firsts[..3] } else { &firsts });
            }
        }
    }
}

/// A key of four bytes, one of which is above the top of the stack.
#[test]
fn keys_must_lie_in_the_stack() {
    let before = [op(0xbf, 2, 10, 0, 0), op(0x07, 2, 0, 0, -3), op(0x18, 1, 1, 0, 0), op(0, 0, 0, 0, 0)];
    let after = [op(0x85, 0, 0, 0, 1), op(0xb7, 0, 0, 0, 2), EXIT];
    refused(&[&before[..], &after].concat(), "the stack is accessed at offset -3");
}

/// Reserved fields must be zero (the verifier's "uses reserved fields").
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

/// Class, byte order and machine of an ELF header (elf(5)).
#[test]
fn foreign_objects_are_refused_with_a_build_command() {
    for (class, order, machine, why) in [
        (2, 2, [0, 247], "for big-endian BPF"),
        (2, 2, [0, 22], "not for BPF: build it with `clang -target bpf`"),
        (1, 1, [3, 0], "not for BPF: build it with `clang -target bpf`"),
        (2, 1, [62, 0], "for machine 62, not BPF (247): build it with `clang -target bpf`"),
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
fn redirect_maps_must_have_valid_sizes() {
    // r0 = bpf_redirect_map(map, 0, 0)
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

/// A register set under a condition, and read where the same condition is tested again.
#[test]
fn a_register_may_be_read_on_the_path_that_set_it() {
    for (set, read) in [
        // A pointer into the packet, and a load through it.
        (op(0xbf, 9, 6, 0, 0), op(0x71, 0, 9, 3, 0)),
        // A scalar.
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

/// A register set under a condition, and read without testing it again.
#[test]
fn a_register_must_not_be_read_on_a_path_that_did_not_set_it() {
    let rest =
        [op(0xbf, 3, 2, 0, 0), op(0x57, 3, 0, 0, 1), op(0x15, 3, 0, 1, 0), op(0xbf, 9, 6, 0, 0), op(0x71, 0, 9, 3, 0)];
    refused(&with(&rest), "r9 is read, but not set on every path");
}

/// A byte of the stack decides a branch, and the stack is indexed after the branch: the frame must
/// be an array on both paths.
#[test]
fn a_frame_indexed_later_is_an_array_from_the_start() {
    for (load, off) in [(0x71, -12), (0x69, -12), (0x61, -12), (0x79, -16)] {
        let rest = [
            op(0x62, 10, 0, -16, 9),
            op(0x62, 10, 0, -12, 0x0706_0505),
            op(load, 4, 10, off, 0),
            op(0x57, 4, 0, 0, 0xf),
            op(0x15, 4, 0, 1, 5),
            // If the low four bits are not 5.
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

/// A jump to the next instruction, at a path sensitivity that keeps results apart because a pointer
/// is stored at one of two places.
#[test]
fn both_edges_of_a_jump_may_have_one_target() {
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

/// A nullable pointer is spilled, dereferenced and moved: after the first access every copy of it
/// is non-null.
#[test]
fn dereferenced_pointers_are_non_null() {
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
    assert_eq!(verdict_of(&program, &[0; 32]), Verdict::Aborted);
}

/// A function's stack ends when it returns, so no pointer to it may remain (`prepare_func_exit`,
/// `check_stack_write_fixed_off`, kernel/bpf/verifier.c).
#[test]
fn pointers_to_a_returned_functions_stack_are_refused() {
    let call = op(0x85, 0, 1, 0, 2);
    let end = [op(0xb7, 0, 0, 0, 2), EXIT];
    let own = [op(0xbf, 0, 10, 0, 0), op(0x07, 0, 0, 0, -8), op(0x7a, 0, 0, 0, 1)];
    // Returned and dereferenced.
    let main = [op(0x85, 0, 1, 0, 3), op(0x79, 0, 0, 0, 0), end[0], EXIT];
    refused_with(&[&main[..], &own, &[EXIT]].concat(), &[0, 4], "a function returns a pointer to its own stack");
    // Stored where the caller said, and dereferenced there or by another function.
    let main = [op(0xbf, 1, 10, 0, 0), op(0x07, 1, 0, 0, -16), op(0x85, 0, 1, 0, 4)];
    let read = [op(0x79, 1, 10, -16, 0), op(0x79, 0, 1, 0, 0)];
    let put = [&own[..], &[op(0x7b, 1, 0, 0, 0), end[0], EXIT]].concat();
    let why = "a pointer to the stack is stored in the stack of a function's caller";
    refused_with(&[&main[..], &read, &end, &put].concat(), &[0, 7], why);
    let read = [op(0xbf, 1, 10, 0, 0), op(0x07, 1, 0, 0, -16), op(0x85, 0, 1, 0, 8)];
    let main = [main[0], main[1], op(0x85, 0, 1, 0, 5)];
    let reads = [op(0x79, 1, 1, 0, 0), op(0x79, 0, 1, 0, 0), EXIT];
    refused_with(&[&main[..], &read, &end, &put, &reads].concat(), &[0, 8, 14], why);
    // A pointer to the caller's own stack may be returned.
    let main = [op(0xbf, 1, 10, 0, 0), op(0x07, 1, 0, 0, -16), op(0x7a, 1, 0, 0, 3), call];
    let read = [op(0x79, 0, 0, 0, 0), EXIT];
    let code = Code { functions: vec![0, 6], ..code(&[&main[..], &read, &[op(0xbf, 0, 1, 0, 0), EXIT]].concat()) };
    assert_eq!(compare(&code, &[vec![0; 64]]), Ok(Comparison::Same(1, None)));
}

/// A loop fills the stack below a spilled pointer and ends when a counter equals a number: the
/// stores are proven not to hit it. By opcode, first and last count, step, and offset of the first
/// store.
#[test]
fn loops_ending_at_an_equality_have_bounded_stores() {
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
        // Negative counts are large unsigned numbers, so the interval is lost.
        assert!(traps.is_empty() || last == -1, "{store:#x} {first} {last} {step}: {traps:?}");
    }
}

/// A store at an offset from the packet may hit a spilled pointer: a run-time check guards it.
#[test]
fn stores_that_may_hit_a_spilled_pointer_are_guarded() {
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
            let verdict = verdict_of(&program, &packet);
            assert_eq!(
                verdict == Verdict::Aborted,
                hits.contains(&(at & mask as u8)),
                "{store:#x} at {at}: {verdict:?}"
            );
        }
    }
}

/// The verdict for a packet.
fn verdict_of(program: &Arc<Program>, packet: &[u8]) -> Verdict {
    let mut session =
        InterpDevice::new().load(program, &LoadOptions::default()).expect("the reference takes any program");
    session.run(Batch::from_packets(&[packet]).expect("it fits")).expect("it runs").verdicts.get(0)
}

/// Updates of a value by compare-and-exchange retry under contention. Such retries must not count
/// as loop iterations of the program, which would consume fuel.
#[test]
fn retried_updates_are_not_loop_iterations() {
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
