//! Syntactic scan of a function's loops: which variables each loop assigns, and which of its stores
//! may be induction steps.

use std::collections::{HashMap, HashSet};

use naga::{
    BinaryOperator, Block, Expression, Function, GlobalVariable, Handle, LocalVariable, Module, Statement, TypeInner,
    UnaryOperator,
};

/// Identity of a statement: its address. The module does not move during the analysis.
pub(super) type StatementId = *const Statement;

/// A variable that a function can store to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Variable {
    Local(Handle<LocalVariable>),
    Private(Handle<GlobalVariable>),
    /// The pointee of the argument with this index.
    Argument(u32),
}

/// A test `local != against` that every iteration passes before it reaches the loop's only store to
/// the variable; the loop ends if it fails.
#[derive(Debug, Clone, Copy)]
pub(super) struct InequalityTest {
    pub(super) local: Handle<LocalVariable>,
    pub(super) against: Handle<Expression>,
    pub(super) upwards: bool,
    pub(super) step: u32,
}

/// Effects of a loop on variables.
#[derive(Debug, Default)]
pub(super) struct LoopScan {
    /// Variables that the loop may store to, through pointer arguments of calls as well (see also
    /// `calls`).
    pub(super) assigned: Vec<Variable>,
    /// Whether the loop calls functions, which may store to private variables.
    pub(super) calls: bool,
    /// Whether a `return` may leave the loop.
    pub(super) returns: bool,
    /// Stores that every complete iteration executes exactly once, to a local variable that the
    /// loop stores to nowhere else.
    pub(super) steps: HashSet<StatementId>,
    /// Tests for inequality of the variables in `steps`.
    pub(super) tests: Vec<InequalityTest>,
}

/// The loops of a function.
#[derive(Debug, Default)]
pub(super) struct FunctionScan {
    pub(super) loops: HashMap<StatementId, LoopScan>,
}

/// Stores in a part of a function.
#[derive(Debug, Default)]
struct Stores {
    /// Number of stores to each variable in the text.
    counts: HashMap<Variable, usize>,
    calls: bool,
    /// Whether the part contains a `continue` of the enclosing loop.
    continues: bool,
    returns: bool,
}

impl Stores {
    fn add(&mut self, other: Stores) {
        for (root, count) in other.counts {
            *self.counts.entry(root).or_default() += count;
        }
        self.calls |= other.calls;
        self.continues |= other.continues;
        self.returns |= other.returns;
    }
}

/// Scans the loops of a function.
pub(super) fn scan(module: &Module, function: &Function) -> FunctionScan {
    let mut scan = FunctionScan::default();
    scan_block(module, function, &function.body, &mut scan);
    scan
}

/// The variable that a pointer points into.
pub(super) fn root(function: &Function, mut pointer: Handle<Expression>) -> Option<Variable> {
    loop {
        match function.expressions[pointer] {
            Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => pointer = base,
            Expression::LocalVariable(local) => return Some(Variable::Local(local)),
            Expression::GlobalVariable(global) => return Some(Variable::Private(global)),
            Expression::FunctionArgument(index) => return Some(Variable::Argument(index)),
            _ => return None,
        }
    }
}

/// Whether an expression is a pointer to a variable.
fn is_pointer(module: &Module, function: &Function, expression: Handle<Expression>) -> bool {
    match root(function, expression) {
        Some(Variable::Argument(index)) => matches!(
            module.types[function.arguments[index as usize].ty].inner,
            TypeInner::Pointer { .. } | TypeInner::ValuePointer { .. }
        ),
        Some(_) => true,
        None => false,
    }
}

fn scan_block(module: &Module, function: &Function, body: &Block, scan: &mut FunctionScan) -> Stores {
    let mut stores = Stores::default();
    for statement in body {
        stores.add(scan_statement(module, function, statement, scan));
    }
    stores
}

fn scan_statement(module: &Module, function: &Function, statement: &Statement, scan: &mut FunctionScan) -> Stores {
    let mut stores = Stores::default();
    let mut store = |pointer| {
        if let Some(root) = root(function, pointer) {
            *stores.counts.entry(root).or_default() += 1;
        }
    };
    match statement {
        Statement::Store { pointer, .. } | Statement::Atomic { pointer, .. } => store(*pointer),
        Statement::Call { arguments, .. } => {
            arguments.iter().filter(|&&a| is_pointer(module, function, a)).for_each(|&a| store(a));
            stores.calls = true;
        }
        Statement::Continue => stores.continues = true,
        Statement::Return { .. } | Statement::Kill => stores.returns = true,
        Statement::Block(inner) => stores = scan_block(module, function, inner, scan),
        Statement::If { accept, reject, .. } => {
            stores = scan_block(module, function, accept, scan);
            stores.add(scan_block(module, function, reject, scan));
        }
        Statement::Switch { cases, .. } => {
            for case in cases {
                stores.add(scan_block(module, function, &case.body, scan));
            }
        }
        Statement::Loop { body, continuing, .. } => {
            stores = scan_loop(module, function, std::ptr::from_ref(statement), [body, continuing], scan);
        }
        _ => {}
    }
    stores
}

