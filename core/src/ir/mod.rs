//! Construction of naga IR for front ends that have a control-flow graph instead of WGSL text.

pub mod builder;
pub mod structure;
