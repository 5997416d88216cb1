//! Fuel counter, for devices that cannot leave a filter in the middle (`docs/reference/passes.md`,
//! "Fuel").
//!
//! Every loop body of the filter and its helpers starts with
//!
//! ```wgsl
//! if pc_fuel == 0u {
//!     if !pc_aborted {
//!         pc_aborted = true;
//!         pc_saved_length = pc_length;
//!         pc_length = 0u;
//!         pc_first = pc_offset;
//!         pc_last = pc_offset;
//!     }
//!     break;
//! }
//! pc_fuel = pc_fuel - 1u;
//! ```
//!
//! A packet that runs out of fuel is aborted, and the effects of the filter up to then remain. The
//! code behind the loop still runs but has no visible effect: in a packet of length 0 that cannot
//! grow, every store and every change of length fails, and every further loop ends at once. The
//! entry point restores the length and forces the verdict.

use naga::{
    AddressSpace, BinaryOperator, Block, Expression, Function, GlobalVariable, Handle, Literal, Module, Range, Scalar,
    Span, Statement, Type, TypeInner, UnaryOperator,
};

use super::super::PreludeInternals;
use super::rewrite::child_blocks_mut;

/// Private variables of the fuel counter. Their initialisers are right for an invocation that
/// handles one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FuelState {
    /// `pc_fuel`, `u32`: remaining iterations; initially the program's fuel.
    pub fuel: Handle<GlobalVariable>,
    /// `pc_aborted`, `bool`: whether the packet ran out of fuel; initially false.
    pub aborted: Handle<GlobalVariable>,
    /// `pc_saved_length`, `u32`: the packet's length when it ran out of fuel.
    pub saved_length: Handle<GlobalVariable>,
}

/// Adds the counter to the loops of all functions that `is_own` selects. `None` if they have no
/// loops.
pub(super) fn run(
    module: &mut Module,
    fuel: u32,
    internals: &PreludeInternals,
    is_own: impl Fn(Handle<Function>) -> bool,
) -> Option<FuelState> {
    let mut state = None;
    // Take the functions out of the module, so that the variables can be added to it when the first
    // loop is found.
    let mut functions = std::mem::take(&mut module.functions);
    for (handle, function) in functions.iter_mut() {
        if !is_own(handle) {
            continue;
        }
        let Function { expressions, body, .. } = function;
        let mut counter = None;
        let mut work = vec![body];
        while let Some(block) = work.pop() {
            for statement in block.iter_mut() {
                if let Statement::Loop { body, .. } = statement {
                    let state = *state.get_or_insert_with(|| add_fuel_variables(module, fuel));
                    let counter = counter.get_or_insert_with(|| Counter::new(expressions, internals, &state));
                    body.splice(0..0, counter.check(expressions));
                }
                work.extend(child_blocks_mut(statement));
            }
        }
    }
    module.functions = functions;
    state
}

fn add_fuel_variables(module: &mut Module, fuel: u32) -> FuelState {
    let mut private = |name: &str, scalar: Scalar, init: Literal| {
        let ty = module.types.insert(Type { name: None, inner: TypeInner::Scalar(scalar) }, Span::UNDEFINED);
        let init = module.global_expressions.append(Expression::Literal(init), Span::UNDEFINED);
        let variable = GlobalVariable {
            name: Some(name.into()),
            space: AddressSpace::Private,
            binding: None,
            ty,
            init: Some(init),
            memory_decorations: Default::default(),
        };
        module.global_variables.append(variable, Span::UNDEFINED)
    };
    FuelState {
        fuel: private("pc_fuel", Scalar::U32, Literal::U32(fuel)),
        aborted: private("pc_aborted", Scalar::BOOL, Literal::Bool(false)),
        saved_length: private("pc_saved_length", Scalar::U32, Literal::U32(0)),
    }
}

/// Operands of the check, created once per function; none of them needs to be emitted.
struct Counter {
    fuel: Handle<Expression>,
    aborted: Handle<Expression>,
    saved_length: Handle<Expression>,
    offset: Handle<Expression>,
    length: Handle<Expression>,
    first: Handle<Expression>,
    last: Handle<Expression>,
    zero: Handle<Expression>,
    one: Handle<Expression>,
    yes: Handle<Expression>,
}

impl Counter {
    fn new(to: &mut naga::Arena<Expression>, internals: &PreludeInternals, state: &FuelState) -> Counter {
        let mut add = |e| to.append(e, Span::UNDEFINED);
        Counter {
            fuel: add(Expression::GlobalVariable(state.fuel)),
            aborted: add(Expression::GlobalVariable(state.aborted)),
            saved_length: add(Expression::GlobalVariable(state.saved_length)),
            offset: add(Expression::GlobalVariable(internals.offset)),
            length: add(Expression::GlobalVariable(internals.length)),
            first: add(Expression::GlobalVariable(internals.first)),
            last: add(Expression::GlobalVariable(internals.last)),
            zero: add(Expression::Literal(Literal::U32(0))),
            one: add(Expression::Literal(Literal::U32(1))),
            yes: add(Expression::Literal(Literal::Bool(true))),
        }
    }

    /// The statements at the start of a loop's body.
    fn check(&self, to: &mut naga::Arena<Expression>) -> Block {
        let store = |pointer, value| Statement::Store { pointer, value };
        let mut add = |e| to.append(e, Span::UNDEFINED);

        let fuel = add(Expression::Load { pointer: self.fuel });
        let empty = add(Expression::Binary { op: BinaryOperator::Equal, left: fuel, right: self.zero });
        let less = add(Expression::Binary { op: BinaryOperator::Subtract, left: fuel, right: self.one });
        let aborted = add(Expression::Load { pointer: self.aborted });
        let first_time = add(Expression::Unary { op: UnaryOperator::LogicalNot, expr: aborted });
        let length = add(Expression::Load { pointer: self.length });
        let offset = add(Expression::Load { pointer: self.offset });

        let shut = Block::from_vec(vec![
            store(self.aborted, self.yes),
            Statement::Emit(Range::new_from_bounds(length, offset)),
            store(self.saved_length, length),
            store(self.length, self.zero),
            store(self.first, offset),
            store(self.last, offset),
        ]);
        let exhausted = Block::from_vec(vec![
            Statement::Emit(Range::new_from_bounds(aborted, first_time)),
            Statement::If { condition: first_time, accept: shut, reject: Block::new() },
            Statement::Break,
        ]);
        Block::from_vec(vec![
            Statement::Emit(Range::new_from_bounds(fuel, empty)),
            Statement::If { condition: empty, accept: exhausted, reject: Block::new() },
            Statement::Emit(Range::new_from_bounds(less, less)),
            store(self.fuel, less),
        ])
    }
}
