//! Flows: sets of packets that a filter must handle one at a time, in order of arrival
//! (`docs/reference/semantics.md`, "Flows in order").
//!
//! The value of the filter's `xdp_flow` is hashed to a number of [`FLOW_BITS`] bits, and packets
//! with equal numbers keep their order; a collision of two flows is harmless. The number is
//! returned as a redirect's target. So a device computes it by running a program like any other,
//! with [`FLOW_NUMBER_FUNCTION`] as the filter.

use naga::{
    BinaryOperator, Block, Expression, Function, FunctionArgument, FunctionResult, Handle, Literal, Module, Range,
    Scalar, Span, Statement, Type, TypeInner,
};

use super::{Facts, Program};
use crate::packet::Action;

/// Number of bits of a flow number, which is a redirect's target.
pub const FLOW_BITS: u32 = 24;

/// Name of the generated function that returns a packet's flow number as a verdict.
const FLOW_NUMBER_FUNCTION: &str = "pc_flow";

/// Multiplier of the hash (2^32 divided by the golden ratio): the product's high bits depend on all
/// bits of the value.
const MULTIPLIER: u32 = 0x9e37_79b1;

/// The flow function of a program, and its facts.
#[derive(Debug, Clone)]
pub(super) struct Flow {
    /// The function named [`FLOW_NUMBER_FUNCTION`].
    pub function: Handle<Function>,
    pub facts: Facts,
}

/// Adds [`FLOW_NUMBER_FUNCTION`] to a module and returns its handle:
///
/// ```wgsl
/// fn pc_flow(pkt: u32) -> u32 {
///     return ((xdp_flow(pkt) * MULTIPLIER) & 0xffffff00u) | XDP_REDIRECT;
/// }
/// ```
pub(super) fn add(module: &mut Module, flow: Handle<Function>) -> Handle<Function> {
    let word = Type { name: None, inner: TypeInner::Scalar(Scalar::U32) };
    let ty = module.types.insert(word, Span::UNDEFINED);
    let mut function = Function {
        name: Some(FLOW_NUMBER_FUNCTION.into()),
        arguments: vec![FunctionArgument { name: Some("pkt".into()), ty, binding: None }],
        result: Some(FunctionResult { ty, binding: None }),
        ..Function::default()
    };
    let mut add = |e| function.expressions.append(e, Span::UNDEFINED);
    let packet = add(Expression::FunctionArgument(0));
    let [by, mask, redirect] = [MULTIPLIER, !0 << (32 - FLOW_BITS), Action::Redirect as u32]
        .map(|number| add(Expression::Literal(Literal::U32(number))));
    let value = add(Expression::CallResult(flow));
    let product = add(Expression::Binary { op: BinaryOperator::Multiply, left: value, right: by });
    let number = add(Expression::Binary { op: BinaryOperator::And, left: product, right: mask });
    let verdict = add(Expression::Binary { op: BinaryOperator::InclusiveOr, left: number, right: redirect });
    function.body = Block::from_vec(vec![
        Statement::Call { function: flow, arguments: vec![packet], result: Some(value) },
        Statement::Emit(Range::new_from_bounds(product, verdict)),
        Statement::Return { value: Some(verdict) },
    ]);
    module.functions.append(function, Span::UNDEFINED)
}

impl Program {
    /// Whether packets of one flow must be filtered one at a time, in order of arrival.
    pub fn has_flows(&self) -> bool {
        self.flow.is_some()
    }

    /// A program that redirects each packet to its flow number; `None` if the filter has no flows.
    /// A packet for which computing the number runs out of fuel is ABORTED and belongs to flow 0.
    pub fn flow_program(&self) -> Option<Program> {
        let flow = self.flow.as_ref()?;
        Some(Program { filter: flow.function, facts: flow.facts.clone(), flow: None, maps: Vec::new(), ..self.clone() })
    }
}
