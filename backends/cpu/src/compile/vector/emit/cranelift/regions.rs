//! Steps in order: regions, which are skipped if no lane is active, and loops.
//!
//! The outputs of a region that is skipped are the least element of their ranges in all lanes, so
//! indices that are in bounds because of their ranges stay in bounds.

use cranelift_codegen::ir::{BlockArg, InstBuilder, Value, types as clif};

use super::super::plan::loop_invariants;
use super::emitter::{CacheKey, Emitter};
use crate::compile::errors::Result;
use crate::compile::vector::ir::{LoopCarried, LoopMask, Node, Op, RegionId, Step, ValueKind};

impl Emitter<'_, '_> {
    /// Emits the steps of a region.
    pub(super) fn emit_region(&mut self, region: RegionId) -> Result<()> {
        let lanes = self.lanes;
        for step in &lanes.regions[region.index()].steps {
            match step {
                Step::Effect { id, mask, effect } => {
                    if let Some(value) = self.emit_effect(*mask, effect)? {
                        self.set_result(Op::Result(*id), value);
                    }
                }
                Step::When { mask, body, outs } => self.emit_when(*mask, *body, outs)?,
                Step::Loop { live, carried, body } => self.emit_loop(*live, carried, *body)?,
            }
        }
        Ok(())
    }

    /// Caches the result of a step, if any node uses it.
    fn set_result(&mut self, op: Op, value: Value) {
        if let Some(node) = self.dag().lookup(op) {
            self.remember(CacheKey::Node(node), value);
        }
    }

    fn emit_when(&mut self, mask: Node, body: RegionId, outs: &[Node]) -> Result<()> {
        let on = self.value(mask)?;
        let any = self.b.ins().vany_true(on);
        // Values that both paths need are emitted before the branch.
        let none = outs.iter().map(|&out| self.least_value(out)).collect::<Vec<_>>();
        let (taken, exit) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(any, taken, &[], exit, &arguments(&none));

        self.b.switch_to_block(taken);
        let mark = self.begin_scope();
        self.emit_region(body)?;
        let values = outs.iter().map(|&out| self.value(out)).collect::<Result<Vec<_>>>()?;
        self.end_scope(mark);
        self.b.ins().jump(exit, &arguments(&values));

        self.b.switch_to_block(exit);
        for index in 0..outs.len() {
            let value = self.b.append_block_param(exit, clif::I32X4);
            self.set_result(Op::Out { region: body, index: index as u32 }, value);
        }
        Ok(())
    }

    /// Emits the least element of a node's range.
    fn least_value(&mut self, node: Node) -> Value {
        let least = match self.dag().kind(node) {
            ValueKind::Word => self.dag().range(node).low,
            ValueKind::Mask => 0,
        };
        self.splat(least)
    }

    fn emit_loop(&mut self, live: LoopMask, carried: &[LoopCarried], body: RegionId) -> Result<()> {
        let mut first = vec![self.value(live.initial)?];
        for carry in carried {
            first.push(self.value(carry.initial)?);
        }
        let [preheader, iteration, next_iteration, exit] = std::array::from_fn(|_| self.b.create_block());
        let any = self.b.ins().vany_true(first[0]);
        self.b.ins().brif(any, preheader, &[], exit, &arguments(&first[1..]));

        // Loop-invariant code motion: emit the loop's inputs before its first iteration.
        self.b.switch_to_block(preheader);
        let mark = self.begin_scope();
        for node in loop_invariants(self.lanes, body, live, carried).nodes {
            self.value(node)?;
        }
        self.b.ins().jump(iteration, &arguments(&first));

        let current: Vec<Value> = first.iter().map(|_| self.b.append_block_param(iteration, clif::I32X4)).collect();
        self.b.switch_to_block(iteration);
        self.set_result(Op::Live(body), current[0]);
        for (index, &value) in current[1..].iter().enumerate() {
            self.set_result(Op::LoopCarried { body, index: index as u32 }, value);
        }
        self.emit_region(body)?;
        let continues = self.value(live.next)?;
        let continues = self.b.ins().band(current[0], continues);
        let mut left = Vec::with_capacity(carried.len());
        for (carry, &before) in carried.iter().zip(&current[1..]) {
            let after = self.value(carry.on_exit)?;
            left.push(if after == before { after } else { self.select_lanes(current[0], after, before) });
        }
        let any = self.b.ins().vany_true(continues);
        self.b.ins().brif(any, next_iteration, &[], exit, &arguments(&left));

        // Values that only lanes that continue need.
        self.b.switch_to_block(next_iteration);
        let mut next = vec![continues];
        for (carry, &left) in carried.iter().zip(&left) {
            next.push(match carry.next == carry.on_exit {
                true => left,
                false => {
                    let after = self.value(carry.next)?;
                    if after == left { left } else { self.select_lanes(continues, after, left) }
                }
            });
        }
        self.end_scope(mark);
        self.b.ins().jump(iteration, &arguments(&next));

        self.b.switch_to_block(exit);
        for index in 0..carried.len() {
            let value = self.b.append_block_param(exit, clif::I32X4);
            self.set_result(Op::Out { region: body, index: index as u32 }, value);
        }
        Ok(())
    }
}

fn arguments(values: &[Value]) -> Vec<BlockArg> {
    values.iter().map(|&value| value.into()).collect()
}
