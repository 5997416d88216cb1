//! If-conversion and value numbering: programs keep their meaning, and the passes take effect.

use naga::{Block, Statement};

use super::model::compare::compile;
use super::model::{Instruction, op};
use super::{EXIT, VALUE, assert_matches_model};
use portcullis_core::program::Program;

/// Compiles a program, asserting that it agrees with the model on packets that begin with every two
/// of these bytes.
#[track_caller]
fn compile_checked(instructions: &[Instruction], bytes: &[u8]) -> std::sync::Arc<Program> {
    let pairs =
        bytes.iter().flat_map(|&first| bytes.iter().map(move |&second| [&[first, second][..], &[0; 30]].concat()));
    let packets: Vec<Vec<u8>> = pairs.collect();
    compile(&assert_matches_model(instructions, &packets)).expect("it is the same as the model")
}

/// Counts statements of the program's function.
fn count(program: &Program, is_it: &dyn Fn(&Statement) -> bool) -> usize {
    fn of(block: &Block, is_it: &dyn Fn(&Statement) -> bool) -> usize {
        let inner = |statement: &Statement| match statement {
            Statement::If { accept, reject, .. } => of(accept, is_it) + of(reject, is_it),
            Statement::Loop { body, continuing, .. } => of(body, is_it) + of(continuing, is_it),
            Statement::Block(inner) => of(inner, is_it),
            _ => 0,
        };
        block.iter().map(|statement| usize::from(is_it(statement)) + inner(statement)).sum()
    }
    of(&program.module().functions[program.filter()].body, is_it)
}

fn branches(program: &Program) -> usize {
    count(program, &|statement| matches!(statement, Statement::If { .. }))
}

/// Number of calls of a function.
fn calls(program: &Program, name: &str) -> usize {
    let is_it = |statement: &Statement| match statement {
        Statement::Call { function, .. } => program.module().functions[*function].name.as_deref() == Some(name),
        _ => false,
    };
    count(program, &is_it)
}

/// Number of reads of the map.
fn reads(program: &Program) -> usize {
    calls(program, &format!("x_{}_get", program.maps()[0].name))
}

/// Loads the packet's first byte to r3 and its second to r4; returns 0 if it is too short.
const BYTES: [Instruction; 8] = [
    op(0x61, 6, 1, 0, 0),
    op(0x61, 7, 1, 4, 0),
    op(0xbf, 3, 6, 0, 0),
    op(0x07, 3, 0, 0, 16),
    op(0xb7, 0, 0, 0, 0),
    op(0x2d, 3, 7, 0, 0),
    op(0x71, 3, 6, 0, 0),
    op(0x71, 4, 6, 1, 0),
];

/// `r3 OP 1` and `r4 OP 2`, joined by "or" or "and not". The second block sets `r5`.
fn two_conditions(first: u8, second: u8, is_or: bool, returned: [Option<i32>; 2]) -> Vec<Instruction> {
    let result = |it: Option<i32>| match it {
        Some(number) => op(0xb7, 0, 0, 0, number),
        None => op(0xbf, 0, 5, 0, 0),
    };
    let conditions = [
        op(0xb7, 5, 0, 0, 1),
        // To the target of both, or past the second condition.
        op(first, 3, 0, if is_or { 4 } else { 2 }, 1),
        op(0xb7, 5, 0, 0, 2),
        op(second, 4, 0, 2, 2),
    ];
    let mut all = [&BYTES[..], &conditions, &[result(returned[0]), EXIT, result(returned[1]), EXIT]].concat();
    all[5].off = (all.len() - 7) as i16;
    all
}

const JEQ: u8 = 0x15;
const JNE: u8 = 0x55;
const JGT: u8 = 0x25;

#[test]
fn conditions_with_a_shared_successor_are_merged() {
    for first in [JEQ, JNE, JGT] {
        for second in [JEQ, JNE, JGT] {
            for is_or in [true, false] {
                let program =
                    |returned| compile_checked(&two_conditions(first, second, is_or, returned), &[0, 1, 2, 3]);
                // The output of the second block is unused; used only where the block was reached;
                // or used where it may not have been.
                let plain = branches(&program([Some(1), Some(2)]));
                let (fallen, taken) = ([None, Some(3)], [Some(3), None]);
                let (alone, shared) = if is_or { (fallen, taken) } else { (taken, fallen) };
                let (alone, shared) = (branches(&program(alone)), branches(&program(shared)));
                // One branch for the packet's length, and one for both conditions.
                assert_eq!((plain, alone), (2, 2), "{first:#x} {second:#x} {is_or}");
                assert!(shared > 2, "{first:#x} {second:#x} {is_or}: {shared}");
            }
        }
    }
}

/// `r3 == 1 || r4 == 2 || r3 > 2 || !(r4 != 1)`.
#[test]
fn chains_of_conditions_are_merged() {
    let conditions = [op(JEQ, 3, 0, 3, 1), op(JEQ, 4, 0, 2, 2), op(JGT, 3, 0, 1, 2), op(JNE, 4, 0, 2, 1)];
    let results = [op(0xb7, 0, 0, 0, 2), EXIT, op(0xb7, 0, 0, 0, 1), EXIT];
    let mut all = [&BYTES[..], &conditions, &results].concat();
    all[5].off = (all.len() - 7) as i16;
    assert_eq!(branches(&compile_checked(&all, &[0, 1, 2, 3])), 2);
}

