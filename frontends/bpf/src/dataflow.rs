//! Data-flow analyses of registers: upper bounds (forward, with widening) and liveness (backward).

use std::collections::BTreeSet;

use super::cfg::{Cfg, Step, Target, Terminator};
use super::instruction::{Alu, Op, Operand, Register};

/// Upper bound of each register's value.
pub(super) type UpperBounds = [u32; Register::COUNT];

/// Number of times that a block's bounds may grow before those that still grow are widened to
/// `u32::MAX`.
const WIDENING_DELAY: u8 = 8;

/// Upper bounds at each block's entry; `None` for unreachable blocks.
pub(super) fn upper_bounds(cfg: &Cfg) -> Vec<Option<UpperBounds>> {
    let mut known: Vec<Option<UpperBounds>> = vec![None; cfg.blocks.len()];
    let mut rounds = vec![0_u8; cfg.blocks.len()];
    known[0] = Some([0; Register::COUNT]);
    let mut work = BTreeSet::from([0]);
    while let Some(block) = work.pop_first() {
        let Some(mut bounds) = known[block] else { continue };
        cfg.blocks[block].steps.iter().for_each(|&(step, _)| apply_step(&mut bounds, step));
        for target in cfg.blocks[block].terminator.targets().filter_map(Target::block) {
            let Some(before) = &mut known[target] else {
                known[target] = Some(bounds);
                work.insert(target);
                continue;
            };
            let grown: Vec<usize> = (0..Register::COUNT).filter(|&i| bounds[i] > before[i]).collect();
            if grown.is_empty() {
                continue;
            }
            rounds[target] = rounds[target].saturating_add(1);
            let is_last = rounds[target] > WIDENING_DELAY;
            grown.into_iter().for_each(|i| before[i] = if is_last { u32::MAX } else { bounds[i] });
            work.insert(target);
        }
    }
    known
}

/// Transfer function: updates the bounds for the effect of one step.
pub(super) fn apply_step(bounds: &mut UpperBounds, step: Step) {
    let Step::Op(op) = step else { return };
    let a = bounds[Register::A.index()];
    bounds[op.defined_register().index()] = match op {
        Op::Load { size, .. } | Op::LoadIndexed { size, .. } => u32::MAX >> (32 - 8 * size),
        Op::HeaderLength { .. } => 60,
        Op::Set { value, .. } => value,
        Op::Copy { from, .. } => bounds[from.index()],
        Op::Protocol => 0xffff,
        Op::Negate if a == 0 => 0,
        Op::WireLength { .. } | Op::Negate | Op::Port => u32::MAX,
        Op::Alu(alu, operand) => {
            let (b, is_known) = match operand {
                Operand::K(k) => (k, true),
                Operand::X => (bounds[Register::X.index()], false),
            };
            match alu {
                // Overflow wraps, so a sum or product that may overflow can be anything.
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
pub(super) struct RegisterSet(u32);

impl RegisterSet {
    pub fn contains(self, register: Register) -> bool {
        self.0 >> register.index() & 1 == 1
    }

    pub fn with(self, register: Register) -> RegisterSet {
        RegisterSet(self.0 | 1 << register.index())
    }

    fn without(self, register: Register) -> RegisterSet {
        RegisterSet(self.0 & !(1 << register.index()))
    }

    fn union(self, other: RegisterSet) -> RegisterSet {
        RegisterSet(self.0 | other.0)
    }
}

/// Registers that are live at each block's entry.
pub(super) fn live_in(cfg: &Cfg) -> Vec<RegisterSet> {
    let mut predecessors = vec![Vec::new(); cfg.blocks.len()];
    for (block, it) in cfg.blocks.iter().enumerate() {
        it.terminator.targets().filter_map(Target::block).for_each(|target| predecessors[target].push(block));
    }
    let mut live = vec![RegisterSet::default(); cfg.blocks.len()];
    let mut work: BTreeSet<usize> = (0..cfg.blocks.len()).collect();
    while let Some(block) = work.pop_last() {
        let it = &cfg.blocks[block];
        let mut now = live_out(cfg, &live, block);
        if it.terminator == Terminator::Return {
            now = now.with(Register::A);
        }
        for (step, _) in it.steps.iter().rev() {
            if let Some(set) = step.defined_register() {
                now = now.without(set);
            }
            now = step.used_registers().fold(now, RegisterSet::with);
        }
        if now != live[block] {
            live[block] = now;
            work.extend(&predecessors[block]);
        }
    }
    live
}

/// Registers that are live at a block's end.
pub(super) fn live_out(cfg: &Cfg, live: &[RegisterSet], block: usize) -> RegisterSet {
    let targets = cfg.blocks[block].terminator.targets().filter_map(Target::block);
    targets.fold(RegisterSet::default(), |all, target| all.union(live[target]))
}
