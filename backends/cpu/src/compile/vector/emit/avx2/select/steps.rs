//! Selection for steps: regions and loops.

use super::super::super::plan::needed_by;
use super::super::encode::Opcode;
use super::super::vcode::{If, Instruction, Source, Vector};
use super::selector::{Key, Select};
use crate::compile::errors::{Result, Unsupported};
use crate::compile::vector::ir::{Carry, Kind, Live, Node, Op, RegionId, Step};

impl Select<'_> {
    pub fn region(&mut self, region: RegionId) -> Result<()> {
        let lanes = self.lanes;
        for step in &lanes.regions[region.index()].steps {
            match step {
                Step::Effect { effect, .. } => return Err(Unsupported(format!("{effect:?} eight at a time"))),
                Step::When { mask, body, outs } => self.when(*mask, *body, outs)?,
                Step::Loop { live, carried, body } => self.rounds(*live, carried, *body)?,
            }
        }
        Ok(())
    }

    /// Takes note of what a step gave, if anybody asks for it.
    pub fn found_out(&mut self, op: Op, value: Vector) {
        if let Some(node) = self.dag().find(op) {
            self.know(Key::Node(node), value);
        }
    }

    /// What comes out of a region that was left out is the least of what it can be by its range, as for four lanes.
    pub fn least(&mut self, node: Node) -> Source {
        let least = match self.dag().kind(node) {
            Kind::Word => self.dag().range(node).low,
            Kind::Mask => 0,
        };
        self.splat(least)
    }

    pub fn when(&mut self, mask: Node, body: RegionId, outs: &[Node]) -> Result<()> {
        let mask = self.value(mask)?;
        let behind = self.listing.label();
        let mut out = Vec::with_capacity(outs.len());
        for &node in outs {
            let least = self.least(node);
            out.push(self.copied(least));
        }
        self.put(Instruction::JumpIf { mask, lanes: If::None, to: behind });
        let mark = self.enter();
        self.region(body)?;
        let values = outs.iter().map(|&node| self.source(node)).collect::<Result<Vec<_>>>()?;
        for (&to, from) in out.iter().zip(values) {
            self.put(Instruction::Move { to, from });
        }
        self.leave(mark);
        self.put(Instruction::Label(behind));
        for (index, value) in out.into_iter().enumerate() {
            self.found_out(Op::Out { region: body, index: index as u32 }, value);
        }
        Ok(())
    }

    /// Moves vectors into others, none of which is one of them.
    pub fn assign(&mut self, to: &[Vector], from: &[Vector]) {
        for (&to, &from) in to.iter().zip(from).filter(|(to, from)| to != from) {
            self.put(Instruction::Move { to, from: Source::Vector(from) });
        }
    }

    pub fn rounds(&mut self, live: Live, carried: &[Carry], body: RegionId) -> Result<()> {
        let mut current = Vec::with_capacity(carried.len() + 1);
        for first in std::iter::once(live.first).chain(carried.iter().map(|carry| carry.first)) {
            let first = self.source(first)?;
            current.push(self.copied(first));
        }
        let (round, last, behind) = (self.listing.label(), self.listing.label(), self.listing.label());
        self.put(Instruction::JumpIf { mask: current[0], lanes: If::None, to: behind });
        let mark = self.enter();
        // What does not change from round to round is made before the first one.
        let needs = needed_by(self.lanes, body, live, carried);
        for node in needs.outside {
            self.source(node)?;
        }
        if needs.loads_anywhere {
            self.starts();
            self.length()?;
        }
        self.put(Instruction::Loop);
        self.put(Instruction::Label(round));
        self.found_out(Op::Live(body), current[0]);
        for (index, &value) in current[1..].iter().enumerate() {
            self.found_out(Op::Carried { body, index: index as u32 }, value);
        }
        self.region(body)?;
        let next = self.source(live.next)?;
        let goes_on = self.binary_of(Opcode::And, current[0], next);
        let mut left = Vec::with_capacity(carried.len());
        for (carry, &before) in carried.iter().zip(&current[1..]) {
            left.push(match self.source(carry.left)? {
                Source::Vector(after) if after == before => before,
                after => self.chosen(current[0], after, before),
            });
        }
        self.put(Instruction::JumpIf { mask: goes_on, lanes: If::None, to: last });
        // What only those need that go on.
        let mut next = vec![goes_on];
        for (carry, &left) in carried.iter().zip(&left) {
            next.push(match carry.next == carry.left {
                true => left,
                false => match self.source(carry.next)? {
                    Source::Vector(after) if after == left => left,
                    after => self.chosen(goes_on, after, left),
                },
            });
        }
        self.assign(&current, &next);
        self.put(Instruction::Jump(round));
        self.put(Instruction::Label(last));
        self.assign(&current[1..], &left);
        self.put(Instruction::EndLoop);
        self.leave(mark);
        self.put(Instruction::Label(behind));
        for (index, &value) in current[1..].iter().enumerate() {
            self.found_out(Op::Out { region: body, index: index as u32 }, value);
        }
        Ok(())
    }
}
