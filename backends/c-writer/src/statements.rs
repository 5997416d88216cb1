//! Statements of one function, and when expressions get a name.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use naga::valid::FunctionInfo;
use naga::{
    AtomicFunction, Block, Expression, Function, Handle, Literal, LocalVariable, Statement, SwitchValue, TypeInner,
};
use portcullis_core::program::for_each_operand;

use portcullis_core::program::prelude::Intrinsic;

use crate::expressions::{Place, by_component};
use crate::names::Names;
use crate::text::Text;
use crate::{Result, WriteError, Writer};

/// Operators in each other before one gets a name: bounds the writer's recursion and the brackets in each
/// other, of which compilers take no more than some.
const MAX_DEPTH: u32 = 16;

/// `a && b` in place of a variable.
pub(crate) struct Condition {
    pub text: Text,
    depth: u32,
    /// Whether its one load was evaluated, and waits as all loads do.
    loaded: bool,
}

/// Brackets that the deepest expression may add to those of the blocks around it.
const EXPRESSION_NESTING: usize = 4 * MAX_DEPTH as usize;

/// The body of one function, as it is written.
pub(crate) struct Body<'w, 'a> {
    pub w: &'w mut Writer<'a>,
    pub function: &'a Function,
    pub info: &'a FunctionInfo,
    names: Names,
    last_temporary: u32,
    last_label: u32,
    pub arguments: Vec<String>,
    pub locals: HashMap<Handle<LocalVariable>, String>,
    /// Variables that the text mentions.
    pub used_locals: HashSet<Handle<LocalVariable>>,
    state: Option<String>,
    /// Expressions that have a name.
    pub baked: HashMap<Handle<Expression>, String>,
    /// Expressions that were given a name where they are still to be evaluated.
    hoisted: HashSet<Handle<Expression>>,
    /// Expressions that have to get a name, because their text would be repeated.
    must: HashSet<Handle<Expression>>,
    /// Calls that change nothing, to be written where their result is used.
    pub calls: HashMap<Handle<Expression>, Text>,
    /// `a && b` in the making: the variable that naga puts it in, what it is, how deep that is.
    pub conditions: HashMap<Handle<LocalVariable>, Condition>,
    /// Variables that are `a && b` or `a || b`, where that can be written as an expression.
    short_circuits: HashSet<Handle<LocalVariable>>,
    /// What reads memory and was not written yet.
    waiting: Vec<Handle<Expression>>,
    /// For expressions without a name, how deep their text is.
    depths: HashMap<Handle<Expression>, u32>,
    out: String,
    /// Blocks around what is written now.
    level: usize,
    /// What `continue` is, for each loop around.
    loops: Vec<Option<String>>,
}

impl<'w, 'a> Body<'w, 'a> {
    pub fn new(
        w: &'w mut Writer<'a>,
        handle: Handle<Function>,
        mut names: Names,
        arguments: Vec<String>,
        state: Option<String>,
    ) -> Body<'w, 'a> {
        let lowered = w.lowered;
        let function = &lowered.module.functions[handle];
        let locals = function.local_variables.iter();
        let locals =
            locals.map(|(handle, local)| (handle, names.claim(local.name.as_deref().unwrap_or("v")))).collect();
        let mut body = Body {
            w,
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
            must: HashSet::new(),
            calls: HashMap::new(),
            conditions: HashMap::new(),
            short_circuits: HashSet::new(),
            waiting: Vec::new(),
            depths: HashMap::new(),
            out: String::new(),
            level: 1,
            loops: Vec::new(),
        };
        body.find_repeated();
        body.find_short_circuits();
        body
    }

