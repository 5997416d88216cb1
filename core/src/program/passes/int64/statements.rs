//! Lowering of statements: the same statements around new expressions.

use std::collections::HashSet;

use naga::{AtomicFunction, Block, Expression, Handle, Literal, Span, Statement, SwitchCase, SwitchValue};

use super::Int64Error;
use super::function::FunctionLowering;

impl FunctionLowering<'_> {
    /// Lowers the statements of `old` and appends them to the block under construction.
    pub(super) fn lower_statements(&mut self, old: &Block) -> Result<(), Int64Error> {
        for (statement, &span) in old.span_iter() {
            self.lower_statement(statement, span)?;
        }
        Ok(())
    }

    fn block(&mut self, old: &Block) -> Result<Block, Int64Error> {
        self.nested(|this| this.lower_statements(old))
    }

    fn lower_statement(&mut self, old: &Statement, span: Span) -> Result<(), Int64Error> {
        let new = match *old {
            Statement::Emit(ref range) => {
                for handle in range.clone() {
                    self.define(handle)?;
                }
                return Ok(());
            }
            Statement::Block(ref block) => Statement::Block(self.block(block)?),
            Statement::If { condition, ref accept, ref reject } => {
                let condition = self.get(condition)?;
                Statement::If { condition, accept: self.block(accept)?, reject: self.block(reject)? }
            }
            Statement::Switch { selector, ref cases } => self.switch(selector, cases)?,
            Statement::Loop { ref body, ref continuing, break_if } => {
                let body = self.block(body)?;
                let mut new_break_if = None;
                let continuing = self.nested(|this| {
                    this.lower_statements(continuing)?;
                    new_break_if = break_if.map(|condition| this.get(condition)).transpose()?;
                    Ok(())
                })?;
                Statement::Loop { body, continuing, break_if: new_break_if }
            }
            Statement::Return { value } => Statement::Return { value: value.map(|v| self.get(v)).transpose()? },
            Statement::Store { pointer, value } => {
                Statement::Store { pointer: self.get(pointer)?, value: self.get(value)? }
            }
            Statement::Atomic { pointer, fun, value, result } => {
                let pointer = self.get(pointer)?;
                let fun = match fun {
                    AtomicFunction::Exchange { compare: Some(compare) } => {
                        AtomicFunction::Exchange { compare: Some(self.get(compare)?) }
                    }
                    other => other,
                };
                let value = self.get(value)?;
                let result = match result {
                    Some(old) => {
                        let Expression::AtomicResult { ty, comparison } = self.old.expressions[old] else {
                            return Err(Int64Error("an atomic operation has another's result".into()));
                        };
                        let ty = self.source.types[ty.index()];
                        Some(self.define_result(old, Expression::AtomicResult { ty, comparison }))
                    }
                    None => None,
                };
                Statement::Atomic { pointer, fun, value, result }
            }
            Statement::Call { function, ref arguments, result } => {
                let arguments = arguments.iter().map(|&a| self.get(a)).collect::<Result<_, _>>()?;
                let function = self.source.functions[function.index()];
                let result = result.map(|old| self.define_result(old, Expression::CallResult(function)));
                Statement::Call { function, arguments, result }
            }
            ref same @ (Statement::Break
            | Statement::Continue
            | Statement::Kill
            | Statement::ControlBarrier(_)
            | Statement::MemoryBarrier(_)) => same.clone(),
            // The verifier rejects all others.
            ref other => return Err(Int64Error(format!("{other:?} is not known"))),
        };
        self.push(new, span);
        Ok(())
    }

    /// Lowers a switch. A 64-bit selector becomes its low word if it fits in 32 bits, or else a
    /// word that no case has.
    fn switch(&mut self, selector: Handle<Expression>, cases: &[SwitchCase]) -> Result<Statement, Int64Error> {
        let wide = self.wide(selector);
        let mut new_selector = self.get(selector)?;
        if let Some(wide) = wide {
            let case_values: HashSet<u32> = cases
                .iter()
                .filter_map(|case| match case.value {
                    SwitchValue::I32(value) => Some(value as u32),
                    SwitchValue::U32(value) => Some(value),
                    SwitchValue::Default => None,
                })
                .collect();
            let other = (0..).find(|word| !case_values.contains(word)).unwrap_or_default();
            let word = self.low(new_selector);
            let (whole, accept, reject) = if wide.signed {
                let word = self.add(Expression::As { expr: word, kind: naga::ScalarKind::Sint, convert: None });
                let whole = self.call("pc_i64_from_i32", vec![word]);
                (whole, word, self.add_pre_emitted(Expression::Literal(Literal::I32(other as i32))))
            } else {
                (self.pair_of(word), word, self.literal(other))
            };
            let condition = self.equal(whole, new_selector);
            new_selector = self.add(Expression::Select { condition, accept, reject });
        }
        let case = |this: &mut Self, old: &SwitchCase| {
            Ok(SwitchCase { value: old.value, body: this.block(&old.body)?, fall_through: old.fall_through })
        };
        let cases = cases.iter().map(|old| case(self, old)).collect::<Result<_, Int64Error>>()?;
        Ok(Statement::Switch { selector: new_selector, cases })
    }
}
