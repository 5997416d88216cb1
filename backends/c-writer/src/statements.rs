//! Statements of one function, and which expressions get a name.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use naga::valid::FunctionInfo;
use naga::{
    AtomicFunction, Block, Expression, Function, Handle, Literal, LocalVariable, Statement, SwitchValue, TypeInner,
};
use portcullis_core::program::for_each_operand;

use portcullis_core::program::prelude::Intrinsic;

use crate::c_expr::CExpr;
use crate::expressions::{Place, is_componentwise};
use crate::scope::Scope;
use crate::{Result, WriteError, Writer};

/// Deepest expression that is written without naming a part of it; bounds the writer's recursion
/// and the nesting of parentheses, which compilers limit.
const MAX_DEPTH: u32 = 16;

/// A condition `a && b` or `a || b` that replaces a variable.
pub(crate) struct Condition {
    pub text: CExpr,
    depth: u32,
    /// Whether the one load of the variable was evaluated, and now is a pending read like others.
    loaded: bool,
}

/// Nesting that the deepest expression may add to that of the blocks around it.
const EXPRESSION_NESTING: usize = 4 * MAX_DEPTH as usize;

/// Writes the body of one function.
pub(crate) struct FunctionWriter<'w, 'a> {
    pub writer: &'w mut Writer<'a>,
    pub function: &'a Function,
    pub info: &'a FunctionInfo,
    names: Scope,
    last_temporary: u32,
    last_label: u32,
    pub arguments: Vec<String>,
    pub locals: HashMap<Handle<LocalVariable>, String>,
    /// Local variables that the text uses, and that need a declaration.
    pub used_locals: HashSet<Handle<LocalVariable>>,
    state: Option<String>,
    /// Expressions that have a name.
    pub baked: HashMap<Handle<Expression>, String>,
    /// Named expressions that were declared before they are evaluated.
    hoisted: HashSet<Handle<Expression>>,
    /// Expressions that must get a name, because their text would be repeated.
    must_name: HashSet<Handle<Expression>>,
    /// Calls without side effects, to be written where their result is used.
    pub calls: HashMap<Handle<Expression>, CExpr>,
    /// Conditions by the variables that naga stores them in.
    pub conditions: HashMap<Handle<LocalVariable>, Condition>,
    /// Variables that hold `a && b` or `a || b`, if that can be written as an expression.
    short_circuits: HashSet<Handle<LocalVariable>>,
    /// Evaluated reads of memory that are not written yet, in order.
    pending_reads: Vec<Handle<Expression>>,
    /// Depth of the text of expressions without a name.
    depths: HashMap<Handle<Expression>, u32>,
    out: String,
    /// Number of blocks around the current statement.
    block_depth: usize,
    /// For each enclosing loop, the label that `continue` jumps to, if it needs one.
    loops: Vec<Option<String>>,
}

impl<'w, 'a> FunctionWriter<'w, 'a> {
    pub fn new(
        writer: &'w mut Writer<'a>,
        handle: Handle<Function>,
        mut names: Scope,
        arguments: Vec<String>,
        state: Option<String>,
    ) -> FunctionWriter<'w, 'a> {
        let lowered = writer.lowered;
        let function = &lowered.module.functions[handle];
        let locals = function.local_variables.iter();
        let locals =
            locals.map(|(handle, local)| (handle, names.unique_name(local.name.as_deref().unwrap_or("v")))).collect();
        let mut body = FunctionWriter {
            writer,
            function,
            info: &lowered.info[handle],
            names,
            last_temporary: 0,
            last_label: 0,
            arguments,
            locals,
            used_locals: HashSet::new(),
            state,
            baked: HashMap::new(),
            hoisted: HashSet::new(),
            must_name: HashSet::new(),
            calls: HashMap::new(),
            conditions: HashMap::new(),
            short_circuits: HashSet::new(),
            pending_reads: Vec::new(),
            depths: HashMap::new(),
            out: String::new(),
            block_depth: 1,
            loops: Vec::new(),
        };
        body.find_repeated_operands();
        body.find_short_circuits();
        body
    }

