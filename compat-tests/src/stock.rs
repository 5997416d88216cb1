//! The stock filters, compiled in from `shaders/`.

use std::path::Path;
use std::sync::Arc;

use portcullis_core::program::Program;

use crate::texts;

/// Names and sources of the stock filters with maps, in WGSL and in OpenCL C.
pub use portcullis::stock::{STATEFUL_OPENCL_C, STATEFUL_WGSL};

/// Names and WGSL sources of the stock filters without maps.
pub use portcullis::stock::STATELESS_WGSL as FILTERS;

/// Names and OpenCL C sources of the stock filters without maps.
pub use portcullis::stock::STATELESS_OPENCL_C as FILTERS_IN_C;

/// Names and sources of filters.
type Texts = &'static [(&'static str, &'static str)];

/// Compiles WGSL filters; returns their names and programs.
pub fn in_wgsl(filters: Texts) -> impl Iterator<Item = (&'static str, Arc<Program>)> {
    filters.iter().map(|&(name, text)| (name, texts::in_wgsl(&format!("{name}.wgsl"), text)))
}

/// Compiles OpenCL C filters; returns their names and programs.
pub fn in_opencl_c(filters: Texts) -> impl Iterator<Item = (&'static str, Arc<Program>)> {
    filters.iter().map(|&(name, text)| (name, texts::in_opencl_c(&format!("{name}.cl"), text)))
}

/// Returns the names and texts of all filters in OpenCL C without maps: the stock filters, those in
/// `compat-tests/filters` and those of the benches. Without a checkout, as in a bundle for another
/// machine, the stock filters only.
///
/// # Panics
/// If a file cannot be read.
pub fn all_in_opencl_c() -> Vec<(String, String)> {
    let stock = FILTERS_IN_C.iter().map(|(name, text)| ((*name).into(), (*text).into()));
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = ["filters", "../benches/filters"].map(|name| checkout.join(name));
    let folders = if checkout.exists() { &folders[..] } else { &[] };
    let entries = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{e}")));
    let files = entries.map(|entry| {
        let path = entry.unwrap_or_else(|e| panic!("{e}")).path();
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        (path.display().to_string(), text)
    });
    stock.chain(files).collect()
}

/// Returns how many bytes after a packet one of these filters may access.
pub fn reach(name: &str) -> usize {
    match Path::new(name).file_stem().and_then(|stem| stem.to_str()) {
        // At most eight extension headers of 2,048 bytes, whose presence is not checked.
        Some("http_only" | "gateway") => 9 * 2048,
        _ => 0,
    }
}

/// Returns a filter's text for a compiler without an include path, whose source begins with the
/// header.
pub fn without_include(text: &str) -> String {
    text.replace("#include <portcullis.h>", "")
}

#[cfg(test)]
mod tests {
    use super::*;

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
