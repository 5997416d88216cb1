//! Whole programs through the front end, run by the reference interpreter for filters and compared
//! with an independent interpreter of eBPF (the model).

mod arithmetic_corners;
mod cross_block_passes;
mod instruction_tables;
#[allow(dead_code, reason = "the tests with the kernel use the rest")]
mod model;
mod random_programs;
mod regressions;

use crate as xdp;

use model::compare::{Comparison, compare};
use model::{Code, Instruction, MapSpec, op};

const EXIT: Instruction = op(0x95, 0, 0, 0, 0);

/// The maps of the programs: an array with one value of 16 bytes.
const MAPS: [MapSpec; 1] = [MapSpec { ty: 2, key: 4, value: 16, entries: 1 }];

/// Puts a pointer to the map's only value in r0.
const VALUE: [Instruction; 8] = [
    op(0x62, 10, 0, -4, 0),
    op(0xbf, 2, 10, 0, 0),
    op(0x07, 2, 0, 0, -4),
    op(0x18, 1, 1, 0, 0),
    op(0, 0, 0, 0, 0),
    op(0x85, 0, 0, 0, 1),
    op(0x55, 0, 0, 1, 0),
    EXIT,
];

fn code(instructions: &[Instruction]) -> Code {
    Code { instructions: instructions.to_vec(), functions: vec![0], maps: MAPS.to_vec() }
}

/// Asserts that a program does what the model says for these packets; returns it.
#[track_caller]
fn assert_matches_model(instructions: &[Instruction], packets: &[Vec<u8>]) -> Code {
    let code = code(instructions);
    match compare(&code, packets) {
        Ok(Comparison::Same(count, None)) if count == packets.len() => code,
        Ok(held) => panic!("{held:?}\n{}", code.listing()),
        Err(difference) => panic!("{}\n{}", difference.what, code.listing()),
    }
}
