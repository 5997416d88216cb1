//! Which registers are asked for from an instruction on: what others hold does not matter there.

use std::collections::HashMap;

use crate::decode::helper;
use crate::decode::instruction::{Alu, CALL, EXIT, Instruction, JA, JA32, LDDW, call, class};

/// Registers 0 to 9, a bit each.
pub(crate) type Registers = u16;

/// The most that a call is given: r1 to r5.
const ARGUMENTS: Registers = 0b11_1110;

/// What an instruction asks for, and what it sets.
fn effect(it: Instruction) -> (Registers, Registers) {
    let bit = |register: u8| if register < 10 { 1 << register } else { 0 };
    let (dst, src) = (bit(it.dst), bit(it.src));
    let second = if it.by_register() { src } else { 0 };
    match it.class() {
        class::ALU | class::ALU64 => match it.alu() {
            Some(Alu::Mov) => (second, dst),
            Some(Alu::Neg | Alu::End) => (dst, dst),
            _ => (dst | second, dst),
        },
        class::LD if it.code == LDDW => (0, dst),
        class::LDX => (src, dst),
        class::ST => (dst, 0),
        // An atomic operation may set either, or the one that it is not said to.
        class::STX => (dst | src | if it.mode() == 6 { 1 } else { 0 }, 0),
        _ if it.code == EXIT => (1, 0),
        _ if it.code == CALL && it.src == call::HELPER => {
            let given = (2 << helper::arguments(it.imm as u32)) - 1;
            (ARGUMENTS & given, ARGUMENTS | 1)
        }
        _ if it.code == CALL => (ARGUMENTS, ARGUMENTS | 1),
        _ if matches!(it.code, JA | JA32) => (0, 0),
        class::JMP | class::JMP32 => (dst | second, 0),
        _ => (0x3ff, 0),
    }
}

/// The registers that are asked for at each instruction of a function, from its first on; `next` says where one goes on.
pub(crate) fn registers(
    instructions: &[Instruction],
    reached: &[u32],
    next: impl Fn(u32, Instruction) -> Vec<u32>,
) -> HashMap<u32, Registers> {
    let ways: HashMap<u32, Vec<u32>> = reached.iter().map(|&at| (at, next(at, instructions[at as usize]))).collect();
    let mut before: HashMap<u32, Vec<u32>> = HashMap::new();
    for &at in reached {
        ways[&at].iter().for_each(|&to| before.entry(to).or_default().push(at));
    }
    let mut asked: HashMap<u32, Registers> = HashMap::new();
    // The last first, since most control goes forwards; again, once what is behind asks for more: as often as there are registers.
    let mut open = reached.to_vec();
    while let Some(at) = open.pop() {
        let (asks, sets) = effect(instructions[at as usize]);
        let behind = ways[&at].iter().fold(0, |all, to| all | asked.get(to).copied().unwrap_or(0));
        let now = asks | (behind & !sets);
        if asked.insert(at, now).unwrap_or(0) != now {
            open.extend(before.get(&at).into_iter().flatten());
        }
    }
    asked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_before_it_is_read_is_not_asked_for() {
        // r2 = r1; r1 = 0; loop: r0 += r2; if r0 < 9 goto loop; exit
        let bytes: [[u8; 8]; 5] = [
            [0xbf, 0x12, 0, 0, 0, 0, 0, 0],
            [0xb7, 0x01, 0, 0, 0, 0, 0, 0],
            [0x0f, 0x20, 0, 0, 0, 0, 0, 0],
            [0xa5, 0x00, 0xfe, 0xff, 9, 0, 0, 0],
            [0x95, 0, 0, 0, 0, 0, 0, 0],
        ];
        let instructions = bytes.map(Instruction::of);
        let next = |at: u32, it: Instruction| match it.code {
            0x95 => vec![],
            0xa5 => vec![2, 4],
            _ => vec![at + 1],
        };
        let asked = registers(&instructions, &[0, 1, 2, 3, 4], next);
        assert_eq!([0, 1, 2, 3, 4].map(|at| asked[&at]), [0b011, 0b101, 0b101, 0b101, 0b001]);
    }

    /// What a long way back leads to is known at its beginning, without going through all of it for each step.
    #[test]
    fn jumps_that_all_lead_back() {
        const COUNT: u32 = 60_000;
        // r0 = r1; exit; and before that the last, and so on.
        let mut instructions = vec![Instruction::of([0xbf, 0x10, 0, 0, 0, 0, 0, 0]), Instruction::of([0x95; 8])];
        instructions.resize(COUNT as usize, Instruction::of([0x05, 0, 0, 0, 0, 0, 0, 0]));
        let next = |at: u32, _: Instruction| match at {
            0 => vec![1],
            1 => vec![],
            2 => vec![0],
            at => vec![at - 1],
        };
        let reached: Vec<u32> = (0..COUNT).collect();
        let asked = registers(&instructions, &reached, next);
        assert_eq!((asked[&1], asked[&0], asked[&(COUNT - 1)]), (0b001, 0b010, 0b010));
    }
}