    /// The function's body, its variables declared.
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
                let ty = self.w.type_name(local.ty)?;
                let init = match local.init {
                    Some(init) => self.expression(init)?.text,
                    None => self.w.zero(local.ty)?,
                };
                let name = self.locals[&handle].clone();
                self.line(&format!("{ty} {name} = {init};"));
            }
        }
        Ok(self.out + &text)
    }

    /// The pointer to what is this invocation's own.
    pub(crate) fn state(&self) -> Result<&str> {
        self.state.as_deref().ok_or_else(|| WriteError::internal("a function without its packet"))
    }

    fn line(&mut self, text: &str) {
        let _ = writeln!(self.out, "{:1$}{text}", "", self.level * 4);
    }

    /// Finds the variables that naga makes for `&&` and `||`: without a name, stored to twice, loaded once.
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

    /// Marks what is written several times where it is used once: a number that all components of a vector
    /// need, a vector of which a component is taken twice, an index.
    fn find_repeated(&mut self) {
        let function = self.function;
        let is_vector = |inner: &TypeInner| matches!(inner, TypeInner::Vector { .. });
        let mut shared = HashSet::new();
        // Users stand behind what they use.
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
                Expression::Select { accept, reject, .. } if !wide => self.name_calls(&[accept, reject]),
                Expression::Select { condition, accept, reject } => {
                    repeated.extend([condition, accept, reject].into_iter().filter(|&e| !is_vector(self.inner(e))));
                }
                Expression::Binary { left, right, .. } if wide => {
                    repeated.extend([left, right].into_iter().filter(|&e| !is_vector(self.inner(e))));
                }
                Expression::Math { fun, arg, arg1, arg2, arg3 } if wide && by_component(fun) => {
                    let arguments = [Some(arg), arg1, arg2, arg3].into_iter().flatten();
                    repeated.extend(arguments.filter(|&e| !is_vector(self.inner(e))));
                }
                // A built-in or an operator on matrices that gives a vector would be called for each component.
                Expression::AccessIndex { base, .. } if !is_vector(self.inner(base)) => repeated.push(base),
                _ => {}
            }
            let whole = match *expression {
                Expression::Math { fun, .. } => !by_component(fun),
                Expression::Binary { left, right, .. } => {
                    [left, right].into_iter().any(|e| matches!(self.inner(e), TypeInner::Matrix { .. }))
                }
                Expression::Access { .. } | Expression::AccessIndex { .. } => true,
                _ => false,
            };
            if wide && whole {
                repeated.push(handle);
            }
            self.must.extend(repeated);
        }
    }

    /// Marks the calls in a choice's two ways: they have been made before it. Written in `?:`, only one would be, behind
    /// a branch that a compiler cannot take away, not knowing that loads are harmless.
    fn name_calls(&mut self, ways: &[Handle<Expression>]) {
        let mut work = ways.to_vec();
        let mut seen = HashSet::new();
        while let Some(handle) = work.pop() {
            if !seen.insert(handle) {
                continue;
            }
            match self.function.expressions[handle] {
                Expression::CallResult(_) => {
                    self.must.insert(handle);
                }
                // Another choice, which names its own.
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

    /// A block one level further in. What waits in it is lost behind it, so there is nothing to keep.
    fn inner_block(&mut self, block: &'a Block) -> Result<()> {
        self.nested(|body| body.block(block))
    }

    fn nested(&mut self, write: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.level += 1;
        // The function's own is not one of the filter's text.
        let (blocks, most) = (self.level - 1, self.w.dialect.max_nesting() - EXPRESSION_NESTING - 1);
        if blocks > most {
            return Err(WriteError::Unsupported(format!(
                "{blocks} blocks in each other: compilers of {} take at most {most}",
                self.w.dialect.name()
            )));
        }
        let mark = self.names.mark();
        let result = write(self);
        self.names.release(mark);
        self.waiting.clear();
        self.conditions.clear();
        self.level -= 1;
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
            Statement::If { condition, ref accept, ref reject } => self.branch(condition, accept, reject)?,
            Statement::Switch { selector, ref cases } => {
                self.settle(&[selector])?;
                let selector = self.expression(selector)?;
                self.line(&format!("switch ({}) {{", selector.text));
                for case in cases {
                    let label = match case.value {
                        SwitchValue::Default => "default".into(),
                        SwitchValue::I32(value) => format!("case {}", self.w.literal(Literal::I32(value))?),
                        SwitchValue::U32(value) => format!("case {}", self.w.literal(Literal::U32(value))?),
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
            Statement::Loop { ref body, ref continuing, break_if } => self.looped(body, continuing, break_if)?,
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
                self.settle(&[pointer, value])?;
                let text = self.store(pointer, value)?;
                self.line(&format!("{text};"));
            }
            Statement::Call { function, ref arguments, result } => {
                let quiet = self.w.is_quiet(function);
                if quiet && result.is_none_or(|result| self.info[result].ref_count == 0) {
                    return Ok(());
                }
                let store = matches!(self.w.lowered.intrinsics.get(&function), Some(Intrinsic::Store { .. }));
                if store && !self.w.writes_packets() {
                    // It never comes to that, or always lies outside.
                    return Ok(());
                }
                if !quiet {
                    self.settle(arguments)?;
                }
                let text = self.call(function, arguments)?;
                let Some(result) = result.filter(|&result| self.info[result].ref_count > 0) else {
                    self.line(&format!("{};", text.text));
                    return Ok(());
                };
                if quiet && !self.needs_name(result, 0) {
                    let depth = arguments.iter().map(|&a| self.depth(a)).max().unwrap_or(0) + 1;
                    self.forget(arguments);
                    self.calls.insert(result, text);
                    self.depths.insert(result, depth);
                    self.waiting.push(result);
                    if depth > MAX_DEPTH {
                        self.name(result)?;
                    }
                } else {
                    self.calls.insert(result, text);
                    self.forget(arguments);
                    self.name(result)?;
                }
            }
            Statement::Atomic { pointer, fun, value, result } => self.atomic(pointer, fun, value, result)?,
            ref other => return Err(WriteError::Unsupported(format!("the statement {other:?}"))),
        }
        Ok(())
    }

    /// What reads and writes a word of a map in one.
    fn atomic(
        &mut self,
        pointer: Handle<Expression>,
        function: AtomicFunction,
        value: Handle<Expression>,
        result: Option<Handle<Expression>>,
    ) -> Result<()> {
        let compare = if let AtomicFunction::Exchange { compare } = function { compare } else { None };
        let operands: Vec<_> = [pointer, value].into_iter().chain(compare).collect();
        self.settle(&operands)?;
        let Place::Value(place) = self.place(pointer)? else {
            return Err(WriteError::internal("an atomic component"));
        };
        let (place, value) = (Text::unary("&", place).text, self.expression(value)?.text);
        let compare = compare.map(|compare| self.expression(compare)).transpose()?;
        let dialect = self.w.dialect;
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
                let ty = self.w.type_name(ty)?;
                dialect.structure(&ty, &format!("{was}, {was} == {}", compare.text))
            }
        };
        self.calls.insert(result, Text::atom(text));
        self.forget(&operands);
        self.name(result)
    }

    fn call(&mut self, callee: Handle<Function>, arguments: &[Handle<Expression>]) -> Result<Text> {
        let mut texts = Vec::new();
        let name = match self.w.lowered.intrinsics.get(&callee) {
            Some(&intrinsic) => {
                let end = match intrinsic {
                    Intrinsic::Load { size, .. } => Some(self.most(arguments[1], 8) + u64::from(size)),
                    _ => None,
                };
                self.w.intrinsic(intrinsic, end)
            }
            None => {
                let shape = self.w.shapes.get(&callee);
                let shape = shape.ok_or_else(|| WriteError::internal("a function that was not written"))?;
                if shape.extra_state {
                    texts.push(Text::atom(self.state()?));
                }
                shape.name.clone()
            }
        };
        for &argument in arguments {
            texts.push(match self.inner(argument) {
                TypeInner::Pointer { .. } | TypeInner::ValuePointer { .. } => self.address(argument)?,
                _ => self.expression(argument)?,
            });
        }
        Ok(Text::call(&name, &texts))
    }

    /// `pointer = value`, without a semicolon.
    fn store(&mut self, pointer: Handle<Expression>, value: Handle<Expression>) -> Result<String> {
        let value = self.expression(value)?;
        Ok(match self.place(pointer)? {
            Place::Value(place) => format!("{} = {}", place.text, value.text),
            Place::Component { scalar, size, vector, index } => {
                self.w.set_component(scalar, size, vector, index, value).text
            }
        })
    }

    fn branch(&mut self, condition: Handle<Expression>, accept: &'a Block, reject: &'a Block) -> Result<()> {
        if self.short_circuit(condition, accept, reject)? {
            return Ok(());
        }
        self.settle(&[condition])?;
        let (mut condition, mut accept, mut reject) = self.sides(condition, accept, reject)?;
        let mut start = "if";
        loop {
            self.line(&format!("{start} ({}) {{", condition.text));
            self.inner_block(accept)?;
            if reject.is_empty() {
                break;
            }
            // `else if`, where nothing has to be written before the next condition.
            let next = match reject.split_last() {
                Some((&Statement::If { condition, accept: ref yes, reject: ref no }, before))
                    if self.find_short_circuit(yes, no).is_none()
                        && self.quiet_depth(before, condition, 0).is_some() =>
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
            (condition, accept, reject) = self.sides(next, yes, no)?;
            self.waiting.clear();
            self.conditions.clear();
            start = "} else if";
        }
        self.line("}");
        Ok(())
    }

    /// The condition of a branch with its two blocks, of which the first is not empty if the other is not.
    fn sides(
        &mut self,
        condition: Handle<Expression>,
        accept: &'a Block,
        reject: &'a Block,
    ) -> Result<(Text, &'a Block, &'a Block)> {
        if accept.is_empty() && !reject.is_empty() {
            return Ok((self.negated(condition)?, reject, accept));
        }
        Ok((self.expression(condition)?, accept, reject))
    }

    /// naga makes a variable and an `if` of `a && b` and `a || b`. Where `b` can be written as an expression, this
    /// turns it back, and says so.
    fn short_circuit(&mut self, condition: Handle<Expression>, accept: &'a Block, reject: &'a Block) -> Result<bool> {
        let Some(found) = self.find_short_circuit(accept, reject) else { return Ok(false) };
        let depth = self.depth(condition);
        if depth + found.depth > MAX_DEPTH {
            return Ok(false);
        }
        let left = if found.negated { self.negated(condition)? } else { self.expression(condition)? };
        // Nothing here gets a name, so nothing is written.
        let waiting = self.waiting.len();
        for statement in &found.block[..found.block.len() - 1] {
            self.statement(statement)?;
        }
        let value = self.expression(found.value)?;
        self.waiting.truncate(waiting);
        self.forget(&[condition]);
        let text = Text::binary(self.w.logical(found.and), left, value);
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
        // `if a { v = b } else { v = false }` is a && b, `if !a { v = b } else { v = true }` is a || b.
        let (and, negated, block, value) = if let Some(otherwise) = constant(reject, rejected) {
            (!otherwise, otherwise, accept, accepted)
        } else {
            let otherwise = constant(accept, accepted)?;
            (!otherwise, !otherwise, reject, rejected)
        };
        let own = self.short_circuits.contains(&local);
        let depth = self.quiet_depth(&block[..block.len() - 1], value, 0)?;
        (own && local == other).then_some(ShortCircuit { local, and, negated, block, value, depth })
    }

    /// How deep the text of `value` is at most, if the statements before it write nothing: what they evaluate goes
    /// into that text.
    fn quiet_depth(&self, statements: &'a [Statement], value: Handle<Expression>, nesting: u32) -> Option<u32> {
        if nesting > MAX_DEPTH {
            return None;
        }
        let mut depths: HashMap<Handle<Expression>, u32> = HashMap::new();
        let mut conditions: HashMap<Handle<LocalVariable>, u32> = HashMap::new();
        // What reads memory has to end in the text: it cannot wait any longer.
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
                Statement::Call { function, ref arguments, result: Some(result) } if self.w.is_quiet(function) => {
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
            || self.must.contains(&handle)
            || self.function.named_expressions.contains_key(&handle)
            // One call, and not one for each component.
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
            self.waiting.push(handle);
        }
        self.depths.insert(handle, depth + 1);
        if self.needs_name(handle, depth + 1) {
            self.name(handle)?;
        }
        Ok(())
    }

    /// Evaluates an expression here and gives it a name.
    fn name(&mut self, handle: Handle<Expression>) -> Result<()> {
        let hoisted = self.hoisted.remove(&handle);
        let known = if hoisted { self.baked.remove(&handle) } else { None };
        let text = self.expression(handle)?;
        self.forget(&[handle]);
        let name = match known {
            Some(name) => {
                self.line(&format!("{name} = {};", text.text));
                name
            }
            None => {
                let name = self.new_name(handle);
                let ty = self.w.inner_name(self.inner(handle));
                let ty = match self.info[handle].ty.handle() {
                    Some(handle) => self.w.type_name(handle)?,
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
            Some(name) => self.names.claim(name),
            None => self.names.number("t", &mut self.last_temporary),
        }
    }

    /// Drops from what waits all that `roots` are made of: it has been written.
    fn forget(&mut self, roots: &[Handle<Expression>]) {
        if self.waiting.is_empty() && self.conditions.is_empty() {
            return;
        }
        let mut work = roots.to_vec();
        while let Some(handle) = work.pop() {
            if self.baked.contains_key(&handle) {
                continue;
            }
            if let Some(at) = self.waiting.iter().rposition(|&waiting| waiting == handle) {
                self.waiting.remove(at);
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

    /// Before a statement that uses `used` and may change memory: whatever waits for another one gets its name.
    fn settle(&mut self, used: &[Handle<Expression>]) -> Result<()> {
        if self.waiting.is_empty() && self.conditions.is_empty() {
            return Ok(());
        }
        let mut consumed = HashSet::new();
        let mut work = used.to_vec();
        while let Some(handle) = work.pop() {
            if !self.baked.contains_key(&handle) && consumed.insert(handle) {
                for_each_operand(&self.function.expressions[handle], |operand| work.push(operand));
            }
        }
        for handle in std::mem::take(&mut self.waiting) {
            if !consumed.contains(&handle) && !self.baked.contains_key(&handle) {
                self.name(handle)?;
            }
        }
        // The statement's own are written with it.
        self.waiting.clear();
        let unread: Vec<_> = self.conditions.iter().filter(|(_, c)| !c.loaded).map(|(&local, _)| local).collect();
        for local in unread {
            if let Some(condition) = self.conditions.remove(&local) {
                let name = self.names.number("t", &mut self.last_temporary);
                self.line(&format!("bool {name} = {};", condition.text.text));
                self.conditions.insert(local, Condition { text: Text::atom(name), depth: 0, loaded: false });
            }
        }
        Ok(())
    }

    fn looped(&mut self, body: &'a Block, continuing: &'a Block, break_if: Option<Handle<Expression>>) -> Result<()> {
        self.settle(&[])?;
        self.conditions.clear();
        // What the body evaluates and the continuing block uses.
        let mut crossing = HashSet::new();
        if !continuing.is_empty() || break_if.is_some() {
            let mut evaluated = HashSet::new();
            evaluated_in(body, &mut evaluated);
            let mut used = HashSet::new();
            self.used_in(continuing, &mut used);
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
            None if crossing.is_empty() => self.update(continuing)?,
            _ => None,
        };
        let plain = update.is_some() || (continuing.is_empty() && break_if.is_none());
        let jumps = !plain && continues(body);
        // Labels are good for the whole function (C99, section 6.2.1), so their numbers are not given up.
        let label = jumps.then(|| self.names.number("next", &mut self.last_label));
        if jumps {
            // They are evaluated in a block that the continuing one is outside of.
            let mut crossing: Vec<_> = crossing.into_iter().collect();
            crossing.sort_unstable_by_key(|handle| handle.index());
            for handle in crossing {
                let name = self.new_name(handle);
                let ty = match self.info[handle].ty.handle() {
                    Some(handle) => self.w.type_name(handle)?,
                    None => self.w.inner_name(self.inner(handle))?,
                };
                self.line(&format!("{ty} {name};"));
                self.must.insert(handle);
                self.hoisted.insert(handle);
                self.baked.insert(handle, name);
            }
        } else {
            self.must.extend(crossing);
        }
        let (condition, rest) = match jumps {
            true => (None, &body[..]),
            false => self.header(body)?,
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
                this.waiting.clear();
                this.conditions.clear();
            }
            if !plain {
                this.block(continuing)?;
                if let Some(condition) = break_if {
                    this.settle(&[condition])?;
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

    /// The continuing block of a loop as an expression, where it is one store.
    fn update(&mut self, continuing: &'a Block) -> Result<Option<String>> {
        let Some((&Statement::Store { pointer, value }, before)) = continuing.split_last() else { return Ok(None) };
        if before.iter().any(|statement| !matches!(statement, Statement::Emit(_)))
            || self.quiet_depth(before, value, 0).is_none()
        {
            return Ok(None);
        }
        for statement in before {
            self.statement(statement)?;
        }
        let text = self.store(pointer, value)?;
        self.waiting.clear();
        Ok(Some(text))
    }

    /// The condition at the top of a loop's body, where it can be written as an expression, and what follows it.
    fn header(&mut self, body: &'a Block) -> Result<(Option<String>, &'a [Statement])> {
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
        if self.quiet_depth(&body[..at], condition, 0).is_none() {
            return Ok((None, &body[..]));
        }
        for statement in &body[..at] {
            self.statement(statement)?;
        }
        let stays = if stay { self.expression(condition)? } else { self.negated(condition)? };
        self.waiting.clear();
        self.conditions.clear();
        Ok((Some(stays.text), &body[at + 1..]))
    }

    /// The expressions that a block's statements use by themselves, those in blocks within included.
    fn used_in(&self, block: &Block, used: &mut HashSet<Handle<Expression>>) {
        for statement in block.iter() {
            match *statement {
                Statement::Emit(ref range) => {
                    for handle in range.clone() {
                        for_each_operand(&self.function.expressions[handle], |operand| {
                            used.insert(operand);
                        });
                    }
                }
                Statement::Block(ref block) => self.used_in(block, used),
                Statement::If { condition, ref accept, ref reject } => {
                    used.insert(condition);
                    self.used_in(accept, used);
                    self.used_in(reject, used);
                }
                Statement::Switch { selector, ref cases } => {
                    used.insert(selector);
                    cases.iter().for_each(|case| self.used_in(&case.body, used));
                }
                Statement::Loop { ref body, ref continuing, break_if } => {
                    self.used_in(body, used);
                    self.used_in(continuing, used);
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

/// See [`Body::short_circuit`].
struct ShortCircuit<'a> {
    local: Handle<LocalVariable>,
    /// `&&`, else `||`.
    and: bool,
    /// Whether the left side is the opposite of the condition.
    negated: bool,
    /// What leads to the right side; its last statement is the store.
    block: &'a Block,
    /// The right side.
    value: Handle<Expression>,
    depth: u32,
}

/// Whether a loop's body has a `continue` that is its own.
fn continues(block: &Block) -> bool {
    block.iter().any(|statement| match statement {
        Statement::Continue => true,
        Statement::Block(block) => continues(block),
        Statement::If { accept, reject, .. } => continues(accept) || continues(reject),
        Statement::Switch { cases, .. } => cases.iter().any(|case| continues(&case.body)),
        _ => false,
    })
}

/// What a block evaluates at its own level: what stands behind it in a loop may use that.
fn evaluated_in(block: &Block, evaluated: &mut HashSet<Handle<Expression>>) {
    for statement in block.iter() {
        match statement {
            Statement::Emit(range) => evaluated.extend(range.clone()),
            Statement::Call { result, .. } => evaluated.extend(*result),
            Statement::Block(block) => evaluated_in(block, evaluated),
            _ => {}
        }
    }
}
