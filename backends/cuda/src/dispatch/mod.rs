//! The ways of handing batches to a GPU, a file each. What they have in common is [`slots`], the memory
//! that a part of a batch travels in, and [`entries`], launches that are posted to kernels which are
//! there already.

pub(crate) mod clock;
pub(crate) mod entries;
pub(crate) mod graph;
pub(crate) mod persistent;
pub(crate) mod pipelined;
pub(crate) mod slots;
pub(crate) mod waitvalue;
