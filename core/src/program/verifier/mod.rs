//! What a filter may not do, each refusal with its place and reason. naga's validator has a look at
//! every module too; this is what it lets through and a packet filter must not have.
//!
//! - [`declarations`]: entry points, resources, types: before naga's validator, because it would
//!   complain of what is missing from things that must not be there at all;
//! - [`statements`]: barriers, subgroups, textures and the like, for the same reason also before;
//! - [`operands`]: what built-ins take in naga and do not in WGSL;
//! - [`packet`]: that `pkt` is only ever handed on;
//! - [`flow`]: that asking for a packet's flow changes nothing;
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
pub use statements::child_blocks;

/// Diagnostics shown of one run; a text that is wrong in more places gets a count of the rest.
const MAX_ERRORS: usize = 20;

/// The functions of a module, told apart.
pub(super) struct VerifierInput<'a> {
    /// The text.
    pub source: &'a Source,
    /// The module.
    pub module: &'a Module,
    /// The filter.
    pub filter: Handle<Function>,
    /// What says which flow a packet belongs to.
    pub flow: Option<Handle<Function>>,
    /// What filters may call of the prelude.
    pub intrinsics: &'a HashMap<Handle<Function>, Intrinsic>,
    /// All of the prelude.
    pub prelude: &'a HashSet<Handle<Function>>,
}

impl<'a> VerifierInput<'a> {
    /// The filter and its helpers.
    fn own_functions(&self) -> impl Iterator<Item = (Handle<Function>, &'a Function)> + '_ {
        self.module.functions.iter().filter(|(handle, _)| !self.prelude.contains(handle))
    }

    /// What the device calls.
    fn roots(&self) -> impl Iterator<Item = Handle<Function>> {
        [Some(self.filter), self.flow].into_iter().flatten()
    }

    /// Where a function's name stands.
    fn name_of(&self, function: Handle<Function>) -> Option<Range<usize>> {
        let name = self.module.functions[function].name.as_deref().unwrap_or_default();
        name_range(self.source, self.module.functions.get_span(function), name)
    }
}

/// Why a module has no function that is the filter.
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

/// Refuses what must not be there, whether or not naga's validator would take it.
///
/// # Errors
/// Everything found.
pub(super) fn check_unvalidated(parts: &VerifierInput) -> Result<(), Diagnostics> {
    let mut errors = Errors::new(parts.source);
    declarations::check(parts, &mut errors);
    statements::check(parts, &mut errors);
    errors.finish()
}

/// Refuses what a valid module may still not do.
///
/// # Errors
/// Everything found.
pub(super) fn check_validated(parts: &VerifierInput, info: &ModuleInfo) -> Result<(), Diagnostics> {
    let mut errors = Errors::new(parts.source);
    opaque_packet::check(parts, &mut errors);
    flow::check(parts, &mut errors);
    operands::check(parts, info, &mut errors);
    limits::check(parts, info, &mut errors);
    errors.finish()
}

/// Diagnostics in the making, by place; one for each place.
struct Errors<'a> {
    source: &'a Source,
    at: BTreeMap<(usize, usize), Diagnostic>,
}

impl<'a> Errors<'a> {
    fn new(source: &'a Source) -> Errors<'a> {
        Errors { source, at: BTreeMap::new() }
    }

    /// Adds a refusal at a place of the text. A place outside the text (what naga made up itself)
    /// leaves a diagnostic without one.
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

/// The bytes of a span, if it lies in the filter's text.
pub(super) fn text_range(source: &Source, span: Span) -> Option<Range<usize>> {
    let range = span.to_range()?;
    (range.start < source.text.len()).then(|| range.start..range.end.min(source.text.len()))
}

/// The bytes of a declaration's name; all of the declaration where it is not found.
pub(super) fn name_range(source: &Source, span: Span, name: &str) -> Option<Range<usize>> {
    let range = text_range(source, span)?;
    let text = source.text.get(range.clone())?;
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let found = text.match_indices(name).map(|(at, _)| at).find(|&at| {
        !name.is_empty() && !text[..at].ends_with(is_part) && !text[at + name.len()..].starts_with(is_part)
    });
    Some(found.map_or(range.clone(), |at| range.start + at..range.start + at + name.len()))
}
