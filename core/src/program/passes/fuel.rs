//! The fuel counter, for devices that cannot leave a filter in the middle (`docs/passes.md`, "Fuel").
//!
//! At the start of every loop body of the filter and its helpers goes
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
//! A packet whose fuel is used up is aborted on the spot, and what the filter did before that
//! stays. The code behind the loop still runs, but does nothing that can be seen: in a packet of
//! length 0 that cannot grow every store and every change of length is refused, and every further
//! loop ends at once. The entry point puts the length back and forces the verdict.

use naga::{
    AddressSpace, BinaryOperator, Block, Expression, Function, GlobalVariable, Handle, Literal, Module, Range, Scalar,
    Span, Statement, Type, TypeInner, UnaryOperator,
};

use super::super::PreludeInternals;
use super::rewrite::child_blocks_mut;

/// The private variables of the fuel counter. They start with the right values: an invocation
/// handles one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FuelState {
    /// `pc_fuel`, `u32`: iterations left; starts as the program's fuel.
    pub fuel: Handle<GlobalVariable>,
    /// `pc_aborted`, `bool`: whether the fuel was used up; starts as false.
    pub aborted: Handle<GlobalVariable>,
    /// `pc_saved_length`, `u32`: the packet's length when that happened.
    pub saved_length: Handle<GlobalVariable>,
}

/// Adds the counter to every function that is the filter's `own`; nothing where none of them has a
/// loop.
pub(super) fn run(
    module: &mut Module,
    fuel: u32,
    internals: &PreludeInternals,
    own: impl Fn(Handle<Function>) -> bool,
) -> Option<FuelState> {
    let mut state = None;
    // The functions are taken out: the globals are added to the module only when a loop is met.
    let mut functions = std::mem::take(&mut module.functions);
    for (handle, function) in functions.iter_mut() {
        if !own(handle) {
            continue;
        }
        let Function { expressions, body, .. } = function;
        let mut counter = None;
        let mut work = vec![body];
        while let Some(block) = work.pop() {
            for statement in block.iter_mut() {
                if let Statement::Loop { body, .. } = statement {
                    let state = *state.get_or_insert_with(|| globals(module, fuel));
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

fn globals(module: &mut Module, fuel: u32) -> FuelState {
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

/// One function's operands of the check: what needs no emitting, made once.
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

    /// The statements for the start of one loop's body.
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
