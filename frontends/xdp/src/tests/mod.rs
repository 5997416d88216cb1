//! Programs through the whole front end, in the interpreter of filters, against an interpreter of eBPF's own.

mod blocks;
mod by_hand;
mod found;
mod instructions;
#[allow(dead_code, reason = "the tests with the kernel use the rest")]
mod model;
mod programs;

use crate as xdp;

use model::compare::{Comparison, compare};
use model::{Code, Instruction, MapSpec, op};

const EXIT: Instruction = op(0x95, 0, 0, 0, 0);

/// The values of the first map are an array's, of 16 bytes.
const MAPS: [MapSpec; 1] = [MapSpec { ty: 2, key: 4, value: 16, entries: 1 }];

/// The first map's only value in r0.
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

/// Holds a program to the model over packets; gives it.
#[track_caller]
fn held_to_the_model(instructions: &[Instruction], packets: &[Vec<u8>]) -> Code {
    let code = code(instructions);
    match compare(&code, packets) {
        Ok(Comparison::Same(count, None)) if count == packets.len() => code,
        Ok(held) => panic!("{held:?}\n{}", code.listing()),
        Err(difference) => panic!("{}\n{}", difference.what, code.listing()),
    }
}
