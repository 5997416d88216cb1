//! Benchmarks: what is measured, how, and how it is told.

pub mod bars;
pub mod report;
pub mod results;
