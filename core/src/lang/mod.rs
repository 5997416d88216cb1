//! Front ends: from a filter's text to a [`Program`](crate::program::Program).

#[path = "../../../frontends/bpf/src/lib.rs"]
pub mod expression;
#[path = "../../../frontends/opencl-c/src/lib.rs"]
pub mod opencl_c;
#[path = "../../../frontends/wgsl/src/lib.rs"]
pub mod wgsl;
#[path = "../../../frontends/xdp/src/lib.rs"]
pub mod xdp;

pub use crate::diagnostics::{Diagnostic, Diagnostics, Label, MAX_SOURCE, Part, Source};
pub use crate::program::{FILTER_FUNCTION, FLOW_FUNCTION, prelude};
pub use crate::spelling as nearest;
pub use crate::stack::{COMPILE_STACK_BYTES, run_on_large_stack};
