//! Memory that both host and device use: buffers of sessions, and imported memory of packet
//! sources.

mod bind_group;
mod buffers;
mod imports;

pub(crate) use bind_group::{Binding, CachedBindGroup};
pub(crate) use buffers::{Download, MIN_CAPACITY, Upload};
pub(crate) use imports::ImportCache;
