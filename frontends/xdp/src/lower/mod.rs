//! Lowering of analysed blocks to a naga function: the IR and its passes.
//!
//! Passes run in this order: [`coalesce`] merges packet accesses while the IR is built,
//! [`privatize`] decides which map values packets copy, [`value_numbering`] forwards reads across
//! blocks, [`liveness`] finds what is needed, [`if_convert`] merges conditions, and [`emit`] writes
//! the function.

pub(crate) mod coalesce;
pub(crate) mod emit;
pub(crate) mod if_convert;
pub(crate) mod ir;
pub(crate) mod liveness;
mod map_functions;
mod prefix_trie;
pub(crate) mod privatize;
pub(crate) mod value_numbering;
