//! `portcullis header`

use super::failure::Failure;
use super::out;

/// Print portcullis.h, which tells editors and other compilers what filters in OpenCL C find declared
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Prints it.
pub fn run(_: Args) -> Result<(), Failure> {
    out::print(portcullis::stock::OPENCL_C_HEADER)
}