    /// Writes the body, with declarations of its local variables.
    pub fn write(mut self) -> Result<String> {
        let function = self.function;
        match function.body.split_last() {
            Some((Statement::Return { value: None }, before)) => {
                for statement in before {
                    self.statement(statement)?;
                }
            }
            _ => self.block(&function.body)?,
        }
        let text = std::mem::take(&mut self.out);
        for (handle, local) in function.local_variables.iter() {
            if self.used_locals.contains(&handle) {
                let ty = self.writer.type_name(local.ty)?;
                let init = match local.init {
                    Some(init) => self.expression(init)?.text,
                    None => self.writer.zero(local.ty)?,
                };
                let name = self.locals[&handle].clone();
                self.line(&format!("{ty} {name} = {init};"));
            }
        }
        Ok(self.out + &text)
    }

    /// Name of the pointer to the invocation's state.
    pub(crate) fn state(&self) -> Result<&str> {
        self.state.as_deref().ok_or_else(|| WriteError::internal("a function without its packet"))
    }

    fn line(&mut self, text: &str) {
        let _ = writeln!(self.out, "{:1$}{text}", "", self.block_depth * 4);
    }

    /// Finds the variables that naga creates for `&&` and `||`: unnamed, stored to twice, loaded
    /// once.
    fn find_short_circuits(&mut self) {
        let mut uses: HashMap<Handle<LocalVariable>, (usize, usize)> = HashMap::new();
        for (handle, expression) in self.function.expressions.iter() {
            let load = match *expression {
                Expression::LocalVariable(local) => {
                    uses.entry(local).or_default().0 += self.info[handle].ref_count;
                    continue;
                }
                Expression::Load { pointer } => pointer,
                _ => continue,
            };
            if let Expression::LocalVariable(local) = self.function.expressions[load] {
                uses.entry(local).or_default().1 += 1;
            }
        }
        let unnamed = |local: &Handle<LocalVariable>| self.function.local_variables[*local].name.is_none();
        self.short_circuits = uses
            .into_iter()
            .filter(|(local, uses)| *uses == (3, 1) && unnamed(local))
            .map(|(local, _)| local)
            .collect();
    }

    /// Marks operands whose text would be written several times although they are used once: a
    /// scalar that all components of a vector need, a vector with two components taken, an index.
    fn find_repeated_operands(&mut self) {
        let function = self.function;
        let is_vector = |inner: &TypeInner| matches!(inner, TypeInner::Vector { .. });
        let mut shared = HashSet::new();
        // Users come after what they use.
        for (handle, expression) in function.expressions.iter().collect::<Vec<_>>().into_iter().rev() {
            let wide = is_vector(self.inner(handle));
            let mut repeated = Vec::new();
            match *expression {
                Expression::Splat { value, .. } => repeated.push(value),
                Expression::Swizzle { vector, .. } => repeated.push(vector),
                Expression::Access { base, .. } | Expression::AccessIndex { base, .. } if self.is_pointer(handle) => {
                    let twice = self.info[handle].ref_count > 1 || shared.contains(&handle);
                    shared.extend(twice.then_some(base));
                    if let (true, Expression::Access { index, .. }) = (twice, expression) {
                        repeated.push(*index);
                    }
                }
                Expression::Access { base, .. } => repeated.push(base),
                Expression::Select { accept, reject, .. } if !wide => self.require_names_for_calls(&[accept, reject]),
                Expression::Select { condition, accept, reject } => {
                    repeated.extend([condition, accept, reject].into_iter().filter(|&e| !is_vector(self.inner(e))));
                }
                Expression::Binary { left, right, .. } if wide => {
                    repeated.extend([left, right].into_iter().filter(|&e| !is_vector(self.inner(e))));
                }
                Expression::Math { fun, arg, arg1, arg2, arg3 } if wide && is_componentwise(fun) => {
                    let arguments = [Some(arg), arg1, arg2, arg3].into_iter().flatten();
                    repeated.extend(arguments.filter(|&e| !is_vector(self.inner(e))));
                }
                // A built-in or matrix operator that returns a vector would be called once for each
                // component.
                Expression::AccessIndex { base, .. } if !is_vector(self.inner(base)) => repeated.push(base),
                _ => {}
            }
            let whole = match *expression {
                Expression::Math { fun, .. } => !is_componentwise(fun),
                Expression::Binary { left, right, .. } => {
                    [left, right].into_iter().any(|e| matches!(self.inner(e), TypeInner::Matrix { .. }))
                }
                Expression::Access { .. } | Expression::AccessIndex { .. } => true,
                _ => false,
            };
            if wide && whole {
                repeated.push(handle);
            }
            self.must_name.extend(repeated);
        }
    }

