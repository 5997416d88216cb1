//! WGSL in: the filter's text with the prelude behind it becomes one naga module.

use super::{Diagnostic, Diagnostics, FILTER, Source, prelude};
use crate::program::{Program, ProgramOptions};

/// Parses, validates and analyses a filter.
///
/// # Errors
/// Everything that is wrong with the text, with its place.
pub fn compile(source: &Source, options: &ProgramOptions) -> Result<Program, Diagnostics> {
    let one = |error| Diagnostics::one(source, error);
    // Behind the filter, so that the filter's own lines keep their numbers.
    let text = format!("{}\n{}", source.text, prelude::TEXT);
    let module = naga::front::wgsl::parse_str(&text).map_err(|error| {
        let mut diagnostic = Diagnostic::new(error.message());
        for (span, message) in error.labels() {
            if let Some(range) = span.to_range() {
                diagnostic = diagnostic.at(range, message);
            }
        }
        one(diagnostic)
    })?;
    if !module.functions.iter().any(|(_, f)| f.name.as_deref() == Some(FILTER)) {
        return Err(one(Diagnostic::new(format!("there is no function `{FILTER}`"))));
    }
    Program::new(source, module, options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_compiles() {
        let source = Source::new(
            "f.wgsl",
            "fn xdp_filter(pkt: u32) -> u32 { return select(XDP_DROP, XDP_PASS, load_be16(pkt, 12u) == ETH_P_IP); }",
        );
        compile(&source, &ProgramOptions::default()).map_err(|e| e.render()).unwrap();
    }
}
