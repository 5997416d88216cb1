//! Every stock filter on every corpus and every device, against the reference interpreter and
//! against models of the filters that were written apart from them.

pub mod corpora;
pub mod devices;
pub mod generator;
pub mod harness;
pub mod layouts;
pub mod models;
pub mod shrink;
pub mod stock;
