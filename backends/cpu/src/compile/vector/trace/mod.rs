//! From a program to lane IR, by symbolic execution of the filter.
//!
//! There is one state, the current value of every variable ([`Tracer::state`]), and one mask, the
//! lanes that are active ([`Tracer::active`]). Both arms of an `if` are executed from the same
//! state, each with its part of the lanes, and where they join the condition selects between the
//! values that they left (if-conversion). Lanes that leave early (`break`, `continue`, `return`,
//! out of fuel) become an [`Exit`], a mask and a state, and are merged where they continue. The
//! state does not matter in inactive lanes, so assignments need no masks.
//!
//! - `module`: the filter's module in the form that is traced;
//! - `scan`: a pass ahead of tracing: which variables are indexed, what functions may change;
//! - `facts`: what a mask implies about the packet's length;
//! - `tracer`: the state;
//! - `control`: statements, and calls, which are all inlined;
//! - `loops`, `assignments`: loops, unrolled if their number of iterations is known;
//! - `exits`: merging of states;
//! - `regions`: code that only some lanes execute;
//! - `expressions`, `math`, `places`: values, built-in functions, variables and pointers;
//! - `packet`: the prelude's functions on a packet, with the bounds checks that are needed.
//!
//! [`Tracer::state`]: tracer::Tracer::state
//! [`Tracer::active`]: tracer::Tracer::active
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

use super::ir::LaneIr;
use crate::compile::errors::{Result, Unsupported};
use module::LoweredModule;
use tracer::Tracer;

/// Traces a filter.
///
/// # Errors
///
/// [`Unsupported`] if the filter uses something that lane IR cannot express, or is too large.
pub(crate) fn trace(program: &Program) -> Result<LaneIr> {
    let facts = program.facts();
    if program.has_flows() {
        return Err(Unsupported("filtering the packets of a flow in order".into()));
    }
    let lowering = Lowering { int64: facts.uses_int64, ..Lowering::NONE };
    let lowered = lower(program, lowering).map_err(|error| Unsupported(error.to_string()))?;
    let code = LoweredModule {
        filter: lowered.filter,
        intrinsics: lowered.intrinsics,
        prelude: lowered.prelude,
        module: lowered.module,
        info: lowered.info,
    };
    let scanned = scan::ModuleScan::of(&code);
    Tracer::new(program, &code, &scanned).run()
}
