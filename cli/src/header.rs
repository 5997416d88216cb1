//! `portcullis header`

use super::failure::Failure;
use super::out;

/// Print portcullis.h, the declarations available to OpenCL C filters
#[derive(Debug, clap::Args)]
pub struct Args {}

pub fn run(_: Args) -> Result<(), Failure> {
    out::print(portcullis::stock::OPENCL_C_HEADER)
}
