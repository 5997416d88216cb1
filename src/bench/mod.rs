//! Benchmarks: what is measured, how, and how it is told.

mod number;
pub mod report;
pub mod results;
pub mod seeds;
