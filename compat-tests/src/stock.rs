//! The stock filters, compiled in from `shaders/`.

/// Names and sources of the stock filters with maps, in WGSL and in OpenCL C.
pub use portcullis::stock::{STATEFUL_OPENCL_C, STATEFUL_WGSL};

/// Names and WGSL sources of the stock filters without maps.
pub use portcullis::stock::STATELESS_WGSL as FILTERS;

/// Names and OpenCL C sources of the stock filters without maps.
pub use portcullis::stock::STATELESS_OPENCL_C as FILTERS_IN_C;

/// Returns the WGSL source of a stock filter without maps.
///
/// # Panics
/// If there is no such filter.
pub fn text(name: &str) -> &'static str {
    FILTERS.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no stock filter {name}")).1
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis_core::diagnostics::Source;
    use portcullis_core::program::ProgramOptions;
    use portcullis_wgsl as wgsl;

    #[test]
    fn every_stock_filter_compiles() {
        for (name, text) in FILTERS.iter().chain(STATEFUL_WGSL) {
            let source = Source::new(format!("{name}.wgsl"), *text);
            if let Err(errors) = wgsl::compile(&source, &ProgramOptions::default()) {
                panic!("{}", errors.render());
            }
        }
    }

    #[test]
    fn every_filter_file_is_embedded_and_documented() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../shaders");
        let readme = std::fs::read_to_string(format!("{folder}/README.md")).unwrap();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|e| e == "wgsl") {
                let name = path.file_stem().unwrap().to_str().unwrap();
                let is_in = |texts: &[(&str, &str)]| texts.iter().any(|(known, _)| *known == name);
                assert!(is_in(FILTERS) || is_in(STATEFUL_WGSL), "{name} is not listed");
                assert!(is_in(FILTERS_IN_C) || is_in(STATEFUL_OPENCL_C), "{name} is not there in OpenCL C");
                assert!(readme.contains(&format!("| `{name}` |")), "{name} has no row in shaders/README.md");
            }
        }
    }
}
