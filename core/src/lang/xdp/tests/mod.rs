//! Programs through the whole front end, in the interpreter of filters, against an interpreter of eBPF's own.

mod blocks;
mod by_hand;
mod found;
mod instructions;
#[allow(dead_code, reason = "the tests with the kernel use the rest")]
mod model;
mod programs;

use crate as tree;
