//! Benchmarks: what is measured, how, and how it is told.

pub mod bars;
mod number;
pub mod report;
pub mod results;
pub mod seeds;
pub mod statistics;
