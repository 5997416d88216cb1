//! Abstract interpreter: runs the filter on abstract values, following calls into the callees.
//!
//! One pass interprets every statement once per call context, so it costs as much as the filter
//! with all calls inlined. At a loop's head, each variable that the loop assigns holds the join of
//! its value before the loop and the value assumed for the back edge (see [`super::loops`]). If a
//! pass observes nothing at back edges beyond what was assumed, the assumptions form an inductive
//! invariant, and everything the pass inferred holds.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use naga::valid::{FunctionInfo, ModuleInfo};
use naga::{
    Block, Expression, Function, GlobalVariable, Handle, LocalVariable, Module, Range, Statement, SwitchCase,
    SwitchValue,
};

use super::VerdictSet;
use super::interval::{IntKind, Interval};
use super::scan::{FunctionScan, StatementId};
use super::state::{Delta, State};
use super::targets::{BackEdgeState, Target};
use super::value::{Conditions, Shapes, Value};
use crate::program::prelude::Intrinsic;

/// Maximum nesting of blocks, callees included; a deeper filter is not analysed. Bounds the stack.
/// The verifier's own limit is lower.
const MAX_DEPTH: usize = 2 * crate::program::MAX_NESTING;

/// Maximum number of expressions, statements and state changes in one pass; bounds the time.
const MAX_WORK: u64 = 1 << 21;

/// Cell that holds the offset of the packet's first byte from where it was on arrival.
pub(super) const HEAD_SHIFT: u32 = 0;

/// Facts inferred by one pass.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct InferredFacts {
    /// One past the last byte read and written, counted from the packet's first byte on arrival; 0
    /// if none.
    pub(super) read_end: u64,
    pub(super) write_end: u64,
    pub(super) verdicts: VerdictSet,
    /// Maximum number of loop iterations; `u64::MAX` if unbounded.
    pub(super) iterations: u64,
}

/// Activation record of a function under interpretation.
pub(super) struct Frame<'a> {
    pub(super) function: &'a Function,
    pub(super) info: &'a FunctionInfo,
    pub(super) scan: Rc<FunctionScan>,
    /// First cell of the function's expressions; its variables' cells follow.
    pub(super) base: u32,
    pub(super) arguments: Vec<Value>,
    /// Identifies the call context.
    pub(super) instance: u32,
    pub(super) mark: usize,
    pub(super) returns: Vec<Delta>,
    pub(super) result: Option<Value>,
    /// Maximum of `AbstractInterpreter::iterations` over all paths to the function's end.
    pub(super) max_iterations: u64,
}

impl Frame<'_> {
    pub(super) fn local(&self, local: Handle<LocalVariable>) -> u32 {
        self.base + (self.function.expressions.len() + local.index()) as u32
    }
}

/// The parts of a program that the analysis reads.
pub(in crate::program) struct AnalysisInput<'a> {
    pub(in crate::program) module: &'a Module,
    pub(in crate::program) info: &'a ModuleInfo,
    pub(in crate::program) filter: Handle<Function>,
    pub(in crate::program) intrinsics: &'a HashMap<Handle<Function>, Intrinsic>,
    pub(in crate::program) prelude: &'a HashSet<Handle<Function>>,
}

