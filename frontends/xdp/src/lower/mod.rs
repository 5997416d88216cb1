//! Lowering of analysed blocks to a naga function: the intermediate representation and its passes.

pub(crate) mod coalesce;
pub(crate) mod emit;
pub(crate) mod if_convert;
pub(crate) mod ir;
pub(crate) mod liveness;
mod map_functions;
mod prefix_trie;
pub(crate) mod privatize;
pub(crate) mod value_numbering;
