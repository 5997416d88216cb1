//! Which styles of code a filter is compiled to, and their compilation.

use cranelift_codegen::isa::TargetIsa;
use portcullis_core::device::DeviceError;
use portcullis_core::program::Program;

use super::background::KeepGoing;
use super::compiler_stack::with_compiler_stack;
use super::errors::{failed, unsupported};
use super::filter_code::{FilterCode, PrefetchCode, PrefetchPolicy};
use super::lowered::{Lowered, Style};
use super::lpm_prefetch::LpmPrefetch;
use super::native::NativeCode;
use super::processor::Processor;
use super::scalar::{self, search_prefetch};
use super::vector::emit::{self, OffsetStrategy};
use super::vector::trace;

/// Scalar operations up to which a filter is compiled in more than one style. In larger filters
/// computation outweighs branches, and every further style takes as long to compile.
pub(crate) const MAX_OPERATIONS_FOR_VARIANTS: u64 = 20_000;

/// Scalar operations up to which prefetch code is compiled. It repeats what the filter does before
/// its first search; if that is more than this, it costs more than the search, and takes as long to
/// compile as the filter. Sample filters have at most 800.
const MAX_PREFETCH_OPERATIONS: u64 = 4_000;

/// The styles that a filter is compiled to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StyleSet {
    /// Every style that may be the fastest.
    All,
    /// The scalar styles among those.
    Scalar,
    /// One style.
    Only(Style),
}

/// Lowers a filter in its scalar styles, and in a vector style if `styles` asks for one by name.
/// The first function is scalar: it also filters the packets that the others leave over.
///
/// The flag is false if the first function is needed for leftover packets only.
pub(super) fn lower_variants(
    program: &Program,
    styles: StyleSet,
    isa: &dyn TargetIsa,
) -> Result<(Vec<(Style, Lowered)>, bool), DeviceError> {
    let lower = |style| scalar::lower(program, style, isa).map(|lowered| (style, lowered)).map_err(unsupported);
    let mut all = match styles {
        StyleSet::Only(style) if !style.is_vector() => return Ok((vec![lower(style)?], true)),
        _ => vec![lower(Style::BranchFree)?],
    };
    if let StyleSet::Only(style) = styles {
        all.extend(lower_vector_variants(program, Some(style), isa));
        let is_variant = all.len() == 1;
        return Ok((all, is_variant));
    }
    let first = &all[0].1;
    if first.saves_branches && first.operations <= MAX_OPERATIONS_FOR_VARIANTS {
        all.push(lower(Style::Branching)?);
    }
    Ok((all, true))
}

/// Lowers a filter in one vector style or in both. The result is empty if the filter or the
/// processor does not allow vector code.
fn lower_vector_variants(program: &Program, style: Option<Style>, isa: &dyn TargetIsa) -> Vec<(Style, Lowered)> {
    if !emit::is_supported(isa) {
        return Vec::new();
    }
    let Ok(lanes) = trace::trace(program) else { return Vec::new() };
    if !emit::preserves_map_order(&lanes) {
        return Vec::new();
    }
    let mut all = Vec::new();
    for (candidate, offsets) in
        [(Style::SpeculativeVector, OffsetStrategy::Speculate), (Style::Vector, OffsetStrategy::Gather)]
    {
        // Without variable offsets to speculate on the two styles are the same.
        if style.is_none_or(|style| style == candidate || all.is_empty() && candidate == Style::Vector)
            && let Ok(Some(lowered)) = emit::lower(&lanes, offsets, program.facts().redirects, isa)
        {
            all.push((candidate, lowered));
        }
    }
    all
}