/// State of the abstract interpretation of one filter, over all passes.
pub(super) struct AbstractInterpreter<'a> {
    pub(super) module: &'a Module,
    pub(super) input: &'a AnalysisInput<'a>,
    pub(super) shapes: Shapes<'a>,
    /// Values of the module's constant expressions, by index.
    pub(super) constants: Vec<Value>,
    /// Cells of the filter's private variables.
    pub(super) privates: HashMap<Handle<GlobalVariable>, u32>,
    pub(super) scans: HashMap<Handle<Function>, Rc<FunctionScan>>,
    /// Call contexts, by the caller's context and the call statement.
    pub(super) instances: HashMap<(u32, StatementId), u32>,
    pub(super) state: State,
    pub(super) frames: Vec<Frame<'a>>,
    pub(super) targets: Vec<Target>,
    /// Values at each loop's back edge: assumed for this pass, and observed by it.
    pub(super) assumed: HashMap<(u32, StatementId), BackEdgeState>,
    pub(super) observed: HashMap<(u32, StatementId), BackEdgeState>,
    /// Whether a loop without assumptions may assign anything; otherwise its back edge counts as
    /// not taken.
    pub(super) pessimistic: bool,
    pub(super) inferred: InferredFacts,
    /// Maximum number of iterations on a path to the current point, from the start of the innermost
    /// loop's body or, outside loops, of the filter; `u64::MAX` if unbounded.
    pub(super) iterations: u64,
    depth: usize,
    gave_up: bool,
}

