//! Lowering of analysed blocks to a naga function: [`if_convert`] merges conditions, and [`emit`]
//! writes the function.

pub(crate) mod emit;
pub(crate) mod if_convert;
mod map_functions;
mod prefix_trie;
