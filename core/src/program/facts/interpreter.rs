//! The walk: a filter run on abstract values, calls followed into their functions.
//!
//! One walk passes every statement of every call once, and costs as much as the filter is long with
//! all its calls inlined. At a loop's head the variables that the loop stores to hold what they held
//! before the loop, or what is assumed for the end of a round. A walk that sees nothing beyond the
//! assumptions at the rounds' ends has shown that they hold, and all that it found with them.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use naga::valid::{FunctionInfo, ModuleInfo};
use naga::{
    Block, Expression, Function, GlobalVariable, Handle, LocalVariable, Module, Range, Statement, SwitchCase,
    SwitchValue,
};

use super::VerdictSet;
use super::interval::{IntKind, Interval};
use super::loops::{BackEdgeState, LoopTarget};
use super::scan::{FunctionScan, StatementId};
use super::state::{Delta, State};
use super::value::{Conditions, Shapes, Value};
use crate::program::prelude::Intrinsic;

/// Blocks inside each other, those of functions that are called included; beyond that nothing is
/// said. Bounds the stack. The verifier lets less through.
const MAX_DEPTH: usize = 2 * crate::program::MAX_NESTING;

/// Expressions, statements and changes of a walk; beyond that nothing is said. Bounds the time.
const MAX_WORK: u64 = 1 << 21;

/// The cell of the packet's first byte now, counted from where it was when the packet arrived.
pub(super) const HEAD_SHIFT: u32 = 0;

/// What the walks have found out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct InferredFacts {
    /// One past the furthest byte read and written, from where the packet began; 0 for none.
    pub(super) read_end: u64,
    pub(super) write_end: u64,
    pub(super) verdicts: VerdictSet,
    /// `u64::MAX` where there is no bound.
    pub(super) iterations: u64,
}

/// A function that is being walked.
pub(super) struct Frame<'a> {
    pub(super) function: &'a Function,
    pub(super) info: &'a FunctionInfo,
    pub(super) scan: Rc<FunctionScan>,
    /// The cells of its expressions begin here, those of its variables behind them.
    pub(super) base: u32,
    pub(super) arguments: Vec<Value>,
    /// Which call of it this is.
    pub(super) instance: u32,
    pub(super) mark: usize,
    pub(super) returns: Vec<Delta>,
    pub(super) result: Option<Value>,
    /// The most iterations on a path to where the function ends, see `AbstractInterpreter::iterations`.
    pub(super) at_end: u64,
}

impl Frame<'_> {
    pub(super) fn local(&self, local: Handle<LocalVariable>) -> u32 {
        self.base + (self.function.expressions.len() + local.index()) as u32
    }
}

/// Where `break` and `continue` lead.
pub(super) enum Target {
    Loop(LoopTarget),
    Switch {
        mark: usize,
        breaks: Vec<Delta>,
        /// The most iterations on a path to a `break`.
        at_break: u64,
    },
}

/// The parts of a program that facts are about.
pub(in crate::program) struct AnalysisInput<'a> {
    pub(in crate::program) module: &'a Module,
    pub(in crate::program) info: &'a ModuleInfo,
    pub(in crate::program) filter: Handle<Function>,
    pub(in crate::program) intrinsics: &'a HashMap<Handle<Function>, Intrinsic>,
    pub(in crate::program) prelude: &'a HashSet<Handle<Function>>,
}

pub(super) struct AbstractInterpreter<'a> {
    pub(super) module: &'a Module,
    pub(super) subject: &'a AnalysisInput<'a>,
    pub(super) shapes: Shapes<'a>,
    /// The values of the module's constant expressions.
    pub(super) constants: Vec<Value>,
    /// The cells of the filter's private variables.
    pub(super) privates: HashMap<Handle<GlobalVariable>, u32>,
    pub(super) scans: HashMap<Handle<Function>, Rc<FunctionScan>>,
    /// Calls by the call that they are made in and the statement.
    pub(super) instances: HashMap<(u32, StatementId), u32>,
    pub(super) state: State,
    pub(super) frames: Vec<Frame<'a>>,
    pub(super) targets: Vec<Target>,
    /// What is assumed for the end of each loop's rounds, and what the last walk has seen there.
    pub(super) assumed: HashMap<(u32, StatementId), BackEdgeState>,
    pub(super) seen: HashMap<(u32, StatementId), BackEdgeState>,
    /// Whether a loop of which nothing is assumed may do anything, or else never goes round.
    pub(super) pessimistic: bool,
    pub(super) found: InferredFacts,
    /// The most iterations on a path to this place, from where the innermost loop's round began, or
    /// else the filter; `u64::MAX` for no bound.
    pub(super) iterations: u64,
    depth: usize,
    gave_up: bool,
}

