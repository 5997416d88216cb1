//! What is known of the registers: how large they can be, and where they are of no more use.

use std::collections::BTreeSet;

use super::flow::{End, Flow, Step, To};
use super::instruction::{Alu, Op, Operand, Register};

/// The most that each register can be.
pub(super) type Most = [u32; Register::COUNT];

/// How often a block's registers may grow before they are taken for anything.
const ROUNDS: u8 = 8;

/// The most that the registers can be where each block begins; nothing where it is not come to.
pub(super) fn most(flow: &Flow) -> Vec<Option<Most>> {
    let mut known: Vec<Option<Most>> = vec![None; flow.blocks.len()];
    let mut rounds = vec![0_u8; flow.blocks.len()];
    known[0] = Some([0; Register::COUNT]);
    let mut work = BTreeSet::from([0]);
    while let Some(block) = work.pop_first() {
        let Some(mut most) = known[block] else { continue };
        flow.blocks[block].steps.iter().for_each(|&(step, _)| follow(&mut most, step));
        for target in flow.blocks[block].end.targets().filter_map(To::block) {
            let Some(there) = &mut known[target] else {
                known[target] = Some(most);
                work.insert(target);
                continue;
            };
            let grown: Vec<usize> = (0..Register::COUNT).filter(|&i| most[i] > there[i]).collect();
            if grown.is_empty() {
                continue;
            }
            rounds[target] = rounds[target].saturating_add(1);
            let is_last = rounds[target] > ROUNDS;
            grown.into_iter().for_each(|i| there[i] = if is_last { u32::MAX } else { most[i] });
            work.insert(target);
        }
    }
    known
}

/// What a step makes of it.
pub(super) fn follow(most: &mut Most, step: Step) {
    let Step::Do(op) = step else { return };
    let a = most[Register::A.index()];
    most[op.sets().index()] = match op {
        Op::Load { size, .. } | Op::LoadBehind { size, .. } => u32::MAX >> (32 - 8 * size),
        Op::Header { .. } => 60,
        Op::Set { value, .. } => value,
        Op::Copy { from, .. } => most[from.index()],
        Op::Protocol => 0xffff,
        Op::Negate if a == 0 => 0,
        Op::WireLength { .. } | Op::Negate | Op::Port => u32::MAX,
        Op::Alu(alu, operand) => {
            let (b, is_known) = match operand {
                Operand::K(k) => (k, true),
                Operand::X => (most[Register::X.index()], false),
            };
            match alu {
                // What does not fit wraps, to anything.
                Alu::Add => a.saturating_add(b),
                Alu::Multiply => a.saturating_mul(b),
                Alu::ShiftLeft if is_known && b < 32 => u32::try_from(u64::from(a) << b).unwrap_or(u32::MAX),
                Alu::ShiftLeft if is_known => 0,
                Alu::ShiftRight if is_known => a.checked_shr(b).unwrap_or(0),
                Alu::Divide if is_known => a / b.max(1),
                Alu::Divide | Alu::ShiftRight => a,
                Alu::Modulo => a.min(b.saturating_sub(1)),
                Alu::And => a.min(b),
                Alu::Or | Alu::Xor => u32::MAX.checked_shr((a | b).leading_zeros()).unwrap_or(0),
                Alu::Subtract if b == 0 => a,
                Alu::Subtract | Alu::ShiftLeft => u32::MAX,
            }
        }
    };
}

/// A set of registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Registers(u32);

impl Registers {
    pub fn has(self, register: Register) -> bool {
        self.0 >> register.index() & 1 == 1
    }

    pub fn with(self, register: Register) -> Registers {
        Registers(self.0 | 1 << register.index())
    }

    fn without(self, register: Register) -> Registers {
        Registers(self.0 & !(1 << register.index()))
    }

    fn and(self, other: Registers) -> Registers {
        Registers(self.0 | other.0)
    }
}

/// Which registers are still read, of what they hold where each block begins.
pub(super) fn live(flow: &Flow) -> Vec<Registers> {
    let mut before = vec![Vec::new(); flow.blocks.len()];
    for (block, it) in flow.blocks.iter().enumerate() {
        it.end.targets().filter_map(To::block).for_each(|target| before[target].push(block));
    }
    let mut live = vec![Registers::default(); flow.blocks.len()];
    let mut work: BTreeSet<usize> = (0..flow.blocks.len()).collect();
    while let Some(block) = work.pop_last() {
        let it = &flow.blocks[block];
        let mut now = live_behind(flow, &live, block);
        if it.end == End::Return {
            now = now.with(Register::A);
        }
        for (step, _) in it.steps.iter().rev() {
            if let Some(set) = step.sets() {
                now = now.without(set);
            }
            now = step.reads().fold(now, Registers::with);
        }
        if now != live[block] {
            live[block] = now;
            work.extend(&before[block]);
        }
    }
    live
}

/// Which are read by the blocks behind one, of what they hold where it ends.
pub(super) fn live_behind(flow: &Flow, live: &[Registers], block: usize) -> Registers {
    let targets = flow.blocks[block].end.targets().filter_map(To::block);
    targets.fold(Registers::default(), |all, target| all.and(live[target]))
}
