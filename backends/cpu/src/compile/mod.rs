//! From a program to native code for whole batches of packets.
//!
//! - `pipeline`: chooses the styles to compile a filter in, and compiles them;
//! - `scalar`: Cranelift code for one packet at a time;
//! - `vector`: code for four or eight packets at a time, by way of an intermediate form of its own;
//! - `filter_code`: the compiled variants of one filter, and how a batch runs through them;
//! - `native`: functions in executable memory;
//! - `background`: compilation that goes on while a session already filters;
//! - `lpm_prefetch`: prefetching of longest-prefix-match searches;
//! - `cross`: machine code to be run elsewhere, for tests;
//! - below all of these: `abi` (what generated code is called with), `lowered` (code before it is
//!   linked), `types`, `processor`, `float_runtime`, `compiler_stack` and `errors`.

pub(crate) mod abi;
pub(crate) mod background;
mod compiler_stack;
pub mod cross;
pub(crate) mod errors;
pub(crate) mod filter_code;
mod float_runtime;
pub(crate) mod lowered;
mod lpm_prefetch;
mod native;
pub(crate) mod pipeline;
pub(crate) mod processor;
mod scalar;
mod types;
pub mod vector;
