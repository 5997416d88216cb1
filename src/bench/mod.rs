//! Benchmarks: what is measured, how, and how it is told.

pub mod results;
