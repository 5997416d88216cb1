//! Verifier: rejects what a packet filter may not contain, each with its location and reason.
//! naga's validator checks every module too; this module rejects what naga accepts or explains
//! badly.
//!
//! - [`declarations`]: entry points, resources and types. Runs before naga's validator, which would
//!   complain of something missing from a declaration that must not exist.
//! - [`statements`]: barriers, subgroups, textures and the like. Also before naga's validator.
//! - [`operands`]: operands of built-in functions that naga accepts and WGSL does not.
//! - [`opaque_packet`]: `pkt` may only be passed to functions.
//! - [`flow`]: computing a packet's flow has no side effects.
//! - [`limits`]: memory, statements, nesting.

mod declarations;
mod explain;
mod flow;
mod limits;
mod opaque_packet;
mod operands;
mod statements;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use naga::valid::ModuleInfo;
use naga::{Function, Handle, Module, Span};

use crate::diagnostics::{Diagnostic, Diagnostics, Source};
use crate::program::FILTER_FUNCTION;
use crate::program::prelude::Intrinsic;

pub(super) use explain::{explain, plain_message};
pub use limits::{
    MAX_EXPRESSIONS, MAX_FUNCTION_PARAMETERS, MAX_NESTING, MAX_PRIVATE_BYTES, MAX_STATEMENTS, MAX_TYPE_DEPTH,
};
pub use opaque_packet::for_each_operand;
pub(crate) use opaque_packet::is_computed;
pub use statements::child_blocks;

/// Maximum number of diagnostics reported; the last one counts the rest.
const MAX_ERRORS: usize = 20;

/// A module to verify, with its functions classified.
pub(super) struct VerifierInput<'a> {
    /// The filter's source.
    pub source: &'a Source,
    /// The module.
    pub module: &'a Module,
    /// The filter's main function.
    pub filter: Handle<Function>,
    /// The function that maps a packet to its flow, if there is one.
    pub flow: Option<Handle<Function>>,
    /// The prelude functions that filters may call.
    pub intrinsics: &'a HashMap<Handle<Function>, Intrinsic>,
    /// All functions of the prelude.
    pub prelude: &'a HashSet<Handle<Function>>,
}

impl<'a> VerifierInput<'a> {
    /// The filter and its helpers.
    fn own_functions(&self) -> impl Iterator<Item = (Handle<Function>, &'a Function)> + '_ {
        self.module.functions.iter().filter(|(handle, _)| !self.prelude.contains(handle))
    }

    /// The functions that the device calls.
    fn roots(&self) -> impl Iterator<Item = Handle<Function>> {
        [Some(self.filter), self.flow].into_iter().flatten()
    }

    /// Source range of a function's name.
    fn name_of(&self, function: Handle<Function>) -> Option<Range<usize>> {
        let name = self.module.functions[function].name.as_deref().unwrap_or_default();
        name_range(self.source, self.module.functions.get_span(function), name)
    }
}

/// The diagnostic for a module without a filter function.
pub(super) fn no_filter(source: &Source, module: &Module) -> Diagnostic {
    let mut error = Diagnostic::new(format!("there is no function `{FILTER_FUNCTION}`"));
    if let Some(entry) = module.entry_points.iter().find(|entry| entry.name == FILTER_FUNCTION) {
        error = Diagnostic::new(format!("`{FILTER_FUNCTION}` is an entry point"));
        if let Some(text_range) = declarations::entry_point_name_range(source, entry) {
            error = error.at(text_range, "");
        }
    }
    error.note(format!("a filter is the plain function `fn {FILTER_FUNCTION}(pkt: u32) -> u32`, without attributes"))
}

/// Rejects what must not be in a module, before naga's validator runs.
///
/// # Errors
/// All violations found.
pub(super) fn check_unvalidated(input: &VerifierInput) -> Result<(), Diagnostics> {
    let mut errors = Errors::new(input.source);
    declarations::check(input, &mut errors);
    statements::check(input, &mut errors);
    errors.finish()
}

/// Rejects what a valid module may still not do.
///
/// # Errors
/// All violations found.
pub(super) fn check_validated(input: &VerifierInput, info: &ModuleInfo) -> Result<(), Diagnostics> {
    let mut errors = Errors::new(input.source);
    opaque_packet::check(input, &mut errors);
    flow::check(input, &mut errors);
    operands::check(input, info, &mut errors);
    limits::check(input, info, &mut errors);
    errors.finish()
}

/// Collects diagnostics, in source order; one for each source range.
struct Errors<'a> {
    source: &'a Source,
    at: BTreeMap<(usize, usize), Diagnostic>,
}

impl<'a> Errors<'a> {
    fn new(source: &'a Source) -> Errors<'a> {
        Errors { source, at: BTreeMap::new() }
    }

    /// Adds a diagnostic at a source range; at none for code that is not in the filter's source.
    fn add(&mut self, text_range: Option<Range<usize>>, message: impl Into<String>, label: &str, note: &str) {
        let key = text_range.clone().map_or((0, 0), |p| (p.start, p.end));
        let mut error = Diagnostic::new(message);
        if let Some(text_range) = text_range {
            error = error.at(text_range, label);
        }
        if !note.is_empty() {
            error = error.note(note);
        }
        self.at.entry(key).or_insert(error);
    }

    fn finish(self) -> Result<(), Diagnostics> {
        if self.at.is_empty() {
            return Ok(());
        }
        let more = self.at.len().saturating_sub(MAX_ERRORS);
        let mut errors: Vec<_> = self.at.into_values().take(MAX_ERRORS).collect();
        if more > 0 {
            errors.push(Diagnostic::new(format!("and {more} more of these")));
        }
        Err(Diagnostics { source: self.source.clone(), errors })
    }
}

/// Byte range of a span, if it is in the filter's source.
pub(super) fn text_range(source: &Source, span: Span) -> Option<Range<usize>> {
    let range = span.to_range()?;
    (range.start < source.text.len()).then(|| range.start..range.end.min(source.text.len()))
}

/// Byte range of a declaration's name, or of the whole declaration if the name is not found in it.
pub(super) fn name_range(source: &Source, span: Span, name: &str) -> Option<Range<usize>> {
    let range = text_range(source, span)?;
    let text = source.text.get(range.clone())?;
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let found = text.match_indices(name).map(|(at, _)| at).find(|&at| {
        !name.is_empty() && !text[..at].ends_with(is_part) && !text[at + name.len()..].starts_with(is_part)
    });
    Some(found.map_or(range.clone(), |at| range.start + at..range.start + at + name.len()))
}
