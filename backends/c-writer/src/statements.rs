//! Writes one function's statements as C.

use naga::{AtomicFunction, Block, Expression, Function, Handle, Literal, Statement, SwitchValue, TypeInner};
use portcullis_core::program::prelude::Intrinsic;

use crate::c_expr::CExpr;
use crate::dialect::{AtomicFn, CombinedAdd};
use crate::expressions::Place;
use crate::function::{FissionLoop, FunctionWriter, LOADED};
use crate::naming::MAX_DEPTH;
use crate::prelude::LOADS_SUFFIX;
use crate::{Result, WriteError};

/// Nesting that the deepest expression may add to that of the blocks around it.
const EXPRESSION_NESTING: usize = 4 * MAX_DEPTH as usize;

impl<'a> FunctionWriter<'_, 'a> {
    pub(crate) fn block(&mut self, block: &'a Block) -> Result<()> {
        for statement in block.iter() {
            self.statement(statement)?;
        }
        Ok(())
    }

    /// Writes a nested block. Reads still pending at its end are never used, and are dropped.
    pub(crate) fn inner_block(&mut self, block: &'a Block) -> Result<()> {
        self.nested(|body| body.block(block))
    }

    pub(crate) fn nested(&mut self, write: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.block_depth += 1;
        // The function's own block is not part of the filter's text.
        let (blocks, most) = (self.block_depth - 1, self.writer.dialect.max_nesting() - EXPRESSION_NESTING - 1);
        if blocks > most {
            return Err(WriteError::Unsupported(format!(
                "{blocks} blocks in each other: compilers of {} take at most {most}",
                self.writer.dialect.name()
            )));
        }
        let mark = self.names.mark();
        let result = write(self);
        self.names.release(mark);
        self.pending_reads.clear();
        self.conditions.clear();
        self.block_depth -= 1;
        result
    }

    pub(crate) fn statement(&mut self, statement: &'a Statement) -> Result<()> {
        match *statement {
            Statement::Emit(ref range) => {
                for handle in range.clone() {
                    self.emit(handle)?;
                }
            }
            Statement::Block(ref block) => self.block(block)?,
            Statement::If { condition, ref accept, ref reject } => self.if_statement(condition, accept, reject)?,
            Statement::Switch { selector, ref cases } => {
                self.flush_pending_reads(&[selector])?;
                let selector = self.expression(selector)?;
                self.line(&format!("switch ({}) {{", selector.text));
                for case in cases {
                    let label = match case.value {
                        SwitchValue::Default => "default".into(),
                        SwitchValue::I32(value) => format!("case {}", self.writer.literal(Literal::I32(value))?),
                        SwitchValue::U32(value) => format!("case {}", self.writer.literal(Literal::U32(value))?),
                    };
                    if case.body.is_empty() && case.fall_through {
                        self.line(&format!("{label}:"));
                        continue;
                    }
                    self.line(&format!("{label}: {{"));
                    self.inner_block(&case.body)?;
                    let ends = matches!(
                        case.body.last(),
                        Some(Statement::Break | Statement::Continue | Statement::Return { .. })
                    );
                    self.line(if case.fall_through || ends { "}" } else { "} break;" });
                }
                self.line("}");
            }
            Statement::Loop { ref body, ref continuing, break_if } => {
                self.loop_statement(body, continuing, break_if)?
            }
            Statement::Break => self.line("break;"),
            Statement::Continue => match self.loops.last() {
                Some(Some(label)) => {
                    let label = label.clone();
                    self.line(&format!("goto {label};"));
                }
                _ => self.line("continue;"),
            },
            Statement::Return { value: Some(value) } => {
                let value = self.expression(value)?;
                self.line(&format!("return {};", value.text));
            }
            Statement::Return { value: None } => self.line("return;"),
            Statement::Store { pointer, value } => {
                self.flush_pending_reads(&[pointer, value])?;
                let text = self.store(pointer, value)?;
                self.line(&format!("{text};"));
            }
            Statement::Call { function, ref arguments, result } => {
                let pure = self.writer.is_pure(function);
                if pure && result.is_none_or(|result| self.info[result].ref_count == 0) {
                    return Ok(());
                }
                let store = matches!(self.writer.lowered.intrinsics.get(&function), Some(Intrinsic::Store { .. }));
                if store && !self.writer.writes_packets() {
                    // The call is unreachable, or always out of bounds.
                    return Ok(());
                }
                if !pure {
                    self.flush_pending_reads(arguments)?;
                }
                let result = result.filter(|&result| self.info[result].ref_count > 0);
                let text = self.call(function, arguments, result.is_some())?;
                let Some(result) = result else {
                    self.line(&format!("{};", text.text));
                    return Ok(());
                };
                if pure && !self.needs_name(result, 0) {
                    let depth = arguments.iter().map(|&a| self.depth(a)).max().unwrap_or(0) + 1;
                    self.mark_written(arguments);
                    self.calls.insert(result, text);
                    self.depths.insert(result, depth);
                    self.pending_reads.push(result);
                    if depth > MAX_DEPTH {
                        self.write_named(result)?;
                    }
                } else {
                    self.calls.insert(result, text);
                    self.mark_written(arguments);
                    self.write_named(result)?;
                }
            }
            Statement::Atomic { pointer, fun, value, result } => self.atomic(pointer, fun, value, result)?,
            ref other => return Err(WriteError::Unsupported(format!("the statement {other:?}"))),
        }
        Ok(())
    }

    /// Writes an atomic operation on a word of a map.
    fn atomic(
        &mut self,
        pointer: Handle<Expression>,
        function: AtomicFunction,
        value: Handle<Expression>,
        result: Option<Handle<Expression>>,
    ) -> Result<()> {
        let compare = if let AtomicFunction::Exchange { compare } = function { compare } else { None };
        let operands: Vec<_> = [pointer, value].into_iter().chain(compare).collect();
        self.flush_pending_reads(&operands)?;
        let Place::Value(place) = self.place(pointer)? else {
            return Err(WriteError::internal("an atomic component"));
        };
        let (place, value) = (CExpr::unary("&", place).text, self.expression(value)?.text);
        let compare = compare.map(|compare| self.expression(compare)).transpose()?;
        let dialect = self.writer.dialect;
        let text = match (function, &compare) {
            (AtomicFunction::Add, _) if self.combines_adds => {
                let CombinedAdd { word, word_text, .. } = dialect.combined_add().expect("it is why they are combined");
                self.writer.define_helper(word, word_text);
                self.line(&format!("{word}((uint *){place}, {value});"));
                "0u".into()
            }
            (AtomicFunction::Exchange { .. }, Some(compare)) => {
                dialect.atomic_compare_exchange(&place, &compare.text, &value)
            }
            (other, _) => match AtomicFn::of(other) {
                Some(function) => dialect.atomic(function, &place, &value),
                None => return Err(WriteError::Unsupported(format!("the atomic function {other:?}"))),
            },
        };
        let Some(result) = result.filter(|&result| self.info[result].ref_count > 0) else {
            self.line(&format!("{text};"));
            return Ok(());
        };
        let text = match compare {
            None => text,
            Some(compare) => {
                let was = self.new_name(result);
                self.line(&format!("uint {was} = {text};"));
                let ty = self.info[result].ty.handle();
                let ty = ty.ok_or_else(|| WriteError::internal("an exchange without its result's type"))?;
                let ty = self.writer.type_name(ty)?;
                dialect.structure(&ty, &format!("{was}, {was} == {}", compare.text))
            }
        };
        self.calls.insert(result, CExpr::atom(text));
        self.mark_written(&operands);
        self.write_named(result)
    }

    fn call(
        &mut self,
        callee: Handle<Function>,
        arguments: &[Handle<Expression>],
        takes_result: bool,
    ) -> Result<CExpr> {
        let mut texts = Vec::new();
        let loads = self.fission.and(self.writer.load_counts.get(&callee).copied());
        let name = match self.writer.lowered.intrinsics.get(&callee) {
            Some(&intrinsic) => {
                let end = match intrinsic {
                    Intrinsic::Load { size, .. } => Some(self.upper_bound(arguments[1], 8) + u64::from(size)),
                    _ => None,
                };
                let name = self.writer.intrinsic(intrinsic, end);
                match self.fission {
                    Some(FissionLoop::Loads) if loads.is_some() => format!("{name}{LOADS_SUFFIX}"),
                    _ => name,
                }
            }
            None => {
                let signature = self.writer.signatures.get(&callee);
                let signature = signature.ok_or_else(|| WriteError::internal("a function that was not written"))?;
                if signature.extra_state {
                    texts.push(CExpr::atom(self.state()?));
                }
                let name = match self.fission {
                    Some(FissionLoop::Loads) => signature.loads.as_ref().unwrap_or(&signature.name),
                    _ => signature.combined.as_ref().filter(|_| !takes_result).unwrap_or(&signature.name),
                };
                name.clone()
            }
        };
        for &argument in arguments {
            texts.push(match self.inner(argument) {
                TypeInner::Pointer { .. } | TypeInner::ValuePointer { .. } => self.address(argument)?,
                _ => self.expression(argument)?,
            });
        }
        if let Some(loads) = loads {
            texts.push(CExpr::atom(format!("{LOADED} + {}", self.loaded_index(loads))));
        }
        Ok(CExpr::call(&name, &texts))
    }

    /// The assignment `pointer = value`, without a semicolon.
    pub(crate) fn store(&mut self, pointer: Handle<Expression>, value: Handle<Expression>) -> Result<String> {
        let value = self.expression(value)?;
        Ok(match self.place(pointer)? {
            Place::Value(place) => format!("{} = {}", place.text, value.text),
            Place::Component { scalar, size, vector, index } => {
                self.writer.set_component(scalar, size, vector, index, value).text
            }
        })
    }

    fn if_statement(&mut self, condition: Handle<Expression>, accept: &'a Block, reject: &'a Block) -> Result<()> {
        if self.write_short_circuit(condition, accept, reject)? {
            return Ok(());
        }
        self.flush_pending_reads(&[condition])?;
        let (mut condition, mut accept, mut reject) = self.if_branches(condition, accept, reject)?;
        let mut start = "if";
        loop {
            self.line(&format!("{start} ({}) {{", condition.text));
            self.inner_block(accept)?;
            if reject.is_empty() {
                break;
            }
            // Use `else if` unless something must be written before the next condition.
            let next = match reject.split_last() {
                Some((&Statement::If { condition, accept: ref yes, reject: ref no }, before))
                    if self.find_short_circuit(yes, no).is_none()
                        && self.inline_depth(before, condition, 0).is_some() =>
                {
                    Some((before, condition, yes, no))
                }
                _ => None,
            };
            let Some((before, next, yes, no)) = next else {
                self.line("} else {");
                self.inner_block(reject)?;
                break;
            };
            for statement in before {
                self.statement(statement)?;
            }
            (condition, accept, reject) = self.if_branches(next, yes, no)?;
            self.pending_reads.clear();
            self.conditions.clear();
            start = "} else if";
        }
        self.line("}");
        Ok(())
    }

    /// The condition of an `if` and its blocks, swapped if only the first is empty.
    fn if_branches(
        &mut self,
        condition: Handle<Expression>,
        accept: &'a Block,
        reject: &'a Block,
    ) -> Result<(CExpr, &'a Block, &'a Block)> {
        if accept.is_empty() && !reject.is_empty() {
            return Ok((self.negated(condition)?, reject, accept));
        }
        Ok((self.expression(condition)?, accept, reject))
    }
}
