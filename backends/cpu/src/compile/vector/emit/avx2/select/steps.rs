//! Selection for steps: regions and loops.

use super::super::super::plan::loop_invariants;
use super::super::encode::VectorOp;
use super::super::vcode::{Instruction, LaneCondition, Source, VReg};
use super::selector::{CacheKey, Selector};
use crate::compile::errors::{Result, Unsupported};
use crate::compile::vector::ir::{LoopCarried, LoopMask, Node, Op, RegionId, Step, ValueKind};

impl Selector<'_> {
    pub fn select_region(&mut self, region: RegionId) -> Result<()> {
        let lanes = self.lanes;
        for step in &lanes.regions[region.index()].steps {
            match step {
                Step::Effect { effect, .. } => {
                    return Err(Unsupported(format!("{effect:?} in groups of eight packets")));
                }
                Step::When { mask, body, outs } => self.select_when(*mask, *body, outs)?,
                Step::Loop { live, carried, body } => self.select_loop(*live, carried, *body)?,
            }
        }
        Ok(())
    }

    /// Caches the result of a step, if any node uses it.
    pub fn set_result(&mut self, op: Op, value: VReg) {
        if let Some(node) = self.dag().lookup(op) {
            self.remember(CacheKey::Node(node), value);
        }
    }

    /// The output of a region that is skipped: the least element of the node's range, as for four
    /// lanes.
    pub fn least_value(&mut self, node: Node) -> Source {
        let least = match self.dag().kind(node) {
            ValueKind::Word => self.dag().range(node).low,
            ValueKind::Mask => 0,
        };
        self.splat(least)
    }

    pub fn select_when(&mut self, mask: Node, body: RegionId, outs: &[Node]) -> Result<()> {
        let mask = self.value(mask)?;
        let exit = self.code.new_label();
        let mut out = Vec::with_capacity(outs.len());
        for &node in outs {
            let least = self.least_value(node);
            out.push(self.copy_to_new(least));
        }
        self.push(Instruction::JumpIf { mask, lanes: LaneCondition::None, to: exit });
        let mark = self.enter_conditional();
        self.select_region(body)?;
        let values = outs.iter().map(|&node| self.source(node)).collect::<Result<Vec<_>>>()?;
        for (&to, from) in out.iter().zip(values) {
            self.push(Instruction::Move { to, from });
        }
        self.exit_conditional(mark);
        self.push(Instruction::Label(exit));
        for (index, value) in out.into_iter().enumerate() {
            self.set_result(Op::Out { region: body, index: index as u32 }, value);
        }
        Ok(())
    }

    /// Copies virtual registers to others. No destination may be a source.
    pub fn move_all(&mut self, to: &[VReg], from: &[VReg]) {
        for (&to, &from) in to.iter().zip(from).filter(|(to, from)| to != from) {
            self.push(Instruction::Move { to, from: Source::Vector(from) });
        }
    }

    pub fn select_loop(&mut self, live: LoopMask, carried: &[LoopCarried], body: RegionId) -> Result<()> {
        let mut current = Vec::with_capacity(carried.len() + 1);
        for first in std::iter::once(live.initial).chain(carried.iter().map(|carry| carry.initial)) {
            let first = self.source(first)?;
            current.push(self.copy_to_new(first));
        }
        let (body_label, last, exit) = (self.code.new_label(), self.code.new_label(), self.code.new_label());
        self.push(Instruction::JumpIf { mask: current[0], lanes: LaneCondition::None, to: exit });
        let mark = self.enter_conditional();
        // Loop-invariant code motion: compute the loop's inputs before its first iteration.
        let invariants = loop_invariants(self.lanes, body, live, carried);
        for node in invariants.nodes {
            self.source(node)?;
        }
        if invariants.has_variable_loads {
            self.packet_starts();
            self.packet_lengths()?;
        }
        self.push(Instruction::BeginLoop);
        self.push(Instruction::Label(body_label));
        self.set_result(Op::Live(body), current[0]);
        for (index, &value) in current[1..].iter().enumerate() {
            self.set_result(Op::LoopCarried { body, index: index as u32 }, value);
        }
        self.select_region(body)?;
        let next = self.source(live.next)?;
        let continues = self.emit_binary(VectorOp::And, current[0], next);
        let mut left = Vec::with_capacity(carried.len());
        for (carry, &before) in carried.iter().zip(&current[1..]) {
            left.push(match self.source(carry.on_exit)? {
                Source::Vector(after) if after == before => before,
                after => self.emit_blend(current[0], after, before),
            });
        }
        self.push(Instruction::JumpIf { mask: continues, lanes: LaneCondition::None, to: last });
        // Values that only lanes that continue need.
        let mut next = vec![continues];
        for (carry, &left) in carried.iter().zip(&left) {
            next.push(match carry.next == carry.on_exit {
                true => left,
                false => match self.source(carry.next)? {
                    Source::Vector(after) if after == left => left,
                    after => self.emit_blend(continues, after, left),
                },
            });
        }
        self.move_all(&current, &next);
        self.push(Instruction::Jump(body_label));
        self.push(Instruction::Label(last));
        self.move_all(&current[1..], &left);
        self.push(Instruction::EndLoop);
        self.exit_conditional(mark);
        self.push(Instruction::Label(exit));
        for (index, &value) in current[1..].iter().enumerate() {
            self.set_result(Op::Out { region: body, index: index as u32 }, value);
        }
        Ok(())
    }
}
