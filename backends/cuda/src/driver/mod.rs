//! The CUDA driver: its functions, contexts, streams, events, and a device opened for one session.
//!
//! Everything else in this crate is built on this module, which imports none of it.

mod api;
pub(crate) mod context;
pub(crate) mod gpu;
pub(crate) mod stream;

pub(crate) use api::{Driver, ErrorCode, check};
pub(crate) use portcullis_core::device::offload::poll;
