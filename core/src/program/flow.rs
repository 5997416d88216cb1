//! Flows: packets that a filter wants one at a time, in the order in which they came (`docs/semantics.md`, "Flows in
//! order").
//!
//! What a filter's `xdp_flow` gives becomes a number of [`FLOW_BITS`] bits, and packets of equal numbers keep their
//! order: that two flows may share one is no harm. The number is a redirect's target. So a device gets it by running
//! a program like any other, whose filter is [`FUNCTION`], and needs nothing new for it.

use naga::{
    BinaryOperator, Block, Expression, Function, FunctionArgument, FunctionResult, Handle, Literal, Module, Range,
    Scalar, Span, Statement, Type, TypeInner,
};

use super::{Facts, Program};
use crate::packet::Action;

/// Bits of a flow's number: those of a redirect's target.
pub const FLOW_BITS: u32 = 24;

/// The function that gives a packet's number as a verdict.
const FUNCTION: &str = "pc_flow";

/// What numbers are multiplied by, so that their highest bits depend on all of their bits: the golden ratio's.
const MULTIPLIER: u32 = 0x9e37_79b1;

/// What is known of a program's flows.
#[derive(Debug, Clone)]
pub(super) struct Flow {
    /// [`FUNCTION`].
    pub function: Handle<Function>,
    pub facts: Facts,
}

/// Adds [`FUNCTION`] to a module:
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
        name: Some(FUNCTION.into()),
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
    /// Whether the filter wants the packets of a flow one at a time, in the order in which they came.
    pub fn has_flows(&self) -> bool {
        self.flow.is_some()
    }

    /// A program that redirects each packet to the number of its flow, where the filter has flows. A packet whose number
    /// cannot be worked out within the fuel is ABORTED, and belongs to flow 0.
    pub fn flow_program(&self) -> Option<Program> {
        let flow = self.flow.as_ref()?;
        Some(Program { filter: flow.function, facts: flow.facts.clone(), flow: None, maps: Vec::new(), ..self.clone() })
    }
}
