//! Statements.

use naga::{Expression, Literal, Statement as Naga, UnaryOperator};

use super::functions::{Binding, FunctionLowering, LoweredValue};
use super::shapes::Location;
use super::{ErrorReported, Result, is_integer};
use crate::tree::{Expr, Init, LocalId, Statement, StatementKind};
use crate::types::Type;

impl FunctionLowering<'_, '_> {
    pub(super) fn statements(&mut self, list: &[Statement]) -> Result<()> {
        let mut result = Ok(());
        for statement in list {
            // naga allows no statements after a jump, where they are unreachable.
            if self.builder.is_unreachable || self.lowering.errors.is_full() {
                break;
            }
            self.builder.span = self.lowering.span(statement.span);
            // Continue after an error, to report more of them.
            if self.statement(statement).is_err() {
                result = Err(ErrorReported);
            }
        }
        result
    }

    /// Lowers statements into a naga block of their own.
    pub(super) fn block(&mut self, inside: impl FnOnce(&mut Self) -> Result<()>) -> Result<naga::Block> {
        self.builder.begin_block();
        let result = inside(self);
        let block = self.builder.end_block();
        result.map(|()| block)
    }

    fn statement(&mut self, statement: &Statement) -> Result<()> {
        let span = self.builder.span;
        match &statement.kind {
            StatementKind::Block(list) => return self.statements(list),
            StatementKind::Declare(id, init) => return self.declare(*id, init.as_ref(), statement),
            StatementKind::Expression(value) => {
                self.expr(value)?;
            }
            StatementKind::If(condition, accept, reject) => {
                let condition = self.value(condition)?;
                // Drop a branch whose condition is constant.
                if let Some(Literal::Bool(known)) = self.builder.constant(condition) {
                    return match (known, reject) {
                        (true, _) => self.statement(accept),
                        (false, Some(reject)) => self.statement(reject),
                        (false, None) => Ok(()),
                    };
                }
                let accept = self.block(|this| this.statement(accept));
                let reject = match reject {
                    Some(reject) => self.block(|this| this.statement(reject)),
                    None => Ok(naga::Block::new()),
                };
                self.builder.span = span;
                self.builder.push(Naga::If { condition, accept: accept?, reject: reject? });
            }
            StatementKind::Loop(condition, step, body) => {
                self.loops += 1;
                let looped = self.block(|this| {
                    if let Some(condition) = condition {
                        this.break_unless(condition)?;
                    }
                    if this.builder.is_unreachable { Ok(()) } else { this.statement(body) }
                });
                let continuing = self.block(|this| match step {
                    Some(step) => this.expr(step).map(|_| ()),
                    None => Ok(()),
                });
                self.loops -= 1;
                self.builder.span = span;
                self.builder.push(Naga::Loop { body: looped?, continuing: continuing?, break_if: None });
            }
            StatementKind::DoWhile(body, condition) => {
                // `do { ... } while (0)`, common in macros.
                if is_integer(&condition.kind, 0) && !contains_jump(body) {
                    return self.statement(body);
                }
                self.loops += 1;
                let looped = self.block(|this| this.statement(body));
                let mut end = None;
                let continuing = self.block(|this| {
                    let condition = this.value(condition)?;
                    end = Some(match this.builder.constant(condition) {
                        Some(Literal::Bool(known)) => this.builder.literal(Literal::Bool(!known)),
                        _ => this.builder.unary(UnaryOperator::LogicalNot, condition),
                    });
                    Ok(())
                });
                self.loops -= 1;
                self.builder.span = span;
                self.builder.push(Naga::Loop { body: looped?, continuing: continuing?, break_if: end });
            }
            StatementKind::Switch(switch) => return self.switch(switch),
            StatementKind::Break => self.builder.push(Naga::Break),
            StatementKind::Continue => self.builder.push(Naga::Continue),
            StatementKind::Return(value) => {
                let value = match value {
                    None => None,
                    Some(value) => match self.expr(value)? {
                        LoweredValue::Value(value) => Some(value),
                        LoweredValue::Pointer(pointer) => {
                            let ty = &self.function.result;
                            self.check_space(&pointer, ty, value.span)?;
                            Some(self.return_pointer(&pointer, value.span)?)
                        }
                        LoweredValue::Nothing => None,
                    },
                };
                self.builder.span = span;
                self.builder.push(Naga::Return { value });
            }
        }
        Ok(())
    }

    /// Leaves the loop unless the condition holds.
    fn break_unless(&mut self, condition: &Expr) -> Result<()> {
        let condition = self.value(condition)?;
        match self.builder.constant(condition) {
            Some(Literal::Bool(true)) => {}
            Some(_) => self.builder.push(Naga::Break),
            None => {
                let reject = naga::Block::from_vec(vec![Naga::Break]);
                self.builder.push(Naga::If { condition, accept: naga::Block::new(), reject });
            }
        }
        Ok(())
    }

    fn declare(&mut self, id: LocalId, init: Option<&Init>, statement: &Statement) -> Result<()> {
        let function = self.function;
        let local = &function.locals[id.0 as usize];
        let at = id.0 as usize;
        if let Type::Pointer(_) = local.ty {
            self.bindings[at] = Some(Binding::MutablePointer(None));
            let Some(Init::Value(value)) = init else { return Ok(()) };
            let pointer = self.pointer(value)?;
            self.check_space(&pointer, &local.ty, value.span)?;
            self.bindings[at] = Some(self.bind_pointer(&local.name, local.is_mutated || local.may_be_skipped, pointer));
            return Ok(());
        }
        if let (Some(Init::Value(value)), false) = (init, local.is_mutated || local.may_be_skipped) {
            let value = self.value(value)?;
            self.builder.name(value, &local.name);
            self.bindings[at] = Some(Binding::Value(value));
            return Ok(());
        }
        let ty = self.lowering.ty(&local.ty);
        let variable = self.builder.local(Some(&local.name), ty);
        self.bindings[at] = Some(Binding::Variable(variable));
        // Variables start at zero (docs/reference/semantics.md, "Arithmetic"): on each iteration of
        // a loop, otherwise when the function starts.
        let zero = |this: &mut Self| {
            let zero = this.builder.add(Expression::ZeroValue(ty));
            this.builder.store(variable, zero);
        };
        match init {
            None if self.loops > 0 => zero(self),
            None => {}
            Some(Init::Value(value)) => {
                let value = self.value(value)?;
                self.builder.store(variable, value);
            }
            Some(Init::Parts(parts)) => {
                if self.loops > 0 {
                    zero(self);
                }
                for (path, value) in parts {
                    let value = self.value(value)?;
                    let mut part = variable;
                    for index in path {
                        part = self.builder.access_index(part, *index);
                    }
                    self.write(&Location::Memory(part), &LoweredValue::Value(value), &local.ty, statement.span)?;
                }
            }
        }
        Ok(())
    }
}

/// Whether a loop's body contains a `break` or `continue` of the loop.
fn contains_jump(statement: &Statement) -> bool {
    match &statement.kind {
        StatementKind::Break | StatementKind::Continue => true,
        StatementKind::Block(list) => list.iter().any(contains_jump),
        StatementKind::If(_, accept, reject) => contains_jump(accept) || reject.as_deref().is_some_and(contains_jump),
        // A `continue` in a `switch` belongs to the loop.
        StatementKind::Switch(switch) => switch.segments.iter().any(|segment| segment.body.iter().any(contains_jump)),
        _ => false,
    }
}
