//! eBPF programs as instructions: the model that the front end's tests compare with, and tables of
//! instructions and of programs that no compiler emits.

#[path = "../../frontends/xdp/src/tests/model/mod.rs"]
#[allow(missing_docs, dead_code, reason = "it is shared with the front end's tests")]
pub mod model;

use portcullis_xdp as xdp;
