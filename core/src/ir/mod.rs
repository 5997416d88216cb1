//! Construction of naga IR for front ends that have a control-flow graph instead of WGSL text.

pub(crate) mod builder;
pub(crate) mod structure;
