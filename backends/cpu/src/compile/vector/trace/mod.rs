//! From a program to lane IR, by symbolic execution of the filter.
//!
//! There is one state, the current value of every variable ([`Trace::state`]), and one mask, the
//! lanes that are active ([`Trace::here`]). Both arms of an `if` are executed from the same state,
//! each with its part of the lanes, and where they join the condition selects between the values
//! that they left (if-conversion). Lanes that leave early (`break`, `continue`, `return`, out of
//! fuel) are an [`Exit`]: a mask and a state, merged where those lanes continue. The state does not
//! matter in inactive lanes, so assignments need no masks.
//!
//! - `module`: the filter's module in the form that is traced;
//! - `scan`: a pass ahead of tracing: which variables are indexed, what functions may change;
//! - `facts`: what a mask implies about the packet's length;
//! - `tracer`: the state;
//! - `control`: statements, and calls, which are all inlined;
//! - `loops`, `assignments`: loops, unrolled if their trip count is known;
//! - `exits`: merging of states;
//! - `regions`: code that only some lanes execute;
//! - `expressions`, `math`, `places`: values, built-in functions, variables and pointers;
//! - `packet`: the prelude's functions on a packet, with the bounds checks that are needed.
//!
//! [`Trace::state`]: tracer::Trace::state
//! [`Trace::here`]: tracer::Trace::here
//! [`Exit`]: tracer::Exit

mod assignments;
mod control;
mod exits;
mod expressions;
mod facts;
mod loops;
mod math;
mod module;
mod packet;
mod places;
mod regions;
mod scan;
mod tracer;

use portcullis_core::program::{Lowering, Program, lower};

use super::ir::Lanes;
use crate::compile::errors::{Result, Unsupported};
use module::Code;
use tracer::Trace;

/// Traces a filter.
///
/// # Errors
/// [`Unsupported`], with what the filter does that cannot be done in lanes, or what there is too
/// much of.
pub(crate) fn trace(program: &Program) -> Result<Lanes> {
    let facts = program.facts();
    if program.has_flows() {
        return Err(Unsupported("packets of a flow in their order".into()));
    }
    let lowering = Lowering { int64: facts.uses_int64, ..Lowering::NONE };
    let lowered = lower(program, lowering).map_err(|error| Unsupported(error.to_string()))?;
    let code = Code {
        filter: lowered.filter,
        intrinsics: lowered.intrinsics,
        prelude: lowered.prelude,
        module: lowered.module,
        info: lowered.info,
    };
    let scanned = scan::Scan::of(&code);
    Trace::new(program, &code, &scanned).run()
}
