//! Building naga IR, for front ends whose language is not WGSL: a function builder, and structured
//! control flow from a control-flow graph.

pub mod builder;
pub mod structure;
