//! Filters for unit tests, parsed by naga alone, and random numbers.
//!
//! The WGSL front end depends on this crate, so the crate's own tests cannot use it. What it adds
//! to naga's parser are limits and diagnostics, which are tested there.

use std::sync::Arc;

use naga::front::wgsl::{Frontend, Options};

use crate::diagnostics::{Diagnostics, Source};
use crate::map;
use crate::program::map_declarations::{self, CommentSyntax};
use crate::program::{CAPABILITIES, Program, ProgramOptions, prelude};
use crate::stack::run_on_large_stack;

/// Builds a program from WGSL text, with the default options.
///
/// # Panics
/// If naga cannot parse the text, or the map declarations or the verifier refuse it.
pub(crate) fn program(text: &str) -> Arc<Program> {
    program_with(text, &ProgramOptions::default())
}

/// Like [`program`], with other options.
pub(crate) fn program_with(text: &str, options: &ProgramOptions) -> Arc<Program> {
    let program = compile(&Source::new("f.wgsl", text), options);
    Arc::new(program.unwrap_or_else(|errors| panic!("{}\n{text}", errors.render())))
}

fn compile(source: &Source, options: &ProgramOptions) -> Result<Program, Diagnostics> {
    let maps = map_declarations::declarations(&source.text, CommentSyntax::Wgsl)
        .map_err(|errors| Diagnostics { source: source.clone(), errors })?;
    run_on_large_stack(source, || {
        let text = format!("{}\n{}{}", source.text, prelude::TEXT, map::wgsl_text(&maps));
        let mut frontend =
            Frontend::new_with_options(Options { parse_doc_comments: false, capabilities: CAPABILITIES });
        let module = frontend.parse(&text).unwrap_or_else(|error| panic!("{}", error.emit_to_string(&text)));
        Program::new(source, module, maps, options)
    })?
}

/// SplitMix64 pseudorandom numbers (Steele, Lea and Flood, 2014), to make failures reproducible.
pub(crate) struct Random(pub u64);

impl Random {
    /// Returns the next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Returns one of the items.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }
}