/// Compiles the vector styles of a filter. Returns `None` if there are none, if compilation fails,
/// or if `keep_going` says to stop.
pub(crate) fn compile_vector_code(
    program: &Program,
    processor: Processor,
    keep_going: KeepGoing<'_>,
) -> Option<NativeCode> {
    let isa = processor.isa().ok()?;
    let lowered: Vec<_> = lower_vector_variants(program, None, &*isa).into_iter().map(|(_, lowered)| lowered).collect();
    if lowered.is_empty() || !keep_going() {
        return None;
    }
    NativeCode::new(lowered, isa).ok()
}

/// Lowers the code that prefetches a filter's first map search, if the filter has a search for
/// which that is worth trying.
fn lower_prefetch(
    program: &Program,
    policy: PrefetchPolicy,
    isa: &dyn TargetIsa,
) -> Result<Option<PrefetchCode>, DeviceError> {
    let prefetch_bytes = search_prefetch::prefetch_bytes(program);
    let searched = || program.maps().iter().zip(&prefetch_bytes).filter_map(|(map, bytes)| Some((map, (*bytes)?)));
    let is_large = |size| size >= search_prefetch::MIN_PREFETCHED_MAP_BYTES || policy == PrefetchPolicy::Always;
    let Some(bytes) = searched().map(|(_, bytes)| bytes).max() else { return Ok(None) };
    let pays = searched().any(|(map, _)| is_large(search_prefetch::map_bytes(map)));
    if !pays && !program.can_be_partitioned_by_search() {
        return Ok(None);
    }
    let lowered = scalar::lower_prefetch(program, isa).map_err(unsupported)?;
    let lowered =
        lowered.filter(|lowered| lowered.operations <= MAX_PREFETCH_OPERATIONS || policy == PrefetchPolicy::Always);
    let lpm_searches = program.maps().iter().map(LpmPrefetch::of).collect();
    Ok(lowered.map(|lowered| PrefetchCode { lowered, policy, pays, bytes, lpm_searches }))
}

/// Compiles a filter in every style that is worth it before the first packet arrives.
///
/// # Errors
///
/// [`DeviceError::Unsupported`] if the filter needs something that the code generator lacks,
/// [`DeviceError::Failed`] if code for `processor` does not run here or compilation fails.
pub(crate) fn compile_filter(
    program: &Program,
    styles: StyleSet,
    policy: PrefetchPolicy,
    processor: Processor,
) -> Result<FilterCode, DeviceError> {
    if !processor.is_of_host() {
        return Err(failed(format!("code for {} does not run on this processor", processor.name())));
    }
    with_compiler_stack(|| {
        let isa = processor.isa().map_err(failed)?;
        let (lowered, first_is_variant) = lower_variants(program, styles, &*isa)?;
        let lowered = lowered.into_iter().map(|(_, lowered)| lowered).collect();
        let prefetch = lower_prefetch(program, policy, &*isa)?;
        FilterCode::new(lowered, first_is_variant, prefetch, isa).map_err(failed)
    })
}

/// Renders a filter in Cranelift's intermediate form, before optimisation: a function for each
/// style of code, and one for the prefetch code (`check --emit clif`). 256-bit vector code, which
/// does not go through Cranelift, is rendered as a listing of its instructions.
///
/// # Errors
///
/// [`DeviceError::Unsupported`] if the filter needs something that the code generator lacks.
pub fn render_clif(program: &Program) -> Result<String, DeviceError> {
    with_compiler_stack(|| {
        let isa = Processor::Host.isa().map_err(failed)?;
        let mut text = String::new();
        let mut all = lower_variants(program, StyleSet::All, &*isa)?.0;
        if all[0].1.operations <= MAX_OPERATIONS_FOR_VARIANTS {
            all.extend(lower_vector_variants(program, None, &*isa));
        }
        for (style, lowered) in all {
            text += &format!("; {}\n{}", style.name(), lowered.body);
        }
        if let Some(PrefetchCode { lowered, .. }) = lower_prefetch(program, PrefetchPolicy::IfFaster, &*isa)? {
            text += &format!("; prefetch\n{}", lowered.body);
        }
        Ok(text)
    })
}
