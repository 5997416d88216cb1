//! Filters for unit tests, parsed by naga alone.
//!
//! The WGSL front end depends on this crate, so the crate's own tests cannot use it. What it adds
//! to naga's parser are limits and diagnostics, which are tested there.

use naga::front::wgsl::{Frontend, Options};

use crate::diagnostics::{Diagnostics, Source};
use crate::map::{self, parser::CommentSyntax};
use crate::program::{CAPABILITIES, Program, ProgramOptions, prelude};
use crate::stack::run_on_large_stack;

/// Builds a program from WGSL text.
///
/// # Errors
/// What the map declarations and the verifier refuse.
///
/// # Panics
/// If naga cannot parse the text.
pub(crate) fn compile(source: &Source, options: &ProgramOptions) -> Result<Program, Diagnostics> {
    let maps = map::parser::declarations(&source.text, CommentSyntax::Wgsl)
        .map_err(|errors| Diagnostics { source: source.clone(), errors })?;
    run_on_large_stack(source, || {
        let text = format!("{}\n{}{}", source.text, prelude::TEXT, map::wgsl_text(&maps));
        let mut frontend =
            Frontend::new_with_options(Options { parse_doc_comments: false, capabilities: CAPABILITIES });
        let module = frontend.parse(&text).unwrap_or_else(|error| panic!("{}", error.emit_to_string(&text)));
        Program::new(source, module, maps, options)
    })?
}