    /// Marks the calls in both alternatives of a selection. naga evaluates both; within `?:` only
    /// one would be, behind a branch that compilers cannot remove, not knowing that the loads are
    /// harmless.
    fn require_names_for_calls(&mut self, ways: &[Handle<Expression>]) {
        let mut work = ways.to_vec();
        let mut seen = HashSet::new();
        while let Some(handle) = work.pop() {
            if !seen.insert(handle) {
                continue;
            }
            match self.function.expressions[handle] {
                Expression::CallResult(_) => {
                    self.must_name.insert(handle);
                }
                // A nested selection marks its own calls.
                Expression::Select { condition, .. } => work.push(condition),
                ref other => for_each_operand(other, |operand| work.push(operand)),
            }
        }
    }

    fn block(&mut self, block: &'a Block) -> Result<()> {
        for statement in block.iter() {
            self.statement(statement)?;
        }
        Ok(())
    }

    /// Writes a nested block. Reads still pending at its end are never used, and are dropped.
    fn inner_block(&mut self, block: &'a Block) -> Result<()> {
        self.nested(|body| body.block(block))
    }

    fn nested(&mut self, write: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
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

    fn statement(&mut self, statement: &'a Statement) -> Result<()> {
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
                let text = self.call(function, arguments)?;
                let Some(result) = result.filter(|&result| self.info[result].ref_count > 0) else {
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
            (AtomicFunction::Add, _) => dialect.atomic_add(&place, &value),
            (AtomicFunction::Exchange { .. }, None) => dialect.atomic_exchange(&place, &value),
            (AtomicFunction::Exchange { .. }, Some(compare)) => {
                dialect.atomic_compare_exchange(&place, &compare.text, &value)
            }
            (other, _) => return Err(WriteError::Unsupported(format!("the atomic function {other:?}"))),
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

    fn call(&mut self, callee: Handle<Function>, arguments: &[Handle<Expression>]) -> Result<CExpr> {
        let mut texts = Vec::new();
        let name = match self.writer.lowered.intrinsics.get(&callee) {
            Some(&intrinsic) => {
                let end = match intrinsic {
                    Intrinsic::Load { size, .. } => Some(self.upper_bound(arguments[1], 8) + u64::from(size)),
                    _ => None,
                };
                self.writer.intrinsic(intrinsic, end)
            }
            None => {
                let signature = self.writer.signatures.get(&callee);
                let signature = signature.ok_or_else(|| WriteError::internal("a function that was not written"))?;
                if signature.extra_state {
                    texts.push(CExpr::atom(self.state()?));
                }
                signature.name.clone()
            }
        };
        for &argument in arguments {
            texts.push(match self.inner(argument) {
                TypeInner::Pointer { .. } | TypeInner::ValuePointer { .. } => self.address(argument)?,
                _ => self.expression(argument)?,
            });
        }
        Ok(CExpr::call(&name, &texts))
    }

    /// The assignment `pointer = value`, without a semicolon.
    fn store(&mut self, pointer: Handle<Expression>, value: Handle<Expression>) -> Result<String> {
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

    /// Restores `a && b` and `a || b`, for which naga creates a variable and an `if`, if `b` can be
    /// written as an expression; returns whether it could.
    fn write_short_circuit(
        &mut self,
        condition: Handle<Expression>,
        accept: &'a Block,
        reject: &'a Block,
    ) -> Result<bool> {
        let Some(found) = self.find_short_circuit(accept, reject) else { return Ok(false) };
        let depth = self.depth(condition);
        if depth + found.depth > MAX_DEPTH {
            return Ok(false);
        }
        let left = if found.negated { self.negated(condition)? } else { self.expression(condition)? };
        // Nothing here gets a name, so no line is written.
        let waiting = self.pending_reads.len();
        for statement in &found.block[..found.block.len() - 1] {
            self.statement(statement)?;
        }
        let value = self.expression(found.value)?;
        self.pending_reads.truncate(waiting);
        self.mark_written(&[condition]);
        let text = CExpr::binary(self.writer.logical(found.and), left, value);
        self.conditions.insert(found.local, Condition { text, depth: depth + found.depth + 1, loaded: false });
        Ok(true)
    }

    fn find_short_circuit(&self, accept: &'a Block, reject: &'a Block) -> Option<ShortCircuit<'a>> {
        let store = |block: &'a Block| match block.last() {
            Some(&Statement::Store { pointer, value }) => match self.function.expressions[pointer] {
                Expression::LocalVariable(local) => Some((local, value)),
                _ => None,
            },
            _ => None,
        };
        let (local, accepted) = store(accept)?;
        let (other, rejected) = store(reject)?;
        let constant = |block: &Block, value| match self.function.expressions[value] {
            Expression::Literal(Literal::Bool(value)) if block.len() == 1 => Some(value),
            _ => None,
        };
        // `if a { v = b } else { v = false }` is a && b, `if !a { v = b } else { v = true }` is a
        // || b.
        let (and, negated, block, value) = if let Some(otherwise) = constant(reject, rejected) {
            (!otherwise, otherwise, accept, accepted)
        } else {
            let otherwise = constant(accept, accepted)?;
            (!otherwise, !otherwise, reject, rejected)
        };
        let own = self.short_circuits.contains(&local);
        let depth = self.inline_depth(&block[..block.len() - 1], value, 0)?;
        (own && local == other).then_some(ShortCircuit { local, and, negated, block, value, depth })
    }

    /// The depth of the text of `value`, if the statements before it need no line of their own
    /// because all they evaluate becomes part of that text.
    fn inline_depth(&self, statements: &'a [Statement], value: Handle<Expression>, nesting: u32) -> Option<u32> {
        if nesting > MAX_DEPTH {
            return None;
        }
        let mut depths: HashMap<Handle<Expression>, u32> = HashMap::new();
        let mut conditions: HashMap<Handle<LocalVariable>, u32> = HashMap::new();
        // Reads must become part of the text: they cannot stay pending.
        let (mut reads, mut roots) = (Vec::new(), vec![value]);
        for statement in statements {
            match *statement {
                Statement::Emit(ref range) => {
                    for handle in range.clone() {
                        if self.is_pointer(handle) || self.info[handle].ref_count == 0 {
                            continue;
                        }
                        if let Expression::Load { .. } = self.function.expressions[handle] {
                            reads.push(handle);
                        }
                        let mut depth = 0;
                        for_each_operand(&self.function.expressions[handle], |operand| {
                            depth = depth.max(self.depth_with(&depths, operand));
                        });
                        if let Expression::Load { pointer } = self.function.expressions[handle]
                            && let Expression::LocalVariable(local) = self.function.expressions[pointer]
                            && let Some(&of) = conditions.get(&local)
                        {
                            depth = of;
                        }
                        if self.needs_name(handle, depth + 1) {
                            return None;
                        }
                        depths.insert(handle, depth + 1);
                    }
                }
                Statement::Call { function, ref arguments, result: Some(result) } if self.writer.is_pure(function) => {
                    let depth = arguments.iter().map(|&a| self.depth_with(&depths, a)).max().unwrap_or(0) + 1;
                    if self.needs_name(result, depth) {
                        return None;
                    }
                    depths.insert(result, depth);
                    roots.extend(arguments);
                    reads.extend((self.info[result].ref_count > 0).then_some(result));
                }
                Statement::If { condition, ref accept, ref reject } => {
                    let found = self.find_short_circuit(accept, reject)?;
                    conditions.insert(found.local, self.depth_with(&depths, condition) + found.depth + 1);
                    roots.push(condition);
                }
                _ => return None,
            }
        }
        let mut reached = HashSet::new();
        while let Some(handle) = roots.pop() {
            if !self.baked.contains_key(&handle) && reached.insert(handle) {
                for_each_operand(&self.function.expressions[handle], |operand| roots.push(operand));
            }
        }
        if !reads.iter().all(|read| reached.contains(read)) {
            return None;
        }
        Some(self.depth_with(&depths, value)).filter(|&depth| depth <= MAX_DEPTH)
    }

    fn depth_with(&self, depths: &HashMap<Handle<Expression>, u32>, handle: Handle<Expression>) -> u32 {
        depths.get(&handle).copied().unwrap_or_else(|| self.depth(handle))
    }

    fn depth(&self, handle: Handle<Expression>) -> u32 {
        if self.baked.contains_key(&handle) { 0 } else { self.depths.get(&handle).copied().unwrap_or(0) }
    }

    fn is_pointer(&self, handle: Handle<Expression>) -> bool {
        matches!(self.inner(handle), TypeInner::Pointer { .. } | TypeInner::ValuePointer { .. })
    }

    /// Whether an expression gets a name as soon as it is evaluated.
    fn needs_name(&self, handle: Handle<Expression>, depth: u32) -> bool {
        let vector = matches!(self.inner(handle), TypeInner::Vector { .. });
        self.info[handle].ref_count > 1
            || depth > MAX_DEPTH
            || self.must_name.contains(&handle)
            || self.function.named_expressions.contains_key(&handle)
            // One call rather than one for each component.
            || (vector && matches!(self.function.expressions[handle], Expression::CallResult(_)))
    }

    fn emit(&mut self, handle: Handle<Expression>) -> Result<()> {
        if self.is_pointer(handle) || self.info[handle].ref_count == 0 {
            return Ok(());
        }
        let function = self.function;
        let expression = &function.expressions[handle];
        let mut depth = 0;
        for_each_operand(expression, |operand| depth = depth.max(self.depth(operand)));
        if let Expression::Load { pointer } = *expression {
            if let Expression::LocalVariable(local) = function.expressions[pointer]
                && let Some(condition) = self.conditions.get_mut(&local)
            {
                depth = condition.depth;
                condition.loaded = true;
            }
            self.pending_reads.push(handle);
        }
        self.depths.insert(handle, depth + 1);
        if self.needs_name(handle, depth + 1) {
            self.write_named(handle)?;
        }
        Ok(())
    }

    /// Writes the evaluation of an expression to a named variable.
    fn write_named(&mut self, handle: Handle<Expression>) -> Result<()> {
        let hoisted = self.hoisted.remove(&handle);
        let known = if hoisted { self.baked.remove(&handle) } else { None };
        let text = self.expression(handle)?;
        self.mark_written(&[handle]);
        let name = match known {
            Some(name) => {
                self.line(&format!("{name} = {};", text.text));
                name
            }
            None => {
                let name = self.new_name(handle);
                let ty = self.writer.inner_name(self.inner(handle));
                let ty = match self.info[handle].ty.handle() {
                    Some(handle) => self.writer.type_name(handle)?,
                    None => ty?,
                };
                self.line(&format!("{ty} {name} = {};", text.text));
                name
            }
        };
        self.baked.insert(handle, name);
        Ok(())
    }

    fn new_name(&mut self, handle: Handle<Expression>) -> String {
        match self.function.named_expressions.get(&handle) {
            Some(name) => self.names.unique_name(name),
            None => self.names.numbered_name("t", &mut self.last_temporary),
        }
    }

    /// Removes from the pending reads all that `roots` consist of, since it has been written.
    fn mark_written(&mut self, roots: &[Handle<Expression>]) {
        if self.pending_reads.is_empty() && self.conditions.is_empty() {
            return;
        }
        let mut work = roots.to_vec();
        while let Some(handle) = work.pop() {
            if self.baked.contains_key(&handle) {
                continue;
            }
            if let Some(at) = self.pending_reads.iter().rposition(|&waiting| waiting == handle) {
                self.pending_reads.remove(at);
            }
            let expression = &self.function.expressions[handle];
            if let Expression::Load { pointer } = *expression
                && let Expression::LocalVariable(local) = self.function.expressions[pointer]
            {
                self.conditions.remove(&local);
            }
            for_each_operand(expression, |operand| work.push(operand));
        }
    }

    /// Names the pending reads that a statement does not use, before it may change memory.
    fn flush_pending_reads(&mut self, used: &[Handle<Expression>]) -> Result<()> {
        if self.pending_reads.is_empty() && self.conditions.is_empty() {
            return Ok(());
        }
        let mut consumed = HashSet::new();
        let mut work = used.to_vec();
        while let Some(handle) = work.pop() {
            if !self.baked.contains_key(&handle) && consumed.insert(handle) {
                for_each_operand(&self.function.expressions[handle], |operand| work.push(operand));
            }
        }
        for handle in std::mem::take(&mut self.pending_reads) {
            if !consumed.contains(&handle) && !self.baked.contains_key(&handle) {
                self.write_named(handle)?;
            }
        }
        // The statement's own operands are written with it.
        self.pending_reads.clear();
        let unread: Vec<_> = self.conditions.iter().filter(|(_, c)| !c.loaded).map(|(&local, _)| local).collect();
        for local in unread {
            if let Some(condition) = self.conditions.remove(&local) {
                let name = self.names.numbered_name("t", &mut self.last_temporary);
                self.line(&format!("bool {name} = {};", condition.text.text));
                self.conditions.insert(local, Condition { text: CExpr::atom(name), depth: 0, loaded: false });
            }
        }
        Ok(())
    }

    fn loop_statement(
        &mut self,
        body: &'a Block,
        continuing: &'a Block,
        break_if: Option<Handle<Expression>>,
    ) -> Result<()> {
        self.flush_pending_reads(&[])?;
        self.conditions.clear();
        // Expressions that the body evaluates and the continuing block uses.
        let mut crossing = HashSet::new();
        if !continuing.is_empty() || break_if.is_some() {
            let mut evaluated = HashSet::new();
            collect_evaluated(body, &mut evaluated);
            let mut used = HashSet::new();
            self.collect_used(continuing, &mut used);
            used.extend(break_if);
            let mut work: Vec<_> = used.into_iter().collect();
            let mut seen = HashSet::new();
            while let Some(handle) = work.pop() {
                if !seen.insert(handle) {
                    continue;
                }
                if evaluated.contains(&handle) && !self.is_pointer(handle) {
                    crossing.insert(handle);
                } else {
                    for_each_operand(&self.function.expressions[handle], |operand| work.push(operand));
                }
            }
        }
        let update = match break_if {
            None if crossing.is_empty() => self.loop_update(continuing)?,
            _ => None,
        };
        let plain = update.is_some() || (continuing.is_empty() && break_if.is_none());
        let jumps = !plain && has_continue(body);
        // Labels have function scope (C99, section 6.2.1), so their numbers are not reused.
        let label = jumps.then(|| self.names.numbered_name("next", &mut self.last_label));
        if jumps {
            // Declared here: the body's block ends before the continuing block.
            let mut crossing: Vec<_> = crossing.into_iter().collect();
            crossing.sort_unstable_by_key(|handle| handle.index());
            for handle in crossing {
                let name = self.new_name(handle);
                let ty = match self.info[handle].ty.handle() {
                    Some(handle) => self.writer.type_name(handle)?,
                    None => self.writer.inner_name(self.inner(handle))?,
                };
                self.line(&format!("{ty} {name};"));
                self.must_name.insert(handle);
                self.hoisted.insert(handle);
                self.baked.insert(handle, name);
            }
        } else {
            self.must_name.extend(crossing);
        }
        let (condition, rest) = match jumps {
            true => (None, &body[..]),
            false => self.loop_condition(body)?,
        };
        match (condition, update) {
            (condition, Some(update)) => {
                self.line(&format!("for (; {}; {update}) {{", condition.unwrap_or_default()));
            }
            (Some(condition), None) if plain => self.line(&format!("while ({condition}) {{")),
            (Some(condition), None) => {
                self.line("for (;;) {");
                self.nested(|body| {
                    body.line(&format!("if (!({condition})) {{"));
                    body.line("    break;");
                    body.line("}");
                    Ok(())
                })?;
            }
            (None, None) => self.line("for (;;) {"),
        }
        self.loops.push(label.clone());
        self.nested(|this| {
            if let Some(label) = &label {
                this.line("{");
                this.inner_block(body)?;
                this.line("}");
                this.line(&format!("{label}:;"));
            } else {
                for statement in rest {
                    this.statement(statement)?;
                }
                this.pending_reads.clear();
                this.conditions.clear();
            }
            if !plain {
                this.block(continuing)?;
                if let Some(condition) = break_if {
                    this.flush_pending_reads(&[condition])?;
                    let condition = this.expression(condition)?;
                    this.line(&format!("if ({}) {{", condition.text));
                    this.line("    break;");
                    this.line("}");
                }
            }
            Ok(())
        })?;
        self.loops.pop();
        self.line("}");
        Ok(())
    }

    /// The continuing block of a loop as an expression, if it is a single store.
    fn loop_update(&mut self, continuing: &'a Block) -> Result<Option<String>> {
        let Some((&Statement::Store { pointer, value }, before)) = continuing.split_last() else { return Ok(None) };
        if before.iter().any(|statement| !matches!(statement, Statement::Emit(_)))
            || self.inline_depth(before, value, 0).is_none()
        {
            return Ok(None);
        }
        for statement in before {
            self.statement(statement)?;
        }
        let text = self.store(pointer, value)?;
        self.pending_reads.clear();
        Ok(Some(text))
    }

    /// The condition at the top of a loop's body, if it can be written as an expression, and the
    /// statements after it.
    fn loop_condition(&mut self, body: &'a Block) -> Result<(Option<String>, &'a [Statement])> {
        let is_break = |block: &Block| matches!(block[..], [Statement::Break]);
        let found = body.iter().enumerate().find_map(|(at, statement)| match *statement {
            Statement::If { condition, ref accept, ref reject } => match (accept.is_empty(), reject.is_empty()) {
                (true, false) if is_break(reject) => Some((at, condition, true)),
                (false, true) if is_break(accept) => Some((at, condition, false)),
                _ => None,
            },
            _ => None,
        });
        let Some((at, condition, stay)) = found else { return Ok((None, &body[..])) };
        if self.inline_depth(&body[..at], condition, 0).is_none() {
            return Ok((None, &body[..]));
        }
        for statement in &body[..at] {
            self.statement(statement)?;
        }
        let stays = if stay { self.expression(condition)? } else { self.negated(condition)? };
        self.pending_reads.clear();
        self.conditions.clear();
        Ok((Some(stays.text), &body[at + 1..]))
    }

    /// Collects the expressions that a block's statements use directly, nested blocks included.
    fn collect_used(&self, block: &Block, used: &mut HashSet<Handle<Expression>>) {
        for statement in block.iter() {
            match *statement {
                Statement::Emit(ref range) => {
                    for handle in range.clone() {
                        for_each_operand(&self.function.expressions[handle], |operand| {
                            used.insert(operand);
                        });
                    }
                }
                Statement::Block(ref block) => self.collect_used(block, used),
                Statement::If { condition, ref accept, ref reject } => {
                    used.insert(condition);
                    self.collect_used(accept, used);
                    self.collect_used(reject, used);
                }
                Statement::Switch { selector, ref cases } => {
                    used.insert(selector);
                    cases.iter().for_each(|case| self.collect_used(&case.body, used));
                }
                Statement::Loop { ref body, ref continuing, break_if } => {
                    self.collect_used(body, used);
                    self.collect_used(continuing, used);
                    used.extend(break_if);
                }
                Statement::Return { value } => used.extend(value),
                Statement::Store { pointer, value } => used.extend([pointer, value]),
                Statement::Call { ref arguments, .. } => used.extend(arguments),
                _ => {}
            }
        }
    }
}

/// A variable that holds `a && b` or `a || b`; see [`FunctionWriter::write_short_circuit`].
struct ShortCircuit<'a> {
    local: Handle<LocalVariable>,
    /// `&&` if set, else `||`.
    and: bool,
    /// Whether the left operand is the negated condition.
    negated: bool,
    /// The block that evaluates the right operand and ends with its store.
    block: &'a Block,
    /// The right operand.
    value: Handle<Expression>,
    depth: u32,
}

/// Whether a loop's body has a `continue` of this loop.
fn has_continue(block: &Block) -> bool {
    block.iter().any(|statement| match statement {
        Statement::Continue => true,
        Statement::Block(block) => has_continue(block),
        Statement::If { accept, reject, .. } => has_continue(accept) || has_continue(reject),
        Statement::Switch { cases, .. } => cases.iter().any(|case| has_continue(&case.body)),
        _ => false,
    })
}

/// Collects what a block evaluates at its own level, which later statements of a loop may use.
fn collect_evaluated(block: &Block, evaluated: &mut HashSet<Handle<Expression>>) {
    for statement in block.iter() {
        match statement {
            Statement::Emit(range) => evaluated.extend(range.clone()),
            Statement::Call { result, .. } => evaluated.extend(*result),
            Statement::Block(block) => collect_evaluated(block, evaluated),
            _ => {}
        }
    }
}
