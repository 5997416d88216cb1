//! Programs of eBPF as instructions: the model that the core's tests hold the front end to, with tables of instructions and
//! programs that nobody would write.

#[path = "../../frontends/xdp/src/tests/model/mod.rs"]
#[allow(missing_docs, dead_code, reason = "it is shared with the front end's tests")]
pub mod model;

use portcullis_xdp as xdp;
