//! Control-flow graph of a program: basic blocks, jump threading and reachability.

use std::collections::BTreeSet;

use super::check::CheckedInstruction;
use super::instruction::{Comparison, Op, Operand, Register};

/// Target of an edge: a block or an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    Block(usize),
    /// Accept the packet.
    Pass,
    /// Reject the packet.
    Drop,
}

impl Target {
    pub fn block(self) -> Option<usize> {
        match self {
            Target::Block(block) => Some(block),
            Target::Pass | Target::Drop => None,
        }
    }
}

/// A condition to test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Predicate {
    /// Compares A with the operand.
    Compare(Comparison, Operand),
    /// The packet is shorter than this many bytes.
    LengthBelow(u32),
    /// The packet is shorter than X + `offset` bytes; the sum may exceed 32 bits. `max_x` is an
    /// upper bound of X.
    LengthBelowX {
        offset: u32,
        max_x: u32,
    },
    XIsZero,
}

/// A step of a block: an instruction, or an operation on the block's stack of booleans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Op(Op),
    /// Pushes whether the predicate evaluates to `expected`.
    Test {
        predicate: Predicate,
        expected: bool,
    },
    /// Negates the top of the stack.
    Not,
    /// Pops two booleans and pushes their conjunction.
    And,
    /// Pops two booleans and pushes their disjunction.
    Or,
}

impl Step {
    /// Registers that the step reads.
    pub fn used_registers(self) -> impl Iterator<Item = Register> {
        let (a, x) = (Some(Register::A), Some(Register::X));
        let right = |operand| if operand == Operand::X { x } else { None };
        let both = match self {
            Step::Op(Op::LoadIndexed { .. }) => [x, None],
            Step::Op(Op::Copy { from, .. }) => [Some(from), None],
            Step::Op(Op::Alu(_, operand)) | Step::Test { predicate: Predicate::Compare(_, operand), .. } => {
                [a, right(operand)]
            }
            Step::Op(Op::Negate) => [a, None],
            Step::Test { predicate: Predicate::LengthBelowX { .. } | Predicate::XIsZero, .. } => [x, None],
            _ => [None, None],
        };
        both.into_iter().flatten()
    }

    /// The register that the step writes.
    pub fn defined_register(self) -> Option<Register> {
        match self {
            Step::Op(op) => Some(op.defined_register()),
            _ => None,
        }
    }
}

impl Op {
    /// The register that the instruction writes; every instruction writes one.
    pub fn defined_register(self) -> Register {
        match self {
            Op::HeaderLength { .. } => Register::X,
            Op::Set { to, .. } | Op::Copy { to, .. } | Op::WireLength { to } => to,
            _ => Register::A,
        }
    }
}

/// The last instruction of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Terminator {
    Goto(Target),
    /// Pops the condition that the steps leave on the stack.
    Branch {
        then: Target,
        otherwise: Target,
    },
    /// Accept the packet if A is not zero.
    Return,
}

impl Terminator {
    pub fn targets(self) -> impl Iterator<Item = Target> {
        let both = match self {
            Terminator::Goto(target) => [Some(target), None],
            Terminator::Branch { then, otherwise } => [Some(then), Some(otherwise)],
            Terminator::Return => [None, None],
        };
        both.into_iter().flatten()
    }
}

/// A basic block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Block {
    /// The steps, each with the number of the instruction that it comes from.
    pub steps: Vec<(Step, usize)>,
    pub terminator: Terminator,
}

/// The blocks of a program; the first is the entry. Except along back edges, every block has a
/// higher number than its predecessors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Cfg {
    pub blocks: Vec<Block>,
}

