//! Code that every entry point runs for its packet.

use std::collections::HashSet;

use naga::{AddressSpace, Block, Expression, Function, GlobalVariable, Handle, Literal, Range, Span, Statement};

use super::Lowered;

impl Lowered {
    /// Appends to `body` the code that runs the filter on packet number `packet`, a `u32`
    /// expression in scope: enter, filter, normalisation of the verdict, the verdict of a packet
    /// that ran out of fuel and, if lengths may change, leave. Returns the verdict, a `u32` in
    /// scope behind it.
    ///
    /// Does not reset private variables for another packet, see [`Lowered::private_variables`].
    pub fn emit_packet(
        &self,
        entry: &mut Function,
        body: &mut Block,
        packet: Handle<Expression>,
    ) -> Handle<Expression> {
        let to = &mut entry.expressions;
        let mut add = |e| to.append(e, Span::UNDEFINED);
        let mut push = |s| body.push(s, Span::UNDEFINED);
        let call = |function, argument, result| Statement::Call { function, arguments: vec![argument], result };

        push(call(self.internals.enter, packet, None));
        let value = add(Expression::CallResult(self.filter));
        push(call(self.filter, packet, Some(value)));
        let mut verdict = add(Expression::CallResult(self.internals.verdict));
        push(call(self.internals.verdict, value, Some(verdict)));
        if let Some(fuel) = self.fuel {
            let aborted = add(Expression::GlobalVariable(fuel.aborted));
            let saved = add(Expression::GlobalVariable(fuel.saved_length));
            let length = add(Expression::GlobalVariable(self.internals.length));
            let none = add(Expression::Literal(Literal::U32(0)));
            let condition = add(Expression::Load { pointer: aborted });
            let forced = add(Expression::Select { condition, accept: none, reject: verdict });
            let before = add(Expression::Load { pointer: saved });
            push(Statement::Emit(Range::new_from_bounds(condition, forced)));
            let back = Block::from_vec(vec![
                Statement::Emit(Range::new_from_bounds(before, before)),
                Statement::Store { pointer: length, value: before },
            ]);
            push(Statement::If { condition, accept: back, reject: Block::new() });
            verdict = forced;
        }
        if self.changes_length {
            push(call(self.internals.leave, packet, None));
        }
        verdict
    }

    /// The private variables that the filter uses, with their initialisers, except those that
    /// entering a packet sets. An invocation that handles several packets resets them for each.
    pub fn private_variables(&self) -> Vec<(Handle<GlobalVariable>, Option<Handle<Expression>>)> {
        let internals = &self.internals;
        let mut found = HashSet::from([internals.offset, internals.length, internals.first, internals.last]);
        let mut privates = Vec::new();
        let (mut seen, mut functions) = (HashSet::from([self.filter]), vec![self.filter]);
        while let Some(function) = functions.pop() {
            let function = &self.module.functions[function];
            for (_, expression) in function.expressions.iter() {
                let Expression::GlobalVariable(global) = *expression else { continue };
                let variable = &self.module.global_variables[global];
                if variable.space == AddressSpace::Private && found.insert(global) {
                    privates.push((global, variable.init));
                }
            }
            let mut blocks = vec![&function.body];
            while let Some(block) = blocks.pop() {
                for statement in block.iter() {
                    if let Statement::Call { function: callee, .. } = *statement
                        && seen.insert(callee)
                    {
                        functions.push(callee);
                    }
                    blocks.extend(crate::program::child_blocks(statement));
                }
            }
        }
        privates
    }
}
