//! Suites of devices, linked into one program for machines without a checkout (`cargo xtask
//! gpu-bundle`). Suites that need other programs, or the sources at run time, are left out.

mod batches;
mod contention;
mod flows;
mod host_maps;
mod maps;
mod opencl_compilers;
mod random_filters;
mod resubmission;
mod stateful_filters;
mod stock_filters;
mod transfers;