impl Cfg {
    /// Builds the graph: a block starts at the program's start, at each jump target and after each
    /// jump.
    pub fn from_instructions(program: &[CheckedInstruction]) -> Cfg {
        let mut is_leader = vec![false; program.len()];
        is_leader[0] = true;
        for (number, instruction) in program.iter().enumerate() {
            let targets = match *instruction {
                CheckedInstruction::Op(_) => continue,
                CheckedInstruction::Jump(target) => [Some(target), None],
                CheckedInstruction::Branch { then, otherwise, .. } => [Some(then), Some(otherwise)],
                CheckedInstruction::Return(_) => [None, None],
            };
            targets.into_iter().flatten().chain([number + 1]).for_each(|target| {
                if let Some(is_leader) = is_leader.get_mut(target) {
                    *is_leader = true;
                }
            });
        }
        let mut numbers = Vec::with_capacity(program.len());
        let mut count = 0;
        for &is_leader in &is_leader {
            count += usize::from(is_leader);
            numbers.push(count - 1);
        }
        let block_at = |target: usize| Target::Block(numbers[target]);
        let mut blocks: Vec<Block> = Vec::with_capacity(count);
        for (number, instruction) in program.iter().enumerate() {
            if is_leader[number] {
                // Falls through until a jump or return says otherwise.
                blocks.push(Block { steps: Vec::new(), terminator: Terminator::Goto(Target::Block(blocks.len() + 1)) });
            }
            let Some(block) = blocks.last_mut() else { continue };
            match *instruction {
                CheckedInstruction::Op(op) => block.steps.push((Step::Op(op), number)),
                CheckedInstruction::Jump(target) => block.terminator = Terminator::Goto(block_at(target)),
                CheckedInstruction::Branch { comparison, operand, then, otherwise } => {
                    let predicate = Predicate::Compare(comparison, operand);
                    block.steps.push((Step::Test { predicate, expected: true }, number));
                    block.terminator = Terminator::Branch { then: block_at(then), otherwise: block_at(otherwise) };
                }
                CheckedInstruction::Return(Some(0)) => block.terminator = Terminator::Goto(Target::Drop),
                CheckedInstruction::Return(Some(_)) => block.terminator = Terminator::Goto(Target::Pass),
                CheckedInstruction::Return(None) => block.terminator = Terminator::Return,
            }
        }
        let mut cfg = Cfg { blocks };
        cfg.thread_jumps();
        cfg
    }

    /// Jump threading: redirects edges past empty blocks that end with a goto. A branch whose
    /// targets become equal turns into a goto, and its test is dropped.
    pub fn thread_jumps(&mut self) {
        let mut known: Vec<Option<Target>> = vec![None; self.blocks.len()];
        // Successors first: then most targets are resolved when a block is visited.
        for block in (0..self.blocks.len()).rev() {
            let (mut target, mut visited) = (Target::Block(block), BTreeSet::new());
            while let Target::Block(at) = target {
                match (&self.blocks[at], known[at]) {
                    (_, Some(terminator)) => {
                        target = terminator;
                        break;
                    }
                    // The insertion fails on a cycle of empty blocks, an endless loop.
                    (Block { steps, terminator: Terminator::Goto(next) }, _)
                        if steps.is_empty() && visited.insert(at) =>
                    {
                        target = *next
                    }
                    _ => break,
                }
            }
            known[block] = Some(target);
            visited.into_iter().for_each(|it| known[it] = Some(target));
        }
        let threaded = |target: Target| target.block().and_then(|block| known[block]).unwrap_or(target);
        for block in &mut self.blocks {
            block.terminator = match block.terminator {
                Terminator::Goto(target) => Terminator::Goto(threaded(target)),
                Terminator::Branch { then, otherwise } => {
                    let (then, otherwise) = (threaded(then), threaded(otherwise));
                    if then == otherwise {
                        block.steps.pop();
                        Terminator::Goto(then)
                    } else {
                        Terminator::Branch { then, otherwise }
                    }
                }
                Terminator::Return => Terminator::Return,
            };
        }
    }

    /// Returns for each block whether the entry reaches it.
    pub fn reachable_blocks(&self) -> Vec<bool> {
        let mut reachable = vec![false; self.blocks.len()];
        let mut work = vec![0];
        while let Some(block) = work.pop() {
            if !std::mem::replace(&mut reachable[block], true) {
                work.extend(self.blocks[block].terminator.targets().filter_map(Target::block));
            }
        }
        reachable
    }
}
