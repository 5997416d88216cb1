//! wgpu itself: a device opened for one session, and imports of host memory.
//!
//! Everything else in this crate is built on this module, which imports none of it.

#[cfg(test)]
pub(crate) mod calls;
pub(crate) mod gpu;
pub(crate) mod host_import;