impl<'a> AbstractInterpreter<'a> {
    pub(super) fn new(input: &'a AnalysisInput<'a>) -> AbstractInterpreter<'a> {
        let mut interpreter = AbstractInterpreter {
            module: input.module,
            input,
            shapes: Shapes::new(input.module),
            constants: Vec::new(),
            privates: HashMap::new(),
            scans: HashMap::new(),
            instances: HashMap::new(),
            state: State::default(),
            frames: Vec::new(),
            targets: Vec::new(),
            assumed: HashMap::new(),
            observed: HashMap::new(),
            pessimistic: false,
            inferred: InferredFacts::default(),
            iterations: 0,
            depth: 0,
            gave_up: false,
        };
        interpreter.eval_constants();
        interpreter
    }

    fn eval_constants(&mut self) {
        for (_, expression) in self.module.global_expressions.iter() {
            let at = |e: &Handle<Expression>| self.constants[e.index()].clone();
            let value = match expression {
                Expression::Literal(literal) => Value::literal(*literal),
                Expression::Constant(constant) => at(&self.module.constants[*constant].init),
                Expression::ZeroValue(ty) => self.shapes.zero(*ty),
                Expression::Compose { ty, components } => self.shapes.compose(*ty, components.iter().map(at).collect()),
                Expression::Splat { size, value } => Value::Composite(Rc::new(vec![at(value); *size as usize])),
                _ => Value::Any,
            };
            self.constants.push(value);
        }
    }

    /// Interprets the filter under the current assumptions. `None` if that exceeds a limit.
    pub(super) fn run_pass(&mut self) -> Option<InferredFacts> {
        self.observed.clear();
        self.state = State::default();
        self.state.live = true;
        self.inferred = InferredFacts::default();
        self.frames.clear();
        self.targets.clear();
        self.iterations = 0;
        self.state.grow(1);
        self.state.evaluate(HEAD_SHIFT, Value::range(Interval::point(0)), None);
        self.init_private_variables();
        let filter = self.input.filter;
        self.interpret_function(filter, vec![Value::Any], u32::MAX, std::ptr::null());
        self.inferred.iterations = self.iterations;
        (!self.gave_up).then(|| self.inferred.clone())
    }

    /// Allocates and initialises cells for the filter's own private variables.
    fn init_private_variables(&mut self) {
        let module = self.module;
        for (handle, variable) in module.global_variables.iter() {
            let is_machinery =
                variable.name.as_deref().is_some_and(|n| n.starts_with(crate::program::prelude::RESERVED_PREFIX));
            if variable.space == naga::AddressSpace::Private && !is_machinery {
                let cell = self.state.grow(1);
                let value = match variable.init {
                    Some(init) => self.constants[init.index()].clone(),
                    None => self.shapes.zero(variable.ty),
                };
                self.state.evaluate(cell, value, None);
                self.privates.insert(handle, cell);
            }
        }
    }

    pub(super) fn frame(&self) -> &Frame<'a> {
        self.frames.last().expect("a function is walked inside its frame")
    }

    pub(super) fn frame_mut(&mut self) -> &mut Frame<'a> {
        self.frames.last_mut().expect("a function is walked inside its frame")
    }

    /// The expression that a cell belongs to, and its frame.
    pub(super) fn expression_of_cell(&self, cell: u32) -> Option<(&Frame<'a>, Handle<Expression>)> {
        let frame = self.frames.iter().rev().find(|frame| frame.base <= cell)?;
        let expressions = &frame.function.expressions;
        let index = cell - frame.base;
        if index as usize >= expressions.len() {
            return None;
        }
        Some((frame, Range::from_index_range(index..index + 1, expressions).next()?))
    }

    pub(super) fn give_up(&mut self) {
        self.gave_up = true;
        self.state.live = false;
    }

    /// Continues with the join of `paths`, which all fork at the current point; the state is dead
    /// if there are none.
    pub(super) fn continue_from(&mut self, paths: Vec<Delta>) {
        let mut joined: Option<Delta> = None;
        for path in paths {
            joined = Some(match joined {
                Some(other) => self.state.join(other, path, [&None, &None]),
                None => path,
            });
        }
        self.state.live = joined.is_some() && !self.gave_up;
        if let Some(joined) = joined {
            self.state.apply(joined);
        }
    }

    pub(super) fn interpret_block(&mut self, block: &'a Block) {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            self.give_up();
        }
        for statement in block {
            if self.state.work > MAX_WORK {
                self.give_up();
            }
            if !self.state.live {
                break;
            }
            self.state.work += 1;
            self.interpret_statement(statement);
        }
        self.depth -= 1;
    }

    fn interpret_statement(&mut self, statement: &'a Statement) {
        match statement {
            Statement::Emit(range) => {
                for expression in range.clone() {
                    self.state.work += 1;
                    self.evaluate(expression);
                }
            }
            Statement::Block(block) => self.interpret_block(block),
            Statement::If { condition, accept, reject } => self.interpret_if(*condition, accept, reject),
            Statement::Switch { selector, cases } => self.interpret_switch(*selector, cases),
            Statement::Loop { body, continuing, break_if } => {
                self.interpret_loop(std::ptr::from_ref(statement), body, continuing, *break_if);
            }
            Statement::Break => {
                let iterations = self.iterations;
                if let Some(target) = self.targets.last_mut() {
                    let (mark, breaks, max) = match target {
                        Target::Loop(target) => (target.mark, &mut target.breaks, &mut target.max_in_last),
                        Target::Switch { mark, breaks, max_at_break } => (*mark, breaks, max_at_break),
                    };
                    *max = iterations.max(*max);
                    breaks.push(self.state.delta(mark, u32::MAX));
                }
                self.state.live = false;
            }
            Statement::Continue => {
                let inner = self.targets.iter_mut().rev().find_map(|target| match target {
                    Target::Loop(target) => Some(target),
                    Target::Switch { .. } => None,
                });
                if let Some(target) = inner {
                    target.max_at_continue = target.max_at_continue.max(self.iterations);
                    target.continues.push(self.state.delta(target.mark, u32::MAX));
                }
                self.state.live = false;
            }
            Statement::Return { value } => {
                if self.frames.len() == 1 {
                    let verdicts = value.map_or(VerdictSet::ALL, |v| self.value(v).int(IntKind::Unsigned).verdicts);
                    self.inferred.verdicts = self.inferred.verdicts.union(verdicts);
                }
                self.interpret_return(*value);
            }
            Statement::Kill => {
                self.end_path();
                self.state.live = false;
            }
            Statement::Store { pointer, value } => {
                self.interpret_store(std::ptr::from_ref(statement), *pointer, *value)
            }
            Statement::Call { function, arguments, result } => {
                let value = self.interpret_call(std::ptr::from_ref(statement), *function, arguments);
                if let Some(result) = result {
                    let cell = self.cell_of(*result);
                    self.state.evaluate(cell, value, None);
                }
            }
            // The verifier rejects all other statements.
            _ => self.give_up(),
        }
    }

    fn interpret_if(&mut self, condition: Handle<Expression>, accept: &'a Block, reject: &'a Block) {
        let condition = self.value(condition).bool();
        let mark = self.state.mark();
        let before = self.iterations;
        let side = |this: &mut AbstractInterpreter<'a>, possible: bool, conditions: &Conditions, block: &'a Block| {
            this.iterations = before;
            this.state.live = possible && !this.gave_up;
            let possible = this.state.live;
            if possible {
                this.assume(conditions);
                this.interpret_block(block);
            }
            let delta = this.state.live.then(|| this.state.delta(mark, u32::MAX));
            this.state.undo(mark);
            (delta, this.iterations)
        };
        let (a, in_accept) = side(self, condition.can_be_true, &condition.when_true, accept);
        let (b, in_reject) = side(self, condition.can_be_false, &condition.when_false, reject);
        self.iterations = match (&a, &b) {
            (Some(_), None) => in_accept,
            (None, Some(_)) => in_reject,
            _ => in_accept.max(in_reject),
        };
        let joined = match (a, b) {
            (Some(a), Some(b)) => Some(self.state.join(a, b, [&condition.when_true, &condition.when_false])),
            (a, b) => a.or(b),
        };
        self.continue_from(joined.into_iter().collect());
    }

    fn interpret_switch(&mut self, selector: Handle<Expression>, cases: &'a [SwitchCase]) {
        let Some(range) = self.range(selector) else { return self.give_up() };
        let cell = self.cell_of(selector);
        let mark = self.state.mark();
        let (before, mut max) = (self.iterations, self.iterations);
        self.targets.push(Target::Switch { mark, breaks: Vec::new(), max_at_break: 0 });
        let mut ends = Vec::new();
        // A case with several selector values is a run of empty cases that fall through.
        let (mut chosen, mut otherwise) = (None::<Interval>, false);
        for case in cases {
            let number = match case.value {
                SwitchValue::I32(n) => Some(i64::from(n)),
                SwitchValue::U32(n) => Some(i64::from(n)),
                SwitchValue::Default => None,
            };
            match number.map(Interval::point) {
                None => otherwise = true,
                Some(one) if one.meet(range).is_some() => chosen = Some(chosen.map_or(one, |all| all.hull(one))),
                Some(_) => {}
            }
            if case.fall_through {
                if !case.body.is_empty() {
                    self.give_up();
                }
                continue;
            }
            if otherwise || chosen.is_some() {
                self.state.live = !self.gave_up;
                self.iterations = before;
                if let (Some(chosen), false) = (chosen, otherwise) {
                    self.restrict(cell, chosen, 1);
                }
                self.interpret_block(&case.body);
                if self.state.live {
                    max = max.max(self.iterations);
                    ends.push(self.state.delta(mark, u32::MAX));
                }
                self.state.undo(mark);
            }
            (chosen, otherwise) = (None, false);
        }
        if let Some(Target::Switch { breaks, max_at_break, .. }) = self.targets.pop() {
            ends.extend(breaks);
            max = max.max(max_at_break);
        }
        self.iterations = max;
        self.continue_from(ends);
    }

    fn interpret_store(&mut self, statement: StatementId, pointer: Handle<Expression>, value: Handle<Expression>) {
        let Value::Pointer(pointer) = self.value(pointer).clone() else { return self.give_up() };
        let mut new = self.value(value).clone();
        let frame = self.frame();
        // Conditions name expressions of this function, so they must not leave it.
        if pointer.slot < frame.base {
            new = new.without_conditions();
        }
        if pointer.path.is_empty() {
            self.record_step(statement, pointer.slot, value);
        } else {
            new = self.state.cell(pointer.slot).value.with(&pointer.path, &new);
        }
        self.state.store(pointer.slot, new);
    }
}
