//! Makes implicit rejections explicit: an instruction that rejects the packet (a load past its end,
//! a division by X = 0) gets a branch to `Drop` before it.
//!
//! A length check asks at once for all bytes that every accepting path from there on needs (a
//! backward analysis, [`required_lengths`]), so most programs check once or twice. A check that an
//! earlier one implies on every path is left out (a forward analysis of [`KnownLength`]).

use std::collections::BTreeSet;

use super::cfg::{Block, Cfg, Predicate, Step, Target, Terminator};
use super::dataflow::{self, UpperBounds};
use super::instruction::{Alu, Op, Operand, Register};

/// Required length of a block from which no path accepts the packet: longer than any packet.
const NEVER_ACCEPTED: u64 = u64::MAX;

/// Maximum number of times that the state of a block is weakened before nothing is assumed, and
/// number of rounds of the backward analysis.
const MAX_ITERATIONS: u8 = 8;

/// Lower bounds of the packet's length, in bytes: of the length itself and of what follows X.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct KnownLength {
    bytes: u64,
    past_x: u64,
}

impl KnownLength {
    const NOTHING: KnownLength = KnownLength { bytes: 0, past_x: 0 };

    fn meet(self, other: KnownLength) -> KnownLength {
        KnownLength { bytes: self.bytes.min(other.bytes), past_x: self.past_x.min(other.past_x) }
    }
}

/// Returns `cfg` with checks before all instructions that need them.
pub(super) fn insert_checks(cfg: &Cfg) -> Cfg {
    let bounds = dataflow::upper_bounds(cfg);
    let required = required_lengths(cfg);
    let mut known: Vec<Option<KnownLength>> = vec![None; cfg.blocks.len()];
    let mut rounds = vec![0_u8; cfg.blocks.len()];
    known[0] = Some(KnownLength::NOTHING);
    let mut work = BTreeSet::from([0]);
    while let Some(block) = work.pop_first() {
        let Some(at_entry) = known[block] else { continue };
        let Some(bounds) = bounds[block] else { continue };
        let mut scan = BlockScan { known: at_entry, bounds, fragments: None };
        if !scan.scan_block(cfg, &required, block) {
            continue;
        }
        for target in cfg.blocks[block].terminator.targets().filter_map(Target::block) {
            let before = known[target];
            let both = before.map_or(scan.known, |before| before.meet(scan.known));
            if before == Some(both) {
                continue;
            }
            rounds[target] = rounds[target].saturating_add(1);
            known[target] = Some(if rounds[target] > MAX_ITERATIONS { KnownLength::NOTHING } else { both });
            work.insert(target);
        }
    }
    let mut checked = cfg.clone();
    for block in 0..cfg.blocks.len() {
        let (Some(known), Some(bounds)) = (known[block], bounds[block]) else { continue };
        let mut scan = BlockScan { known, bounds, fragments: Some(Vec::new()) };
        let can_accept = scan.scan_block(cfg, &required, block);
        let fragments = scan.fragments.unwrap_or_default();
        let terminator = if can_accept { cfg.blocks[block].terminator } else { Terminator::Goto(Target::Drop) };
        checked.replace_block(block, fragments, terminator);
    }
    checked
}

impl Cfg {
    /// Replaces a block by a chain of fragments. Every fragment but the last ends with a check that
    /// drops the packet if its predicate holds.
    fn replace_block(&mut self, block: usize, fragments: Vec<Vec<(Step, usize)>>, terminator: Terminator) {
        let count = fragments.len();
        let mut at = block;
        for (number, steps) in fragments.into_iter().enumerate() {
            let is_last = number + 1 == count;
            let next = self.blocks.len();
            let terminator = if is_last {
                terminator
            } else {
                Terminator::Branch { then: Target::Drop, otherwise: Target::Block(next) }
            };
            self.blocks[at] = Block { steps, terminator };
            if !is_last {
                self.blocks.push(Block { steps: Vec::new(), terminator: Terminator::Return });
                at = next;
            }
        }
    }
}

/// Abstract state of one forward scan through a block.
struct BlockScan {
    known: KnownLength,
    bounds: UpperBounds,
    /// The block cut at its checks; `None` while only the state at its end is of interest.
    fragments: Option<Vec<Vec<(Step, usize)>>>,
}

