//! Front ends: from a filter's text to a [`Program`](crate::program::Program).

mod builder;
mod diagnostics;
pub mod expression;
pub mod nearest;
pub mod opencl_c;
pub mod prelude;
mod shown;
mod stack;
mod structure;
pub mod wgsl;
pub mod xdp;

pub use diagnostics::{Diagnostic, Diagnostics, Label, Part, Source};
pub use stack::{LARGE_STACK, on_large_stack};

/// The largest source text taken, in bytes.
pub const MAX_SOURCE: usize = 1 << 20;

/// The name of the function that is the filter.
pub const FILTER: &str = "xdp_filter";

/// The name of the function that says which flow a packet belongs to, where a filter has one.
pub const FLOW: &str = "xdp_flow";
