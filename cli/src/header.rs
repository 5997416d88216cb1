//! `portcullis header`: prints the C header for OpenCL C filters.

use super::failure::Failure;
use super::out;

/// Print portcullis.h, the declarations available to OpenCL C filters
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Prints the header.
pub fn run(_: Args) -> Result<(), Failure> {
    out::print(portcullis::stock::OPENCL_C_HEADER)
}
