//! Benchmarks of Portcullis: the measuring matrix, statistics, and results as JSON, CSV and HTML.

pub mod bars;
pub mod caveats;
pub mod ceilings;
#[cfg(test)]
mod commit;
pub mod compare;
pub mod comparison_tables;
pub mod csv;
#[cfg(test)]
mod faulty;
pub mod machine;
pub mod measure;
pub mod number;
pub mod oracle;
pub mod report;
pub mod results;
pub mod run;
pub mod statistics;
pub mod traffic;
pub mod xdp_on_gpu;