impl<'a> AbstractInterpreter<'a> {
    pub(super) fn new(subject: &'a AnalysisInput<'a>) -> AbstractInterpreter<'a> {
        let mut walk = AbstractInterpreter {
            module: subject.module,
            subject,
            shapes: Shapes::new(subject.module),
            constants: Vec::new(),
            privates: HashMap::new(),
            scans: HashMap::new(),
            instances: HashMap::new(),
            state: State::default(),
            frames: Vec::new(),
            targets: Vec::new(),
            assumed: HashMap::new(),
            seen: HashMap::new(),
            pessimistic: false,
            found: InferredFacts::default(),
            iterations: 0,
            depth: 0,
            gave_up: false,
        };
        walk.constants();
        walk
    }

    fn constants(&mut self) {
        for (_, expression) in self.module.global_expressions.iter() {
            let at = |e: &Handle<Expression>| self.constants[e.index()].clone();
            let value = match expression {
                Expression::Literal(literal) => Value::literal(*literal),
                Expression::Constant(constant) => at(&self.module.constants[*constant].init),
                Expression::ZeroValue(ty) => self.shapes.zero(*ty),
                Expression::Compose { ty, components } => self.shapes.compose(*ty, components.iter().map(at).collect()),
                Expression::Splat { size, value } => Value::Parts(Rc::new(vec![at(value); *size as usize])),
                _ => Value::Any,
            };
            self.constants.push(value);
        }
    }

    /// Walks the filter with what is assumed; `None` where that is too much.
    pub(super) fn run_pass(&mut self) -> Option<InferredFacts> {
        self.seen.clear();
        self.state = State::default();
        self.state.live = true;
        self.found = InferredFacts::default();
        self.frames.clear();
        self.targets.clear();
        self.iterations = 0;
        self.state.grow(1);
        self.state.evaluate(HEAD_SHIFT, Value::range(Interval::one(0)), None);
        self.privates();
        let filter = self.subject.filter;
        self.interpret_function(filter, vec![Value::Any], u32::MAX, std::ptr::null());
        self.found.iterations = self.iterations;
        (!self.gave_up).then(|| self.found.clone())
    }

    /// Gives the filter's own private variables their cells and initial values.
    fn privates(&mut self) {
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

    /// The expression that a cell belongs to.
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

    /// Goes on where one of several paths came out, all of which began here; nowhere if there is none.
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
                    let (mark, breaks, most) = match target {
                        Target::Loop(target) => (target.mark, &mut target.breaks, &mut target.last),
                        Target::Switch { mark, breaks, at_break } => (*mark, breaks, at_break),
                    };
                    *most = iterations.max(*most);
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
                    target.at_continue = target.at_continue.max(self.iterations);
                    target.continues.push(self.state.delta(target.mark, u32::MAX));
                }
                self.state.live = false;
            }
            Statement::Return { value } => {
                if self.frames.len() == 1 {
                    let verdicts = value.map_or(VerdictSet::ALL, |v| self.value(v).int(IntKind::Unsigned).verdicts);
                    self.found.verdicts = self.found.verdicts.union(verdicts);
                }
                self.interpret_return(*value);
            }
            Statement::Kill => {
                self.end_path();
                self.state.live = false;
            }
            Statement::Store { pointer, value } => self.store(std::ptr::from_ref(statement), *pointer, *value),
            Statement::Call { function, arguments, result } => {
                let value = self.interpret_call(std::ptr::from_ref(statement), *function, arguments);
                if let Some(result) = result {
                    let cell = self.cell_of(*result);
                    self.state.evaluate(cell, value, None);
                }
            }
            // The verifier refuses all the others.
            _ => self.give_up(),
        }
    }

    fn interpret_if(&mut self, condition: Handle<Expression>, accept: &'a Block, reject: &'a Block) {
        let condition = self.value(condition).bool();
        let mark = self.state.mark();
        let before = self.iterations;
        let side = |walk: &mut AbstractInterpreter<'a>, possible: bool, conditions: &Conditions, block: &'a Block| {
            walk.iterations = before;
            walk.state.live = possible && !walk.gave_up;
            let possible = walk.state.live;
            if possible {
                walk.assume(conditions);
                walk.interpret_block(block);
            }
            let delta = walk.state.live.then(|| walk.state.delta(mark, u32::MAX));
            walk.state.undo(mark);
            (delta, walk.iterations)
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
        let (before, mut most) = (self.iterations, self.iterations);
        self.targets.push(Target::Switch { mark, breaks: Vec::new(), at_break: 0 });
        let mut ends = Vec::new();
        // Several values for one body are cases that fall through with nothing in them.
        let (mut chosen, mut otherwise) = (None::<Interval>, false);
        for case in cases {
            let number = match case.value {
                SwitchValue::I32(n) => Some(i64::from(n)),
                SwitchValue::U32(n) => Some(i64::from(n)),
                SwitchValue::Default => None,
            };
            match number.map(Interval::one) {
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
                    most = most.max(self.iterations);
                    ends.push(self.state.delta(mark, u32::MAX));
                }
                self.state.undo(mark);
            }
            (chosen, otherwise) = (None, false);
        }
        if let Some(Target::Switch { breaks, at_break, .. }) = self.targets.pop() {
            ends.extend(breaks);
            most = most.max(at_break);
        }
        self.iterations = most;
        self.continue_from(ends);
    }

    fn store(&mut self, place: StatementId, pointer: Handle<Expression>, value: Handle<Expression>) {
        let Value::Pointer(pointer) = self.value(pointer).clone() else { return self.give_up() };
        let mut new = self.value(value).clone();
        let frame = self.frame();
        // What a bool says of this function's expressions ends with the function.
        if pointer.slot < frame.base {
            new = new.without_conditions();
        }
        if pointer.path.is_empty() {
            self.record_step(place, pointer.slot, value);
        } else {
            new = self.state.cell(pointer.slot).value.with(&pointer.path, &new);
        }
        self.state.store(pointer.slot, new);
    }
}
