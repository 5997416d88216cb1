//! Liveness analysis of BPF registers: which registers an instruction or its successors read before
//! they are set. Dead registers do not take part in joins.

use std::collections::HashMap;

use crate::helper;
use crate::instruction::{AluOp, CALL, EXIT, Instruction, JA, JA32, LDDW, call, class};

/// A set of registers r0 to r9, a bit each.
pub(crate) type RegisterSet = u16;

/// The registers that a call may read: r1 to r5.
const ARGUMENT_REGISTERS: RegisterSet = 0b11_1110;

/// The registers that an instruction reads, and those that it sets.
fn uses_and_defs(it: Instruction) -> (RegisterSet, RegisterSet) {
    let bit = |register: u8| if register < 10 { 1 << register } else { 0 };
    let (dst, src) = (bit(it.dst), bit(it.src));
    let second = if it.has_register_operand() { src } else { 0 };
    match it.class() {
        class::ALU | class::ALU64 => match it.alu() {
            Some(AluOp::Mov) => (second, dst),
            Some(AluOp::Neg | AluOp::End) => (dst, dst),
            _ => (dst | second, dst),
        },
        class::LD if it.code == LDDW => (0, dst),
        class::LDX => (src, dst),
        class::ST => (dst, 0),
        // An atomic operation sets its source register or r0 only if it fetches, so nothing counts
        // as set.
        class::STX => (dst | src | if it.mode() == 6 { 1 } else { 0 }, 0),
        _ if it.code == EXIT => (1, 0),
        _ if it.code == CALL && it.src == call::HELPER => {
            let given = (2 << helper::argument_count(it.imm as u32)) - 1;
            (ARGUMENT_REGISTERS & given, ARGUMENT_REGISTERS | 1)
        }
        _ if it.code == CALL => (ARGUMENT_REGISTERS, ARGUMENT_REGISTERS | 1),
        _ if matches!(it.code, JA | JA32) => (0, 0),
        class::JMP | class::JMP32 => (dst | second, 0),
        _ => (0x3ff, 0),
    }
}

/// The live registers at each of the `reached` instructions of a function; `next` gives an
/// instruction's successors.
pub(crate) fn live_registers(
    instructions: &[Instruction],
    reached: &[u32],
    next: impl Fn(u32, Instruction) -> Vec<u32>,
) -> HashMap<u32, RegisterSet> {
    let successors: HashMap<u32, Vec<u32>> =
        reached.iter().map(|&at| (at, next(at, instructions[at as usize]))).collect();
    let mut predecessors: HashMap<u32, Vec<u32>> = HashMap::new();
    for &at in reached {
        successors[&at].iter().for_each(|&to| predecessors.entry(to).or_default().push(at));
    }
    let mut live: HashMap<u32, RegisterSet> = HashMap::new();
    // Worklist from the last instruction backwards, since most edges go forwards. An instruction is
    // visited again when a successor's set grows, at most once a register.
    let mut worklist = reached.to_vec();
    while let Some(at) = worklist.pop() {
        let (uses, defs) = uses_and_defs(instructions[at as usize]);
        let live_out = successors[&at].iter().fold(0, |all, to| all | live.get(to).copied().unwrap_or(0));
        let now = uses | (live_out & !defs);
        if live.insert(at, now).unwrap_or(0) != now {
            worklist.extend(predecessors.get(&at).into_iter().flatten());
        }
    }
    live
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_set_before_they_are_read_are_dead() {
        // r2 = r1; r1 = 0; loop: r0 += r2; if r0 < 9 goto loop; exit
        let bytes: [[u8; 8]; 5] = [
            [0xbf, 0x12, 0, 0, 0, 0, 0, 0],
            [0xb7, 0x01, 0, 0, 0, 0, 0, 0],
            [0x0f, 0x20, 0, 0, 0, 0, 0, 0],
            [0xa5, 0x00, 0xfe, 0xff, 9, 0, 0, 0],
            [0x95, 0, 0, 0, 0, 0, 0, 0],
        ];
        let instructions = bytes.map(Instruction::decode);
        let next = |at: u32, it: Instruction| match it.code {
            0x95 => vec![],
            0xa5 => vec![2, 4],
            _ => vec![at + 1],
        };
        let live = live_registers(&instructions, &[0, 1, 2, 3, 4], next);
        assert_eq!([0, 1, 2, 3, 4].map(|at| live[&at]), [0b011, 0b101, 0b101, 0b101, 0b001]);
    }

    /// A long chain of backward jumps takes linear time.
    #[test]
    fn a_chain_of_backward_jumps_takes_linear_time() {
        const COUNT: u32 = 60_000;
        // r0 = r1; exit; then a chain of jumps, each to the one before it.
        let mut instructions =
            vec![Instruction::decode([0xbf, 0x10, 0, 0, 0, 0, 0, 0]), Instruction::decode([0x95; 8])];
        instructions.resize(COUNT as usize, Instruction::decode([0x05, 0, 0, 0, 0, 0, 0, 0]));
        let next = |at: u32, _: Instruction| match at {
            0 => vec![1],
            1 => vec![],
            2 => vec![0],
            at => vec![at - 1],
        };
        let reached: Vec<u32> = (0..COUNT).collect();
        let live = live_registers(&instructions, &reached, next);
        assert_eq!((live[&1], live[&0], live[&(COUNT - 1)]), (0b001, 0b010, 0b010));
    }
}