fn scan_loop(
    module: &Module,
    function: &Function,
    place: StatementId,
    [body, continuing]: [&Block; 2],
    scan: &mut FunctionScan,
) -> Stores {
    let mut stores = Stores::default();
    let mut always: Vec<&Statement> = Vec::new();
    let mut tests: Vec<(Handle<LocalVariable>, Handle<Expression>)> = Vec::new();
    let mut loaded: HashSet<Handle<Expression>> = HashSet::new();
    let body = flat(body).into_iter().map(|s| (s, true));
    let continuing = flat(continuing).into_iter().map(|s| (s, false));
    for (statement, in_body) in body.chain(continuing) {
        // Every complete iteration executes the statements at the top level of the body, unless an
        // earlier `continue` skips them. Nothing skips the continuing block.
        let certain = !in_body || !stores.continues;
        match statement {
            Statement::Emit(range) if certain => loaded.extend(range.clone()),
            Statement::Store { .. } if certain => always.push(statement),
            Statement::If { condition, accept, reject } if certain && in_body => {
                let differs = match (accept.is_empty(), reject.is_empty()) {
                    (true, false) if leaves(reject) => Some(true),
                    (false, true) if leaves(accept) => Some(false),
                    _ => None,
                };
                if let Some((local, load, against)) = differs.and_then(|d| difference(function, *condition, d))
                    && loaded.contains(&load)
                    && !stores.counts.contains_key(&Variable::Local(local))
                {
                    tests.push((local, against));
                }
            }
            _ => {}
        }
        stores.add(scan_statement(module, function, statement, scan));
    }
    stores.continues = false;

    let mut found = LoopScan { calls: stores.calls, returns: stores.returns, ..LoopScan::default() };
    found.assigned.extend(stores.counts.keys());
    for statement in always {
        let Statement::Store { pointer, value } = *statement else { continue };
        let Expression::LocalVariable(local) = function.expressions[pointer] else { continue };
        if stores.counts.get(&Variable::Local(local)) != Some(&1) {
            continue;
        }
        found.steps.insert(std::ptr::from_ref(statement));
        let Some((load, upwards, step)) = constant_step(function, local, value) else { continue };
        // A load from before this iteration may have seen another value.
        if step == 0 || !loaded.contains(&load) {
            continue;
        }
        let of_this = tests.iter().filter(|(tested, _)| *tested == local);
        found.tests.extend(of_this.map(|&(local, against)| InequalityTest { local, against, upwards, step }));
    }
    scan.loops.insert(place, found);
    stores
}

/// The statements of a block, with those of plain nested blocks in their place.
fn flat(block: &Block) -> Vec<&Statement> {
    let mut flat = Vec::new();
    let mut work = vec![block.iter()];
    while let Some(iter) = work.last_mut() {
        match iter.next() {
            Some(Statement::Block(inner)) => work.push(inner.iter()),
            Some(other) => flat.push(other),
            None => {
                work.pop();
            }
        }
    }
    flat
}

/// Whether a block only leaves the loop.
fn leaves(block: &Block) -> bool {
    matches!(block.last(), Some(Statement::Break | Statement::Return { .. }))
        && block.iter().all(|s| matches!(s, Statement::Emit(_) | Statement::Break | Statement::Return { .. }))
}

/// Matches `v != n`, or `v == n` if `differs` is false. Returns the variable, its load, and the
/// number.
fn difference(
    function: &Function,
    condition: Handle<Expression>,
    differs: bool,
) -> Option<(Handle<LocalVariable>, Handle<Expression>, Handle<Expression>)> {
    match function.expressions[condition] {
        Expression::Unary { op: UnaryOperator::LogicalNot, expr } => match function.expressions[expr] {
            // Front ends emit at most one negation.
            Expression::Binary { .. } => difference(function, expr, !differs),
            _ => None,
        },
        // If both operands must hold, or neither may, either operand alone implies that they
        // differ.
        Expression::Binary { op: BinaryOperator::LogicalAnd, left, right } if differs => {
            difference(function, left, true).or_else(|| difference(function, right, true))
        }
        Expression::Binary { op: BinaryOperator::LogicalOr, left, right } if !differs => {
            difference(function, left, false).or_else(|| difference(function, right, false))
        }
        Expression::Binary { op, left, right } => {
            if op != (if differs { BinaryOperator::NotEqual } else { BinaryOperator::Equal }) {
                return None;
            }
            let sides = [(left, right), (right, left)];
            sides.into_iter().find_map(|(load, against)| {
                let local = load_of(function, load)?;
                is_constant(function, against).then_some((local, load, against))
            })
        }
        _ => None,
    }
}

/// The local variable that an expression loads as a whole.
fn load_of(function: &Function, expression: Handle<Expression>) -> Option<Handle<LocalVariable>> {
    let Expression::Load { pointer } = function.expressions[expression] else { return None };
    match function.expressions[pointer] {
        Expression::LocalVariable(local) => Some(local),
        _ => None,
    }
}

fn is_constant(function: &Function, expression: Handle<Expression>) -> bool {
    matches!(
        function.expressions[expression],
        Expression::Literal(_) | Expression::Constant(_) | Expression::ZeroValue(_)
    )
}

/// Matches `v + n` or `v - n` for a literal `n`. Returns the load of `v`, whether it counts up, and
/// `n`.
fn constant_step(
    function: &Function,
    local: Handle<LocalVariable>,
    value: Handle<Expression>,
) -> Option<(Handle<Expression>, bool, u32)> {
    let literal = |e: Handle<Expression>| match function.expressions[e] {
        Expression::Literal(naga::Literal::U32(n)) => Some(n),
        Expression::Literal(naga::Literal::I32(n)) => u32::try_from(n).ok(),
        _ => None,
    };
    let is_load = |e| load_of(function, e) == Some(local);
    let (load, upwards, step) = match function.expressions[value] {
        Expression::Binary { op: BinaryOperator::Add, left, right } if is_load(left) => (left, true, right),
        Expression::Binary { op: BinaryOperator::Add, left, right } if is_load(right) => (right, true, left),
        Expression::Binary { op: BinaryOperator::Subtract, left, right } if is_load(left) => (left, false, right),
        _ => return None,
    };
    Some((load, upwards, literal(step)?))
}
