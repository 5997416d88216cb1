//! A program as blocks, each of which goes on in one way or two.

use std::collections::BTreeSet;

use super::check::Checked;
use super::instruction::{Comparison, Op, Operand, Register};

/// Where control goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum To {
    Block(usize),
    /// The packet is taken.
    Pass,
    /// It is not.
    Drop,
}

impl To {
    pub fn block(self) -> Option<usize> {
        match self {
            To::Block(block) => Some(block),
            To::Pass | To::Drop => None,
        }
    }
}

/// Something that holds or does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// A against something else.
    Compare(Comparison, Operand),
    /// The packet has fewer bytes than this.
    Shorter(u32),
    /// It has fewer than X and this, of which the sum may not fit 32 bits; `most` is the most that X can be.
    ShorterThanX { more: u32, most: u32 },
    /// X is zero.
    XIsZero,
}

/// A step of a block. Those that are no [`Op`] are about a stack of truth values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Do(Op),
    /// Puts there whether the answer is `is`.
    Ask {
        asked: Asked,
        is: bool,
    },
    /// Turns the upper one round.
    Not,
    /// Puts one for the upper two.
    And,
    Or,
}

impl Step {
    /// What it reads.
    pub fn reads(self) -> impl Iterator<Item = Register> {
        let (a, x) = (Some(Register::A), Some(Register::X));
        let right = |operand| if operand == Operand::X { x } else { None };
        let both = match self {
            Step::Do(Op::LoadBehind { .. }) => [x, None],
            Step::Do(Op::Copy { from, .. }) => [Some(from), None],
            Step::Do(Op::Alu(_, operand)) | Step::Ask { asked: Asked::Compare(_, operand), .. } => [a, right(operand)],
            Step::Do(Op::Negate) => [a, None],
            Step::Ask { asked: Asked::ShorterThanX { .. } | Asked::XIsZero, .. } => [x, None],
            _ => [None, None],
        };
        both.into_iter().flatten()
    }

    /// What it sets.
    pub fn sets(self) -> Option<Register> {
        match self {
            Step::Do(op) => Some(op.sets()),
            _ => None,
        }
    }
}

impl Op {
    /// What it sets.
    pub fn sets(self) -> Register {
        match self {
            Op::Header { .. } => Register::X,
            Op::Set { to, .. } | Op::Copy { to, .. } | Op::WireLength { to } => to,
            _ => Register::A,
        }
    }
}

/// How a block ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Go(To),
    /// By the truth value that its steps leave.
    If {
        then: To,
        otherwise: To,
    },
    /// The packet is taken if A is not zero.
    Return,
}

impl End {
    pub fn targets(self) -> impl Iterator<Item = To> {
        let both = match self {
            End::Go(to) => [Some(to), None],
            End::If { then, otherwise } => [Some(then), Some(otherwise)],
            End::Return => [None, None],
        };
        both.into_iter().flatten()
    }
}

/// What runs as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Block {
    /// Each with the instruction that it is of.
    pub steps: Vec<(Step, usize)>,
    pub end: End,
}

/// A program's blocks, entered at the first. Those that are led to from before stand in an order in which each stands behind
/// all that lead to it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Flow {
    pub blocks: Vec<Block>,
}

impl Flow {
    /// Cuts a program where jumps begin and end.
    pub fn of(program: &[Checked]) -> Flow {
        let mut begins = vec![false; program.len()];
        begins[0] = true;
        for (number, instruction) in program.iter().enumerate() {
            let targets = match *instruction {
                Checked::Do(_) => continue,
                Checked::Jump(to) => [Some(to), None],
                Checked::Branch { then, otherwise, .. } => [Some(then), Some(otherwise)],
                Checked::Return(_) => [None, None],
            };
            targets.into_iter().flatten().chain([number + 1]).for_each(|target| {
                if let Some(begins) = begins.get_mut(target) {
                    *begins = true;
                }
            });
        }
        let mut numbers = Vec::with_capacity(program.len());
        let mut count = 0;
        for &begins in &begins {
            count += usize::from(begins);
            numbers.push(count - 1);
        }
        let to = |target: usize| To::Block(numbers[target]);
        let mut blocks: Vec<Block> = Vec::with_capacity(count);
        for (number, instruction) in program.iter().enumerate() {
            if begins[number] {
                // Until it is said otherwise, it goes on with the next.
                blocks.push(Block { steps: Vec::new(), end: End::Go(To::Block(blocks.len() + 1)) });
            }
            let Some(block) = blocks.last_mut() else { continue };
            match *instruction {
                Checked::Do(op) => block.steps.push((Step::Do(op), number)),
                Checked::Jump(target) => block.end = End::Go(to(target)),
                Checked::Branch { comparison, operand, then, otherwise } => {
                    let asked = Asked::Compare(comparison, operand);
                    block.steps.push((Step::Ask { asked, is: true }, number));
                    block.end = End::If { then: to(then), otherwise: to(otherwise) };
                }
                Checked::Return(Some(0)) => block.end = End::Go(To::Drop),
                Checked::Return(Some(_)) => block.end = End::Go(To::Pass),
                Checked::Return(None) => block.end = End::Return,
            }
        }
        let mut flow = Flow { blocks };
        flow.thread();
        flow
    }

    /// Has nothing lead to a block that only leads on. What is asked where both answers lead to the same is not asked.
    pub fn thread(&mut self) {
        let mut known: Vec<Option<To>> = vec![None; self.blocks.len()];
        // Those behind first: most of them are led to from before.
        for block in (0..self.blocks.len()).rev() {
            let (mut to, mut passed) = (To::Block(block), BTreeSet::new());
            while let To::Block(at) = to {
                match (&self.blocks[at], known[at]) {
                    (_, Some(end)) => {
                        to = end;
                        break;
                    }
                    // Round and round, or not.
                    (Block { steps, end: End::Go(next) }, _) if steps.is_empty() && passed.insert(at) => to = *next,
                    _ => break,
                }
            }
            known[block] = Some(to);
            passed.into_iter().for_each(|it| known[it] = Some(to));
        }
        let target = |to: To| to.block().and_then(|block| known[block]).unwrap_or(to);
        for block in &mut self.blocks {
            block.end = match block.end {
                End::Go(to) => End::Go(target(to)),
                End::If { then, otherwise } => {
                    let (then, otherwise) = (target(then), target(otherwise));
                    if then == otherwise {
                        block.steps.pop();
                        End::Go(then)
                    } else {
                        End::If { then, otherwise }
                    }
                }
                End::Return => End::Return,
            };
        }
    }

    /// Which blocks are come to from the first.
    pub fn reached(&self) -> Vec<bool> {
        let mut reached = vec![false; self.blocks.len()];
        let mut work = vec![0];
        while let Some(block) = work.pop() {
            if !std::mem::replace(&mut reached[block], true) {
                work.extend(self.blocks[block].end.targets().filter_map(To::block));
            }
        }
        reached
    }
}
