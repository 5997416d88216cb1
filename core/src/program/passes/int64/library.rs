//! The arithmetic on pairs: `library.wgsl`, parsed once.

use std::sync::OnceLock;

use naga::{Function, Handle, Module};

/// WGSL source of the library.
const TEXT: &str = include_str!("library.wgsl");

/// The library as a naga module.
pub(super) fn module() -> &'static Module {
    static MODULE: OnceLock<Module> = OnceLock::new();
    MODULE.get_or_init(|| {
        naga::front::wgsl::parse_str(TEXT).unwrap_or_else(|e| panic!("library.wgsl: {}", e.emit_to_string(TEXT)))
    })
}

/// The library function with this name.
pub(super) fn function(name: &str) -> Handle<Function> {
    let found = module().functions.iter().find(|(_, f)| f.name.as_deref() == Some(name));
    found.unwrap_or_else(|| panic!("library.wgsl has no {name}")).0
}
