//! OpenCL C in: the filter's text becomes one naga module.

pub mod files;
mod lexer;
pub mod preprocessor;
pub mod token;