/// The counter is proven to be at most 7 where it is incremented. The increment must stay there, or
/// the bound is lost, also when both exits of the loop are merged.
#[test]
fn loops_with_two_exits_keep_their_bound() {
    // r1 > 7, or r1 == 8.
    for end in [op(JGT, 1, 0, 7, 7), op(JEQ, 1, 0, 7, 8)] {
        for counts_first in [true, false] {
            let count = op(0x07, 1, 0, 0, 1);
            // Bit r1 of r3.
            let bit = [op(0xbc, 2, 3, 0, 0), op(0x7c, 2, 1, 0, 0), op(0x54, 2, 0, 0, 1)];
            let ends = |by| op(JEQ, 2, 0, by, 0);
            let both = if counts_first { [count, ends(2)] } else { [ends(3), count] };
            let round = [&[end], &bit[..], &both, &[op(0x07, 5, 0, 0, 1), op(0x05, 0, 0, -8, 0)]].concat();
            let first = [op(0xb7, 1, 0, 0, 0), op(0xb7, 5, 0, 0, 0)];
            let last = [op(0xb7, 0, 0, 0, 1), op(JGT, 5, 0, 1, 1), op(0xb7, 0, 0, 0, 2), EXIT];
            let mut all = [&BYTES[..7], &first, &round, &last].concat();
            all[5].off = (all.len() - 7) as i16;
            let most = compile_checked(&all, &[0, 1, 2, 3, 7, 255]).facts().max_iterations;
            assert!(most.is_some_and(|most| most <= 9), "{end:?}, {counts_first}: {most:?}");
        }
    }
}

/// A division or a load for the second condition must not be speculated; an addition may be.
#[test]
fn divisions_and_loads_are_not_speculated() {
    let divide = [op(0x3f, 5, 4, 0, 0), op(0x9f, 5, 4, 0, 0)];
    for (more, is_joined) in
        [(divide[0], false), (divide[1], false), (op(0x71, 5, 6, 2, 0), false), (op(0x0f, 5, 4, 0, 0), true)]
    {
        let mut all = two_conditions(JEQ, JEQ, true, [Some(1), Some(3)]);
        all.insert(11, more);
        // The condition uses the result.
        all[12].dst = 5;
        all[5].off += 1;
        all[9].off += 1;
        assert_eq!(branches(&compile_checked(&all, &[0, 1, 2, 3])) == 2, is_joined, "{more:?}");
    }
}

/// Halves of a word of the value are compared in two blocks, with more code in between.
fn two_halves(between: &[Instruction]) -> Vec<Instruction> {
    let first = [op(0x69, 3, 0, 0, 0), op(0x25, 3, 0, 0, 100)];
    let second = [op(0x69, 4, 0, 2, 0), op(0x25, 4, 0, 2, 5), op(0xb7, 0, 0, 0, 1), EXIT, op(0xb7, 0, 0, 0, 2), EXIT];
    let mut all = [&VALUE[..], &first, between, &second].concat();
    all[9].off = (between.len() + 4) as i16;
    all
}

#[test]
fn reads_are_forwarded_to_later_blocks() {
    assert_eq!(reads(&compile_checked(&two_halves(&[]), &[0])), 1);
    // Also when the read was two blocks before.
    assert_eq!(reads(&compile_checked(&two_halves(&[op(0x25, 3, 0, 4, 50)]), &[0])), 1);
    // A write to another word may alias, so the word is read again.
    let elsewhere = [op(0xb7, 5, 0, 0, 7), op(0xc3, 0, 5, 8, 0)];
    assert_eq!(reads(&compile_checked(&two_halves(&elsewhere), &[0])), 2);
}

/// A write in between changes what the second block reads.
#[test]
fn reads_after_a_write_are_not_forwarded() {
    let added = [op(0xb7, 5, 0, 0, 3 << 16), op(0xc3, 0, 5, 0, 0)];
    let stored = [op(0xb7, 5, 0, 0, 6), op(0x6b, 0, 5, 2, 0)];
    let counted = [op(0x69, 5, 0, 2, 0), op(0x07, 5, 0, 0, 2), op(0x6b, 0, 5, 2, 0)];
    for between in [&added[..], &stored, &counted] {
        // The value grows from packet to packet.
        compile_checked(&two_halves(between), &[0, 1]);
    }
}

/// The packet's first byte is read in two blocks, with more code in between.
#[test]
fn packet_reads_after_a_write_are_not_forwarded() {
    let program = |between: &[Instruction]| {
        let first = op(JEQ, 3, 0, (between.len() + 4) as i16, 1);
        let second =
            [op(0x71, 5, 6, 0, 0), op(0x25, 5, 0, 2, 2), op(0xb7, 0, 0, 0, 1), EXIT, op(0xb7, 0, 0, 0, 2), EXIT];
        let mut all = [&BYTES[..7], &[first], between, &second].concat();
        all[5].off = (all.len() - 7) as i16;
        all
    };
    assert_eq!(calls(&compile_checked(&program(&[]), &[0, 1, 2, 3]), "load_u8"), 1);
    // Stores of the byte, of two bytes around it, and at an unknown offset.
    let behind = [op(0xbf, 4, 6, 0, 0), op(0x57, 3, 0, 0, 1), op(0x0f, 4, 3, 0, 0), op(0x72, 4, 0, 0, 9)];
    for between in [&[op(0x72, 6, 0, 0, 3)][..], &[op(0x6a, 6, 0, 0, 0x0102)], &behind] {
        compile_checked(&program(between), &[0, 1, 2, 3]);
    }
}
