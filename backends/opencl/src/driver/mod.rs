//! OpenCL itself: the library, a device opened for one session, and completion of commands.
//!
//! Everything else in this crate is built on this module, which imports none of it.

pub(crate) mod completion;
pub(crate) mod gpu;
pub(crate) mod loader;
pub(crate) mod signals;
