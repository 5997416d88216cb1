//! From lane IR to native code: a function with a loop over groups of packets, one packet per
//! vector lane.
//!
//! - `plan`: decisions made ahead: which rows of a packet to load, which offsets to speculate on;
//! - `cranelift`: groups of four packets, for any processor with suitable 128-bit vectors;
//! - `avx2`: groups of eight packets, if the processor has AVX2 and the filter has no effects.
//!
//! # Memory safety
//!
//! No filter and no packet can make the code access memory outside the packet, except for what may
//! be read past the arena's end:
//!
//! - rows and words at constant offsets lie less than [`plan::ALWAYS_READABLE`] bytes behind the
//!   packet's first byte, which is never past the arena's end;
//! - loads at variable offsets either have a range that guarantees the same in every lane, or their
//!   offset is replaced by 0 in lanes in which the access would leave the packet;
//! - effects access memory only in the lanes of their masks, in which `trace` has made sure that
//!   they stay in the packet or in the map; other lanes read the packet's first bytes or the map's
//!   first word, and write to a scratch slot on the stack;
//! - indices into tables and arrays are in range in every lane, as their ranges say, which hold for
//!   unspecified values as well: see `cranelift::regions`.

mod avx2;
mod cranelift;
pub(super) mod plan;
#[cfg(test)]
mod step_tests;
#[cfg(test)]
mod tests;

use cranelift_codegen::isa::TargetIsa;

use super::ir::LaneIr;
use crate::compile::errors::{Result, Unsupported};
use crate::compile::lowered::Lowered;
use plan::Plan;
pub(crate) use plan::{OffsetStrategy, preserves_map_order};

/// Nodes up to which a filter is compiled to vector code. Larger ones would take several times as
/// long to compile as scalar code.
const MAX_NODES: usize = 6_000;

/// Whether a processor can compare, blend, shuffle, insert and extract 32-bit lanes of a 128-bit
/// vector with single instructions.
pub(crate) fn is_supported(isa: &dyn TargetIsa) -> bool {
    let has = |name: &str| isa.isa_flags().iter().any(|flag| flag.name == name && flag.as_bool() == Some(true));
    match isa.triple().architecture.to_string().as_str() {
        "x86_64" => has("has_ssse3") && has("has_sse41"),
        // NEON is part of the baseline.
        "aarch64" => true,
        _ => false,
    }
}

/// Emits vector code for a filter. Returns `None` if `offsets` is [`OffsetStrategy::Speculate`] and
/// there is nothing to speculate on.
///
/// # Errors
///
/// [`Unsupported`] if the processor lacks the vectors, or the filter is too large.
pub(crate) fn lower(
    lanes: &LaneIr,
    offsets: OffsetStrategy,
    redirects: bool,
    isa: &dyn TargetIsa,
) -> Result<Option<Lowered>> {
    if !is_supported(isa) {
        return Err(Unsupported("a processor without suitable vectors".into()));
    }
    let mut lanes = lanes.clone();
    let plan = Plan::new(&mut lanes, offsets);
    if plan.node_count > MAX_NODES {
        return Err(Unsupported(format!("more than {MAX_NODES} operations in vector code")));
    }
    if offsets == OffsetStrategy::Speculate && plan.speculations.is_empty() {
        return Ok(None);
    }
    if avx2::is_supported(isa)
        && let Ok(lowered) = avx2::lower(&lanes, &plan, redirects)
    {
        return Ok(Some(lowered));
    }
    cranelift::lower(&lanes, &plan, redirects, isa).map(Some)
}
