//! Steps in order: what is left out where no lane takes part, and loops.
//!
//! What comes out of a region that was left out is the least of what it can be by its range, in all
//! lanes: indices that were proven by that range stay where they belong.

use cranelift_codegen::ir::{BlockArg, InstBuilder, Value, types as clif};

use super::super::plan::needed_by;
use super::emitter::{Emit, Key};
use crate::compile::errors::Result;
use crate::compile::vector::ir::{Carry, Kind, Live, Node, Op, RegionId, Step};

impl Emit<'_, '_> {
    /// A region's steps.
    pub(super) fn region(&mut self, region: RegionId) -> Result<()> {
        let lanes = self.lanes;
        for step in &lanes.regions[region.index()].steps {
            match step {
                Step::Effect { id, mask, effect } => {
                    if let Some(value) = self.effect(*mask, effect)? {
                        self.found_out(Op::Result(*id), value);
                    }
                }
                Step::When { mask, body, outs } => self.when(*mask, *body, outs)?,
                Step::Loop { live, carried, body } => self.rounds(*live, carried, *body)?,
            }
        }
        Ok(())
    }

    /// Takes note of what a step gave, if anybody asks for it.
    fn found_out(&mut self, op: Op, value: Value) {
        if let Some(node) = self.dag().find(op) {
            self.know(Key::Node(node), value);
        }
    }

    fn when(&mut self, mask: Node, body: RegionId, outs: &[Node]) -> Result<()> {
        let on = self.value(mask)?;
        let any = self.b.ins().vany_true(on);
        // What both ways need is the same: it is made before.
        let none = outs.iter().map(|&out| self.least(out)).collect::<Vec<_>>();
        let (within, behind) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(any, within, &[], behind, &arguments(&none));

        self.b.switch_to_block(within);
        let mark = self.enter();
        self.region(body)?;
        let values = outs.iter().map(|&out| self.value(out)).collect::<Result<Vec<_>>>()?;
        self.leave(mark);
        self.b.ins().jump(behind, &arguments(&values));

        self.b.switch_to_block(behind);
        for index in 0..outs.len() {
            let value = self.b.append_block_param(behind, clif::I32X4);
            self.found_out(Op::Out { region: body, index: index as u32 }, value);
        }
        Ok(())
    }

    /// The least that a node can be.
    fn least(&mut self, node: Node) -> Value {
        let least = match self.dag().kind(node) {
            Kind::Word => self.dag().range(node).low,
            Kind::Mask => 0,
        };
        self.splat(least)
    }

    fn rounds(&mut self, live: Live, carried: &[Carry], body: RegionId) -> Result<()> {
        let mut first = vec![self.value(live.first)?];
        for carry in carried {
            first.push(self.value(carry.first)?);
        }
        let [before, round, more, behind] = std::array::from_fn(|_| self.b.create_block());
        let any = self.b.ins().vany_true(first[0]);
        self.b.ins().brif(any, before, &[], behind, &arguments(&first[1..]));

        // What does not change from round to round is made before the first one.
        self.b.switch_to_block(before);
        let mark = self.enter();
        for node in needed_by(self.lanes, body, live, carried).outside {
            self.value(node)?;
        }
        self.b.ins().jump(round, &arguments(&first));

        let current: Vec<Value> = first.iter().map(|_| self.b.append_block_param(round, clif::I32X4)).collect();
        self.b.switch_to_block(round);
        self.found_out(Op::Live(body), current[0]);
        for (index, &value) in current[1..].iter().enumerate() {
            self.found_out(Op::Carried { body, index: index as u32 }, value);
        }
        self.region(body)?;
        let goes_on = self.value(live.next)?;
        let goes_on = self.b.ins().band(current[0], goes_on);
        let mut left = Vec::with_capacity(carried.len());
        for (carry, &before) in carried.iter().zip(&current[1..]) {
            let after = self.value(carry.left)?;
            left.push(if after == before { after } else { self.choose(current[0], after, before) });
        }
        let any = self.b.ins().vany_true(goes_on);
        self.b.ins().brif(any, more, &[], behind, &arguments(&left));

        // What only those need that go on.
        self.b.switch_to_block(more);
        let mut next = vec![goes_on];
        for (carry, &left) in carried.iter().zip(&left) {
            next.push(match carry.next == carry.left {
                true => left,
                false => {
                    let after = self.value(carry.next)?;
                    if after == left { left } else { self.choose(goes_on, after, left) }
                }
            });
        }
        self.leave(mark);
        self.b.ins().jump(round, &arguments(&next));

        self.b.switch_to_block(behind);
        for index in 0..carried.len() {
            let value = self.b.append_block_param(behind, clif::I32X4);
            self.found_out(Op::Out { region: body, index: index as u32 }, value);
        }
        Ok(())
    }
}

fn arguments(values: &[Value]) -> Vec<BlockArg> {
    values.iter().map(|&value| value.into()).collect()
}