impl BlockScan {
    /// Scans a block and returns whether a packet can reach its end and still be accepted.
    fn scan_block(&mut self, cfg: &Cfg, required: &[u64], block: usize) -> bool {
        let Block { steps, terminator } = &cfg.blocks[block];
        // Length that is required from each step on, computed backwards.
        let mut from = vec![terminator_requirement(*terminator, required)];
        for &(step, _) in steps.iter().rev() {
            from.push(step_requirement(step).max(from[from.len() - 1]));
        }
        from.reverse();
        if let Some(fragments) = &mut self.fragments {
            fragments.push(Vec::new());
        }
        for (i, &(step, number)) in steps.iter().enumerate() {
            if step_requirement(step) > self.known.bytes {
                let Some(length) = u32::try_from(from[i]).ok().filter(|_| from[i] != NEVER_ACCEPTED) else {
                    return false;
                };
                self.push_check(Predicate::LengthBelow(length), number);
                self.known.bytes = from[i];
            }
            if let Step::Op(op) = step {
                self.check_x(op, &steps[i..], number);
            }
            if let Some(fragment) = self.fragments.as_mut().and_then(|fragments| fragments.last_mut()) {
                fragment.push((step, number));
            }
            dataflow::apply_step(&mut self.bounds, step);
            if step.defined_register() == Some(Register::X) {
                self.known.past_x = 0;
            }
        }
        from[steps.len()] != NEVER_ACCEPTED
    }

    /// Emits the check that `op` needs of X, unless it is known to succeed. `rest` starts with
    /// `op`.
    fn check_x(&mut self, op: Op, rest: &[(Step, usize)], number: usize) {
        match op {
            Op::LoadIndexed { .. } => {
                let needed = length_past_x(op);
                let max_x = self.bounds[Register::X.index()];
                if needed <= self.known.past_x || needed + u64::from(max_x) <= self.known.bytes {
                    return;
                }
                // One check for all loads up to the next change of X.
                let same_x = rest.iter().take_while(|(step, _)| step.defined_register() != Some(Register::X));
                let all = same_x.map(|(step, _)| if let Step::Op(op) = step { length_past_x(*op) } else { 0 }).max();
                let all = all.unwrap_or(0).max(needed);
                let Ok(offset) = u32::try_from(all) else { return };
                self.push_check(Predicate::LengthBelowX { offset, max_x }, number);
                self.known.past_x = all;
                self.known.bytes = self.known.bytes.max(all);
            }
            Op::Alu(Alu::Divide | Alu::Modulo, Operand::X) => self.push_check(Predicate::XIsZero, number),
            _ => {}
        }
    }

    fn push_check(&mut self, predicate: Predicate, number: usize) {
        if let Some(fragments) = &mut self.fragments {
            if let Some(fragment) = fragments.last_mut() {
                fragment.push((Step::Test { predicate, expected: true }, number));
            }
            fragments.push(Vec::new());
        }
    }
}

/// Lower bound of the packet length, in bytes, that a step needs to succeed.
fn step_requirement(step: Step) -> u64 {
    match step {
        Step::Op(Op::Load { offset, size }) => u64::from(offset) + u64::from(size),
        Step::Op(Op::HeaderLength { offset }) => u64::from(offset) + 1,
        Step::Op(op @ Op::LoadIndexed { .. }) => length_past_x(op),
        // An Ethernet header.
        Step::Op(Op::Protocol) => 14,
        _ => 0,
    }
}

/// Number of bytes that `op` needs from X on.
fn length_past_x(op: Op) -> u64 {
    match op {
        Op::LoadIndexed { offset, size } => u64::from(offset) + u64::from(size),
        _ => 0,
    }
}

fn terminator_requirement(terminator: Terminator, required: &[u64]) -> u64 {
    let target_requirement = |target: Target| match target {
        Target::Block(block) => required[block],
        Target::Pass => 0,
        Target::Drop => NEVER_ACCEPTED,
    };
    match terminator {
        Terminator::Goto(target) => target_requirement(target),
        Terminator::Branch { then, otherwise } => target_requirement(then).min(target_requirement(otherwise)),
        Terminator::Return => 0,
    }
}

/// Packet length, in bytes, below which no path from each block's entry accepts. In loops the
/// result may be too low, which costs checks but not correctness.
fn required_lengths(cfg: &Cfg) -> Vec<u64> {
    let mut required = vec![0; cfg.blocks.len()];
    for _ in 0..MAX_ITERATIONS {
        let mut changed = false;
        // Successors first, except along back edges.
        for block in (0..cfg.blocks.len()).rev() {
            let Block { steps, terminator } = &cfg.blocks[block];
            let at_end = terminator_requirement(*terminator, &required);
            let length = steps.iter().map(|&(step, _)| step_requirement(step)).fold(at_end, u64::max);
            changed |= std::mem::replace(&mut required[block], length) != length;
        }
        if !changed {
            break;
        }
    }
    required
}
